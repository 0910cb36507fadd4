//! A dry run answers as if, and changes nothing: every verb on every kind.

use serde_json::{Value, json};

use crate::samples;
use crate::server::{Answer, Server};

const APPLY: &str = "application/apply-patch+yaml";
const JSON: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The number of the last write of any kind.
async fn revision(server: &Server) -> Value {
    let list = server.ask("GET /api/v1/nodes?limit=1", "").await.body;
    list["metadata"]["resourceVersion"].clone()
}

/// Sends requests as dry runs, and insists that nothing is written.
struct Dry<'a>(&'a Server);

impl Dry<'_> {
    async fn ask(&self, request: &str, media_type: &str, body: impl ToString) -> Answer {
        let before = revision(self.0).await;
        let joined = if request.contains('?') { '&' } else { '?' };
        let dry = format!("{request}{joined}dryRun=All");
        let answer = self.0.ask_as(&dry, media_type, body).await;
        assert_eq!(revision(self.0).await, before, "{dry}: {}", answer.text);
        answer
    }

    async fn works(&self, request: &str, media_type: &str, body: impl ToString) {
        let answer = self.ask(request, media_type, body).await;
        assert!((200..300).contains(&answer.code), "{request}: {}", answer.text);
    }
}

#[tokio::test]
async fn every_verb_on_every_kind() {
    let (server, samples) = samples::all().await;
    let dry = Dry(&server);
    let (json, merge) = ("application/json", "application/merge-patch+json");
    for sample in &samples {
        let (all, one) = (&sample.path, sample.one());
        dry.works(&format!("POST {all}"), json, &sample.object).await;
        let mut config = sample.object.clone();
        let (version, _) = sample.kind.split_once(' ').unwrap();
        let absent = server.ask(&format!("GET {one}"), "").await;
        assert_eq!(absent.code, 404, "{}", sample.kind);
        let made = server.ask(&format!("POST {all}"), &sample.object).await;
        assert_eq!(made.code, 201, "{}: {}", sample.kind, made.text);
        config["apiVersion"] = version.into();
        config["kind"] = made.body["kind"].clone();
        config["metadata"]["labels"] = json!({"new": "yes"});
        let mut new = made.body.clone();
        new["metadata"]["labels"]["new"] = "yes".into();
        let label = json!({"metadata": {"labels": {"new": "yes"}}});
        let add = json!([{"op": "add", "path": "/metadata/annotations", "value": {"a/b": "c"}}]);
        for part in ["", "/status", "/approval"] {
            let path = format!("{one}{part}");
            if server.ask(&format!("GET {path}"), "").await.code != 200 {
                continue;
            }
            dry.works(&format!("PUT {path}"), json, &new).await;
            dry.works(&format!("PATCH {path}"), merge, &label).await;
            dry.works(&format!("PATCH {path}"), JSON, &add).await;
            if !sample.kind.starts_with("example.com") {
                dry.works(&format!("PATCH {path}"), STRATEGIC, &label).await;
            }
            let apply = format!("PATCH {path}?fieldManager=test&force=true");
            dry.works(&apply, APPLY, &config).await;
        }
        let scale = server.ask(&format!("GET {one}/scale"), "").await;
        if scale.code == 200 {
            let mut wanted = scale.body;
            wanted["spec"]["replicas"] = 5.into();
            dry.works(&format!("PUT {one}/scale"), json, &wanted).await;
            let patch = json!({"spec": {"replicas": 6}});
            dry.works(&format!("PATCH {one}/scale"), merge, patch).await;
        }
        for policy in ["", "Background", "Foreground", "Orphan"] {
            let query = format!("DELETE {one}?propagationPolicy={policy}");
            dry.works(&query, json, "").await;
            dry.works(&format!("DELETE {one}"), json, json!({"dryRun": ["All"]})).await;
        }
        if !matches!(sample.kind, "v1 namespaces" | "v1 services") {
            dry.works(&format!("DELETE {all}"), json, "").await;
        }
        // One that waits for its last finalizer, and would go.
        let held = json!({"metadata": {"finalizers": ["example.com/wait"]}});
        server.ask(&format!("PATCH {one}"), held).await;
        let going = server.ask(&format!("DELETE {one}"), json!({"gracePeriodSeconds": 0})).await;
        assert_eq!(going.code, 200, "{}: {}", sample.kind, going.text);
        let release = json!({"metadata": {"finalizers": []}});
        dry.works(&format!("PATCH {one}"), merge, &release).await;
        assert_eq!(server.ask(&format!("GET {one}"), "").await.code, 200, "{}", sample.kind);
        server.ask(&format!("PATCH {one}"), release).await;
    }
}

#[tokio::test]
async fn what_happens_to_pods_accounts_namespaces_and_services() {
    let server = Server::new().await;
    let dry = Dry(&server);
    let json = "application/json";
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.ask(&format!("POST {pods}"), pod).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    dry.works(&format!("POST {pods}/p/binding"), json, &binding).await;
    server.ask(&format!("POST {pods}/p/binding"), &binding).await;
    let status = json!({"status": {"phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}]}});
    server.ask(&format!("PATCH {pods}/p/status"), status).await;
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "b"},
        "spec": {"minAvailable": 0, "selector": {"matchLabels": {"a": "b"}}}});
    server.ask(&format!("POST {budgets}"), budget).await;
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1,
        "currentHealthy": 1, "desiredHealthy": 0, "expectedPods": 1}});
    server.ask(&format!("PATCH {budgets}/b/status"), status).await;
    let eviction = json!({"metadata": {"name": "p"}});
    dry.works(&format!("POST {pods}/p/eviction"), json, &eviction).await;
    let before = revision(&server).await;
    let eviction = json!({"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"]}});
    let answer = server.ask(&format!("POST {pods}/p/eviction"), &eviction).await;
    assert_eq!((answer.code, revision(&server).await), (201, before), "{}", answer.text);
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    server.ask(&format!("POST {accounts}"), json!({"metadata": {"name": "a"}})).await;
    let token = json!({"spec": {"expirationSeconds": 600}});
    dry.works(&format!("POST {accounts}/a/token"), json, token).await;
    server.ask("POST /api/v1/namespaces", json!({"metadata": {"name": "going"}})).await;
    let mut namespace = server.ask("DELETE /api/v1/namespaces/going", "").await.body;
    namespace["spec"]["finalizers"] = json!([]);
    dry.works("PUT /api/v1/namespaces/going/finalize", json, namespace).await;
    assert_eq!(server.ask("GET /api/v1/namespaces/going", "").await.code, 200);
    // Addresses and ports, of all types and from one to another.
    let services = "/api/v1/namespaces/default/services";
    let types = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"];
    for (before, after) in types.iter().flat_map(|from| types.map(|to| (*from, to))) {
        let service = |name: &str, ty: &str| {
            json!({"metadata": {"name": name}, "spec": {"type": ty, "externalName": "a.b",
                "externalTrafficPolicy": if ty == "LoadBalancer" { "Local".into() } else {
                    Value::Null }, "ports": [{"port": 80}]}})
        };
        let name = format!("{before}-{after}").to_lowercase();
        dry.works(&format!("POST {services}"), json, service(&name, before)).await;
        let made = server.ask(&format!("POST {services}"), service(&name, before)).await;
        assert_eq!(made.code, 201, "{}", made.text);
        dry.works(&format!("PUT {services}/{name}"), json, service(&name, after)).await;
        dry.works(
            &format!("PUT {services}/{name}-absent"),
            json,
            service(&format!("{name}-absent"), after),
        )
        .await;
    }
}

#[tokio::test]
async fn nothing_else_than_all_is_a_dry_run() {
    let server = Server::new().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for query in ["dryRun=", "dryRun=Some", "dryRun=All&dryRun=", "dryRun=&dryRun=All"] {
        let map = json!({"metadata": {"name": "a"}});
        let answer = server.ask(&format!("POST {maps}?{query}"), map).await;
        assert_eq!(answer.code, 422, "{query}: {}", answer.text);
    }
    assert_eq!(server.ask(&format!("GET {maps}/a"), "").await.code, 404);
}
