//! What the controllers count, under upstream's names.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use roadstead_component::metrics::{Histograms, Register, text};
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
    queues: QueueMetrics,
    slices: SliceMetrics,
    mirror: SliceMetrics,
    mirroring: MirroringMetrics,
    changed_per_sync: Histograms<TopologyLabels>,
    by_distribution: Family<DistributionLabels, Gauge>,
}

/// What every queue counts.
#[derive(Debug)]
struct QueueMetrics {
    adds: Family<QueueLabels, Counter>,
    depth: Family<QueueLabels, Gauge>,
    retries: Family<QueueLabels, Counter>,
    waited: Histograms<QueueLabels>,
    worked: Histograms<QueueLabels>,
}

/// What both controllers of slices count.
#[derive(Debug)]
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

/// What only the one counts that mirrors.
#[derive(Debug)]
struct MirroringMetrics {
    skipped: Histogram,
    updated: Histogram,
    sync_duration: Histogram,
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

impl QueueMetrics {
    fn new(all: &mut Register<'_>) -> Self {
        Self {
            adds: all.metric("workqueue_adds", "Keys that became due"),
            depth: all.metric("workqueue_depth", "Keys that are due"),
            retries: all.metric("workqueue_retries", "Keys that failed"),
            waited: all.histograms(
                "workqueue_queue_duration_seconds",
                "Time in the queue",
                seconds,
            ),
            worked: all.histograms("workqueue_work_duration_seconds", "Time of the work", seconds),
        }
    }
}

impl SliceMetrics {
    fn new(all: &mut Register<'_>, prefix: &str) -> Self {
        let name = |rest: &str| format!("{prefix}_{rest}");
        let two = powers_of_two;
        Self {
            added: all.add(&name("endpoints_added_per_sync"), "Endpoints added", two()),
            removed: all.add(&name("endpoints_removed_per_sync"), "Endpoints removed", two()),
            endpoints: all.metric(&name("endpoints_desired"), "Endpoints wanted"),
            slices: all.metric(&name("num_endpoint_slices"), "Slices that there are"),
            desired: all.metric(&name("desired_endpoint_slices"), "Slices that would do"),
            changes: all.metric(&name("changes"), "Writes of slices"),
            syncs: all.metric(&name("syncs"), "Syncs by their result"),
        }
    }
}

impl MirroringMetrics {
    fn new(all: &mut Register<'_>) -> Self {
        let name = |rest: &str| format!("{MIRRORING}_{rest}");
        let two = powers_of_two;
        Self {
            skipped: all.add(&name("addresses_skipped_per_sync"), "Over the limit", two()),
            updated: all.add(&name("endpoints_updated_per_sync"), "Endpoints changed", two()),
            sync_duration: all.add(&name("endpoints_sync_duration"), "Time of a sync", seconds()),
        }
    }
}

const SLICES: &str = "endpoint_slice_controller";
const MIRRORING: &str = "endpoint_slice_mirroring_controller";

impl Default for Inner {
    fn default() -> Self {
        let mut registry = Registry::default();
        let all = &mut Register(&mut registry);
        let name = |rest: &str| format!("{SLICES}_{rest}");
        let slices = SliceMetrics::new(all, SLICES);
        let mirror = SliceMetrics::new(all, MIRRORING);
        let queues = QueueMetrics::new(all);
        let mirroring = MirroringMetrics::new(all);
        let per_sync = name("endpointslices_changed_per_sync");
        let changed_per_sync = all.histograms(&per_sync, "Slices changed", changed);
        let by_distribution =
            all.metric(&name("services_count_by_traffic_distribution"), "Services");
        Self { registry, queues, slices, mirror, mirroring, changed_per_sync, by_distribution }
    }
}

/// The two controllers that write slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SliceWriter {
    /// From pods.
    Slices,
    /// From Endpoints.
    Mirror,
}

/// Endpoints wanted, slices there, slices that would do: of one Service or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
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
        text(&self.0.registry)
    }

    pub(crate) fn worked(&self, queue: &'static str, took: Duration) {
        self.0
            .queues
            .worked
            .get_or_create(&QueueLabels { name: queue })
            .observe(took.as_secs_f64());
    }

    fn of(&self, writer: SliceWriter) -> &SliceMetrics {
        match writer {
            SliceWriter::Slices => &self.0.slices,
            SliceWriter::Mirror => &self.0.mirror,
        }
    }

    pub(crate) fn synced(&self, writer: SliceWriter, sync: &Sync) {
        let metrics = self.of(writer);
        metrics.added.observe(sync.added as f64);
        metrics.removed.observe(sync.removed as f64);
        let all = [("create", sync.created), ("update", sync.updated), ("delete", sync.deleted)];
        for (operation, count) in all.into_iter().filter(|(_, count)| *count > 0) {
            metrics.changes.get_or_create(&OperationLabels { operation }).inc_by(count as i64);
        }
        if writer == SliceWriter::Slices {
            let (topology, traffic_distribution) = (sync.topology, sync.traffic_distribution);
            let labels = TopologyLabels { topology, traffic_distribution };
            let changed = sync.created + sync.updated + sync.deleted;
            self.0.changed_per_sync.get_or_create(&labels).observe(changed as f64);
        }
    }

    pub(crate) fn mirrored(&self, skipped: usize, updated: usize, took: Duration) {
        self.0.mirroring.skipped.observe(skipped as f64);
        self.0.mirroring.updated.observe(updated as f64);
        self.0.mirroring.sync_duration.observe(took.as_secs_f64());
    }

    pub(crate) fn result(&self, writer: SliceWriter, result: &'static str) {
        self.of(writer).syncs.get_or_create(&ResultLabels { result }).inc();
    }

    /// Takes in how much one Service more or less makes of the totals.
    pub(crate) fn total(&self, writer: SliceWriter, before: Totals, now: Totals) {
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
pub(crate) struct QueueMeter<K> {
    metrics: Metrics,
    name: fn(&K) -> &'static str,
}

impl<K> QueueMeter<K> {
    /// A meter; `name` says in which queue a key is.
    pub(crate) fn new(metrics: Metrics, name: fn(&K) -> &'static str) -> Arc<Self> {
        Arc::new(Self { metrics, name })
    }

    fn labels(&self, key: &K) -> QueueLabels {
        QueueLabels { name: (self.name)(key) }
    }
}

impl<K> Meter<K> for QueueMeter<K> {
    fn added(&self, key: &K) {
        let labels = self.labels(key);
        self.metrics.0.queues.adds.get_or_create(&labels).inc();
        self.metrics.0.queues.depth.get_or_create(&labels).inc();
    }

    fn taken(&self, key: &K, waited: Duration) {
        let labels = self.labels(key);
        self.metrics.0.queues.depth.get_or_create(&labels).dec();
        self.metrics.0.queues.waited.get_or_create(&labels).observe(waited.as_secs_f64());
    }

    fn retried(&self, key: &K) {
        self.metrics.0.queues.retries.get_or_create(&self.labels(key)).inc();
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
        metrics.synced(
            SliceWriter::Slices,
            &Sync { created: 2, topology: "Disabled", ..Sync::default() },
        );
        metrics.result(SliceWriter::Slices, "success");
        metrics.total(
            SliceWriter::Slices,
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
