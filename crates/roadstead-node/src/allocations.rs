//! What the pods of this node have been allocated of it: who comes in, and who gets more, is decided here, by
//! one after the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use roadstead_pod::admission::{NodeRoom, NodeUse, Rejection, admit};
use roadstead_pod::resize::{self, PendingResize};
use roadstead_pod::sysctls::UnsafeSysctls;
use tokio::sync::watch;

/// The pods that have something of the node.
#[derive(Debug)]
pub(crate) struct Allocations {
    room: NodeRoom,
    /// By uid, each as it is allocated.
    pods: Mutex<HashMap<String, Arc<Pod>>>,
    /// Changes whenever there may be more room than before.
    freed: watch::Sender<u64>,
}

impl Allocations {
    pub(crate) fn new(room: NodeRoom) -> Self {
        Self { room, pods: Mutex::default(), freed: watch::Sender::new(0) }
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<String, Arc<Pod>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a pod in if there is room for it, on a node that lets pods set these sysctls, too.
    pub(crate) fn admit(&self, pod: &Arc<Pod>, sysctls: &UnsafeSysctls) -> Result<(), Rejection> {
        let (mut pods, uid) = (self.pods(), uid(pod));
        admit(pod, &others(&pods, &uid), self.room, sysctls)?;
        pods.insert(uid, pod.clone());
        Ok(())
    }

    /// Counts in a pod that was here before, with what it was given then.
    pub(crate) fn settle(&self, pod: &Pod) {
        self.pods().insert(uid(pod), Arc::new(resize::as_reported(pod)));
    }

    /// Gives a pod what it wants now, if there is room for it beside the others.
    pub(crate) fn resize(&self, wanted: &Arc<Pod>) -> Result<(), PendingResize> {
        let (mut pods, uid) = (self.pods(), uid(wanted));
        resize::judge(wanted, &others(&pods, &uid), self.room)?;
        pods.insert(uid, wanted.clone());
        drop(pods);
        self.freed.send_modify(|times| *times += 1);
        Ok(())
    }

    /// A pod has ended, or is gone.
    pub(crate) fn free(&self, uid: &str) {
        if self.pods().remove(uid).is_some() {
            self.freed.send_modify(|times| *times += 1);
        }
    }

    /// Tells when there may be more room than before.
    pub(crate) fn freed(&self) -> watch::Receiver<u64> {
        self.freed.subscribe()
    }
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

fn others(pods: &HashMap<String, Arc<Pod>>, uid: &str) -> NodeUse {
    let mut others = NodeUse::default();
    pods.iter().filter(|(known, _)| *known != uid).for_each(|(_, pod)| others.add(pod));
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadstead_api::requests::Requests;
    use serde_json::json;

    fn pod(uid: &str, cpu: &str) -> Arc<Pod> {
        let containers = json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]);
        let pod = json!({"metadata": {"uid": uid}, "spec": {"containers": containers}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn room_is_given_once() {
        let allocatable = Requests { cpu: 2000, memory: 0, storage: 0 };
        let all = Allocations::new(NodeRoom { allocatable, pods: 9 });
        let sysctls = UnsafeSysctls::default();
        let freed = all.freed();
        all.settle(&pod("a", "500m"));
        assert!(all.admit(&pod("b", "1"), &sysctls).is_ok());
        assert!(all.admit(&pod("c", "1"), &sysctls).is_err(), "it is not counted either");
        assert!(all.resize(&pod("b", "1500m")).is_ok(), "its own does not stand in its way");
        let no = all.resize(&pod("a", "600m")).unwrap_err();
        assert_eq!(no.reason, "Deferred");
        assert!(all.resize(&pod("b", "1")).is_ok());
        assert!(freed.has_changed().unwrap());
        assert!(all.resize(&pod("a", "1")).is_ok());
        all.free("a");
        assert!(all.admit(&pod("c", "1"), &sysctls).is_ok());
    }
}
