//! Requests for certificates: who asks, for whom, and who decides.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair};
use roadstead_server::identity::user::User;
use serde_json::{Value, json};

use crate::server::{Answer, Server};

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";

/// A server on which everybody may write requests and their parts, and alice a little more.
async fn server(rights: Value) -> Server {
    let server = Server::new().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let all = json!([{"apiGroups": ["certificates.k8s.io"], "verbs": ["*"], "resources": [
        "certificatesigningrequests", "certificatesigningrequests/approval",
        "certificatesigningrequests/status"]}]);
    for (name, rules, subject) in [
        ("all", all, json!({"kind": "Group", "name": "system:authenticated"})),
        ("alice", json!([rights]), json!({"kind": "User", "name": "alice"})),
    ] {
        let role = json!({"metadata": {"name": name}, "rules": rules});
        let made = server.ask(&format!("POST {rbac}/clusterroles"), role).await;
        assert_eq!(made.code, 201, "{made:?}");
        let mut subject = subject;
        subject["apiGroup"] = "rbac.authorization.k8s.io".into();
        let binding = json!({"metadata": {"name": name}, "subjects": [subject], "roleRef":
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}});
        let made = server.ask(&format!("POST {rbac}/clusterrolebindings"), binding).await;
        assert_eq!(made.code, 201, "{made:?}");
    }
    server
}

fn right(verb: &str, signers: &[&str]) -> Value {
    json!({"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": [verb],
        "resourceNames": signers})
}

fn user(name: &str, group: &str) -> User {
    User::new(name, vec![group.into(), "system:authenticated".into()])
}

async fn alice(server: &Server, request: &str, body: impl ToString) -> Answer {
    server.ask_for(user("alice", "dev"), request, body).await
}

fn request(name: &str, signer: &str, common_name: &str, organization: &str) -> Value {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.distinguished_name.push(DnType::OrganizationName, organization);
    let key = KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({"metadata": {"name": name}, "spec": {"request": STANDARD.encode(pem),
        "signerName": signer, "usages": ["client auth", "digital signature"]}})
}

fn decision(name: &str) -> Value {
    json!({"status": {"conditions": [{"type": name, "status": "True"}]}})
}

#[tokio::test]
async fn a_request_says_who_made_it() {
    let server = server(right("approve", &["example.com/b"])).await;
    let mut made = request("r", "example.com/a", "jane", "dev");
    for (field, value) in
        [("username", json!("root")), ("groups", json!(["system:masters"])), ("uid", json!("7"))]
    {
        made["spec"][field] = value;
    }
    let made = alice(&server, &format!("POST {REQUESTS}"), made).await;
    let spec = &made.body["spec"];
    assert_eq!(
        (&spec["username"], &spec["groups"], &spec["uid"]),
        (&json!("alice"), &json!(["dev", "system:authenticated"]), &Value::Null),
        "{}",
        made.text
    );
    let spec = json!({"spec": {"username": "root"}});
    let changed = alice(&server, &format!("PATCH {REQUESTS}/r"), spec).await;
    assert_eq!(changed.body["spec"]["username"], "alice", "{}", changed.text);
}

#[tokio::test]
async fn who_decides_and_who_signs() {
    let forbidden = |verb: &str| {
        format!(
            "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: user not permitted \
             to {verb} requests with signerName \"example.com/a\""
        )
    };
    let certificate = json!({"status": {"certificate": "YQ=="}});
    for (rights, approves, signs) in [
        (right("approve", &["example.com/b"]), false, false),
        (right("approve", &["example.com/a"]), true, false),
        (right("approve", &["example.com/*"]), true, false),
        (right("sign", &["example.com/a"]), false, true),
        (right("sign", &["example.com/*"]), false, true),
        (right("*", &["other.com/*"]), false, false),
    ] {
        let server = server(rights.clone()).await;
        let made = request("r", "example.com/a", "jane", "dev");
        assert_eq!(alice(&server, &format!("POST {REQUESTS}"), made).await.code, 201);
        let approved =
            alice(&server, &format!("PATCH {REQUESTS}/r/approval"), decision("Approved")).await;
        let signed = alice(&server, &format!("PATCH {REQUESTS}/r/status"), &certificate).await;
        let failed =
            alice(&server, &format!("PATCH {REQUESTS}/r/status"), decision("Failed")).await;
        for (answer, verb, allowed) in
            [(approved, "approve", approves), (signed, "sign", signs), (failed, "sign", signs)]
        {
            match allowed {
                true => assert_eq!(answer.code, 200, "{rights} {}", answer.text),
                false => assert_eq!(answer.body["message"], forbidden(verb), "{rights}"),
            }
        }
    }
}

#[tokio::test]
async fn a_decision_stands() {
    let server = server(right("*", &["example.com/*"])).await;
    let made = request("r", "example.com/a", "jane", "dev");
    alice(&server, &format!("POST {REQUESTS}"), made).await;
    // The decision is not part of the status, nor the certificate of the decision.
    let both = json!({"status": {"certificate": "YQ==",
        "conditions": [{"type": "Approved", "status": "True"}]}});
    let status = alice(&server, &format!("PATCH {REQUESTS}/r/status"), &both).await;
    assert_eq!(status.body["status"], json!({"certificate": "YQ==", "conditions": []}));
    let approved = alice(&server, &format!("PATCH {REQUESTS}/r/approval"), &both).await;
    assert_eq!(approved.body["status"]["conditions"][0]["type"], "Approved", "{}", approved.text);
    let none = json!({"status": {"conditions": []}});
    let status = alice(&server, &format!("PATCH {REQUESTS}/r/status"), &none).await;
    assert_eq!(status.body["status"]["conditions"][0]["type"], "Approved", "{}", status.text);
    let other = json!({"status": {"certificate": "Yg=="}});
    for (part, body, words) in [
        ("approval", &none, "updates may not remove a condition of type \"Approved\""),
        (
            "approval",
            &decision("Denied"),
            "updates may not remove a condition of type \"Approved\"",
        ),
        ("status", &other, "updates may not modify existing certificate content"),
    ] {
        let answer = alice(&server, &format!("PATCH {REQUESTS}/r/{part}"), body).await;
        assert_eq!(answer.code, 422, "{part} {body}: {}", answer.text);
        assert!(answer.text.contains(&words.replace('"', "\\\"")), "{}", answer.text);
    }
}

#[tokio::test]
async fn what_nobody_may_ask_for() {
    let server = server(right("sign", &[])).await;
    let node = "kubernetes.io/kube-apiserver-client-kubelet";
    let serving = "kubernetes.io/kubelet-serving";
    let refused = |why: &str| {
        format!("certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: {why}")
    };
    let masters =
        refused(&format!("use of {CLIENT} signer with system:masters group is not allowed"));
    let other = refused("can only create a node CSR with CN=system:node:n1");
    let n1 = ("system:node:n1", "system:nodes");
    for (who, request, code, words) in [
        (("alice", "dev"), request("r", CLIENT, "eve", "system:masters"), 403, masters.as_str()),
        (n1, request("r", node, "system:node:n2", "system:nodes"), 403, &other),
        (n1, request("r", serving, "system:node:n2", "system:nodes"), 403, &other),
        (n1, request("a", node, "system:node:n1", "system:nodes"), 201, ""),
        (("alice", "dev"), request("b", CLIENT, "eve", "dev"), 201, ""),
    ] {
        let answer = server.ask_for(user(who.0, who.1), &format!("POST {REQUESTS}"), request).await;
        let said = answer.body["message"].as_str().unwrap_or("");
        assert_eq!((answer.code, said), (code, words));
    }
    for bytes in
        ["YQ==", "", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCi0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K"]
    {
        let mut wrong = request("c", CLIENT, "eve", "dev");
        wrong["spec"]["request"] = bytes.into();
        let answer = alice(&server, &format!("POST {REQUESTS}"), wrong).await;
        assert_eq!(answer.code, 422, "{bytes}: {}", answer.text);
        assert!(answer.text.contains("spec.request"), "{}", answer.text);
    }
}
