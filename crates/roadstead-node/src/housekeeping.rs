//! Makes room on the node: images that nobody uses go, and pods that use more than they may, or more than
//! others when the node is short of something. Who and when is decided by `roadstead_pod::eviction`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use roadstead_pod::eviction::{
    self, Candidate, Condition, Consumption, Pressures, Shortage, Signal, beyond_limits,
    first_to_go, is_critical, limits_disk, requested_by_pod,
};
use roadstead_pod::facts::PodFailure;
use roadstead_pod::pod_name::PodName;
use roadstead_pod::usage::Usage;
use tokio::sync::{mpsc, watch};
use tokio::time::{self, Instant};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::Config;
use crate::image_gc::{Extent, ImageCollector};
use crate::measure::Look;
use crate::runtime::{ContainerRuntime, PodUsage};
use crate::serving::KnownPods;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(10);
/// How often images are looked at when nothing is short.
const COLLECT: Duration = Duration::from_secs(300);

/// A pod that has to go, by its uid, and what it is told.
pub(crate) type Eviction = (String, PodFailure);

/// Looks after the room on this node.
pub(crate) struct Housekeeper {
    pub(crate) config: Config,
    pub(crate) containers: Arc<dyn ContainerRuntime>,
    pub(crate) pods: KnownPods,
    pub(crate) images: ImageCollector,
    /// What the node is short of, for those who tell others.
    pub(crate) pressures: watch::Sender<Vec<Condition>>,
    /// Where pods are told to go.
    pub(crate) evictions: mpsc::Sender<Eviction>,
}

impl Housekeeper {
    /// Looks again and again, until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.keep() => {}
        }
    }

    async fn keep(mut self) {
        let mut known = Pressures::default();
        let mut looks = time::interval(LOOK);
        looks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut collect_at = Instant::now();
        loop {
            looks.tick().await;
            if Instant::now() >= collect_at {
                collect_at = Instant::now() + COLLECT;
                self.collect(Extent::AsConfigured).await;
            }
            self.check_limits().await;
            let short = self.short_of();
            known.observe(&short, Timestamp::now());
            let conditions = known.conditions();
            self.pressures.send_if_modified(|last| {
                let changed = *last != conditions;
                last.clone_from(&conditions);
                changed
            });
            if let Some(worst) = short.first() {
                self.make_room(*worst).await;
            }
        }
    }

    async fn collect(&mut self, extent: Extent) {
        if let Err(error) = self.images.collect(extent).await {
            warn!(%error, "cannot collect images");
        }
    }

    fn short_of(&self) -> Vec<Shortage> {
        let look = Look::now(&self.config.state_dir, &self.config.image_dir);
        self.config.housekeeping.eviction_hard.short_of(&look.observations())
    }

    /// Gives back what is short: images first, then one pod.
    async fn make_room(&mut self, worst: Shortage) {
        warn!(?worst, "the node is short of something");
        if worst.signal.condition() == Condition::DiskPressure {
            self.collect(Extent::All).await;
            if !self.short_of().iter().any(|short| short.signal == worst.signal) {
                return;
            }
        }
        let pods = self.active();
        let usages = self.usages(worst.signal, &pods).await;
        let candidates: Vec<_> = pods
            .iter()
            .map(|(name, pod)| Candidate {
                uid: name.uid.clone(),
                priority: pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0),
                critical: is_critical(pod),
                usage: usages.get(&name.uid).map_or(0, |usage| usage.total()),
                request: requested_by_pod(pod, worst.signal.resource()),
            })
            .collect();
        let Some(first) = first_to_go(&candidates) else { return };
        let none = Consumption::default();
        let usage = usages.get(&first.uid).unwrap_or(&none);
        let pod = pods.iter().find(|(name, _)| name.uid == first.uid);
        let Some((name, pod)) = pod else { return };
        let message = eviction::message(&worst, pod, &usage.containers);
        self.evict(name, message).await;
    }

    /// Pods that write more than they may have to go.
    async fn check_limits(&self) {
        for (name, pod) in self.active().iter().filter(|(_, pod)| limits_disk(pod)) {
            let usage = self.containers.disk_usage(name).await;
            if let Some(message) = beyond_limits(pod, &usage) {
                self.evict(name, message).await;
            }
        }
    }

    async fn evict(&self, pod: &PodName, message: String) {
        warn!(pod = pod.name, namespace = pod.namespace, message, "evicting a pod");
        let failure = PodFailure { reason: "Evicted", message };
        // The agent ends when nobody listens.
        let _ = self.evictions.send((pod.uid.clone(), failure)).await;
    }

    /// Pods that have not finished, and are not about to.
    fn active(&self) -> Vec<(PodName, Arc<Pod>)> {
        let all = self.pods.all().into_iter().filter(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let finished = matches!(phase, Some("Succeeded" | "Failed"));
            !finished && pod.metadata.deletion_timestamp.is_none()
        });
        all.map(|pod| (PodName::of(&pod), pod)).collect()
    }

    /// What each pod uses of this, by container, and beside them.
    async fn usages(
        &self,
        signal: Signal,
        pods: &[(PodName, Arc<Pod>)],
    ) -> BTreeMap<String, Consumption> {
        if signal.condition() == Condition::DiskPressure {
            let mut usages = BTreeMap::new();
            for (name, _) in pods {
                usages.insert(name.uid.clone(), self.containers.disk_usage(name).await);
            }
            return usages;
        }
        let amount = |usage: &Usage| match signal {
            Signal::Memory => usage.memory.map_or(0, |memory| memory.working_set),
            _ => usage.processes.unwrap_or(0),
        };
        let usage = |pod: PodUsage| {
            let containers = pod.containers.iter();
            let containers = containers.map(|(name, (_, usage))| (name.clone(), amount(usage)));
            (pod.uid, Consumption { containers: containers.collect(), volumes: BTreeMap::new() })
        };
        self.containers.usage().await.into_iter().map(usage).collect()
    }
}
