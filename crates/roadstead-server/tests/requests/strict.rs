//! What is given twice or unknown is refused, mentioned or ignored, as the client wishes.

use serde_json::json;

use crate::server::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn what_is_given_twice() {
    let server = Server::new().await;
    let twice = r#"{"metadata": {"name": "NAME"}, "data": {"a": "1", "a": "2"}, "dat": {}}"#;
    let words = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding \
        error: unknown field \"dat\", duplicate field \"data.a\"";
    let warnings =
        ["299 - \"unknown field \\\"dat\\\"\"", "299 - \"duplicate field \\\"data.a\\\"\""];
    let yaml = "metadata: {name: NAME}\ndata:\n  a: '1'\n  a: '2'\ndat: {}\n";
    let bodies = [("json", "application/json", twice), ("yaml", "application/yaml", yaml)];
    for (name, media_type, body) in bodies {
        let body = body.replace("NAME", name);
        let post = |validation: &str| format!("POST {MAPS}?fieldValidation={validation}");
        let refused = server.ask_as(&post("Strict"), media_type, &body).await;
        assert_eq!((refused.code, &refused.body["message"]), (400, &json!(words)), "{name}");
        assert_eq!(refused.body["reason"], "BadRequest");
        let warned = server.ask_as(&post(""), media_type, &body).await;
        assert_eq!((warned.code, warned.warnings), (201, warnings.map(str::to_owned).to_vec()));
        assert_eq!(warned.body["data"]["a"], "2", "the last one counts");
        let path = format!("PUT {MAPS}/{name}?fieldValidation=Ignore");
        let ignored = server.ask_as(&path, media_type, &body).await;
        assert_eq!((ignored.code, ignored.warnings.len()), (200, 0));
    }
}

#[tokio::test]
async fn patches_that_name_a_field_twice() {
    let server = Server::new().await;
    server.ask(&format!("POST {MAPS}"), json!({"metadata": {"name": "m"}})).await;
    let patch = r#"{"data": {"a": "1", "a": "2"}}"#;
    let path = format!("{MAPS}/m?fieldManager=me&fieldValidation=");
    for media_type in [
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
    ] {
        let body = match media_type.ends_with("yaml") {
            true => format!("{{apiVersion: v1, kind: ConfigMap, {}", &patch[1..]),
            false => patch.to_owned(),
        };
        let refused = server.ask_as(&format!("PATCH {path}Strict"), media_type, &body).await;
        let message = refused.body["message"].as_str().unwrap();
        assert!(message.ends_with("duplicate field \"data.a\""), "{media_type}: {message}");
        let warned = server.ask_as(&format!("PATCH {path}"), media_type, &body).await;
        assert_eq!((warned.code, warned.warnings.len()), (200, 1), "{media_type}: {warned:?}");
    }
}

/// Bodies that are no objects at all.
#[tokio::test]
async fn bodies_that_make_no_sense() {
    let server = Server::new().await;
    let deep = |open: &str, close: &str| open.repeat(100_000) + &close.repeat(100_000);
    let cases: [(&str, &str, Vec<u8>, u16, &str); 9] = [
        ("nothing", "application/json", Vec::new(), 400, "json parse error"),
        ("half", "application/json", b"{\"a\":".to_vec(), 400, "json parse error"),
        ("deep lists", "application/json", deep("[", "]").into(), 400, "recursion limit exceeded"),
        ("deep objects", "application/json", deep("{\"a\":", "}").into(), 400, "recursion limit"),
        ("deep YAML", "application/yaml", deep("[", "]").into(), 400, "yaml: "),
        (
            "not UTF-8",
            "application/json",
            b"{\"a\":\"\xff\xfe\"}".to_vec(),
            400,
            "json parse error",
        ),
        ("not UTF-8 in YAML", "application/yaml", b"a: \xff".to_vec(), 400, "not valid UTF-8"),
        ("a bomb", "application/yaml", bomb(), 400, "yaml: "),
        (
            "too large",
            "application/json",
            vec![b' '; 4 << 20],
            413,
            "Request entity too large: limit is 3145728",
        ),
    ];
    for (name, media_type, body, code, words) in cases {
        let answer = server.send_bytes(&format!("POST {MAPS}"), media_type, body).await;
        let message = answer.body["message"].as_str().unwrap_or("");
        assert!(answer.code == code && message.contains(words), "{name}: {answer:?}");
        assert_eq!(answer.body["status"], "Failure", "{name}");
    }
    let left = server.ask(&format!("GET {MAPS}"), "").await;
    assert_eq!(left.body["items"], json!([]));
}

/// YAML that is small to read and enormous to write out.
fn bomb() -> Vec<u8> {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let below = format!("*a{}", level - 1);
        let list = vec![below; 10].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{list}]\n"));
    }
    text.into_bytes()
}

#[tokio::test]
async fn nothing_makes_it_panic() {
    let server = Server::new().await;
    let definition = json!({"metadata": {"name": "pods.example.com"}, "spec": {
        "group": "example.com", "scope": "Namespaced",
        "names": {"plural": "pods", "kind": "Thing", "singular": "thing"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas"}},
            "schema": {"openAPIV3Schema": {"type": "object",
                "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(server.ask(&format!("POST {definitions}"), definition).await.code, 201);
    let things = "/apis/example.com/v1/namespaces/default/pods";
    let thing = json!({"metadata": {"name": "t"}, "spec": "odd",
        "status": {"podIP": "127.0.0.1"}});
    assert_eq!(server.ask(&format!("POST {things}"), thing).await.code, 201);
    let maps = "/api/v1/namespaces/default/configmaps";
    server.ask(&format!("POST {maps}"), json!({"metadata": {"name": "m"}})).await;
    let binding = r#"{"target": {"name": "n"}}"#;
    let scale = r#"{"spec": {"replicas": 3}}"#;
    let deep = format!(
        r#"{{"metadata": {{"name": "d"}}, "spec": {}1{}}}"#,
        "[".repeat(115),
        "]".repeat(115)
    );
    let cases = [
        (format!("DELETE {maps}/m?gracePeriodSeconds=0"), "[]", 400),
        (format!("DELETE {maps}/m?gracePeriodSeconds=0"), "7", 400),
        (format!("POST {things}/t/binding"), binding, 404),
        (format!("POST {things}/t/eviction"), "{}", 404),
        (format!("PUT {things}/t/finalize"), "{}", 404),
        (format!("GET {things}/t/proxy/"), "", 404),
        (format!("GET {things}/t/log"), "", 404),
        (format!("PUT {maps}/m/status"), "{}", 404),
        (format!("GET {maps}/m/status"), "", 404),
        (format!("PUT {maps}/m/finalize"), "{}", 404),
        ("GET /api/v1/namespaces/default/pods/p/log".to_owned(), "", 404),
        (format!("PUT {things}/t/scale"), scale, 200),
        (format!("POST {things}"), &deep, 400),
        ("POST /api/v1/namespaces/default/pods/p/binding".to_owned(), "[]", 400),
        ("POST /api/v1/namespaces/default/pods/p/eviction".to_owned(), "[]", 400),
    ];
    for (request, body, code) in cases {
        let answer = server.ask(&request, body).await;
        assert_eq!(answer.code, code, "{request} {body}: {}", answer.text);
    }
    for kind in ["Quantity", "Time", "MicroTime", "IntOrString"] {
        let length = |text: &str| u8::try_from(text.len()).unwrap();
        let meta = format!("\n\x02v1\x12{}{kind}", char::from(length(kind)));
        let body = format!("k8s\0\n{}{meta}", char::from(length(&meta)));
        let protobuf = "application/vnd.kubernetes.protobuf";
        let answer = server.ask_as(&format!("POST {maps}"), protobuf, body).await;
        assert_eq!(answer.code, 400, "{kind}: {}", answer.text);
    }
}
