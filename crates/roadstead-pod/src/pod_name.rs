//! Which pod, and whose network it uses.

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

/// Which pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PodName {
    /// Its namespace in the API.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid: another pod of the same name is another pod.
    pub uid: String,
}

impl PodName {
    /// The name of a pod of the API.
    pub fn of(pod: &Pod) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let meta = &pod.metadata;
        Self { namespace: text(&meta.namespace), name: text(&meta.name), uid: text(&meta.uid) }
    }
}

/// Whose network a pod uses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum NetworkMode {
    /// One of its own.
    Own,
    /// The node's.
    Host,
}

impl NetworkMode {
    /// What the pod asks for.
    pub fn of(pod: &Pod) -> Self {
        match pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false) {
            true => Self::Host,
            false => Self::Own,
        }
    }
}
