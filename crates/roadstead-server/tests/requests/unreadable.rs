//! Objects in the store that nobody can read.

use bytes::Bytes;
use roadstead_server::identity::user::User;
use roadstead_store::entry::Key;
use roadstead_store::kv::Store;
use roadstead_store::transaction::Transaction;
use serde_json::json;

use crate::server::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");

async fn server() -> Server {
    let store = Store::memory();
    let key = |name: &str| Key::new("configmaps", format!("default/{name}"));
    let junk = "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"bad\"},\"data\":{\"a\":";
    store.commit(Transaction::new().put(key("bad"), Bytes::from(junk))).await.unwrap();
    store.commit(Transaction::new().put(key("worse"), Bytes::from_static(&[0; 40]))).await.unwrap();
    let server = Server::over(store).await;
    let good = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "good"}});
    assert_eq!(server.ask(&format!("POST {MAPS}"), good).await.code, 201);
    server
}

#[tokio::test]
async fn an_unreadable_object_is_named_and_can_be_deleted() {
    let server = server().await;
    let admin = || User::new("admin", vec!["system:masters".into()]);
    for request in [
        format!("GET {MAPS}"),
        format!("GET {MAPS}?limit=1"),
        format!("GET {MAPS}?labelSelector=a%3Db"),
        "GET /api/v1/configmaps".into(),
        format!("GET {MAPS}?watch=true"),
        format!("GET {MAPS}/bad"),
        format!("PATCH {MAPS}/bad"),
        format!("DELETE {MAPS}"),
    ] {
        let answer = server.ask(&request, "{}").await;
        assert_eq!(answer.code, 500, "{request}: {}", answer.text);
        assert_eq!(answer.body["reason"], "StorageReadError", "{request}: {}", answer.text);
        let message = answer.body["message"].as_str().unwrap();
        assert!(
            message.contains("configmaps/default/bad: EOF while parsing"),
            "{request}: {message}"
        );
        assert_eq!(answer.body["details"]["causes"][0]["field"], "configmaps/default/bad");
    }
    let table = server.ask_by(admin(), &[TABLE], &format!("GET {MAPS}")).await;
    assert_eq!((table.code, &table.body["reason"]), (500, &json!("StorageReadError")));
    // Others are as they were.
    assert_eq!(server.ask(&format!("GET {MAPS}/good"), "").await.code, 200);
    assert_eq!(server.ask("GET /api/v1/namespaces/kube-system/configmaps", "").await.code, 200);

    // Nobody can tell what waits for it, so that the right to delete is not enough.
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "deleter"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"],
        "verbs": ["delete"]}]});
    let roles = "/apis/rbac.authorization.k8s.io/v1";
    assert_eq!(server.ask(&format!("POST {roles}/clusterroles"), role).await.code, 201);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "deleter"}, "subjects": [{"kind": "User", "name": "jane",
        "apiGroup": "rbac.authorization.k8s.io"}], "roleRef": {"kind": "ClusterRole",
        "name": "deleter", "apiGroup": "rbac.authorization.k8s.io"}});
    assert_eq!(server.ask(&format!("POST {roles}/clusterrolebindings"), binding).await.code, 201);
    let jane = User::new("jane", vec!["system:authenticated".into()]);
    let refused = server.ask_by(jane, &[], &format!("DELETE {MAPS}/bad")).await;
    assert_eq!(refused.code, 403, "{}", refused.text);
    assert!(refused.text.contains("cannot unsafe-delete-ignore-read-errors"), "{}", refused.text);

    for name in ["bad", "worse"] {
        let deleted = server.ask_by(admin(), &[], &format!("DELETE {MAPS}/{name}")).await;
        assert_eq!(deleted.code, 200, "{}", deleted.text);
        assert_eq!(server.ask(&format!("GET {MAPS}/{name}"), "").await.code, 404);
    }
    let list = server.ask(&format!("GET {MAPS}"), "").await;
    assert_eq!(list.code, 200, "{}", list.text);
    assert!(list.text.contains("\"good\"") && !list.text.contains("\"bad\""), "{}", list.text);
}

/// What an IPAddress stands for stays, also if nobody can read which Service it is for.
#[tokio::test]
async fn an_unreadable_address_keeps_what_a_service_has() {
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
    let store = Store::memory();
    let before = Server::over(store.clone()).await;
    let service = |name: &str, address: &str| {
        json!({"metadata": {"name": name},
            "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
    };
    let made = before.ask(&format!("POST {SERVICES}"), service("web", "10.96.7.7")).await;
    assert_eq!(made.code, 201, "{}", made.text);
    for address in ["10.96.7.7", "10.96.7.8"] {
        let key = Key::new("ipaddresses.networking.k8s.io", format!("/{address}"));
        store.commit(Transaction::new().put(key, Bytes::from_static(b"{\"a\":"))).await.unwrap();
    }
    // They are looked for at the start.
    let server = Server::over(store).await;
    let admin = || User::new("admin", vec!["system:masters".into()]);
    for (address, code) in [("10.96.7.7", 200), ("10.96.7.8", 404)] {
        let path = format!("{ADDRESSES}/{address}");
        assert_eq!(server.ask(&format!("GET {path}"), "").await.code, 500, "{address}");
        let deleted = server.ask_by(admin(), &[], &format!("DELETE {path}")).await;
        assert_eq!(deleted.code, 200, "{}", deleted.text);
        let after = server.ask(&format!("GET {path}"), "").await;
        assert_eq!(after.code, code, "{address}: {}", after.text);
        if code == 200 {
            assert_eq!(after.body["spec"]["parentRef"]["name"], "web", "{}", after.text);
        }
    }
    let second = server.ask(&format!("POST {SERVICES}"), service("other", "10.96.7.7")).await;
    assert_eq!(second.code, 422, "it is still taken: {}", second.text);
    let third = server.ask(&format!("POST {SERVICES}"), service("third", "10.96.7.8")).await;
    assert_eq!(third.code, 201, "nobody has it: {}", third.text);
}
