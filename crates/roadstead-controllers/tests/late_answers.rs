//! Controllers whose writes are answered late, on a server in the same process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use roadstead_controllers::Settings;
use roadstead_server::api::Api;
use roadstead_server::bootstrap;
use roadstead_server::config::Config;
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::identity::user::User;
use roadstead_server::transport::local::Local;
use roadstead_store::kv::Store;
use serde_json::{Value, json};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tower::Service;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";
/// Watches are much faster than this.
const LATE: Duration = Duration::from_millis(300);

async fn ask(client: &Client, method: &str, path: &str, body: Value) -> Option<Value> {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into() };
    let request = Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/json").body(body).unwrap();
    client.request(request).await.ok()
}

/// A Deployment is deleted while the answer to a write about it is under way. Its controller must
/// not go on looking after it: making its ReplicaSet, which the garbage collector would delete again,
/// or asking for what is not there.
#[tokio::test]
async fn a_deployment_that_is_gone_stays_gone() {
    let range = "10.96.0.0/16".parse().unwrap();
    let config = Config { service_range: range, advertise: None, audit: None };
    let api = Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
    bootstrap::run(&api).await.unwrap();
    let local = Local::new(api, User::component());
    let quick = Client::new(local.clone(), "default");
    let writes = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&writes);
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let writes = request.method() != Method::GET;
        let late = writes && path.starts_with(DEPLOYMENTS);
        if late || (writes && path.starts_with(SETS)) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
        let mut local = local.clone();
        async move {
            let response = local.call(request).await;
            if late {
                time::sleep(LATE).await;
            }
            response
        }
    });
    let slow = Client::new(service, "default");
    for (name, client) in [("deployment", slow), ("garbage-collector", quick.clone())] {
        let (settings, stop) = (Settings::default(), CancellationToken::new());
        tokio::spawn(roadstead_controllers::run(vec![name], client, settings, stop));
    }
    let labels = json!({"app": "web"});
    let web = json!({"metadata": {"name": "web"}, "spec": {
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    ask(&quick, "POST", DEPLOYMENTS, web).await.unwrap();
    let web = format!("{DEPLOYMENTS}/web");
    let written = |web: &Option<Value>| {
        web.as_ref().is_some_and(|web| !web["metadata"]["annotations"].is_null())
    };
    let begin = time::Instant::now();
    while !written(&ask(&quick, "GET", &web, Value::Null).await) {
        assert!(begin.elapsed() < Duration::from_secs(10), "nobody looks after it");
        time::sleep(Duration::from_millis(5)).await;
    }
    ask(&quick, "DELETE", &web, Value::Null).await.unwrap();
    time::sleep(5 * LATE).await;
    let by_then = writes.load(Ordering::Relaxed);
    time::sleep(5 * LATE).await;
    assert_eq!(writes.load(Ordering::Relaxed), by_then, "somebody looks after a ghost");
    let left = ask(&quick, "GET", SETS, Value::Null).await.unwrap();
    assert_eq!(left["items"], json!([]));
}
