//! Parts of this process that show as containers.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use roadstead_node::config::Config;
use roadstead_node::runtime::parts::{PartLog, ProcessPart};
use roadstead_pod::builtin_image::BuiltInImage;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::fake_api::FakeApi;
use super::fake_runtime::{FakeImages, FakeRuntime};
use super::{Agent, config, is_ready, pod};

/// A directory of a test's own, which goes with it.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Puts a pod of the proxy into the API; returns where it is.
fn put(api: &FakeApi, namespace: &str, name: &str) -> String {
    let mut part = pod("roadstead/kube-proxy", &json!({}));
    part["metadata"] = json!({"name": name, "namespace": namespace, "uid": name});
    // Elsewhere nobody gets the network of the node at all.
    part["spec"]["hostNetwork"] = json!(namespace == "kube-system");
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    api.put(&path, part);
    path
}

/// Asks that a pod ends.
fn end(api: &FakeApi, path: &str) {
    let deletion = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
                                       "deletionGracePeriodSeconds": 1}});
    api.patch(path, &deletion);
}

async fn heard(starts: &mut mpsc::Receiver<PartLog>) -> PartLog {
    let heard = timeout(Duration::from_secs(20), starts.recv()).await;
    heard.expect("the part hears of its container").unwrap()
}

#[tokio::test]
async fn a_part_is_one_container_at_a_time() {
    let root = std::env::temp_dir().join(format!("roadstead-parts-{}", std::process::id()));
    let directory = Directory(root);
    let (starts, mut began) = mpsc::channel(1);
    let parts = vec![ProcessPart { image: BuiltInImage::KubeProxy, starts }];
    let config = Config { parts, state_dir: directory.0.clone(), ..config() };
    let (api, runtime) = (FakeApi::new(), FakeRuntime::default());
    let agent = Agent::start_as(&api, config, runtime.clone(), FakeImages);

    let first = put(&api, "kube-system", "first");
    let log = heard(&mut began).await;
    api.until(&first, "ready", is_ready).await;
    assert!(log.write("all is well", Timestamp::UNIX_EPOCH));
    let file = directory.0.join("logs/kube-system_first_first/main/0.log");
    let text = fs::read_to_string(file).unwrap();
    assert_eq!(text, "1970-01-01T00:00:00Z stderr F all is well\n");

    // Whoever may make pods elsewhere does not get hold of it.
    let stranger = put(&api, "default", "stranger");
    let waiting = |pod: &Value| {
        let state = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        state["reason"] == "CreateContainerError"
    };
    let refused = api.until(&stranger, "refused", waiting).await;
    let message = &refused["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
    assert_eq!(message, "the image is a part of roadstead, for pods of kube-system only");

    // A successor waits for its predecessor.
    let second = put(&api, "kube-system", "second");
    assert!(timeout(Duration::from_millis(300), began.recv()).await.is_err());
    assert!(log.write("still here", Timestamp::UNIX_EPOCH));
    end(&api, &first);
    let next = heard(&mut began).await;
    api.until(&second, "ready", is_ready).await;
    assert!(!log.write("too late", Timestamp::UNIX_EPOCH), "it has no log any more");
    assert!(next.write("goes on", Timestamp::UNIX_EPOCH));
    let calls = runtime.calls();
    assert!(calls.iter().all(|call| !call.starts_with("start ")), "nothing was started: {calls:?}");
    agent.stop().await;
}
