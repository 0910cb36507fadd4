//! A disk that is full: writes are refused and say why, reads and watches go on, and when there is
//! room again a new start writes again, with everything that was acknowledged.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use roadstead_testkit::netns::{laboratory_of, run};
use serde_json::json;

use crate::server::Server;

#[test]
fn a_full_disk_refuses_writes_and_serves_reads() {
    laboratory_of("L5", || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(story());
    });
}

async fn story() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("data");
    let mount = |options: &str| {
        run(&format!("mkdir -p {0} && mount -t tmpfs -o {options} tmpfs {0}", disk.display()));
    };
    mount("size=6m");
    let mut acknowledged = BTreeMap::new();
    // Twice: the second time it is full from the start.
    for _ in 0..2 {
        fill(directory.path(), &mut acknowledged).await;
    }
    assert!(acknowledged.len() > 20, "only {} fit", acknowledged.len());
    mount("remount,size=64m");
    let server = Server::start(directory.path());
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    assert_eq!(listed(&maps).await, acknowledged);
    create(&maps, "afterwards").await.unwrap();
}

/// Writes until nothing can be written any more.
async fn fill(directory: &Path, acknowledged: &mut BTreeMap<String, String>) {
    let server = Server::start(directory);
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    let found = listed(&maps).await;
    for (name, revision) in &*acknowledged {
        assert_eq!(found.get(name), Some(revision), "{name} was acknowledged");
    }
    // What was not acknowledged may have happened all the same.
    acknowledged.extend(found);
    let refused = loop {
        let name = format!("map-{}", acknowledged.len());
        match create(&maps, &name).await {
            Ok(map) => acknowledged.insert(name, map.resource_version().unwrap()),
            Err(error) => break error,
        };
    };
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert_eq!((status.code, &*status.reason), (500, "InternalError"), "{status:?}");
    assert!(status.message.contains("the store is read-only since 2"), "{}", status.message);
    assert!(status.message.contains("No space left on device"), "{}", status.message);
    assert_eq!(listed(&maps).await, *acknowledged, "reads go on");
    // Even a small write that would fit is refused: nobody knows what the disk holds.
    assert!(create(&maps, "small").await.is_err());
    let log = server.log();
    assert!(log.contains("writes are refused from now on"), "{log}");
    assert_eq!(log.matches("No space left on device").count(), 1, "{log}");
    server.kill();
}

async fn create(maps: &Api<ConfigMap>, name: &str) -> kube::Result<ConfigMap> {
    let size = if name == "small" { 1 } else { 40_000 };
    let map = json!({"metadata": {"name": name}, "data": {"filler": "x".repeat(size)}});
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await
}

async fn listed(maps: &Api<ConfigMap>) -> BTreeMap<String, String> {
    let list = maps.list(&Default::default()).await.unwrap();
    list.items.iter().map(|map| (map.name_any(), map.resource_version().unwrap())).collect()
}
