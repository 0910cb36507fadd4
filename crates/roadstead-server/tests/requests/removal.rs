//! How objects go: one, many, on condition, with or without their dependents, or by eviction.

use serde_json::{Value, json};

use crate::server::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// The names of what is left.
async fn left(server: &Server, path: &str) -> String {
    let list = server.ask(&format!("GET {path}"), "").await.body;
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn collections() {
    let server = Server::new().await;
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x"), ("d", "y")] {
        let map = json!({"metadata": {"name": name, "labels": {"l": label}}});
        server.ask(&format!("POST {MAPS}"), map).await;
    }
    let held = json!({"metadata": {"finalizers": ["example.com/wait"]}});
    server.ask(&format!("PATCH {MAPS}/c"), held).await;
    // What is asked for, and what is left then.
    let cases = [
        ("?labelSelector=l%3Dx&dryRun=All", "a b c d"),
        ("?labelSelector=l%3Dx", "b c d"),
        ("?fieldSelector=metadata.name%3Db", "c d"),
        ("", "c"),
    ];
    for (query, want) in cases {
        let answer = server.ask(&format!("DELETE {MAPS}{query}"), "").await;
        assert_eq!((answer.code, &answer.body["status"]), (200, &json!("Success")), "{query}");
        assert_eq!(left(&server, MAPS).await, want, "{query}");
    }
    let waiting = server.ask(&format!("GET {MAPS}/c"), "").await.body;
    assert!(waiting["metadata"]["deletionTimestamp"].is_string(), "{waiting}");
}

/// A pod may have as long as anybody asks for; time itself ends earlier.
#[tokio::test]
async fn more_time_than_there_is() {
    let server = Server::new().await;
    for (name, grace) in [("a", i64::MAX), ("b", 400_000_000_000), ("c", i64::MIN)] {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": "n",
            "containers": [{"name": "c", "image": "i"}]}});
        server.ask(&format!("POST {PODS}"), pod).await;
        let options = json!({"gracePeriodSeconds": grace});
        let answer = server.ask(&format!("DELETE {PODS}/{name}"), options).await;
        assert_eq!(answer.code, 200, "{grace}: {answer:?}");
        let pod = server.ask(&format!("GET {PODS}/{name}"), "").await;
        let end = pod.body["metadata"]["deletionTimestamp"].as_str().unwrap_or("gone");
        let want = if grace > 0 { "9999-" } else { "gone" };
        assert!(end.starts_with(want), "{grace}: {end}");
    }
}

#[tokio::test]
async fn conditions() {
    let server = Server::new().await;
    let made = server.ask(&format!("POST {MAPS}"), json!({"metadata": {"name": "a"}})).await.body;
    let (uid, version) = (&made["metadata"]["uid"], &made["metadata"]["resourceVersion"]);
    let words = "Operation cannot be fulfilled on configmaps \"a\": Precondition failed:";
    let cases = [
        (
            json!({"uid": "other"}),
            409,
            format!(
                "{words} UID in precondition: other, UID in object meta: {}",
                uid.as_str().unwrap()
            ),
        ),
        (
            json!({"uid": uid, "resourceVersion": "1"}),
            409,
            format!(
                "{words} ResourceVersion in precondition: 1, ResourceVersion in object meta: {}",
                version.as_str().unwrap()
            ),
        ),
        (json!({"uid": uid, "resourceVersion": version}), 200, String::new()),
    ];
    for (preconditions, code, message) in cases {
        let options = json!({"preconditions": preconditions});
        let answer = server.ask(&format!("DELETE {MAPS}/a"), options).await;
        let found = answer.body["message"].as_str().unwrap_or("");
        assert_eq!((answer.code, found), (code, message.as_str()), "{preconditions}");
    }
}

#[tokio::test]
async fn dependents() {
    let server = Server::new().await;
    server.ask(&format!("POST {MAPS}"), json!({"metadata": {"name": "a"}})).await;
    let prefix = "DeleteOptions.meta.k8s.io \"\" is invalid:";
    let refused = [
        (
            json!({"propagationPolicy": "Odd"}),
            "propagationPolicy: Unsupported value: \"Odd\": supported values: \"Foreground\", \
             \"Background\", \"Orphan\", \"nil\"",
        ),
        (
            json!({"dryRun": ["Some"]}),
            "dryRun: Unsupported value: [\"Some\"]: supported values: \"All\"",
        ),
        (
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            "propagationPolicy: Invalid value: \"Orphan\": orphanDependents and \
             deletionPropagation cannot be both set",
        ),
    ];
    for (options, words) in refused {
        let answer = server.ask(&format!("DELETE {MAPS}/a"), options).await;
        let want = json!(format!("{prefix} {words}"));
        assert_eq!((answer.code, &answer.body["message"]), (422, &want));
    }
    // What is asked for one after the other, and what the object then waits for.
    let cases = [
        ("Foreground", Some(json!(["foregroundDeletion"]))),
        ("Orphan", Some(json!(["orphan"]))),
        ("", Some(json!(["orphan"]))),
        ("Background", None),
    ];
    for (policy, want) in cases {
        let query = format!("DELETE {MAPS}/a?propagationPolicy={policy}");
        let answer = server.ask(&query, "").await;
        assert_eq!(answer.code, 200, "{policy}: {}", answer.text);
        let found = server.ask(&format!("GET {MAPS}/a"), "").await;
        let finalizers = (found.code == 200).then(|| found.body["metadata"]["finalizers"].clone());
        assert_eq!(finalizers, want, "{policy}");
    }
}

#[tokio::test]
async fn who_is_going_gets_no_more_finalizers() {
    let server = Server::new().await;
    let map = json!({"metadata": {"name": "a", "finalizers": ["example.com/a"]}});
    server.ask(&format!("POST {MAPS}"), map).await;
    server.ask(&format!("DELETE {MAPS}/a"), "").await;
    let more = json!({"metadata": {"finalizers": ["example.com/a", "example.com/b"]}});
    let refused = server.ask(&format!("PATCH {MAPS}/a"), more).await;
    assert_eq!(refused.code, 422, "{}", refused.text);
    let none = json!({"metadata": {"finalizers": []}});
    assert_eq!(server.ask(&format!("PATCH {MAPS}/a"), none).await.code, 200);
    assert_eq!(left(&server, MAPS).await, "");
}

#[tokio::test]
async fn evictions_spend_the_budget() {
    let server = Server::new().await;
    for name in ["a", "b", "pending"] {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(server.ask(&format!("POST {PODS}"), pod).await.code, 201);
        if name != "pending" {
            let status = json!({"status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}]}});
            server.ask(&format!("PATCH {PODS}/{name}/status"), status).await;
        }
    }
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    assert_eq!(server.ask(&format!("POST {budgets}"), budget).await.code, 201);
    let evict = async |name: &str| {
        let eviction = json!({"metadata": {"name": name}});
        server.ask(&format!("POST {PODS}/{name}/eviction"), eviction).await
    };
    let early = evict("a").await;
    assert_eq!(early.code, 429, "nobody has looked at the budget yet: {}", early.text);
    assert_eq!(early.retry_after, None);
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1,
        "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 2}});
    server.ask(&format!("PATCH {budgets}/web/status"), status).await;
    assert_eq!(evict("pending").await.code, 201, "it counts for nothing");
    assert_eq!(evict("a").await.code, 201);
    let refused = evict("b").await;
    assert_eq!(refused.code, 429, "{}", refused.text);
    assert_eq!(refused.retry_after, None, "kubectl drain would wait 100 s");
    let cause = json!({"reason": "DisruptionBudget",
        "message": "The disruption budget web needs 1 healthy pods and has 1 currently"});
    assert_eq!(refused.body["details"], json!({"causes": [cause]}));
    let spent: Value = server.ask(&format!("GET {budgets}/web"), "").await.body;
    assert_eq!(spent["status"]["disruptionsAllowed"], 0);
    assert!(spent["status"]["disruptedPods"]["a"].is_string(), "{spent}");
    assert_eq!(left(&server, PODS).await, "b");
}

#[tokio::test]
async fn evicted_pods_say_that_they_were() {
    let server = Server::new().await;
    let pod = json!({"metadata": {"name": "a", "finalizers": ["example.com/wait"]},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let made = server.ask(&format!("POST {PODS}"), pod).await.body;
    let uid = made["metadata"]["uid"].clone();
    let evict = async |options: Value| {
        let eviction = json!({"metadata": {"name": "a"}, "deleteOptions": options});
        server.ask(&format!("POST {PODS}/a/eviction"), eviction).await.code
    };
    let target = async || {
        let pod = server.ask(&format!("GET {PODS}/a"), "").await.body;
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = all.iter().find(|own| own["type"] == "DisruptionTarget").cloned();
        found.map(|own| format!("{}: {}", own["status"], own["reason"]))
    };
    assert_eq!(evict(json!({"preconditions": {"uid": "another"}})).await, 409);
    assert_eq!(evict(json!({"dryRun": ["All"]})).await, 201);
    assert_eq!(target().await, None, "it stays");
    let version = made["metadata"]["resourceVersion"].clone();
    let this = json!({"preconditions": {"uid": uid, "resourceVersion": version}});
    assert_eq!(evict(this).await, 201, "that very state");
    assert_eq!(target().await.as_deref(), Some("\"True\": \"EvictionByEvictionAPI\""));
}

#[tokio::test]
async fn an_address_stays_taken_however_its_object_goes() {
    const SERVICES: &str = "/api/v1/namespaces/default/services";
    const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
    let server = Server::new().await;
    let service = |name: &str, address: &str| {
        json!({"metadata": {"name": name},
            "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
    };
    let wait = json!({"metadata": {"finalizers": ["example.com/wait"]}});
    let none = json!({"metadata": {"finalizers": null}});
    // How the object goes: at once, or when its last finalizer does.
    let ways = ["DELETE", "PATCH", "PUT", "apply", "collection"];
    for (index, way) in ways.into_iter().enumerate() {
        let address = format!("10.96.5.{}", index + 1);
        let made = service(&format!("s{index}"), &address);
        assert_eq!(server.ask(&format!("POST {SERVICES}"), made).await.code, 201, "{way}");
        let path = format!("{ADDRESSES}/{address}");
        let first = server.ask(&format!("GET {path}"), "").await.body;
        let apply = async |mut metadata: Value| {
            metadata["metadata"]["name"] = address.as_str().into();
            metadata["apiVersion"] = "networking.k8s.io/v1".into();
            metadata["kind"] = "IPAddress".into();
            let request = format!("PATCH {path}?fieldManager=m");
            server.ask_as(&request, "application/apply-patch+yaml", metadata).await
        };
        match way {
            "apply" => drop(apply(wait.clone()).await),
            "PATCH" | "PUT" => drop(server.ask(&format!("PATCH {path}"), &wait).await),
            _ => {}
        }
        let query = match way {
            "collection" => format!("DELETE {ADDRESSES}?fieldSelector=metadata.name%3D{address}"),
            _ => format!("DELETE {path}"),
        };
        assert_eq!(server.ask(&query, "").await.code, 200, "{way}");
        let mut going = server.ask(&format!("GET {path}"), "").await.body;
        let answer = match way {
            "PATCH" => server.ask(&format!("PATCH {path}"), &none).await,
            "apply" => apply(json!({"metadata": {}})).await,
            "PUT" => {
                going["metadata"].as_object_mut().unwrap().remove("finalizers");
                server.ask(&format!("PUT {path}"), &going).await
            }
            _ => server.ask(&format!("GET {path}"), "").await,
        };
        assert_eq!(answer.code, 200, "{way}: {}", answer.text);
        let now = server.ask(&format!("GET {path}"), "").await;
        assert_eq!(now.code, 200, "{way}: the address of a Service is free");
        assert_ne!(now.body["metadata"]["uid"], first["metadata"]["uid"], "{way}");
        assert_eq!(now.body["metadata"].get("finalizers"), None, "{way}");
        let second = server.ask(&format!("POST {SERVICES}"), service("second", &address)).await;
        assert_eq!(second.code, 422, "{way}: {}", second.text);
    }
}
