//! A controller that keeps one object as it is, and servers that will not let it.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use roadstead_watch::informer::Change;
use serde_json::{Value, json};
use tokio::time;

use crate::Settings;

#[derive(Default)]
struct Keeper {
    maps: Cache<ConfigMap>,
}

impl Watches<ConfigMap> for Keeper {
    fn cache(&mut self) -> &mut Cache<ConfigMap> {
        &mut self.maps
    }

    fn wake(&mut self, change: &Changed<ConfigMap>, queue: &mut Queue<ObjectKey>) {
        queue.add(change.key.clone());
    }
}

impl Controller for Keeper {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "keeper";
    const QUEUE: &'static str = "keeper";

    fn plan(&mut self, key: &ObjectKey, _: Timestamp) -> WritePlan {
        let Some(map) = self.maps.get(key) else { return WritePlan::none() };
        WritePlan::writes(vec![Write::replace(key.clone(), map.as_ref())])
    }
}

/// How many writes reach a server that refuses them all so, in ten minutes.
async fn writes_in_ten_minutes(refusal: Value) -> usize {
    let writes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&writes);
    let service = tower::service_fn(move |_: Request<Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        let code = u16::try_from(refusal["code"].as_u64().unwrap()).unwrap();
        let body = Body::from(refusal.to_string().into_bytes());
        let response = Response::builder().status(code).body(body).unwrap();
        async { Ok::<_, Infallible>(response) }
    });
    let map = json!({"metadata": {"name": "a", "namespace": "n", "uid": "u",
        "resourceVersion": "5"}});
    let map: ConfigMap = serde_json::from_value(map).unwrap();
    let changes = [Change::Set(Arc::new(map)), Change::Synced];
    let changes = futures::stream::iter(changes).chain(futures::stream::pending()).boxed();
    let inputs = Inputs::new().watch(changes);
    let client = Client::new(service, "default");
    let settings = Settings::default();
    let ready = settings.component.readiness.register("keeper");
    let context = Context { name: "keeper", client, settings: settings.clone(), ready };
    assert_eq!(settings.component.readiness.missing(), ["keeper"]);
    let work = run(context, Keeper::default(), inputs);
    assert!(time::timeout(Duration::from_secs(600), work).await.is_err());
    assert!(settings.component.readiness.missing().is_empty(), "all has been seen");
    let state = serde_json::to_value(&settings.states).unwrap();
    assert_eq!(state["keeper"]["synced"], true, "{state}");
    writes.load(Ordering::Relaxed)
}

fn refusal(code: u16, kind: &str, name: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "R",
        "message": "no", "code": code, "details": {"kind": kind, "name": name}})
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_gone_is_not_asked_for_again() {
    assert_eq!(writes_in_ten_minutes(refusal(404, "configmaps", "a")).await, 1);
}

#[tokio::test(start_paused = true)]
async fn all_other_failures_are_tried_again_later_and_later() {
    // 5 ms, 10 ms and so on until 30 s: 13 times in the first minute, then every 30 s.
    for refusal in [refusal(500, "configmaps", "a"), refusal(404, "namespaces", "n")] {
        let writes = writes_in_ten_minutes(refusal).await;
        assert!((20..40).contains(&writes), "{writes}");
    }
}
