//! kube-rs, unmodified, against the real binary: the same client that our components use.

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config, ResourceExt};
use roadstead_testkit::netns::is_left_out;
use serde_json::json;

use crate::process::Roadstead;

#[test]
fn kube_rs_reads_writes_applies_and_watches() {
    if is_left_out("L5") {
        return;
    }
    let roadstead = Roadstead::apiserver();
    tokio::runtime::Runtime::new().unwrap().block_on(story(&roadstead));
}

async fn story(roadstead: &Roadstead) {
    let kubeconfig = Kubeconfig::read_from(roadstead.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let version = client.apiserver_version().await.unwrap();
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "37"));
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let map = |value: &str| -> ConfigMap {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"},
            "data": {"a": value}});
        serde_json::from_value(map).unwrap()
    };
    // Lists and then watches, and streams the list, as newer clients do.
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut changes = watcher(maps.clone(), config).applied_objects().boxed();
        let created = maps.create(&PostParams::default(), &map("1")).await.unwrap();
        let seen = changes.try_next().await.unwrap().unwrap();
        assert_eq!(seen.resource_version(), created.resource_version());
        let twice = maps.create(&PostParams::default(), &map("1")).await.unwrap_err();
        assert!(matches!(twice, kube::Error::Api(status) if status.code == 409));
        let patch = PatchParams::apply("story").force();
        let applied = maps.patch("m", &patch, &Patch::Apply(map("2"))).await.unwrap();
        assert_eq!(applied.managed_fields().len(), 2, "{:?}", applied.managed_fields());
        let seen = changes.try_next().await.unwrap().unwrap();
        assert_eq!(seen.data.unwrap()["a"], "2");
        maps.delete("m", &DeleteParams::default()).await.unwrap();
        assert!(maps.get_opt("m").await.unwrap().is_none());
    }
}
