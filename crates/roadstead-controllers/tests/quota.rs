//! ResourceQuota and LimitRange on a server in the same process, with the controller that counts: what
//! many ask for at once is never more than is allowed.

use std::time::Duration;

use futures::future::join_all;
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

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";

#[derive(Clone)]
struct Cluster(Client);

impl Cluster {
    async fn new() -> Self {
        let range = "10.96.0.0/16".parse().unwrap();
        let config = Config { service_range: range, advertise: None, audit: None };
        let api = Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
        bootstrap::run(&api).await.unwrap();
        let client = Client::new(Local::new(api.clone(), User::component()), "default");
        let stop = CancellationToken::new();
        let (names, settings) = (vec!["resourcequota"], Settings::default());
        let own = Local::new(api, User::part(user_of("resourcequota")));
        let own = Client::new(own, "default");
        tokio::spawn(roadstead_controllers::run(names, own, settings, stop));
        let definition = json!({"metadata": {"name": "things.example.com"}, "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing", "singular": "thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
        let cluster = Self(client);
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        cluster.ask("POST", definitions, definition).await.unwrap();
        cluster
    }

    async fn ask(&self, method: &str, path: &str, body: Value) -> Result<Value, String> {
        let media_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into() };
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", media_type).body(body).unwrap();
        match self.0.request(request).await {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) => Err(status.message.clone()),
            Err(error) => panic!("{path}: {error}"),
        }
    }

    async fn used(&self, quota: &str) -> Value {
        let quota = self.ask("GET", &format!("{QUOTAS}/{quota}"), Value::Null).await.unwrap();
        quota["status"]["used"].clone()
    }

    async fn wait_used(&self, quota: &str, want: Value) {
        for _ in 0..600 {
            if self.used(quota).await == want {
                return;
            }
            time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{quota}: {} is not {want}", self.used(quota).await);
    }

    /// Makes a quota, and waits until it limits.
    async fn limit(&self, name: &str, hard: Value, used: Value) {
        let quota = json!({"metadata": {"name": name}, "spec": {"hard": hard}});
        self.ask("POST", QUOTAS, quota).await.unwrap();
        self.wait_used(name, used).await;
    }
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_get_no_more_than_is_allowed() {
    let cluster = Cluster::new().await;
    cluster.ask("POST", PODS, pod("first")).await.unwrap();
    cluster
        .limit(
            "q",
            json!({"pods": "20", "count/things.example.com": "3"}),
            json!({"pods": "1", "count/things.example.com": "0"}),
        )
        .await;
    let create = |number: usize| {
        let cluster = cluster.clone();
        tokio::spawn(async move { cluster.ask("POST", PODS, pod(&format!("p{number}"))).await })
    };
    let answers = join_all((0..64).map(create)).await;
    let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 19, "{answers:?}");
    for refusal in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        let words =
            "is forbidden: exceeded quota: q, requested: pods=1, used: pods=20, limited: pods=20";
        assert!(refusal.starts_with("pods \"p") && refusal.ends_with(words), "{refusal}");
    }
    let listed = cluster.ask("GET", PODS, Value::Null).await.unwrap();
    assert_eq!(listed["items"].as_array().unwrap().len(), 20);
    assert_eq!(cluster.used("q").await["pods"], "20");
    // Some go while others come: the sum stays what it is.
    let churn = |number: usize| {
        let cluster = cluster.clone();
        tokio::spawn(async move {
            let name = format!("c{number}");
            if number.is_multiple_of(2) {
                let names = cluster.ask("GET", PODS, Value::Null).await.unwrap();
                let victim = names["items"][number / 2 % 20]["metadata"]["name"].clone();
                let path = format!("{PODS}/{}", victim.as_str().unwrap_or("none"));
                let _ = cluster.ask("DELETE", &path, Value::Null).await;
            } else {
                let _ = cluster.ask("POST", PODS, pod(&name)).await;
            }
        })
    };
    join_all((0..64).map(churn)).await;
    let listed = cluster.ask("GET", PODS, Value::Null).await.unwrap();
    let left = listed["items"].as_array().unwrap().len();
    assert!(left <= 20);
    assert_eq!(cluster.used("q").await["pods"], left.to_string());
    for (number, want) in [(1, true), (2, true), (3, true), (4, false)] {
        let thing = json!({"metadata": {"name": format!("t{number}")},
            "apiVersion": "example.com/v1", "kind": "Thing"});
        assert_eq!(cluster.ask("POST", THINGS, thing).await.is_ok(), want, "{number}");
    }
    cluster.ask("DELETE", &format!("{THINGS}/t1"), Value::Null).await.unwrap();
    assert_eq!(cluster.used("q").await["count/things.example.com"], "2");
}

#[tokio::test]
async fn what_is_used_follows_pods_that_end_and_quotas_that_change() {
    let cluster = Cluster::new().await;
    cluster
        .limit(
            "q",
            json!({"pods": "2", "configmaps": "5"}),
            json!({"pods": "0", "configmaps": "0"}),
        )
        .await;
    cluster.ask("POST", MAPS, json!({"metadata": {"name": "m"}})).await.unwrap();
    for name in ["a", "b"] {
        cluster.ask("POST", PODS, pod(name)).await.unwrap();
    }
    assert_eq!(cluster.used("q").await, json!({"pods": "2", "configmaps": "1"}));
    let refusal = cluster.ask("POST", PODS, pod("c")).await.unwrap_err();
    assert_eq!(
        refusal,
        "pods \"c\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, \
        limited: pods=2"
    );
    let ended = json!({"status": {"phase": "Succeeded"}});
    cluster.ask("PATCH", &format!("{PODS}/a/status"), ended).await.unwrap();
    cluster.wait_used("q", json!({"pods": "1", "configmaps": "1"})).await;
    let path = format!("{QUOTAS}/q");
    let hard = json!({"spec": {"hard": {"pods": null, "count/pods": "9"}}});
    cluster.ask("PATCH", &path, hard).await.unwrap();
    cluster.wait_used("q", json!({"configmaps": "1", "count/pods": "2"})).await;
    let scoped = json!({"metadata": {"name": "scoped"}, "spec": {"hard": {"pods": "5"},
        "scopes": ["NotBestEffort"]}});
    cluster.ask("POST", QUOTAS, scoped).await.unwrap();
    cluster.wait_used("scoped", json!({"pods": "0"})).await;
    cluster.ask("DELETE", &path, Value::Null).await.unwrap();
}

#[tokio::test]
async fn limits_fill_in_what_a_quota_demands() {
    let cluster = Cluster::new().await;
    cluster.limit("q", json!({"limits.cpu": "1"}), json!({"limits.cpu": "0"})).await;
    let refusal = cluster.ask("POST", PODS, pod("a")).await.unwrap_err();
    assert_eq!(refusal, "pods \"a\" is forbidden: failed quota: q: must specify limits.cpu for: c");
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [
        {"type": "Container", "max": {"cpu": "500m"}}]}});
    cluster.ask("POST", "/api/v1/namespaces/default/limitranges", range).await.unwrap();
    let made = cluster.ask("POST", PODS, pod("a")).await.unwrap();
    let resources = json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "500m"}});
    assert_eq!(made["spec"]["containers"][0]["resources"], resources);
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    assert_eq!(made["status"]["qosClass"], "Burstable");
    assert_eq!(cluster.used("q").await, json!({"limits.cpu": "500m"}));
    let mut large = pod("b");
    large["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "2"}});
    let refusal = cluster.ask("POST", PODS, large).await.unwrap_err();
    let want = "pods \"b\" is forbidden: maximum cpu usage per Container is 500m, but limit is 2";
    assert_eq!(refusal, want);
}
