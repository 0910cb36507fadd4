//! What new pods get from other objects.

use serde_json::{Value, json};

use crate::server::Server;

const PODS: &str = "POST /api/v1/namespaces/default/pods";
const CLASSES: &str = "POST /apis/scheduling.k8s.io/v1/priorityclasses";

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    pod
}

#[tokio::test]
async fn accounts_and_priorities() {
    let server = Server::new().await;
    let account = json!({"metadata": {"name": "web"}});
    server.ask("POST /api/v1/namespaces/default/serviceaccounts", account).await;
    let class = json!({"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"});
    server.ask(CLASSES, class).await;
    let system = "system-node-critical";
    // The account, class, priority and preemption of those who are admitted.
    let cases = [
        (json!({}), "default - 0 PreemptLowerPriority"),
        (json!({"serviceAccountName": "web"}), "web - 0 PreemptLowerPriority"),
        (json!({"priorityClassName": "high"}), "default high 1000 Never"),
        (json!({"priorityClassName": "high", "priority": 1000}), "default high 1000 Never"),
        (
            json!({"priorityClassName": system}),
            "default system-node-critical 2000001000 PreemptLowerPriority",
        ),
        (
            json!({"serviceAccountName": "none"}),
            "pods \"5\" is forbidden: error looking up service account default/none: \
             serviceaccount \"none\" not found",
        ),
        (
            json!({"priorityClassName": "none"}),
            "pods \"6\" is forbidden: no PriorityClass with name none was found",
        ),
        (
            json!({"priority": 7}),
            "pods \"7\" is forbidden: the integer value of priority (7) must not be provided in \
             pod spec; priority admission controller computed 0 from the given PriorityClass name",
        ),
    ];
    for (index, (spec, want)) in cases.into_iter().enumerate() {
        let answer = server.ask(PODS, pod(&index.to_string(), spec.clone())).await;
        let made = &answer.body["spec"];
        let found = match answer.code {
            201 => format!(
                "{} {} {} {}",
                made["serviceAccountName"].as_str().unwrap(),
                made["priorityClassName"].as_str().unwrap_or("-"),
                made["priority"],
                made["preemptionPolicy"].as_str().unwrap()
            ),
            _ => answer.body["message"].as_str().unwrap().to_owned(),
        };
        assert_eq!(found, want, "{spec}");
    }
    let default = json!({"metadata": {"name": "usual"}, "value": 5, "globalDefault": true});
    server.ask(CLASSES, default).await;
    let made = server.ask(PODS, pod("usual", json!({}))).await.body;
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["priorityClassName"]),
        (&json!(5), &json!("usual"))
    );
}

const ONE: &str = "/api/v1/namespaces/default/pods/a";

#[tokio::test]
async fn containers_are_added_to_a_running_pod_and_stay() {
    let server = Server::new().await;
    let made = pod("a", json!({}));
    assert_eq!(server.ask(PODS, &made).await.code, 201);
    let early = pod("b", json!({"ephemeralContainers": [{"name": "d", "image": "i"}]}));
    assert_eq!(server.ask(PODS, early).await.code, 422, "not from the beginning");
    let strategic = "application/strategic-merge-patch+json";
    let path = format!("PATCH {ONE}/ephemeralcontainers");
    let add = |container: Value| json!({"spec": {"ephemeralContainers": [container]}});
    // What is added, and what is said to it.
    let cases = [
        (json!({"name": "d", "image": "i:1", "targetContainerName": "c"}), ""),
        (json!({"name": "e", "image": "i:1", "stdin": true, "tty": true}), ""),
        (
            json!({"name": "c", "image": "i"}),
            "spec.ephemeralContainers[0].name: Duplicate value: \"c\"",
        ),
        (
            json!({"name": "f", "image": "i", "targetContainerName": "d"}),
            "spec.ephemeralContainers[0].targetContainerName: Not found: \"d\"",
        ),
        (
            json!({"name": "f", "image": "i", "ports": [{"containerPort": 80}]}),
            "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral \
             Container",
        ),
        (
            json!({"name": "d", "image": "i:2"}),
            "spec.ephemeralContainers: Forbidden: existing ephemeral containers \"d\" may not be \
             changed",
        ),
    ];
    for (container, want) in cases {
        let answer = server.ask_as(&path, strategic, add(container.clone())).await;
        let message = answer.body["message"].as_str().unwrap_or("");
        assert_eq!(answer.code, if want.is_empty() { 200 } else { 422 }, "{}", answer.text);
        assert!(message.contains(want), "{container}: {message}");
    }
    let mut now = server.ask(&format!("GET {ONE}/ephemeralcontainers"), "").await.body;
    let names: Vec<_> = now["spec"]["ephemeralContainers"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(names[0]["terminationMessagePolicy"], "File");
    assert_eq!(names[0].get("resources"), None);
    assert_eq!(now["metadata"]["generation"], 3);
    // Nothing else changes this way, and these containers do not change another way.
    let mut other = now.clone();
    other["metadata"]["labels"] = json!({"a": "b"});
    other["spec"]["nodeName"] = "n".into();
    let kept = server.ask(&format!("PUT {ONE}/ephemeralcontainers"), other).await;
    assert_eq!((kept.code, kept.body["spec"].get("nodeName")), (200, None), "{}", kept.text);
    assert_eq!(kept.body["metadata"].get("labels"), None);
    now["spec"]["ephemeralContainers"].as_array_mut().unwrap().remove(0);
    for place in ["", "/ephemeralcontainers"] {
        let removed = server.ask(&format!("PUT {ONE}{place}"), &now).await;
        assert_eq!(removed.code, 422, "{place}: {}", removed.text);
    }
    let listed = server.ask("GET /api/v1", "").await.text;
    assert!(listed.contains("pods/ephemeralcontainers"));
}

#[tokio::test]
async fn addresses_and_requests_are_completed() {
    let server = Server::new().await;
    let limited = json!({"containers": [{"name": "c", "image": "i",
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]});
    let made = server.ask(PODS, pod("a", limited)).await.body;
    let requests = &made["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(requests, &json!({"cpu": "1", "memory": "1Gi"}));
    assert_eq!(made["status"]["qosClass"], "Guaranteed");
    let status = json!({"status": {"podIPs": [{"ip": "10.0.0.1"}], "qosClass": null}});
    let answer = server.ask(&format!("PATCH {ONE}/status"), status).await;
    assert_eq!(answer.body["status"]["podIP"], "10.0.0.1", "{}", answer.text);
    assert_eq!(answer.body["status"]["qosClass"], "Guaranteed", "it is what it was");
}

#[tokio::test]
async fn a_node_brings_its_status() {
    let server = Server::new().await;
    let node = json!({"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"},
        "conditions": [{"type": "Ready", "status": "True"}]}});
    let made = server.ask("POST /api/v1/nodes", node).await.body;
    assert_eq!(made["status"]["allocatable"], json!({"cpu": "2"}), "{made}");
    assert_eq!(made["status"]["conditions"][0]["type"], "Ready");
    let other = json!({"status": {"capacity": {"cpu": "3"}}});
    let kept = server.ask("PATCH /api/v1/nodes/n", other).await.body;
    assert_eq!(kept["status"]["capacity"], json!({"cpu": "2"}));
}

#[tokio::test]
async fn pods_are_resized() {
    let server = Server::new().await;
    let node = json!({"metadata": {"name": "n"}});
    assert_eq!(server.ask("POST /api/v1/nodes", node).await.code, 201);
    let status = json!({"status": {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "9"}}});
    let merge = "application/merge-patch+json";
    let told = server.ask_as("PATCH /api/v1/nodes/n/status", merge, status).await;
    assert_eq!(told.code, 200, "{}", told.text);
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "3"}}});
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    assert_eq!(server.ask(&format!("POST {quotas}"), quota).await.code, 201);
    // As the controller counts that has not seen any pod.
    let counted = json!({"status": {"hard": {"requests.cpu": "3"}, "used": {"requests.cpu": "0"}}});
    let counted = server.ask_as(&format!("PATCH {quotas}/q/status"), merge, counted).await;
    assert_eq!(counted.code, 200, "{}", counted.text);
    let mut made = pod("a", json!({"nodeName": "n"}));
    made["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
    assert_eq!(server.ask(PODS, &made).await.code, 201);
    let strategic = "application/strategic-merge-patch+json";
    let path = format!("PATCH {ONE}/resize");
    let cases = [
        (json!({"requests": {"cpu": "2", "memory": "1Mi"}}), 200, ""),
        (
            json!({"requests": {"cpu": "5"}}),
            403,
            "is forbidden: node didn't have enough \
            allocatable resources: cpu, requested: 5000, allocatable: 4000",
        ),
        (
            json!({"requests": {"cpu": "4"}}),
            403,
            "is forbidden: exceeded quota: q, requested: \
            requests.cpu=2, used: requests.cpu=2, limited: requests.cpu=3",
        ),
        (json!({"limits": {"cpu": "1"}}), 422, "must be less than or equal to cpu limit of 1"),
        (
            json!({"requests": {"gpu.io/x": "1"}}),
            422,
            "spec: Forbidden: only cpu and memory resources are mutable",
        ),
        (json!({"requests": {"cpu": "1"}}), 200, ""),
    ];
    for (resources, code, want) in cases {
        let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        let answer = server.ask_as(&path, strategic, patch).await;
        let message = answer.body["message"].as_str().unwrap_or("");
        assert_eq!(answer.code, code, "{resources}: {}", answer.text);
        assert!(message.contains(want), "{resources}: {message}");
    }
    let used = server.ask(&format!("GET {quotas}/q"), "").await.body;
    assert_eq!(used["status"]["used"]["requests.cpu"], "1");
    let now = server.ask(&format!("GET {ONE}/resize"), "").await.body;
    let requests = &now["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(*requests, json!({"cpu": "1", "memory": "1Mi"}));
    assert_eq!(now["metadata"]["generation"], 3);
    // What is not of it stays, and it does not change another way.
    let mut other = now.clone();
    other["spec"]["containers"][0]["image"] = "other".into();
    other["metadata"]["labels"] = json!({"a": "b"});
    let kept = server.ask(&format!("PUT {ONE}/resize"), other).await;
    assert_eq!(kept.code, 200, "{}", kept.text);
    assert_eq!(kept.body["spec"]["containers"][0]["image"], made["spec"]["containers"][0]["image"]);
    assert_eq!(kept.body["metadata"].get("labels"), None);
    let patch = json!({"spec": {"containers": [
        {"name": "c", "resources": {"requests": {"cpu": "2"}}}]}});
    let refused = server.ask_as(&format!("PATCH {ONE}"), strategic, patch).await;
    assert_eq!(refused.code, 422, "{}", refused.text);
}
