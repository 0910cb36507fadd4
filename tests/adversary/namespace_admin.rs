//! An admin of one namespace: may write roles there, and wants more, or our end.

use serde_json::{Value, json};

use roadstead_testkit::netns::is_left_out;

use crate::attacks;
use crate::client::Server;

#[test]
fn a_small_role_does_not_fill_the_memory() {
    if is_left_out("L5") {
        return;
    }
    let mut server = Server::start(1024, &["alice"]);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut root = server.door().enter("root").await.unwrap();
        root.bind("admin", "default", &["alice"]).await;
        let mut alice = server.door().enter("alice").await.unwrap();
        let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
        let words = |letter: char| (0..330).map(|n| format!("{letter}{n}")).collect::<Vec<_>>();
        let rules =
            json!([{"verbs": words('v'), "apiGroups": words('g'), "resources": words('r')}]);
        let role = json!({"metadata": {"name": "wide"}, "rules": rules});
        for _ in 0..3 {
            let (code, said) = alice.post(&format!("{rbac}/roles"), &role).await;
            let text = String::from_utf8_lossy(&said);
            assert_eq!(code, 403, "{text}");
            assert!(said.len() < 20_000 && text.contains("… and 108880 more"), "{}", said.len());
        }
        // The same for what a mistake says, and what is given twice.
        let ports: Vec<_> = (0..100_000).map(|_| json!({})).collect();
        let service = json!({"metadata": {"name": "a"}, "spec": {"ports": ports}});
        let (code, said) = alice.post("/api/v1/namespaces/default/services", &service).await;
        assert_eq!(code, 422);
        assert!(said.len() < 1 << 20, "{} bytes", said.len());
        let name: Value = "n".repeat(100_000).into();
        let twice = "\"a\":1,".repeat(100_000);
        let body = format!("{{\"metadata\":{{\"name\":\"a\"}},{name}:{{{twice}\"b\":1}}}}");
        let headers = [("content-type", "application/json")];
        let path = "POST /api/v1/namespaces/default/configmaps";
        let response = alice.send(path, &headers, body.into()).await.unwrap();
        let warnings: usize =
            response.headers().get_all("warning").iter().map(|value| value.len()).sum();
        assert!(response.status() == 201 && warnings > 0 && warnings <= 8192, "{warnings} bytes");
    });
    assert!(server.is_running());
    attacks::refused(3);
    assert!(server.memory() < 250, "{} MB", server.memory());
}
