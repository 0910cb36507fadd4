//! Tokens of service accounts: whom they are for, what they are bound to, how long they live.

use roadstead_server::identity::user::User;
use serde_json::{Value, json};

use crate::server::Server;

const DEFAULT: &str = "/api/v1/namespaces/default";

async fn server() -> Server {
    let server = Server::new().await;
    for name in ["web", "admin"] {
        let account = json!({"metadata": {"name": name}});
        server.ask(&format!("POST {DEFAULT}/serviceaccounts"), account).await;
    }
    server
}

async fn request(server: &Server, spec: Value) -> (u16, Value) {
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": spec});
    let path = format!("POST {DEFAULT}/serviceaccounts/web/token");
    let answer = server.ask(&path, request).await;
    (answer.code, answer.body)
}

/// Whom a token belongs to, or why to nobody.
async fn owner(server: &Server, token: &Value, audiences: &[&str]) -> String {
    let review = json!({"spec": {"token": token, "audiences": audiences}});
    let path = "POST /apis/authentication.k8s.io/v1/tokenreviews";
    let status = server.ask(path, review).await.body["status"].take();
    match status["authenticated"].as_bool() {
        Some(true) => format!("{} {}", status["user"]["username"], status["audiences"]),
        _ => status["error"].as_str().unwrap_or("").to_owned(),
    }
}

#[tokio::test]
async fn what_a_token_can_be_bound_to() {
    let server = server().await;
    let admin = server.ask(&format!("GET {DEFAULT}/serviceaccounts/admin"), "").await.body;
    let uid = &admin["metadata"]["uid"];
    server.ask(&format!("POST {DEFAULT}/secrets"), json!({"metadata": {"name": "s"}})).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "admin",
        "containers": [{"name": "c", "image": "i"}]}});
    server.ask(&format!("POST {DEFAULT}/pods"), pod).await;
    let cases = [
        (
            json!({"kind": "ServiceAccount", "apiVersion": "v1", "name": "admin", "uid": uid}),
            400,
            "cannot bind token to object of type /v1, Kind=ServiceAccount",
        ),
        (
            json!({"kind": "Pod", "apiVersion": "apps/v1", "name": "p"}),
            400,
            "cannot bind token to object of type apps/v1, Kind=Pod",
        ),
        (json!({"kind": "Pod", "apiVersion": "v1", "name": "q"}), 404, "pods \"q\" not found"),
        (
            json!({"kind": "Pod", "apiVersion": "v1", "name": "p"}),
            400,
            "cannot bind token for serviceaccount \"web\" to pod running with different \
             serviceaccount name.",
        ),
        (
            json!({"kind": "Secret", "apiVersion": "v1", "name": "s", "uid": "other"}),
            409,
            "Operation cannot be fulfilled on Secret \"s\": the UID in the bound object reference \
             (other) does not match the UID in record. The object might have been deleted and \
             then recreated",
        ),
    ];
    for (reference, code, message) in cases {
        let (found, body) = request(&server, json!({"boundObjectRef": reference})).await;
        assert_eq!((found, &body["message"]), (code, &json!(message)), "{reference}");
    }
}

#[tokio::test]
async fn a_token_ends_with_what_it_is_bound_to() {
    let server = server().await;
    let secret = json!({"metadata": {"name": "s"}});
    server.ask(&format!("POST {DEFAULT}/secrets"), secret.clone()).await;
    let bound = json!({"kind": "Secret", "apiVersion": "v1", "name": "s"});
    let (code, body) = request(&server, json!({"boundObjectRef": bound})).await;
    assert_eq!(code, 201, "{body}");
    let token = &body["status"]["token"];
    let own = owner(&server, token, &[]).await;
    assert!(own.starts_with("\"system:serviceaccount:default:web\""), "{own}");
    server.ask(&format!("DELETE {DEFAULT}/secrets/s"), "").await;
    let gone = "service account token has been invalidated";
    assert_eq!(owner(&server, token, &[]).await, gone);
    server.ask(&format!("POST {DEFAULT}/secrets"), secret).await;
    assert_eq!(owner(&server, token, &[]).await, gone, "another secret of the same name");
}

#[tokio::test]
async fn audiences() {
    let server = server().await;
    let (_, body) = request(&server, json!({"audiences": ["vault", "db"]})).await;
    let token = &body["status"]["token"];
    let web = "\"system:serviceaccount:default:web\"";
    assert_eq!(owner(&server, token, &["vault", "x"]).await, format!("{web} [\"vault\"]"));
    for others in [&[][..], &["x"]] {
        let refused = owner(&server, token, others).await;
        assert!(refused.starts_with("token audiences [\"vault\", \"db\"] is invalid"), "{refused}");
    }
}

#[tokio::test]
async fn lifetimes_and_other_nonsense() {
    let server = server().await;
    let prefix = "TokenRequest.authentication.k8s.io \"\" is invalid: spec.expirationSeconds: \
        Invalid value:";
    let least = "may not specify a duration less than 10 minutes";
    let most = "may not specify a duration larger than 2^32 seconds";
    let cases = [
        (json!(600), 201, String::new()),
        (json!(599), 422, format!("{prefix} 599: {least}")),
        (json!(0), 422, format!("{prefix} 0: {least}")),
        (json!(i64::MAX), 422, format!("{prefix} {}: {most}", i64::MAX)),
    ];
    for (seconds, code, message) in cases {
        let (found, body) = request(&server, json!({"expirationSeconds": seconds})).await;
        let words = body["message"].as_str().unwrap_or("");
        assert_eq!((found, words), (code, message.as_str()), "{seconds}");
    }
    for body in ["[]", r#"{"spec": "x"}"#, r#"{"spec": {"boundObjectRef": 7}}"#, "7", "null"] {
        let path = format!("POST {DEFAULT}/serviceaccounts/web/token");
        assert_eq!(server.ask(&path, body).await.code, 400, "{body}");
    }
}

#[tokio::test]
async fn an_empty_token_is_nobodys() {
    let server = server().await;
    for header in ["Bearer ", "Bearer", "Bearer  ", "bearer ", "Bearer ,"] {
        let headers = [("authorization", header)];
        let answer = server.ask_by(User::anonymous(), &headers, "GET /api/v1/secrets").await;
        assert_eq!(answer.code, 401, "{header:?}");
    }
}

/// A Secret that is a bootstrap token, with these fields beside id and secret.
async fn add_bootstrap_token(server: &Server, id: &str, more: Value) {
    let mut data = json!({"token-id": id, "token-secret": "0123456789abcdef",
        "usage-bootstrap-authentication": "true"});
    for (name, value) in more.as_object().unwrap() {
        data[name] = value.clone();
    }
    let secret = json!({"metadata": {"name": format!("bootstrap-token-{id}")},
        "type": "bootstrap.kubernetes.io/token", "stringData": data});
    let made = server.ask("POST /api/v1/namespaces/kube-system/secrets", secret).await;
    assert_eq!(made.code, 201, "{}", made.text);
}

#[tokio::test]
async fn machines_that_join() {
    let server = server().await;
    let groups = "system:bootstrappers:shop";
    for (id, more) in [
        ("aaaaaa", json!({})),
        ("bbbbbb", json!({"expiration": "2020-01-01T00:00:00Z"})),
        ("cccccc", json!({"usage-bootstrap-authentication": "false"})),
        ("dddddd", json!({"auth-extra-groups": groups, "node-name": "n1"})),
        ("eeeeee", json!({"auth-extra-groups": "system:masters"})),
        ("ffffff", json!({"expiration": "soon"})),
    ] {
        add_bootstrap_token(&server, id, more).await;
    }
    let audience = "https://kubernetes.default.svc.cluster.local";
    let known = |id: &str| format!("\"system:bootstrap:{id}\" [\"{audience}\"]");
    let nobody = "invalid bootstrap token".to_owned();
    for (token, want) in [
        ("aaaaaa.0123456789abcdef", known("aaaaaa")),
        ("aaaaaa.0123456789abcdee", nobody.clone()),
        ("bbbbbb.0123456789abcdef", nobody.clone()),
        ("cccccc.0123456789abcdef", nobody.clone()),
        ("dddddd.0123456789abcdef", known("dddddd")),
        ("eeeeee.0123456789abcdef", nobody.clone()),
        ("ffffff.0123456789abcdef", nobody.clone()),
        ("gggggg.0123456789abcdef", nobody.clone()),
    ] {
        assert_eq!(owner(&server, &json!(token), &[]).await, want, "{token}");
    }
    let review = json!({"spec": {"token": "dddddd.0123456789abcdef"}});
    let path = "POST /apis/authentication.k8s.io/v1/tokenreviews";
    let user = &server.ask(path, review).await.body["status"]["user"];
    assert_eq!(user["groups"], json!(["system:bootstrappers", groups, "system:authenticated"]));
    assert_eq!(user["extra"]["roadstead.dev/bootstrap-node"], json!(["n1"]));
    let gone = "DELETE /api/v1/namespaces/kube-system/secrets/bootstrap-token-aaaaaa";
    server.ask(gone, "").await;
    assert_eq!(owner(&server, &json!("aaaaaa.0123456789abcdef"), &[]).await, nobody);
}
