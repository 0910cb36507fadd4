//! A pod is asked to end when nobody sends it new connections, and a node that hangs delays that by no more
//! than the bound.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use roadstead_pod::departure::LONGEST;
use serde_json::{Value, json};

use crate::fake_api::FakeApi;
use crate::fake_runtime::FakeRuntime;
use crate::{Agent, WEB, is_ready, pod};

const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-proxy-far";
const TOLD: &str = "roadstead.dev/programmed-endpointslices";

fn slice(is_leaving: bool) -> Value {
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "default"},
        "endpoints": [{"addresses": ["10.244.0.2"], "targetRef": {"kind": "Pod", "uid": "u1"},
            "conditions": {"ready": !is_leaving, "serving": true, "terminating": is_leaving}}]})
}

/// A proxy on another node that lives, and how far it is.
fn lease(programmed: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "kube-proxy-far", "namespace": "kube-system",
            "annotations": {TOLD: programmed}},
        "spec": {"holderIdentity": "far", "leaseDurationSeconds": 40,
            "renewTime": Timestamp::now().to_string()}})
}

struct Scene {
    api: FakeApi,
    runtime: FakeRuntime,
    agent: Agent,
}

impl Scene {
    /// A pod that serves, whose slice is known to a proxy elsewhere.
    async fn new(annotations: Value) -> Self {
        let (api, runtime) = (FakeApi::new(), FakeRuntime::default());
        let agent = Agent::start(&api, runtime.clone());
        let mut web = pod("roadstead/echo", &json!({}));
        web["metadata"]["annotations"] = annotations;
        web["spec"]["terminationGracePeriodSeconds"] = json!(20);
        api.put(WEB, web);
        api.until(WEB, "ready", is_ready).await;
        api.put(SLICE, slice(false));
        api.put(LEASE, lease("0"));
        Self { api, runtime, agent }
    }

    /// Somebody deletes the pod, and the controller of slices says so at once.
    fn delete(&self, grace: i64) -> Instant {
        let now = Timestamp::now().to_string();
        let deletion =
            json!({"metadata": {"deletionTimestamp": now, "deletionGracePeriodSeconds": grace}});
        let began = Instant::now();
        self.api.patch(WEB, &deletion);
        self.api.put(SLICE, slice(true));
        began
    }

    fn is_asked_to_end(&self) -> bool {
        self.runtime.calls().iter().any(|call| call.starts_with("stop"))
    }

    /// How long it took until the pod was asked to end.
    async fn asked_to_end(self, began: Instant) -> Duration {
        while !self.is_asked_to_end() {
            assert!(began.elapsed() < Duration::from_secs(15), "it is never asked to end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let took = began.elapsed();
        self.agent.stop().await;
        took
    }
}

async fn a_node_that_hangs() {
    let scene = Scene::new(json!({})).await;
    let began = scene.delete(20);
    let took = scene.asked_to_end(began).await;
    assert!(took >= LONGEST - Duration::from_millis(50), "after {took:?}");
    assert!(took < 2 * LONGEST, "the bound, and a slow machine: {took:?}");
}

async fn a_node_that_answers() {
    let scene = Scene::new(json!({})).await;
    let began = scene.delete(20);
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(!scene.is_asked_to_end(), "it still gets connections");
    scene.api.put(LEASE, lease("1000000"));
    let took = scene.asked_to_end(began).await;
    assert!(took < LONGEST, "as soon as it is known: {took:?}");
}

async fn nobody_is_waited_for(annotations: Value, grace: i64) {
    let scene = Scene::new(annotations).await;
    let began = scene.delete(grace);
    let took = scene.asked_to_end(began).await;
    assert!(took < LONGEST / 2, "at once: {took:?}");
}

async fn less_patience_than_at_first() {
    let scene = Scene::new(json!({})).await;
    let began = scene.delete(20);
    tokio::time::sleep(Duration::from_millis(300)).await;
    scene.delete(1);
    let took = scene.asked_to_end(began).await;
    assert!(took < LONGEST - Duration::from_millis(300), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_take_their_leave() {
    let at_once = json!({"roadstead.dev/terminate": "at-once"});
    tokio::join!(
        a_node_that_hangs(),
        a_node_that_answers(),
        nobody_is_waited_for(at_once, 20),
        nobody_is_waited_for(json!({}), 0),
        less_patience_than_at_first(),
    );
}
