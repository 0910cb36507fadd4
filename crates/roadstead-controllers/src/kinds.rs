//! The kinds that the garbage collector and the namespace controller look after.

use kube::core::{ApiResource, GroupVersionKind};

/// A kind by its names.
#[derive(Clone, Debug)]
pub struct Watched {
    /// How to ask for it.
    pub resource: ApiResource,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

/// Every kind that can own, be owned, or fill a namespace.
pub fn watched() -> Vec<Watched> {
    let kind = |group: &str, version: &str, kind: &str, plural: &str, namespaced| Watched {
        resource: ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk(group, version, kind),
            plural,
        ),
        namespaced,
    };
    vec![
        kind("apps", "v1", "Deployment", "deployments", true),
        kind("apps", "v1", "ReplicaSet", "replicasets", true),
        kind("", "v1", "Service", "services", true),
        kind("", "v1", "Endpoints", "endpoints", true),
        kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", true),
        kind("", "v1", "Pod", "pods", true),
        kind("", "v1", "ConfigMap", "configmaps", true),
        kind("", "v1", "Secret", "secrets", true),
        kind("", "v1", "ServiceAccount", "serviceaccounts", true),
        kind("coordination.k8s.io", "v1", "Lease", "leases", true),
        kind("", "v1", "Node", "nodes", false),
    ]
}
