//! What the controllers count, under upstream's names.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use roadstead_watch::queue::Meter;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TopologyLabels {
    topology: &'static str,
    traffic_distribution: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DistributionLabels {
    traffic_distribution: &'static str,
}

/// All counters of a process; clones count together.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    adds: Family<QueueLabels, Counter>,
    depth: Family<QueueLabels, Gauge>,
    retries: Family<QueueLabels, Counter>,
    waited: Family<QueueLabels, Histogram>,
    worked: Family<QueueLabels, Histogram>,
    slices: SliceMetrics,
    mirror: SliceMetrics,
    skipped: Histogram,
    updated: Histogram,
    sync_duration: Histogram,
    changed_per_sync: Family<TopologyLabels, Histogram>,
    by_distribution: Family<DistributionLabels, Gauge>,
}

/// What both controllers of slices count.
#[derive(Clone, Debug)]
struct SliceMetrics {
    added: Histogram,
    removed: Histogram,
    endpoints: Gauge,
    slices: Gauge,
    desired: Gauge,
    // Upstream's names for these two have no `_total`, which the library would add to a counter.
    changes: Family<OperationLabels, Gauge>,
    syncs: Family<ResultLabels, Gauge>,
}

/// Upstream's buckets: from 10 ns to 10 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 10))
}

fn powers_of_two() -> Histogram {
    Histogram::new(exponential_buckets(2.0, 2.0, 15))
}

fn changed() -> Histogram {
    Histogram::new([0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
}

fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: &M) {
    registry.register(name, help, metric.clone());
}

impl SliceMetrics {
    fn new(registry: &mut Registry, prefix: &str) -> Self {
        let metrics = Self {
            added: powers_of_two(),
            removed: powers_of_two(),
            endpoints: Gauge::default(),
            slices: Gauge::default(),
            desired: Gauge::default(),
            changes: Family::default(),
            syncs: Family::default(),
        };
        let name = |rest: &str| format!("{prefix}_{rest}");
        let m = &metrics;
        register(registry, &name("endpoints_added_per_sync"), "Endpoints added", &m.added);
        register(registry, &name("endpoints_removed_per_sync"), "Endpoints removed", &m.removed);
        register(registry, &name("endpoints_desired"), "Endpoints wanted", &m.endpoints);
        register(registry, &name("num_endpoint_slices"), "Slices that there are", &m.slices);
        register(registry, &name("desired_endpoint_slices"), "Slices that would do", &m.desired);
        register(registry, &name("changes"), "Writes of slices", &m.changes);
        register(registry, &name("syncs"), "Syncs by their result", &m.syncs);
        metrics
    }
}

impl Default for Inner {
    fn default() -> Self {
        let mut registry = Registry::default();
        let slices = SliceMetrics::new(&mut registry, "endpoint_slice_controller");
        let mirror = SliceMetrics::new(&mut registry, "endpoint_slice_mirroring_controller");
        let inner = Self {
            adds: Family::default(),
            depth: Family::default(),
            retries: Family::default(),
            waited: Family::new_with_constructor(seconds),
            worked: Family::new_with_constructor(seconds),
            slices,
            mirror,
            skipped: powers_of_two(),
            updated: powers_of_two(),
            sync_duration: seconds(),
            changed_per_sync: Family::new_with_constructor(changed),
            by_distribution: Family::default(),
            registry: Registry::default(),
        };
        let r = &mut registry;
        register(r, "workqueue_adds", "Keys that became due", &inner.adds);
        register(r, "workqueue_depth", "Keys that are due", &inner.depth);
        register(r, "workqueue_retries", "Keys that failed", &inner.retries);
        register(r, "workqueue_queue_duration_seconds", "Time in the queue", &inner.waited);
        register(r, "workqueue_work_duration_seconds", "Time of the work", &inner.worked);
        let mirror = "endpoint_slice_mirroring_controller";
        let name = |rest: &str| format!("{mirror}_{rest}");
        register(r, &name("addresses_skipped_per_sync"), "Over the limit", &inner.skipped);
        register(r, &name("endpoints_updated_per_sync"), "Endpoints changed", &inner.updated);
        register(r, &name("endpoints_sync_duration"), "Time of a sync", &inner.sync_duration);
        let slices = "endpoint_slice_controller";
        let name = |rest: &str| format!("{slices}_{rest}");
        let per_sync = &inner.changed_per_sync;
        register(r, &name("endpointslices_changed_per_sync"), "Slices changed", per_sync);
        let by = &inner.by_distribution;
        register(r, &name("services_count_by_traffic_distribution"), "Services", by);
        Self { registry, ..inner }
    }
}

/// The two controllers that write slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// From pods.
    Slices,
    /// From Endpoints.
    Mirror,
}

/// Endpoints wanted, slices there, slices that would do: of one Service or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Endpoints wanted.
    pub endpoints: usize,
    /// Slices that there are.
    pub slices: usize,
    /// Slices that would do.
    pub desired: usize,
}

/// What one sync did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sync {
    /// Endpoints that came.
    pub added: usize,
    /// Endpoints that went.
    pub removed: usize,
    /// Slices created.
    pub created: usize,
    /// Slices replaced.
    pub updated: usize,
    /// Slices deleted.
    pub deleted: usize,
    /// `Auto` or `Disabled`.
    pub topology: &'static str,
    /// What the Service asks for, or "".
    pub traffic_distribution: &'static str,
}

impl Metrics {
    /// Everything, in the text format that Prometheus reads.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode_registry(&mut text, &self.0.registry);
        text
    }

    pub(crate) fn worked(&self, queue: &'static str, took: Duration) {
        self.0.worked.get_or_create(&QueueLabels { name: queue }).observe(took.as_secs_f64());
    }

    fn of(&self, writer: Writer) -> &SliceMetrics {
        match writer {
            Writer::Slices => &self.0.slices,
            Writer::Mirror => &self.0.mirror,
        }
    }

    pub(crate) fn synced(&self, writer: Writer, sync: &Sync) {
        let metrics = self.of(writer);
        metrics.added.observe(sync.added as f64);
        metrics.removed.observe(sync.removed as f64);
        let all = [("create", sync.created), ("update", sync.updated), ("delete", sync.deleted)];
        for (operation, count) in all.into_iter().filter(|(_, count)| *count > 0) {
            metrics.changes.get_or_create(&OperationLabels { operation }).inc_by(count as i64);
        }
        if writer == Writer::Slices {
            let (topology, traffic_distribution) = (sync.topology, sync.traffic_distribution);
            let labels = TopologyLabels { topology, traffic_distribution };
            let changed = sync.created + sync.updated + sync.deleted;
            self.0.changed_per_sync.get_or_create(&labels).observe(changed as f64);
        }
    }

    pub(crate) fn mirrored(&self, skipped: usize, updated: usize, took: Duration) {
        self.0.skipped.observe(skipped as f64);
        self.0.updated.observe(updated as f64);
        self.0.sync_duration.observe(took.as_secs_f64());
    }

    pub(crate) fn result(&self, writer: Writer, result: &'static str) {
        self.of(writer).syncs.get_or_create(&ResultLabels { result }).inc();
    }

    /// Takes in how much one Service more or less makes of the totals.
    pub(crate) fn total(&self, writer: Writer, before: Totals, now: Totals) {
        let metrics = self.of(writer);
        let difference = |before: usize, now: usize| now as i64 - before as i64;
        metrics.endpoints.inc_by(difference(before.endpoints, now.endpoints));
        metrics.slices.inc_by(difference(before.slices, now.slices));
        metrics.desired.inc_by(difference(before.desired, now.desired));
    }

    pub(crate) fn distribution(&self, traffic_distribution: &'static str, change: i64) {
        let labels = DistributionLabels { traffic_distribution };
        self.0.by_distribution.get_or_create(&labels).inc_by(change);
    }
}

/// Counts for one queue, or for several whose names depend on the key.
pub struct QueueMeter<K> {
    metrics: Metrics,
    name: fn(&K) -> &'static str,
}

impl<K> QueueMeter<K> {
    /// A meter; `name` says in which queue a key is.
    pub fn new(metrics: Metrics, name: fn(&K) -> &'static str) -> Arc<Self> {
        Arc::new(Self { metrics, name })
    }

    fn labels(&self, key: &K) -> QueueLabels {
        QueueLabels { name: (self.name)(key) }
    }
}

impl<K> Meter<K> for QueueMeter<K> {
    fn added(&self, key: &K) {
        let labels = self.labels(key);
        self.metrics.0.adds.get_or_create(&labels).inc();
        self.metrics.0.depth.get_or_create(&labels).inc();
    }

    fn taken(&self, key: &K, waited: Duration) {
        let labels = self.labels(key);
        self.metrics.0.depth.get_or_create(&labels).dec();
        self.metrics.0.waited.get_or_create(&labels).observe(waited.as_secs_f64());
    }

    fn retried(&self, key: &K) {
        self.metrics.0.retries.get_or_create(&self.labels(key)).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadstead_watch::queue::Queue;

    #[test]
    fn upstream_names() {
        let metrics = Metrics::default();
        let mut queue =
            Queue::with_meter(QueueMeter::new(metrics.clone(), |_: &u8| "endpoint_slice"));
        queue.add(1);
        queue.add(2);
        queue.pop();
        metrics.worked("endpoint_slice", Duration::from_millis(2));
        metrics
            .synced(Writer::Slices, &Sync { created: 2, topology: "Disabled", ..Sync::default() });
        metrics.result(Writer::Slices, "success");
        metrics.total(
            Writer::Slices,
            Totals::default(),
            Totals { endpoints: 7, slices: 1, desired: 1 },
        );
        metrics.mirrored(3, 0, Duration::from_millis(1));
        metrics.distribution("PreferSameZone", 1);
        let text = metrics.text();
        for line in [
            "workqueue_adds_total{name=\"endpoint_slice\"} 2",
            "workqueue_depth{name=\"endpoint_slice\"} 1",
            "workqueue_queue_duration_seconds_count{name=\"endpoint_slice\"} 1",
            "workqueue_work_duration_seconds_count{name=\"endpoint_slice\"} 1",
            "endpoint_slice_controller_endpoints_desired 7",
            "endpoint_slice_controller_num_endpoint_slices 1",
            "endpoint_slice_controller_changes{operation=\"create\"} 2",
            "endpoint_slice_controller_syncs{result=\"success\"} 1",
            "endpoint_slice_controller_endpointslices_changed_per_sync_count{topology=\"Disabled\",traffic_distribution=\"\"} 1",
            "endpoint_slice_controller_services_count_by_traffic_distribution{traffic_distribution=\"PreferSameZone\"} 1",
            "endpoint_slice_mirroring_controller_addresses_skipped_per_sync_sum 3.0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
        }
    }
}
