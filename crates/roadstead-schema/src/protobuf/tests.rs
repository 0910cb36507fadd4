use proptest::prelude::*;

use super::*;

mod round_trip;

/// Builds messages for tests: `message(&[(1, text("a")), (2, number(3))])`.
fn message(fields: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, content) in fields {
        // The first byte is the type on the wire.
        varint(&mut out, u64::from(number << 3 | u32::from(content[0])));
        out.extend_from_slice(&content[1..]);
    }
    out
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(value: u64) -> Vec<u8> {
    let mut out = vec![0];
    varint(&mut out, value);
    out
}

fn fixed(value: f64) -> Vec<u8> {
    [1].into_iter().chain(value.to_bits().to_le_bytes()).collect()
}

fn bytes(content: &[u8]) -> Vec<u8> {
    let mut out = vec![2];
    varint(&mut out, content.len() as u64);
    out.extend_from_slice(content);
    out
}

fn text(content: &str) -> Vec<u8> {
    bytes(content.as_bytes())
}

fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = message(&[(1, text(version)), (2, text(kind))]);
    let mut out = MAGIC.to_vec();
    out.extend(message(&[(1, bytes(&meta)), (2, bytes(raw)), (3, text("")), (4, text(""))]));
    out
}

#[test]
fn a_service_as_go_writes_it() {
    let metadata = message(&[
        (1, text("web")),
        (2, text("")),
        (7, number(0)),
        (8, bytes(&[])),
        (11, bytes(&message(&[(1, text("app")), (2, text("web"))]))),
    ]);
    let port = message(&[
        (1, text("")),
        (2, text("TCP")),
        (3, number(80)),
        (4, bytes(&message(&[(1, number(0)), (2, number(8080)), (3, text(""))]))),
        (5, number(0)),
    ]);
    let named = message(&[(1, number(1)), (2, number(0)), (3, text("http"))]);
    let second = message(&[(3, number(81)), (4, bytes(&named))]);
    let spec = message(&[
        (1, bytes(&port)),
        (1, bytes(&second)),
        (2, bytes(&message(&[(1, text("app")), (2, text("web"))]))),
        (3, text("")),
        (4, text("ClusterIP")),
        (12, number(0)),
    ]);
    let status = message(&[(1, bytes(&[]))]);
    let raw = message(&[(1, bytes(&metadata)), (2, bytes(&spec)), (3, bytes(&status))]);
    let object = decode(&envelope("v1", "Service", &raw)).unwrap();
    assert_eq!(
        object,
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {
                "type": "ClusterIP",
                "selector": {"app": "web"},
                "ports": [
                    {"port": 80, "protocol": "TCP", "targetPort": 8080},
                    {"port": 81, "targetPort": "http"},
                ],
            },
        })
    );
}

#[test]
fn inlined_messages_and_meaningful_zeros() {
    let handler = message(&[(2, bytes(&message(&[(1, text("/healthz"))])))]);
    let probe = message(&[(1, bytes(&handler)), (2, number(0)), (3, number(5))]);
    let volume = message(&[(1, text("v")), (2, bytes(&message(&[(2, bytes(&[]))])))]);
    let container = message(&[(1, text("c")), (10, bytes(&probe))]);
    let spec = message(&[(1, bytes(&volume)), (2, bytes(&container)), (4, number(0))]);
    let raw = message(&[(2, bytes(&spec))]);
    let object = decode(&envelope("v1", "Pod", &raw)).unwrap();
    assert_eq!(
        object["spec"],
        json!({
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [
                {"name": "c", "livenessProbe": {"httpGet": {"path": "/healthz"}, "timeoutSeconds": 5}},
            ],
            "terminationGracePeriodSeconds": 0,
        })
    );
}

#[test]
fn zeros_that_switch_something_off() {
    let rules = message(&[(3, number(0))]);
    let behavior = message(&[(2, bytes(&rules))]);
    let raw = message(&[(2, bytes(&message(&[(5, bytes(&behavior))])))]);
    let kind = "HorizontalPodAutoscaler";
    let object = decode(&envelope("autoscaling/v2", kind, &raw)).unwrap();
    let want = json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}});
    assert_eq!(object["spec"], want);
}

#[test]
fn bytes_become_base64() {
    for (bytes, want) in
        [("", ""), ("a", "YQ=="), ("ab", "YWI="), ("abc", "YWJj"), ("abcd", "YWJjZA==")]
    {
        assert_eq!(special::base64(bytes.as_bytes()), want);
    }
}

#[test]
fn what_is_no_message_is_refused() {
    assert!(decode(b"{}").unwrap_err().starts_with("provided data does not appear"));
    let error = decode(&envelope("v1", "Nothing", &[])).unwrap_err();
    assert_eq!(error, "no kind is registered for the message k8s.io.api.core.v1.Nothing");
    assert!(decode(&envelope("v1", "Pod", &[0x0a, 0xff])).is_err());
}

proptest! {
    /// No bytes make the decoder panic.
    #[test]
    fn any_bytes_are_survived(raw: Vec<u8>, kind in "Pod|Service|Secret|ConfigMap|Event") {
        let _ = decode(&raw);
        let _ = decode(&envelope("v1", &kind, &raw));
    }
}

#[test]
fn what_a_definition_is_made_of() {
    let schema = |fields: &[(u32, Vec<u8>)]| bytes(&message(fields));
    // Numbers that limit something, and words that JSON spells with dashes.
    let property = schema(&[(11, fixed(0.0)), (40, number(1)), (42, text("map")), (41, text("a"))]);
    let entry = message(&[(1, text("p")), (2, property)]);
    let root = schema(&[(5, text("object")), (38, number(0)), (29, bytes(&entry))]);
    let version = message(&[
        (1, text("v1")),
        (2, number(1)),
        (3, number(0)),
        (4, bytes(&message(&[(1, root)]))),
        (5, bytes(&message(&[(1, bytes(&[]))]))),
    ]);
    let raw = message(&[(2, bytes(&message(&[(7, bytes(&version))])))]);
    let kind = "CustomResourceDefinition";
    let object = decode(&envelope("apiextensions.k8s.io/v1", kind, &raw)).unwrap();
    let version = json!({"name": "v1", "served": true, "storage": false,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object",
            "x-kubernetes-preserve-unknown-fields": false,
            "properties": {"p": {"minimum": 0.0, "x-kubernetes-int-or-string": true,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]}}}}});
    assert_eq!(object["spec"]["versions"][0], version);
}
