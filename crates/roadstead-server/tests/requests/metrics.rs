//! `metrics.k8s.io`, answered by what the agent of the node has measured.

use std::convert::Infallible;

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use roadstead_server::node_agents::LocalAgent;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::server::Server;

const METRICS: &str = "/apis/metrics.k8s.io/v1beta1";

/// An agent that has measured this.
fn agent(summary: Value) -> LocalAgent {
    let (send, mut receive) = mpsc::channel(4);
    tokio::spawn(async move {
        while let Some(stream) = receive.recv().await {
            let text = summary.to_string();
            let answer = move |request: Request<Incoming>| {
                assert_eq!(request.uri().path(), "/stats/summary");
                let body = Full::new(Bytes::from(text.clone()));
                async move { Ok::<_, Infallible>(Response::new(body)) }
            };
            let served =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(served);
        }
    });
    LocalAgent::new("n1", send)
}

fn usage(nanocores: Option<u64>, bytes: u64) -> Value {
    let mut cpu = json!({"time": "2026-01-02T03:04:05.6Z", "usageCoreNanoSeconds": 1});
    if let Some(nanocores) = nanocores {
        cpu["usageNanoCores"] = nanocores.into();
        cpu["windowNanoSeconds"] = 15_002_000_000_u64.into();
    }
    json!({"cpu": cpu, "memory": {"workingSetBytes": bytes}})
}

fn named(name: &str, mut value: Value) -> Value {
    value["name"] = name.into();
    value
}

/// A server with two nodes, of which the agent of one answers, and three pods.
async fn server() -> Server {
    let server = Server::new().await;
    for node in ["n1", "n2"] {
        let node = json!({"metadata": {"name": node, "labels": {"zone": node}}});
        assert_eq!(server.ask("POST /api/v1/nodes", node).await.code, 201);
    }
    let mut pods = Vec::new();
    for (name, node) in [("web", "n1"), ("young", "n1"), ("far", "n2")] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "a", "image": "i"}]}});
        let made = server.ask("POST /api/v1/namespaces/default/pods", pod).await;
        let uid = made.body["metadata"]["uid"].clone();
        let rate = (name != "young").then_some(1_234_567);
        pods.push(json!({"podRef": {"name": name, "namespace": "default", "uid": uid},
            "containers": [named("a", usage(rate, 2048)), named("b", usage(Some(5), 1))]}));
    }
    // The agent knows its own pods only, and one that nobody else knows any more.
    pods.truncate(2);
    pods.push(json!({"podRef": {"name": "gone", "namespace": "default", "uid": "x"},
        "containers": [named("a", usage(Some(1), 1))]}));
    server.set_local_agent(agent(json!({"node": usage(Some(7_000_000), 4096), "pods": pods})));
    server
}

#[tokio::test]
async fn what_nodes_and_pods_use() {
    let server = server().await;
    let nodes = server.ask(&format!("GET {METRICS}/nodes"), Value::Null).await;
    assert_eq!(nodes.code, 200, "{nodes:?}");
    let node = json!({"kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": "n1", "labels": {"zone": "n1"},
            "creationTimestamp": "2026-01-02T03:04:05Z"},
        "timestamp": "2026-01-02T03:04:05Z", "window": "15.002s",
        "usage": {"cpu": "7000000n", "memory": "4Ki"}});
    assert_eq!(nodes.body["kind"], "NodeMetricsList");
    assert_eq!(nodes.body["items"], json!([node]), "the other node does not answer");

    let path = format!("GET {METRICS}/namespaces/default/pods");
    let pods = server.ask(&path, Value::Null).await.body;
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(1), "not long enough: {pods}");
    let containers = json!([
        {"name": "a", "usage": {"cpu": "1234567n", "memory": "2Ki"}},
        {"name": "b", "usage": {"cpu": "5n", "memory": "1Ki"}},
    ]);
    assert_eq!(pods["items"][0]["containers"], containers);
    let one = server.ask(&format!("{path}/web"), Value::Null).await.body;
    assert_eq!(one, pods["items"][0]);
    for (query, count) in [
        ("/pods", 1),
        ("/pods?labelSelector=app%3Dweb", 1),
        ("/pods?labelSelector=app%3Dother", 0),
        ("/namespaces/other/pods", 0),
        ("/pods?fieldSelector=metadata.name%3Dweb", 1),
        ("/nodes?labelSelector=zone%3Dn2", 0),
    ] {
        let found = server.ask(&format!("GET {METRICS}{query}"), Value::Null).await.body;
        assert_eq!(found["items"].as_array().map(Vec::len), Some(count), "{query}");
    }
    let missing = server.ask(&format!("{path}/young"), Value::Null).await;
    let message = "podmetrics.metrics.k8s.io \"default/young\" not found";
    assert_eq!((missing.code, &missing.body["message"]), (404, &json!(message)));
    let written = server.ask(&format!("POST {METRICS}/nodes"), json!({})).await;
    assert_eq!(written.code, 405);
}

#[tokio::test]
async fn metrics_are_served_where_somebody_measures() {
    let without = Server::new().await;
    assert_eq!(without.ask(&format!("GET {METRICS}/nodes"), Value::Null).await.code, 404);
    assert_eq!(without.ask("GET /apis/metrics.k8s.io", Value::Null).await.code, 404);
    let server = server().await;
    let found = server.ask(&format!("GET {METRICS}"), Value::Null).await.body;
    let resources = found["resources"].as_array().unwrap().iter();
    let resources: Vec<_> =
        resources.map(|one| (one["name"].as_str(), one["kind"].as_str(), &one["verbs"])).collect();
    let verbs = json!(["get", "list"]);
    assert_eq!(
        resources,
        [(Some("nodes"), Some("NodeMetrics"), &verbs), (Some("pods"), Some("PodMetrics"), &verbs)]
    );
    let path = "GET /openapi/v3/apis/metrics.k8s.io/v1beta1";
    assert_eq!(server.ask(path, Value::Null).await.code, 200);
}
