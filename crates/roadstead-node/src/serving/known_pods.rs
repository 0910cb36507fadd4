//! The pods of this node, for those who only look.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1::Pod;
use roadstead_api::key::ObjectKey;
use roadstead_watch::informer::key_of;

/// The newest state of each pod in the API. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct KnownPods(Arc<RwLock<HashMap<ObjectKey, Arc<Pod>>>>);

impl KnownPods {
    /// Takes note of a pod.
    pub fn set(&self, pod: Arc<Pod>) {
        let mut pods = self.0.write().unwrap_or_else(PoisonError::into_inner);
        pods.insert(key_of(pod.as_ref()), pod);
    }

    pub(crate) fn remove(&self, key: &ObjectKey) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// All of them, by namespace and name.
    pub(crate) fn all(&self) -> Vec<Arc<Pod>> {
        let pods = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut pods: Vec<_> = pods.values().cloned().collect();
        pods.sort_by_cached_key(|pod| key_of(pod.as_ref()));
        pods
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<Pod>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }
}
