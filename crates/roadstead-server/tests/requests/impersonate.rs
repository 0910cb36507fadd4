//! Acting as somebody else: what a real server was seen to answer.

use roadstead_server::identity::user::User;
use serde_json::{Value, json};

use crate::server::Server;

const WHO: &str = "POST /apis/authentication.k8s.io/v1/selfsubjectreviews";
const BINDINGS: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";

/// The headers, from `User: bob, Group: g1`.
fn headers(text: &str) -> Vec<(String, &str)> {
    let pairs = text.split(", ").filter_map(|pair| pair.split_once(": "));
    pairs.map(|(name, value)| (format!("impersonate-{name}"), value)).collect()
}

async fn ask(server: &Server, user: &str, groups: &[&str], text: &str) -> (u16, Value) {
    let groups = groups.iter().map(ToString::to_string).collect();
    let headers = headers(text);
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let answer = server.ask_by(User::new(user, groups), &headers, WHO).await;
    (answer.code, answer.body)
}

#[tokio::test]
async fn a_master_is_whoever_they_want() {
    let server = Server::new().await;
    let known = "system:authenticated";
    let account = "system:serviceaccount:default:x";
    let of_accounts = ["system:serviceaccounts", "system:serviceaccounts:default", known];
    let cases = [
        ("", json!({"username": "admin", "groups": ["system:masters"]})),
        ("User: bob", json!({"username": "bob", "groups": [known]})),
        (
            "User: bob, Group: g1, Group: g2",
            json!({"username": "bob", "groups": ["g1", "g2", known]}),
        ),
        ("User: bob, Group: system:authenticated", json!({"username": "bob", "groups": [known]})),
        (
            "User: system:serviceaccount:default:x",
            json!({"username": account, "groups": of_accounts}),
        ),
        (
            "User: system:serviceaccount:default:x, Group: g1",
            json!({"username": account, "groups": ["g1", known]}),
        ),
        (
            "User: bob, Uid: 7, Extra-scopes: a, Extra-scopes: b, Extra-acme.com%2fteam: p",
            json!({"username": "bob", "groups": [known], "uid": "7",
                "extra": {"scopes": ["a", "b"], "acme.com/team": ["p"]}}),
        ),
    ];
    for (text, want) in cases {
        let (code, body) = ask(&server, "admin", &["system:masters"], text).await;
        assert_eq!((code, &body["status"]["userInfo"]), (201, &want), "{text}");
    }
    for text in ["Group: g1", "Uid: 7", "Extra-a: 7"] {
        let (code, body) = ask(&server, "admin", &["system:masters"], text).await;
        let message = body["message"].as_str().unwrap();
        assert_eq!(code, 400, "{text}: {message}");
        assert!(message.ends_with("without impersonating a user name"), "{text}: {message}");
    }
}

#[tokio::test]
async fn others_are_whom_they_may_be() {
    let server = Server::new().await;
    let rules = json!([{"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users"],
        "resourceNames": ["bob"]}]);
    let role = json!({"metadata": {"name": "bob"}, "rules": rules});
    server.ask(&format!("POST {ROLES}"), role).await;
    let subject =
        json!([{"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}]);
    let binding = json!({"metadata": {"name": "bob"}, "subjects": subject, "roleRef":
        {"kind": "ClusterRole", "name": "bob", "apiGroup": "rbac.authorization.k8s.io"}});
    assert_eq!(server.ask(&format!("POST {BINDINGS}"), binding).await.code, 201);
    let (code, body) = ask(&server, "alice", &[], "User: bob").await;
    assert_eq!((code, &body["status"]["userInfo"]["username"]), (201, &json!("bob")));
    let cases = [
        ("User: carl", "users \"carl\"", "users", "\"\" at the cluster scope"),
        ("User: bob, Group: g1, Group: g2", "groups \"g1\"", "groups", "\"\" at the cluster scope"),
        (
            "User: system:serviceaccount:ns:x",
            "serviceaccounts \"x\"",
            "serviceaccounts",
            "\"\" in the namespace \"ns\"",
        ),
        (
            "User: bob, Uid: 7",
            "uids.authentication.k8s.io \"7\"",
            "uids",
            "\"authentication.k8s.io\" at the cluster scope",
        ),
        (
            "User: bob, Extra-scopes: a",
            "userextras.authentication.k8s.io \"a\"",
            "userextras/scopes",
            "\"authentication.k8s.io\" at the cluster scope",
        ),
    ];
    for (text, subject, resource, place) in cases {
        let (code, body) = ask(&server, "alice", &[], text).await;
        let want = format!(
            "{subject} is forbidden: User \"alice\" cannot impersonate resource {resource:?} in API \
             group {place}"
        );
        assert_eq!((code, &body["message"]), (403, &json!(want)), "{text}");
        let kind = resource.split('/').next().unwrap();
        assert_eq!(body["details"]["kind"], kind, "{text}");
    }
    // Acting as somebody means to have their rights, not one's own.
    let master = User::new("admin", vec!["system:masters".into()]);
    let secrets = "GET /api/v1/namespaces/default/secrets";
    let answer = server.ask_by(master, &[("impersonate-user", "bob")], secrets).await;
    assert_eq!(answer.code, 403, "{}", answer.text);
}
