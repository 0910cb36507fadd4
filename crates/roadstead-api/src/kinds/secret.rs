//! Secret: a ConfigMap for what nobody should read by accident.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, default_to};
use roadstead_schema::protobuf::base64;
use serde_json::Value;

use crate::kind::{Info, Kind};
use crate::kinds::contents;
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

pub(super) struct Secret;

static INFO: Info = Info::new("", "v1", "Secret", "secrets", "secret");

impl Kind for Secret {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        default_to(object, "type", "Opaque");
        take_texts(object);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        if old.is_some_and(|old| old.text("/type") != object.text("/type")) {
            causes.invalid("type", &object["type"], "field is immutable");
        }
        if let Some(old) = old {
            contents::validate_frozen(object, old, &["data"], causes);
        }
        contents::validate_keys(object, "data", causes);
        contents::validate_size(contents::byte_size(object, "data"), "data", causes);
        for key in required(object.text("/type")) {
            if object["data"].get(key).is_none() {
                causes.required(format!("data[{key}]"), "");
            }
        }
    }

    fn table(&self) -> &'static [ColumnCell] {
        const {
            &[
                NAME,
                (Column::text("Type"), Cell::Value("/type")),
                (Column::int("Data"), Cell::CountIn(&["/data"])),
                AGE,
            ]
        }
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("type", "/type")]
    }
}

/// `stringData` is for writing only: it ends up in `data`, in the place of what was there.
fn take_texts(object: &mut Value) {
    let texts = object.as_object_mut().and_then(|fields| fields.remove("stringData"));
    let Some(Value::Object(texts)) = texts else { return };
    let data = child(object, "data");
    for (key, text) in texts {
        data[&key] = base64(text.as_str().unwrap_or("").as_bytes()).into();
    }
}

/// The keys without which a type makes no sense.
fn required(ty: &str) -> &'static [&'static str] {
    match ty {
        "kubernetes.io/dockercfg" => &[".dockercfg"],
        "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
        "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
        "kubernetes.io/tls" => &["tls.crt", "tls.key"],
        _ => &[],
    }
}

#[test]
fn texts_become_data() {
    use serde_json::json;
    let mut secret =
        json!({"data": {"a": "b2xk", "b": "YQ=="}, "stringData": {"a": "new", "c": ""}});
    Secret.default(&mut secret);
    let want = json!({"type": "Opaque", "data": {"a": "bmV3", "b": "YQ==", "c": ""}});
    assert_eq!(secret, want);
}

#[test]
fn mistakes() {
    use serde_json::json;
    let frozen = json!({"immutable": true, "type": "Opaque", "data": {"a": "YQ=="}});
    let cases = [
        (
            json!({"data": {"a/b": ""}}),
            None,
            "data[a/b]: Invalid value: \"a/b\": a valid config key",
        ),
        (
            json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}),
            None,
            "data[tls.key]: Required value",
        ),
        (
            json!({"immutable": true, "type": "Opaque", "data": {"a": "Yg=="}}),
            Some(&frozen),
            "data: Forbidden: field is immutable when `immutable` is set",
        ),
        (
            json!({"data": {"a": "AAAA".repeat((1 << 20) / 3 + 1)}}),
            None,
            "data: Too long: may not be more than 1048576 bytes",
        ),
    ];
    for (object, old, want) in cases {
        let mut causes = Causes::default();
        Secret.validate(&object, old, &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert!(found.len() == 1 && found[0].starts_with(want), "{found:?}");
    }
}
