//! Requests for certificates: what they must say, what may become of them, and how they are shown.
//! What is inside of the request itself, an X.509 document, is read by the API server.

use roadstead_schema::age::age;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::kinds::plain::{PlainKind, cluster, shown};
use crate::table::{AGE, Cell, Column, NAME};

pub(super) static KIND: PlainKind = PlainKind {
    selectable: &[("spec.signerName", "/spec/signerName")],
    // Who asked for what does not change once somebody may have approved it.
    update: |old, new| new["spec"] = old["spec"].clone(),
    check: validate,
    check_status: validate_status,
    ..shown(
        cluster(
            "certificates.k8s.io",
            "CertificateSigningRequest",
            "certificatesigningrequests",
            "certificatesigningrequest",
        )
        .short(&["csr"])
        .with_status(),
        &[
            NAME,
            AGE,
            (Column::text("SignerName"), Cell::Text("/spec/signerName")),
            (Column::text("Requestor"), Cell::Text("/spec/username")),
            (Column::text("RequestedDuration"), Cell::Made(requested_duration)),
            (Column::text("Condition"), Cell::Made(condition)),
        ],
    )
};

/// The shortest time that anybody may ask for, in seconds.
pub const SHORTEST: i64 = 600;

/// The signer that this version of the API has no more.
const LEGACY: &str = "kubernetes.io/legacy-unknown";

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

fn requested_duration(request: &Value) -> String {
    match request.has("/spec/expirationSeconds") {
        true => age(request.int("/spec/expirationSeconds")),
        false => "<none>".into(),
    }
}

/// `Pending`, `Approved,Issued`, `Denied`, `Approved,Failed`.
fn condition(request: &Value) -> String {
    let has = |name: &str| of_type(request, name).next().is_some();
    let mut words = vec![match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }];
    words.extend(has("Failed").then_some("Failed"));
    words.extend((!request.text("/status/certificate").is_empty()).then_some("Issued"));
    words.join(",")
}

fn of_type<'a>(request: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    let conditions = request.list("/status/conditions").iter();
    conditions.filter(move |condition| condition.text("/type") == name)
}

/// What must be true of a new request.
pub(super) fn validate(new: &Value, old: Option<&Value>, causes: &mut Causes) {
    // Nobody can change it later.
    if old.is_none() {
        validate_spec(&new["spec"], causes);
    }
}

/// What must be true of a decision, and of what came of it.
pub(super) fn validate_status(new: &Value, old: &Value, causes: &mut Causes) {
    validate_change(old, new, causes);
    let decisions = ["Approved", "Denied"].map(|name| of_type(new, name).next());
    if decisions.iter().all(Option::is_some) {
        let detail = "Approved and Denied conditions are mutually exclusive";
        causes.invalid("status.conditions", &json!("Denied"), detail);
    }
    for decision in decisions.into_iter().flatten() {
        let status = &decision["status"];
        if status != "True" {
            causes.unsupported("status.conditions.status", status, &["True"]);
        }
    }
}

fn validate_spec(spec: &Value, causes: &mut Causes) {
    if spec.text("/request").is_empty() {
        causes.required("spec.request", "");
    }
    let usages = spec.list("/usages");
    if usages.is_empty() {
        causes.required("spec.usages", "usages must be provided");
    }
    for (index, usage) in usages.iter().enumerate() {
        let field = format!("spec.usages[{index}]");
        if !usage.as_str().is_some_and(|usage| USAGES.contains(&usage)) {
            causes.unsupported(field, usage, &USAGES);
        } else if usages[..index].contains(usage) {
            causes.duplicate(field, usage);
        }
    }
    validate_signer(spec, causes);
    let seconds = &spec["expirationSeconds"];
    if seconds.as_i64().is_some_and(|seconds| seconds < SHORTEST) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        causes.invalid("spec.expirationSeconds", seconds, detail);
    }
}

fn validate_signer(spec: &Value, causes: &mut Causes) {
    let signer = spec.text("/signerName");
    let field = "spec.signerName";
    match signer.split_once('/') {
        _ if signer.is_empty() => causes.required(field, ""),
        _ if signer == LEGACY => {
            let detail = format!("{LEGACY} is not allowed via this API version");
            causes.invalid(field, &json!(signer), detail);
        }
        Some((domain, path)) if domain.contains('.') && !path.is_empty() => {}
        _ => {
            let detail = "must be a fully qualified domain and path of the form \
                'example.com/signer-name'";
            causes.invalid(field, &json!(signer), detail);
        }
    }
}

/// A decision stands, and so does what came of it.
fn validate_change(old: &Value, new: &Value, causes: &mut Causes) {
    for name in ["Approved", "Denied", "Failed"] {
        let (before, after) = (of_type(old, name), of_type(new, name));
        let (before, after): (Vec<_>, Vec<_>) = (before.collect(), after.collect());
        if after.len() < before.len() {
            let detail = format!("updates may not remove a condition of type {name:?}");
            causes.forbidden("status.conditions", &detail);
        } else if !before.is_empty() && before != after {
            let detail = format!("updates may not modify a condition of type {name:?}");
            causes.forbidden("status.conditions", &detail);
        }
    }
    let (before, after) = (old.text("/status/certificate"), new.text("/status/certificate"));
    if !before.is_empty() && before != after {
        let detail = "updates may not modify existing certificate content";
        causes.forbidden("status.certificate", detail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+A -D ,F c`: conditions by their first letters, and a certificate.
    fn request(state: &str) -> Value {
        let named = |letter| match letter {
            'A' => Some("Approved"),
            'D' => Some("Denied"),
            'F' => Some("Failed"),
            _ => None,
        };
        let conditions = state.chars().filter_map(named);
        let conditions = conditions.map(|name| json!({"type": name, "status": "True"}));
        let mut request = json!({"status": {"conditions": conditions.collect::<Vec<_>>()},
            "spec": {"request": "eA==", "usages": ["client auth"], "signerName": "a.b/c"}});
        if state.contains('c') {
            request["status"]["certificate"] = "eA==".into();
        }
        request
    }

    #[test]
    fn conditions() {
        for (state, want) in [
            ("", "Pending"),
            ("A", "Approved"),
            ("Ac", "Approved,Issued"),
            ("AF", "Approved,Failed"),
            ("D", "Denied"),
            ("c", "Pending,Issued"),
        ] {
            assert_eq!(condition(&request(state)), want, "{state}");
        }
        let mut long = request("");
        long["spec"]["expirationSeconds"] = 86_400.into();
        assert_eq!([&request(""), &long].map(requested_duration), ["<none>", "24h"]);
    }

    #[test]
    fn changes() {
        for (old, new, allowed) in [
            ("", "A", true),
            ("", "D", true),
            ("", "AD", false),
            ("A", "", false),
            ("A", "D", false),
            ("A", "Ac", true),
            ("A", "AF", true),
            ("AF", "A", false),
            ("Ac", "A", false),
            ("D", "D", true),
        ] {
            let mut causes = Causes::default();
            validate_status(&request(new), &request(old), &mut causes);
            assert_eq!(causes.0.is_empty(), allowed, "{old} → {new}: {:?}", causes.0);
        }
    }

    #[test]
    fn new_requests() {
        let good = || request("")["spec"].take();
        let with = |field: &str, value: Value| {
            let mut spec = good();
            spec[field] = value;
            json!({"spec": spec})
        };
        for (request, want) in [
            (json!({"spec": good()}), 0),
            (with("request", json!("")), 1),
            (with("usages", json!([])), 1),
            (with("usages", json!(["client auth", "flying"])), 1),
            (with("usages", json!(["client auth", "client auth"])), 1),
            (with("signerName", json!("")), 1),
            (with("signerName", json!("example.com")), 1),
            (with("signerName", json!("local/x")), 1),
            (with("signerName", json!(LEGACY)), 1),
            (with("expirationSeconds", json!(599)), 1),
            (with("expirationSeconds", json!(600)), 0),
        ] {
            let mut causes = Causes::default();
            validate(&request, None, &mut causes);
            assert_eq!(causes.0.len(), want, "{request}: {:?}", causes.0);
        }
    }
}
