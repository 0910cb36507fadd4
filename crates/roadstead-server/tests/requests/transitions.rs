//! Services that become something else.

use serde_json::{Value, json};

use crate::server::Server;

const SERVICES: &str = "/api/v1/namespaces/default/services";

#[tokio::test]
async fn a_headless_service_becomes_a_name() {
    let server = Server::new().await;
    let service = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"clusterIP": "None",
            "selector": {"a": "b"}, "ports": [{"port": 80}]}})
    };
    let change = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
    for way in ["patch", "whole", "manifest", "patch to none"] {
        let name = way.replace(' ', "-");
        let made = server.ask(&format!("POST {SERVICES}"), service(&name)).await.body;
        let path = format!("{SERVICES}/{name}");
        let mut whole: Value = made.clone();
        whole["spec"]["type"] = "ExternalName".into();
        whole["spec"]["externalName"] = "example.com".into();
        let answer = match way {
            "patch" => server.ask(&format!("PATCH {path}"), &change).await,
            "patch to none" => {
                let mut change = change.clone();
                change["spec"]["clusterIP"] = Value::Null;
                server.ask(&format!("PATCH {path}"), &change).await
            }
            "whole" => server.ask(&format!("PUT {path}"), &whole).await,
            _ => {
                let mut manifest = service(&name);
                manifest["spec"] = json!({"type": "ExternalName", "externalName": "example.com"});
                server.ask(&format!("PUT {path}"), &manifest).await
            }
        };
        assert_eq!(answer.code, 200, "{way}: {}", answer.text);
        assert_eq!(answer.body["spec"]["type"], "ExternalName", "{way}");
        for gone in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            assert_eq!(answer.body["spec"].get(gone), None, "{way}: {}", answer.text);
        }
    }
}
