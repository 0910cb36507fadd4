//! What the author of a Service may ask for.

use roadstead_server::config::Services;
use serde_json::{Value, json};

use crate::server::Server;

const SERVICES: &str = "/api/v1/namespaces/default/services";

fn service(name: &str, external: &[&str]) -> Value {
    let spec = json!({"ports": [{"port": 80}], "externalIPs": external});
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn with_a_node(services: Services) -> Server {
    let server = Server::with_services(services).await;
    let node = json!({
        "metadata": {"name": "n1"},
        "spec": {"podCIDR": "10.200.1.0/24", "podCIDRs": ["10.200.1.0/24", "fd00:1::/64"]},
    });
    assert_eq!(server.ask("POST /api/v1/nodes", node).await.code, 201);
    let addresses = json!([
        {"type": "InternalIP", "address": "192.168.7.1"},
        {"type": "Hostname", "address": "n1"},
    ]);
    let status = json!({"status": {"addresses": addresses}});
    assert_eq!(server.ask("PATCH /api/v1/nodes/n1/status", status).await.code, 200);
    server
}

#[tokio::test]
async fn an_external_address_is_nothing_of_the_cluster() {
    let pod_ranges = vec!["10.244.0.0/16".parse().unwrap()];
    let server = with_a_node(Services { pod_ranges, ..Services::default() }).await;
    let cases = [
        ("192.0.2.1", ""),
        ("192.168.7.2", ""),
        ("10.96.5.5", "may not be in the range of cluster IPs (10.96.0.0/16)"),
        ("10.244.3.3", "may not be in the range of pod IPs (10.244.0.0/16)"),
        ("10.200.1.9", "may not be in the range of pod IPs (10.200.1.0/24)"),
        ("fd00:1::9", "may not be in the range of pod IPs (fd00:1::/64)"),
        ("192.168.7.1", "may not be the address of a Node"),
        ("127.0.0.1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
    ];
    for (number, (address, want)) in cases.into_iter().enumerate() {
        let name = format!("s{number}");
        let made = server.ask(&format!("POST {SERVICES}"), service(&name, &[address])).await;
        let message = made.body["message"].as_str().unwrap_or_default();
        let full = format!(
            "Service \"{name}\" is invalid: spec.externalIPs[0]: Invalid value: \"{address}\": {want}"
        );
        match want {
            "" => assert_eq!(made.code, 201, "{message}"),
            _ => assert_eq!((made.code, message), (422, full.as_str())),
        }
    }
    // An update is looked at like a creation, however it is made.
    let patch = json!({"spec": {"externalIPs": ["192.0.2.1", "10.96.0.10"]}});
    let patched = server.ask(&format!("PATCH {SERVICES}/s0"), patch).await;
    assert_eq!(patched.code, 422, "{}", patched.text);
    assert!(patched.text.contains("spec.externalIPs[1]"), "{}", patched.text);
}

#[tokio::test]
async fn what_a_service_had_before_stays_good() {
    let server = with_a_node(Services::default()).await;
    let made = server.ask(&format!("POST {SERVICES}"), service("web", &["10.222.0.1"])).await;
    assert_eq!(made.code, 201, "{}", made.text);
    // A node with these pods comes later.
    let node = json!({"metadata": {"name": "n2"}, "spec": {"podCIDRs": ["10.222.0.0/24"]}});
    assert_eq!(server.ask("POST /api/v1/nodes", node).await.code, 201);
    let patch = |external: &[&str]| json!({"metadata": {"labels": {"a": external.len().to_string()}}, "spec": {"externalIPs": external}});
    for (external, code) in [
        (&["10.222.0.1"][..], 200),
        (&["192.0.2.1", "10.222.0.1"], 200),
        (&["10.222.0.2", "10.222.0.1"], 422),
        (&[], 200),
        (&["10.222.0.1"], 422),
    ] {
        let patched = server.ask(&format!("PATCH {SERVICES}/web"), patch(external)).await;
        assert_eq!(patched.code, code, "{external:?}: {}", patched.text);
    }
}

#[tokio::test]
async fn external_addresses_can_be_denied() {
    let denying = || Services { deny_external_ips: true, ..Services::default() };
    let store = roadstead_store::kv::Store::memory();
    let permissive = Server::over_with_services(store.clone(), Services::default()).await;
    let made = permissive.ask(&format!("POST {SERVICES}"), service("old", &["192.0.2.1"])).await;
    assert_eq!(made.code, 201);
    let server = Server::over_with_services(store, denying()).await;
    let denied = server.ask(&format!("POST {SERVICES}"), service("web", &["192.0.2.1"])).await;
    let want = "services \"web\" is forbidden: Use of external IPs is denied by admission control.";
    assert_eq!((denied.code, denied.body["message"].as_str()), (403, Some(want)));
    assert_eq!(server.ask(&format!("POST {SERVICES}"), service("web", &[])).await.code, 201);
    for (name, external, code) in [
        ("old", &["192.0.2.1"][..], 200),
        ("old", &["192.0.2.2"], 403),
        ("old", &[], 200),
        ("old", &["192.0.2.1"], 403),
        ("web", &["192.0.2.1"], 403),
    ] {
        let patch = json!({"spec": {"externalIPs": external}});
        let patched = server.ask(&format!("PATCH {SERVICES}/{name}"), patch).await;
        assert_eq!(patched.code, code, "{name} {external:?}: {}", patched.text);
    }
}
