//! The objects of a hollow cluster, as large as usual ones.

use serde_json::{Value, json};

use crate::options::Simulation;

/// A pod's place: the pod in it changes, the place does not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place(pub(crate) u32);

impl Place {
    pub(crate) fn node(self, options: &Simulation) -> String {
        node_name(self.0 / options.pods_per_node)
    }

    pub(crate) fn service(self, options: &Simulation) -> u32 {
        self.0 / options.pods_per_service
    }

    /// All pods of a Service have one namespace.
    pub(crate) fn namespace(self, options: &Simulation) -> String {
        service_namespace(self.service(options), options)
    }
}

pub(crate) fn node_name(number: u32) -> String {
    format!("hollow-{number}")
}

pub(crate) fn namespace_name(number: u32) -> String {
    format!("hollow-{number}")
}

pub(crate) fn service_namespace(service: u32, options: &Simulation) -> String {
    namespace_name(service % options.namespaces())
}

pub(crate) fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

pub(crate) fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": "hollow"}}})
}

/// What a node says of itself.
pub(crate) fn node_status(number: u32, now: &str) -> Value {
    let resources =
        json!({"cpu": "32", "memory": "128Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    let condition = |type_: &str, status: &str, reason: &str| {
        json!({"type": type_, "status": status, "reason": reason, "message": reason,
            "lastHeartbeatTime": now, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    json!({"status": {
        "capacity": resources, "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": address(192, number)},
            {"type": "Hostname", "address": node_name(number)}],
        "nodeInfo": {"machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6.1.0",
            "osImage": "hollow", "containerRuntimeVersion": "hollow://1", "kubeletVersion": "v1.37.0",
            "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"},
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            condition("Ready", "True", "KubeletReady")]}})
}

pub(crate) fn lease(name: &str, now: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}})
}

pub(crate) fn service(number: u32) -> Value {
    let name = format!("service-{number}");
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}})
}

/// A pod with what pods usually have: with its status about three kilobytes.
pub(crate) fn pod(name: &str, place: Place, options: &Simulation) -> Value {
    let app = format!("service-{}", place.service(options));
    let probe = json!({"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 10});
    let environment: Vec<_> = (0..8)
        .map(|number| json!({"name": format!("SETTING_{number}"), "value": "x".repeat(40)}))
        .collect();
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": app, "pod-template-hash": "6d4b75cb6d"},
            "annotations": {"hollow/filler": "x".repeat(200)}},
        "spec": {"nodeName": place.node(options), "automountServiceAccountToken": false,
            "containers": [{"name": "main", "image": "registry.example/hollow:1", "env": environment,
                "ports": [{"name": "http", "containerPort": 8080}],
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                "readinessProbe": probe, "livenessProbe": probe}],
            "tolerations": [{"operator": "Exists"}]}})
}

/// What a node says of a pod that runs. `sent` is when, for whoever hears of it.
pub(crate) fn running(pod: u32, node: u32, now: &str, sent: u128) -> Value {
    let condition =
        |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": now});
    let conditions: Vec<_> =
        ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition).into();
    let (own, host) = (pod_address(pod), address(192, node));
    json!({"status": {"phase": "Running", "message": sent.to_string(), "startTime": now,
        "podIP": own, "podIPs": [{"ip": own}], "hostIP": host, "hostIPs": [{"ip": host}],
        "conditions": conditions,
        "containerStatuses": [{"name": "main", "ready": true, "started": true, "restartCount": 0,
            "image": "registry.example/hollow:1", "imageID": "", "state": {"running": {"startedAt": now}}}]}})
}

pub(crate) fn pod_address(pod: u32) -> String {
    address(10, pod)
}

/// An address that only one has.
fn address(first: u8, number: u32) -> String {
    let [_, second, third, fourth] = (number + 256).to_be_bytes();
    format!("{first}.{second}.{third}.{fourth}")
}

#[test]
fn nobody_shares_an_address() {
    let found: std::collections::BTreeSet<_> = (0..70_000).map(pod_address).collect();
    assert_eq!(found.len(), 70_000);
    assert!(found.contains("10.0.1.0"), "the first");
}

#[test]
fn a_place_keeps_its_node_and_its_service() {
    use clap::Parser;
    let words = "x --kubeconfig f --nodes 40 --pods-per-node 30 --pods-per-service 20";
    let options = Simulation::parse_from(words.split(' '));
    for (place, node, service, namespace) in [
        (0, "hollow-0", 0, "hollow-0"),
        (29, "hollow-0", 1, "hollow-1"),
        (30, "hollow-1", 1, "hollow-1"),
        (1_199, "hollow-39", 59, "hollow-1"),
    ] {
        let place = Place(place);
        assert_eq!(place.node(&options), node);
        assert_eq!(place.service(&options), service);
        assert_eq!(place.namespace(&options), namespace);
    }
    assert_eq!((options.pods(), options.services(), options.namespaces()), (1_200, 60, 2));
}
