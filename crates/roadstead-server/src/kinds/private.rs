//! What is never written into the audit log, whatever the policy says: the contents of Secrets and
//! tokens. ConfigMaps are written only if a rule names them.

use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::identity::audit::Level;
use crate::request::path::ResourcePath;

/// The most that is written about a request. `named` are the resources in the rule that applies.
pub(crate) fn most(path: &ResourcePath, named: bool) -> Level {
    match (&*path.group, &*path.plural, &*path.subresource) {
        ("", "secrets", _)
        | ("", "serviceaccounts", "token")
        | ("authentication.k8s.io", "tokenreviews", _) => Level::Metadata,
        // What clients and pods tell each other is none of ours.
        (_, _, "proxy") => Level::Metadata,
        ("", "configmaps", _) if !named => Level::Metadata,
        _ => Level::RequestResponse,
    }
}

/// A body without secrets: some requests carry objects of other kinds than their path says, be it
/// by mistake.
pub(crate) fn redacted(mut body: Value) -> Value {
    redact(&mut body);
    body
}

fn redact(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(redact),
        Value::Object(fields) => {
            let kind = fields.get("kind").and_then(Value::as_str).unwrap_or("");
            if matches!(kind, "Secret" | "SecretList" | "TokenRequest" | "TokenReview") {
                *value = outline(value);
            } else {
                fields.values_mut().for_each(redact);
            }
        }
        _ => {}
    }
}

/// Which object it is, and nothing of what is in it.
fn outline(object: &Value) -> Value {
    let mut outline = json!({"kind": object["kind"]});
    for field in ["apiVersion", "name", "namespace"] {
        if object.has(&format!("/{field}")) {
            outline[field] = object[field].clone();
        }
    }
    for field in ["name", "namespace", "uid"] {
        if object.has(&format!("/metadata/{field}")) {
            outline["metadata"][field] = object["metadata"][field].clone();
        }
    }
    outline
}

#[test]
fn bodies_without_secrets() {
    for (body, want) in [
        (json!({"kind": "Pod", "spec": {"a": 1}}), json!({"kind": "Pod", "spec": {"a": 1}})),
        (
            json!({"kind": "Secret", "apiVersion": "v1", "data": {"p": "eA=="},
                "metadata": {"name": "s", "annotations": {"last": "eA=="}}}),
            json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}}),
        ),
        (
            json!({"kind": "List", "items": [{"kind": "List", "items": [
                {"kind": "Secret", "stringData": {"p": "x"}}]}, {"kind": "Pod"}]}),
            json!({"kind": "List", "items": [{"kind": "List", "items": [{"kind": "Secret"}]},
                {"kind": "Pod"}]}),
        ),
        (
            json!({"kind": "SecretList", "items": [{"data": {"p": "eA=="}}]}),
            json!({"kind": "SecretList"}),
        ),
        (
            json!([{"op": "add", "path": "/x", "value": {"kind": "TokenReview",
                "spec": {"token": "x"}}}]),
            json!([{"op": "add", "path": "/x", "value": {"kind": "TokenReview"}}]),
        ),
        (
            json!({"spec": {"ref": {"kind": "Secret", "name": "s"}}}),
            json!({"spec": {"ref": {"kind": "Secret", "name": "s"}}}),
        ),
    ] {
        assert_eq!(redacted(body), want);
    }
}
