//! Owners, dependents and namespaces, on a server in the same process.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use kube::Client;
use roadstead_controllers::Settings;
use roadstead_controllers::identities::user_of;
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

const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SETS: &str = "/apis/apps/v1/namespaces/default/statefulsets";

struct Cluster(Client, Arc<Api>);

fn start(name: &'static str, api: &Arc<Api>, settings: Settings) {
    let stop = CancellationToken::new();
    let client = Client::new(Local::new(api.clone(), User::part(user_of(name))), "default");
    tokio::spawn(roadstead_controllers::run(vec![name], client, settings, stop));
}

impl Cluster {
    /// A server on which both controllers run, and which has a kind of its own.
    async fn new() -> Self {
        let range = "10.96.0.0/16".parse().unwrap();
        let config = Config { service_range: range, advertise: None, audit: None };
        let api = Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
        bootstrap::run(&api).await.unwrap();
        let client = Client::new(Local::new(api.clone(), User::component()), "default");
        for name in ["garbage-collector", "namespace"] {
            start(name, &api, Settings::default());
        }
        let cluster = Self(client, api);
        let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "singular": "thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        cluster.ask("POST", definitions, definition).await.unwrap();
        cluster
    }

    async fn ask(&self, method: &str, path: &str, body: Value) -> Option<Value> {
        let media_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into() };
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", media_type).body(body).unwrap();
        self.0.request(request).await.ok()
    }

    async fn get(&self, path: &str) -> Option<Value> {
        self.ask("GET", path, Value::Null).await
    }

    /// Makes an object, and returns how others refer to it.
    async fn create(&self, path: &str, mut object: Value, owners: &[&Value]) -> Value {
        object["metadata"]["ownerReferences"] = json!(owners);
        let made = self.ask("POST", path, object.clone()).await;
        let made = made.unwrap_or_else(|| panic!("{object} was refused"));
        json!({"apiVersion": made["apiVersion"], "kind": made["kind"],
            "name": made["metadata"]["name"], "uid": made["metadata"]["uid"],
            "blockOwnerDeletion": true})
    }

    /// Waits until something is true of an object, or of its absence.
    async fn wait(&self, path: &str, what: &str, holds: impl Fn(Option<&Value>) -> bool) {
        for _ in 0..400 {
            if holds(self.get(path).await.as_ref()) {
                return;
            }
            time::sleep(Duration::from_millis(25)).await;
        }
        panic!("{path}: {what}: {:?}", self.get(path).await);
    }

    async fn wait_gone(&self, path: &str) {
        self.wait(path, "it stays", |found| found.is_none()).await;
    }
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn set(name: &str) -> Value {
    let labels = json!({"app": name});
    let template = json!({"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({"metadata": {"name": name}, "spec": {"serviceName": name, "template": template,
        "selector": {"matchLabels": labels}}})
}

fn owners(object: Option<&Value>) -> usize {
    let owners = object.and_then(|object| object["metadata"]["ownerReferences"].as_array());
    owners.map_or(0, Vec::len)
}

#[tokio::test]
async fn dependents_of_every_kind_go_with_their_owners() {
    let cluster = Cluster::new().await;
    let thing = cluster.create(THINGS, named("t"), &[]).await;
    let part = cluster.create(THINGS, named("part"), &[&thing]).await;
    cluster.create(MAPS, named("a"), &[&part]).await;
    cluster.ask("DELETE", &format!("{THINGS}/t"), Value::Null).await;
    cluster.wait_gone(&format!("{THINGS}/part")).await;
    cluster.wait_gone(&format!("{MAPS}/a")).await;
}

#[tokio::test]
async fn orphans_stay_and_the_owner_goes() {
    let cluster = Cluster::new().await;
    let (thing, other) =
        (cluster.create(THINGS, named("t"), &[]).await, cluster.create(SETS, set("s"), &[]).await);
    for (name, owner) in [("a", &thing), ("b", &other)] {
        cluster.create(MAPS, named(name), &[owner]).await;
        cluster.create(THINGS, named(name), &[owner]).await;
    }
    for path in [format!("{THINGS}/t"), format!("{SETS}/s")] {
        let orphan = json!({"propagationPolicy": "Orphan"});
        cluster.ask("DELETE", &path, orphan).await.unwrap();
        cluster.wait_gone(&path).await;
    }
    for path in [MAPS, THINGS] {
        for name in ["a", "b"] {
            let found = cluster.get(&format!("{path}/{name}")).await;
            assert!(found.is_some() && owners(found.as_ref()) == 0, "{path}/{name}: {found:?}");
        }
    }
}

#[tokio::test]
async fn an_owner_waits_for_those_who_have_no_other() {
    let cluster = Cluster::new().await;
    let first = cluster.create(SETS, set("first"), &[]).await;
    let second = cluster.create(SETS, set("second"), &[]).await;
    cluster.create(MAPS, named("own"), &[&first]).await;
    cluster.create(MAPS, named("shared"), &[&first, &second]).await;
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/wait"]}});
    cluster.create(MAPS, held, &[&first]).await;
    let foreground = json!({"propagationPolicy": "Foreground"});
    cluster.ask("DELETE", &format!("{SETS}/first"), foreground).await.unwrap();
    cluster.wait_gone(&format!("{MAPS}/own")).await;
    let shared = |found: Option<&Value>| owners(found) == 1;
    cluster.wait(&format!("{MAPS}/shared"), "it has two owners", shared).await;
    assert!(cluster.get(&format!("{SETS}/first")).await.is_some(), "it waits for one that stays");
    let free = json!({"metadata": {"finalizers": null}});
    cluster.ask("PATCH", &format!("{MAPS}/held"), free).await;
    cluster.wait_gone(&format!("{SETS}/first")).await;
    assert!(cluster.get(&format!("{MAPS}/shared")).await.is_some());
}

/// Three that own each other in a circle; then one of them, or all at once, go in the foreground.
#[tokio::test]
async fn a_circle_of_owners_holds_nobody() {
    let cluster = Cluster::new().await;
    for (names, deleted) in [(["a", "b", "c"], 1), (["d", "e", "f"], 3)] {
        let mut own = Vec::new();
        for name in names {
            own.push(cluster.create(MAPS, named(name), &[]).await);
        }
        for (place, name) in names.iter().enumerate() {
            let owner = &own[(place + 2) % 3];
            let patch = json!({"metadata": {"ownerReferences": [owner]}});
            cluster.ask("PATCH", &format!("{MAPS}/{name}"), patch).await.unwrap();
        }
        let bystander = format!("{}-not", names[0]);
        cluster.create(MAPS, named(&bystander), &[]).await;
        for name in &names[..deleted] {
            let foreground = json!({"propagationPolicy": "Foreground"});
            // The first may have taken the others with it already.
            cluster.ask("DELETE", &format!("{MAPS}/{name}"), foreground).await;
        }
        for name in names {
            cluster.wait_gone(&format!("{MAPS}/{name}")).await;
        }
        assert!(cluster.get(&format!("{MAPS}/{bystander}")).await.is_some());
    }
}

#[tokio::test]
async fn a_namespace_says_what_it_waits_for() {
    let cluster = Cluster::new().await;
    cluster.ask("POST", "/api/v1/namespaces", named("shop")).await.unwrap();
    let held = json!({"metadata": {"name": "t", "finalizers": ["example.com/wait"]}});
    let things = "/apis/example.com/v1/namespaces/shop/things";
    cluster.ask("POST", things, held).await.unwrap();
    let shop = "/api/v1/namespaces/shop";
    cluster.ask("DELETE", shop, Value::Null).await.unwrap();
    let told = |found: Option<&Value>| {
        let text = found.map(ToString::to_string).unwrap_or_default();
        text.contains("things.example.com has 1 resource instances")
            && text.contains("finalizers remaining: example.com/wait in 1 resource instances")
    };
    cluster.wait(shop, "it does not say why", told).await;
    let free = json!({"metadata": {"finalizers": null}});
    cluster.ask("PATCH", &format!("{things}/t"), free).await.unwrap();
    cluster.wait_gone(shop).await;
}

#[tokio::test]
async fn pods_go_first_and_nothing_before_they_have_gone() {
    let cluster = Cluster::new().await;
    cluster.ask("POST", "/api/v1/namespaces", named("shop")).await.unwrap();
    let (pods, maps) = ("/api/v1/namespaces/shop/pods", "/api/v1/namespaces/shop/configmaps");
    let pod = json!({"metadata": {"name": "p", "finalizers": ["example.com/wait"]},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    cluster.ask("POST", pods, pod).await.unwrap();
    cluster.ask("POST", maps, named("needed")).await.unwrap();
    let shop = "/api/v1/namespaces/shop";
    cluster.ask("DELETE", shop, Value::Null).await.unwrap();
    let told = |found: Option<&Value>| {
        let text = found.map(ToString::to_string).unwrap_or_default();
        text.contains("Some resources are remaining: pods. has 1 resource instances\"")
    };
    cluster.wait(shop, "it does not say that pods remain", told).await;
    time::sleep(Duration::from_millis(600)).await;
    let map = cluster.get(&format!("{maps}/needed")).await.expect("the pod is still there");
    assert!(map["metadata"]["deletionTimestamp"].is_null());
    let free = json!({"metadata": {"finalizers": null}});
    cluster.ask("PATCH", &format!("{pods}/p"), free).await.unwrap();
    cluster.wait_gone(shop).await;
}

#[tokio::test]
async fn a_namespace_gets_back_what_it_must_have() {
    let cluster = Cluster::new().await;
    let settings = Settings { root_ca: Some("CA".into()), ..Settings::default() };
    start("namespace-content", &cluster.1, settings);
    let map = format!("{MAPS}/kube-root-ca.crt");
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    let right = |found: Option<&Value>| found.is_some_and(|map| map["data"]["ca.crt"] == "CA");
    cluster.wait(&map, "it is not made", right).await;
    cluster.wait(account, "it is not made", |found| found.is_some()).await;
    for round in 0..3 {
        for path in [map.as_str(), account] {
            let before = cluster.get(path).await.unwrap()["metadata"]["uid"].clone();
            cluster.ask("DELETE", path, Value::Null).await.unwrap();
            let is_new = |found: Option<&Value>| {
                found.is_some_and(|found| found["metadata"]["uid"] != before)
            };
            cluster.wait(path, "it does not come back", is_new).await;
        }
        let immutable = if round == 2 { json!(true) } else { Value::Null };
        let evil = json!({"data": {"ca.crt": "EVIL", "more": "x"}, "immutable": immutable});
        cluster.ask("PATCH", &map, evil).await.unwrap();
        let restored =
            |found: Option<&Value>| found.is_some_and(|map| map["data"] == json!({"ca.crt": "CA"}));
        cluster.wait(&map, "it stays wrong", restored).await;
    }
}
