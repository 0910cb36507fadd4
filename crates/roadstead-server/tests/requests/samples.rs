//! One object of every kind that is kept, each of which the server accepts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::server::Server;

/// An object, and where objects like it are.
pub(crate) struct Sample {
    /// Such as `apps/v1 deployments`.
    pub kind: &'static str,
    /// The path of the collection.
    pub path: String,
    /// What to create.
    pub object: Value,
}

impl Sample {
    /// The path of the object.
    pub(crate) fn one(&self) -> String {
        format!("{}/{}", self.path, self.object["metadata"]["name"].as_str().unwrap())
    }
}

/// The definition of the custom kind among them.
pub(crate) fn definition() -> Value {
    json!({"metadata": {"name": "tunes.example.com"}, "spec": {"group": "example.com",
        "names": {"kind": "Tune", "plural": "tunes"}, "scope": "Namespaced", "versions": [
        {"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas"}},
            "schema": {"openAPIV3Schema": {"type": "object",
                "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

/// A server that knows all kinds, and an object of each.
pub(crate) async fn all() -> (Server, Vec<Sample>) {
    let server = Server::new().await;
    let made = server
        .ask("POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition())
        .await;
    assert_eq!(made.code, 201, "{}", made.text);
    let pod = json!({"containers": [{"name": "c", "image": "i"}]});
    let labels = json!({"matchLabels": {"a": "b"}});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod});
    let workload = json!({"selector": labels, "template": template});
    let job = json!({"template": {"spec":
        {"restartPolicy": "Never", "containers": pod["containers"]}}});
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
        "name": "view"});
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "s"});
    let other = json!({"metadata": {"name": "others.example.com"}, "spec": {"group": "example.com",
        "names": {"kind": "Other", "plural": "others"}, "scope": "Cluster", "versions":
        [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let event = json!({"apiVersion": "v1", "kind": "Pod", "name": "s", "namespace": "default"});
    let rest = |fields: Value| {
        let mut object = json!({"metadata": {"name": "s"}});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    let spec = |spec: Value| rest(json!({"spec": spec}));
    let named = |name: &str, mut object: Value| {
        object["metadata"]["name"] = name.into();
        object
    };
    let all = [
        ("v1 configmaps", rest(json!({"data": {"a": "b"}}))),
        (
            "v1 endpoints",
            rest(json!({"subsets": [{"addresses": [{"ip": "10.0.0.1"}],
            "ports": [{"port": 80}]}]})),
        ),
        ("v1 events", rest(json!({"involvedObject": event, "reason": "R", "type": "Normal"}))),
        (
            "v1 limitranges",
            spec(json!({"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "9Gi"}}]})),
        ),
        ("v1 namespaces", rest(json!({}))),
        ("v1 nodes", rest(json!({}))),
        (
            "v1 persistentvolumeclaims",
            spec(json!({"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}})),
        ),
        (
            "v1 persistentvolumes",
            spec(json!({"accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/tmp"}})),
        ),
        ("v1 pods", spec(pod.clone())),
        ("v1 podtemplates", rest(json!({"template": template}))),
        ("v1 replicationcontrollers", spec(json!({"template": template}))),
        ("v1 resourcequotas", spec(json!({"hard": {"pods": "1"}}))),
        ("v1 secrets", rest(json!({"data": {"a": "Yg=="}}))),
        ("v1 serviceaccounts", rest(json!({}))),
        ("v1 services", spec(json!({"type": "NodePort", "ports": [{"port": 80}]}))),
        ("apps/v1 controllerrevisions", rest(json!({"revision": 1, "data": {"a": 1}}))),
        ("apps/v1 daemonsets", spec(workload.clone())),
        ("apps/v1 deployments", spec(workload.clone())),
        ("apps/v1 replicasets", spec(workload.clone())),
        ("apps/v1 statefulsets", spec(workload)),
        (
            "autoscaling/v1 horizontalpodautoscalers",
            spec(json!({"maxReplicas": 2, "scaleTargetRef": target})),
        ),
        (
            "autoscaling/v2 horizontalpodautoscalers",
            named("s2", spec(json!({"maxReplicas": 2, "scaleTargetRef": target}))),
        ),
        ("batch/v1 cronjobs", spec(json!({"schedule": "* * * * *", "jobTemplate": {"spec": job}}))),
        ("batch/v1 jobs", spec(job.clone())),
        (
            "certificates.k8s.io/v1 certificatesigningrequests",
            spec(json!({"request": STANDARD.encode(include_str!("jane.csr")),
                "signerName": "example.com/s", "usages": ["any"]})),
        ),
        ("coordination.k8s.io/v1 leases", spec(json!({"holderIdentity": "me"}))),
        (
            "discovery.k8s.io/v1 endpointslices",
            rest(json!({"addressType": "IPv4",
            "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]})),
        ),
        (
            "events.k8s.io/v1 events",
            named(
                "s2",
                rest(json!({"regarding": event, "reason": "R",
            "type": "Normal", "action": "A", "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "c", "reportingInstance": "i"})),
            ),
        ),
        (
            "flowcontrol.apiserver.k8s.io/v1 flowschemas",
            spec(json!({"priorityLevelConfiguration": {"name": "system"}})),
        ),
        (
            "flowcontrol.apiserver.k8s.io/v1 prioritylevelconfigurations",
            spec(json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject"}}})),
        ),
        ("networking.k8s.io/v1 ingressclasses", spec(json!({"controller": "example.com/c"}))),
        (
            "networking.k8s.io/v1 ingresses",
            spec(json!({"defaultBackend":
            {"service": {"name": "s", "port": {"number": 80}}}})),
        ),
        (
            "networking.k8s.io/v1 ipaddresses",
            named(
                "10.96.9.9",
                spec(json!({"parentRef":
            {"resource": "things", "name": "s"}})),
            ),
        ),
        ("networking.k8s.io/v1 networkpolicies", spec(json!({"podSelector": {}}))),
        ("networking.k8s.io/v1 servicecidrs", spec(json!({"cidrs": ["10.97.0.0/16"]}))),
        ("node.k8s.io/v1 runtimeclasses", rest(json!({"handler": "h"}))),
        ("policy/v1 poddisruptionbudgets", spec(json!({"minAvailable": 1, "selector": labels}))),
        ("rbac.authorization.k8s.io/v1 clusterrolebindings", rest(json!({"roleRef": role}))),
        ("rbac.authorization.k8s.io/v1 clusterroles", rest(json!({"rules": []}))),
        ("rbac.authorization.k8s.io/v1 rolebindings", rest(json!({"roleRef": role}))),
        ("rbac.authorization.k8s.io/v1 roles", rest(json!({"rules": []}))),
        ("scheduling.k8s.io/v1 priorityclasses", rest(json!({"value": 7}))),
        ("storage.k8s.io/v1 csidrivers", spec(json!({}))),
        ("storage.k8s.io/v1 csinodes", spec(json!({"drivers": []}))),
        ("storage.k8s.io/v1 csistoragecapacities", rest(json!({"storageClassName": "s"}))),
        ("storage.k8s.io/v1 storageclasses", rest(json!({"provisioner": "example.com/p"}))),
        (
            "storage.k8s.io/v1 volumeattachments",
            spec(json!({"attacher": "example.com/a",
            "nodeName": "s", "source": {"persistentVolumeName": "s"}})),
        ),
        (
            "storage.k8s.io/v1 volumeattributesclasses",
            rest(json!({"driverName": "example.com",
            "parameters": {"a": "b"}})),
        ),
        ("apiextensions.k8s.io/v1 customresourcedefinitions", other),
        ("example.com/v1 tunes", spec(json!({"replicas": 1}))),
    ];
    let mut samples = Vec::new();
    for (kind, object) in all {
        let path = path_of(&server, kind).await;
        samples.push(Sample { kind, path, object });
    }
    assert_eq!(samples.len(), known(&server).await, "a kind has no sample");
    (server, samples)
}

fn base(version: &str) -> String {
    let root = if version == "v1" { "/api" } else { "/apis" };
    format!("{root}/{version}")
}

async fn path_of(server: &Server, kind: &str) -> String {
    let (version, plural) = kind.split_once(' ').unwrap();
    let base = base(version);
    let list = server.ask(&format!("GET {base}"), "").await.body;
    let found = list["resources"].as_array().unwrap().iter().find(|own| own["name"] == plural);
    let found = found.unwrap_or_else(|| panic!("{kind} is not served"));
    match found["namespaced"] == true {
        true => format!("{base}/namespaces/default/{plural}"),
        false => format!("{base}/{plural}"),
    }
}

/// How many kinds are served whose objects are kept.
async fn known(server: &Server) -> usize {
    let groups = server.ask("GET /apis", "").await.body;
    let groups = groups["groups"].as_array().unwrap().iter();
    let versions = groups.flat_map(|group| group["versions"].as_array().unwrap());
    let versions = versions.map(|version| version["groupVersion"].as_str().unwrap().to_owned());
    let mut count = 0;
    for version in versions.chain(["v1".to_owned()]) {
        let list = server.ask(&format!("GET {}", base(&version)), "").await.body;
        let kept = |own: &&Value| {
            let verbs = own["verbs"].as_array().unwrap();
            verbs.contains(&json!("create"))
                && verbs.contains(&json!("get"))
                && !own["name"].as_str().unwrap().contains('/')
        };
        count += list["resources"].as_array().unwrap().iter().filter(kept).count();
    }
    count
}
