//! What happens when all objects take as much as they may.

use roadstead_store::kv::{Options, Store};
use serde_json::json;

use crate::server::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn a_full_store_refuses_what_is_new_and_lets_go() {
    let options = Options { quota: Some(400_000), ..Options::default() };
    let server = Server::over(Store::memory_with(options)).await;
    let map = |number: usize| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "x".repeat(30_000)},
            "metadata": {"name": format!("m{number}"), "finalizers": ["example.com/held"]}})
    };
    let post = format!("POST {MAPS}");
    let mut made = 0;
    let refused = loop {
        let answer = server.ask(&post, map(made)).await;
        if answer.code != 201 {
            break answer;
        }
        made += 1;
        assert!(made < 20, "the quota holds");
    };
    assert!(made > 3, "{made}: {refused:?}");
    assert_eq!((refused.code, &refused.body["reason"]), (500, &json!("")));
    let message = refused.body["message"].as_str().unwrap();
    assert!(message.starts_with("etcdserver: mvcc: database space exceeded"), "{message}");
    let metrics = server.ask("GET /metrics", "").await.text;
    assert!(metrics.contains("roadstead_store_quota_bytes 400000"), "{metrics}");

    // What is there can shrink, be relabelled, and be deleted although a finalizer makes that a write.
    let path = |number: usize| format!("{MAPS}/m{number}");
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(server.ask(&format!("PATCH {}", path(0)), label).await.code, 200);
    let less = json!({"data": {"a": "x".repeat(29_000)}});
    assert_eq!(server.ask(&format!("PATCH {}", path(0)), less).await.code, 200);
    let more = json!({"data": {"a": "x".repeat(90_000)}});
    assert_eq!(server.ask(&format!("PATCH {}", path(0)), more).await.code, 500);
    for number in 0..made {
        assert_eq!(server.ask(&format!("DELETE {}", path(number)), "").await.code, 200);
    }
    let free = json!({"metadata": {"finalizers": null}});
    assert_eq!(server.ask(&format!("PATCH {}", path(0)), &free).await.code, 200);
    assert_eq!(server.ask(&post, map(made)).await.code, 201, "there is room again");
}
