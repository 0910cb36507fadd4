//! EndpointSlices as a real kube-apiserver shows them.

use serde_json::{Value, json};

use crate::server::Server;

#[tokio::test]
async fn the_generation_of_a_slice_counts_its_labels() {
    let server = Server::new().await;
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4"});
    let made = server.ask(&format!("POST {path}"), slice).await.body;
    assert_eq!((&made["endpoints"], &made["ports"]), (&Value::Null, &Value::Null));
    assert!(made.get("endpoints").is_some() && made.get("ports").is_some());
    let steps = [
        ("a label", json!({"metadata": {"labels": {"a": "b"}}}), 2),
        ("an annotation", json!({"metadata": {"annotations": {"a": "b"}}}), 2),
        ("an endpoint", json!({"endpoints": [{"addresses": ["10.0.0.1"]}]}), 3),
        ("no endpoint", json!({"endpoints": []}), 4),
        ("still none", json!({"endpoints": null}), 4),
    ];
    for (name, patch, want) in steps {
        let patched = server.ask(&format!("PATCH {path}/s"), patch).await;
        assert_eq!(patched.body["metadata"]["generation"], want, "{name}");
    }
}
