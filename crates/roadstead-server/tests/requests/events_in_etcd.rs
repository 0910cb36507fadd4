//! Events in etcd end by themselves, with leases that many of them share.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadstead_etcd::messages::RangeRequest;
use roadstead_server::etcd_layout::KubernetesLayout;
use roadstead_store::kv::{EtcdOptions, Store};
use roadstead_store::retention::Limits;
use roadstead_testkit::etcd::Etcd;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::server::Server;
use crate::two_servers::client;

const EVENTS: &str = "/api/v1/namespaces/default/events";

async fn server(etcd: &Etcd, event_ttl: Duration) -> Server {
    let options = EtcdOptions {
        history: Limits::default(),
        patience: Duration::from_secs(30),
        compaction: None,
    };
    let layout = Arc::new(KubernetesLayout::new("/registry").with_event_ttl(event_ttl));
    Server::over(Store::etcd(client(etcd), layout, options).await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn events_end() {
    let Some(etcd) = Etcd::start(1) else { return };
    let server = server(&etcd, Duration::from_secs(3)).await;
    let event = |name: String| {
        json!({"metadata": {"name": name}, "reason": "Tested", "type": "Normal",
            "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a"}})
    };
    let begin = Instant::now();
    for number in 0..20 {
        let made = server.ask(&format!("POST {EVENTS}"), event(format!("e{number}"))).await;
        assert_eq!(made.code, 201, "{made:?}");
    }
    let took = begin.elapsed();
    let map = json!({"metadata": {"name": "stays"}});
    assert_eq!(server.ask("POST /api/v1/namespaces/default/configmaps", map).await.code, 201);
    let all = |place: &str| RangeRequest {
        key: Bytes::from(format!("/registry/{place}/")),
        range_end: Bytes::from(format!("/registry/{place}0")),
        ..RangeRequest::default()
    };
    let soon = || Instant::now() + Duration::from_secs(9);
    let found = client(&etcd).range(&all("events"), soon()).await.unwrap().kvs;
    let leases: BTreeSet<_> = found.iter().map(|kv| kv.lease).collect();
    assert!(!leases.contains(&0));
    // A lease is shared for a twentieth of the time.
    let most = 1 + took.as_millis() / 150;
    assert!(leases.len() as u128 <= most, "{} leases in {took:?}", leases.len());
    let maps = client(&etcd).range(&all("configmaps"), soon()).await.unwrap().kvs;
    assert!(!maps.is_empty() && maps.iter().all(|kv| kv.lease == 0));
    let gone = timeout(Duration::from_secs(20), async {
        while server.ask(&format!("GET {EVENTS}"), "").await.body["items"] != json!([]) {
            sleep(Duration::from_millis(100)).await;
        }
    });
    gone.await.expect("they end");
    let map = server.ask("GET /api/v1/namespaces/default/configmaps/stays", "").await;
    assert_eq!(map.code, 200);
    // Controllers are told that nobody needs to remove them.
    let checks = server.ask("GET /readyz?verbose", "").await.text;
    assert!(checks.contains("[+]etcd ok") && !checks.contains("storage-scrub"), "{checks}");
}
