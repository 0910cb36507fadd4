//! What is done to new objects, and what is left out if the operator says so.

use serde_json::{Value, json};

use crate::server::Server;

const PODS: &str = "POST /api/v1/namespaces/default/pods";
const CLASSES: &str = "/apis/networking.k8s.io/v1/ingressclasses";
const INGRESSES: &str = "POST /apis/networking.k8s.io/v1/namespaces/default/ingresses";

fn pod(name: &str, mut spec: Value) -> Value {
    spec["containers"] = json!([{"name": "c", "image": "i"}]);
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn pods_without_plugins() {
    let server = Server::without(&["ServiceAccount", "Priority", "DefaultTolerationSeconds"]).await;
    let made = server.ask(PODS, pod("a", json!({"serviceAccountName": "absent"}))).await;
    assert_eq!(made.code, 201, "{}", made.text);
    let made = server.ask(PODS, pod("b", json!({"priority": 7}))).await;
    assert_eq!(made.code, 201, "{}", made.text);
    let spec = &made.body["spec"];
    for absent in ["serviceAccountName", "serviceAccount", "tolerations", "preemptionPolicy"] {
        assert_eq!(spec.get(absent), None, "{absent}: {spec}");
    }
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let kept = server.ask("PATCH /api/v1/namespaces/default/pods/b", label).await;
    assert_eq!((kept.code, kept.body["spec"].get("tolerations")), (200, None), "{}", kept.text);
}

#[tokio::test]
async fn ingresses_get_the_newest_default_class() {
    let server = Server::new().await;
    let ingress = |name: &str, fields: Value| {
        let mut ingress = json!({"metadata": {"name": name}, "spec": {"defaultBackend":
            {"service": {"name": "s", "port": {"number": 80}}}}});
        roadstead_patch::merge(&mut ingress, &fields).unwrap();
        ingress
    };
    let class = async |name: &str, default: &str| {
        let class = json!({"metadata": {"name": name, "annotations":
            {"ingressclass.kubernetes.io/is-default-class": default}},
            "spec": {"controller": "example.com/c"}});
        assert_eq!(server.ask(&format!("POST {CLASSES}"), class).await.code, 201);
    };
    let given = async |name: &str, fields: Value| {
        let made = server.ask(INGRESSES, ingress(name, fields)).await;
        assert_eq!(made.code, 201, "{}", made.text);
        made.body["spec"]["ingressClassName"].clone()
    };
    assert_eq!(given("a", json!({})).await, Value::Null, "there is none");
    class("other", "false").await;
    class("b-class", "true").await;
    assert_eq!(given("b", json!({})).await, "b-class");
    assert_eq!(given("c", json!({"spec": {"ingressClassName": "other"}})).await, "other");
    let annotated = json!({"metadata": {"annotations": {"kubernetes.io/ingress.class": "x"}}});
    assert_eq!(given("d", annotated).await, Value::Null);
    // Made in the same second, the first name counts.
    class("a-class", "true").await;
    let found = given("e", json!({})).await;
    assert!(found == "a-class" || found == "b-class", "{found}");
    let off = Server::without(&["DefaultIngressClass"]).await;
    let class = json!({"metadata": {"name": "c", "annotations":
        {"ingressclass.kubernetes.io/is-default-class": "true"}}, "spec": {"controller": "e.c/c"}});
    off.ask(&format!("POST {CLASSES}"), class).await;
    let made = off.ask(INGRESSES, ingress("a", json!({}))).await.body;
    assert_eq!(made["spec"].get("ingressClassName"), None);
}

#[tokio::test]
async fn a_server_publishes_where_it_is() {
    let server = Server::without(&[]).await;
    let endpoints = "GET /api/v1/namespaces/default/endpoints/kubernetes";
    let endpoints = server.ask(endpoints, "").await.body;
    assert_eq!(endpoints["subsets"][0]["addresses"], json!([{"ip": "192.0.2.1"}]));
    let slices = "GET /apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = server.ask(slices, "").await.body;
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.1"]));
    assert_eq!(slice["ports"][0]["port"], 6443);
}
