//! Pod Security: what the labels of a namespace do to those who write into it.

use serde_json::{Value, json};

use crate::server::{Answer, Server};

const NAMESPACE: &str = "/api/v1/namespaces/default";
const PREFIX: &str = "pod-security.kubernetes.io/";

async fn label(server: &Server, labels: Value, query: &str) -> Answer {
    let mut patch = json!({"metadata": {"labels": {}}});
    for (name, value) in labels.as_object().unwrap() {
        patch["metadata"]["labels"][format!("{PREFIX}{name}")] = value.clone();
    }
    server.ask(&format!("PATCH {NAMESPACE}{query}"), patch).await
}

fn pod(name: &str, fields: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({"metadata": {"name": name}, "spec": spec})
}

fn strict() -> Value {
    json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "i", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]})
}

#[tokio::test]
async fn pods_are_refused() {
    let server = Server::new().await;
    let pods = format!("POST {NAMESPACE}/pods");
    let made = server.ask(&pods, pod("before", json!({"hostNetwork": true}))).await;
    assert_eq!((made.code, made.warnings.len()), (201, 0), "{}", made.text);
    let words = [
        "299 - \"existing pods in namespace \\\"default\\\" violate the new PodSecurity enforce level \
         \\\"baseline:latest\\\"\"",
        "299 - \"before: host namespaces\"",
    ];
    let tried = label(&server, json!({"enforce": "baseline"}), "?dryRun=All").await;
    assert_eq!((tried.code, tried.warnings), (200, words.map(str::to_owned).to_vec()));
    let labelled = label(&server, json!({"enforce": "baseline"}), "").await;
    assert_eq!((labelled.code, labelled.warnings), (200, words.map(str::to_owned).to_vec()));
    let again = label(&server, json!({"enforce": "baseline"}), "").await;
    assert_eq!(again.warnings.len(), 0, "nothing has changed");
    let refused = server.ask(&pods, pod("a", json!({"hostPID": true}))).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.body["message"],
        "pods \"a\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"
    );
    let ports = json!({"hostNetwork": true,
        "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}]}]});
    let refused = server.ask(&pods, pod("a", ports)).await;
    assert!(refused.text.contains("hostPort (container \\\"c\\\" uses hostPort 80)"), "by default");
    assert_eq!(server.ask(&pods, pod("a", json!({}))).await.code, 201);
    label(&server, json!({"enforce": "restricted", "enforce-version": "v1.30"}), "").await;
    let refused = server.ask(&pods, pod("b", json!({}))).await;
    let words = "violates PodSecurity \\\"restricted:v1.30\\\": allowPrivilegeEscalation != false";
    assert!(refused.code == 403 && refused.text.contains(words), "{}", refused.text);
    let allowed = server.ask(&pods, pod("b", strict())).await;
    assert_eq!((allowed.code, allowed.warnings.len()), (201, 0), "{}", allowed.text);
    // What was there before stays, and may be labelled; another image would be another pod.
    let path = format!("PATCH {NAMESPACE}/pods/a");
    let labelled = server.ask(&path, json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(labelled.code, 200, "{}", labelled.text);
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "other"}]);
    let changed = server.ask_as(&path, "application/json-patch+json", image).await;
    assert_eq!(changed.code, 403, "{}", changed.text);
    let off = Server::without(&["PodSecurity"]).await;
    label(&off, json!({"enforce": "restricted"}), "").await;
    assert_eq!(off.ask(&pods, pod("a", json!({}))).await.code, 201);
}

/// Who adds a container to look into a pod does not get by what is said of the rest of the pod.
#[tokio::test]
async fn ephemeral_containers_are_looked_at() {
    let server = Server::new().await;
    label(&server, json!({"enforce": "restricted"}), "").await;
    let mut careful = strict();
    careful["containers"][0]["securityContext"]["runAsNonRoot"] = true.into();
    careful["securityContext"] = json!({"seccompProfile": {"type": "RuntimeDefault"}});
    let made = server.ask(&format!("POST {NAMESPACE}/pods"), pod("p", careful)).await;
    assert_eq!(made.code, 201, "{}", made.text);
    let mut sent = made.body;
    sent["spec"]["securityContext"]["runAsNonRoot"] = true.into();
    sent["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "i", "securityContext": {
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]);
    let path = format!("PUT {NAMESPACE}/pods/p/ephemeralcontainers");
    let refused = server.ask(&path, &sent).await;
    let words = "runAsNonRoot != true (pod or container \\\"e\\\" must set";
    assert!(refused.code == 403 && refused.text.contains(words), "{}", refused.text);
    sent["spec"]["ephemeralContainers"][0]["securityContext"]["runAsNonRoot"] = true.into();
    let added = server.ask(&path, &sent).await;
    assert_eq!(added.code, 200, "{}", added.text);
}

#[tokio::test]
async fn workloads_are_only_told_of() {
    let server = Server::new().await;
    label(&server, json!({"enforce": "baseline"}), "").await;
    let template = json!({"metadata": {"labels": {"a": "b"}},
        "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    let want = "299 - \"would violate PodSecurity \\\"baseline:latest\\\": host namespaces (hostNetwork=true)\"";
    let cron = json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": {
        "hostNetwork": true, "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}});
    for (path, spec) in [
        ("/apis/apps/v1/namespaces/default/deployments", &spec),
        ("/apis/apps/v1/namespaces/default/replicasets", &spec),
        ("/apis/apps/v1/namespaces/default/daemonsets", &spec),
        ("/apis/batch/v1/namespaces/default/cronjobs", &cron),
    ] {
        let object = json!({"metadata": {"name": "w"}, "spec": spec});
        let made = server.ask(&format!("POST {path}"), object).await;
        assert_eq!(
            (made.code, &made.warnings[..]),
            (201, &[want.to_owned()][..]),
            "{path}: {}",
            made.text
        );
    }
    label(&server, json!({"warn": "privileged"}), "").await;
    let scaled = json!({"spec": {"paused": true}});
    let path = "PATCH /apis/apps/v1/namespaces/default/deployments/w";
    assert!(server.ask(path, scaled).await.warnings.is_empty());
}

#[tokio::test]
async fn labels_that_make_no_sense() {
    let server = Server::new().await;
    let refused = label(&server, json!({"enforce": "strict"}), "").await;
    assert_eq!(refused.code, 422);
    assert_eq!(
        refused.body["message"],
        "Namespace \"default\" is invalid: metadata.labels[pod-security.kubernetes.io/enforce]: Invalid \
         value: \"strict\": must be one of privileged, baseline, restricted"
    );
    let namespace = json!({"metadata": {"name": "n", "labels": {
        "pod-security.kubernetes.io/warn-version": "1"}}});
    let refused = server.ask("POST /api/v1/namespaces", namespace).await;
    assert!(refused.text.contains("must be \\\"latest\\\" or \\\"v1.x\\\""), "{}", refused.text);
}
