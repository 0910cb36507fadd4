//! What the proxy counts, under kube-proxy's names.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use roadstead_component::metrics::{Register, text};
use roadstead_forwarding::iptables::model::TableName;
use roadstead_forwarding::service::IpFamily;

use crate::iptables::RuleCount;
use crate::named_counters::NamedCounters;

/// The label of most of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfFamily {
    ip_family: &'static str,
}

impl From<IpFamily> for OfFamily {
    fn from(family: IpFamily) -> Self {
        let ip_family = match family {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
        };
        Self { ip_family }
    }
}

/// An HTTP status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfCode {
    code: u16,
}

/// `internal` or `external`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfPolicy {
    traffic_policy: &'static str,
    ip_family: &'static str,
}

/// A table of iptables.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfTable {
    table: &'static str,
    ip_family: &'static str,
}

type Histograms = roadstead_component::metrics::Histograms<OfFamily>;
type Counters = Family<OfFamily, Counter>;
type Seconds = Gauge<f64, AtomicU64>;

/// All metrics of the proxy.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    sync: SyncMetrics,
    pub(crate) endpoint_changes: ChangeMetrics,
    pub(crate) service_changes: ChangeMetrics,
    /// From the change of an endpoint to the rules.
    programming: Histograms,
    /// Service ports that policy Local leaves without an endpoint here.
    no_local_endpoints: Family<OfPolicy, Gauge>,
    /// Answers of `/healthz` and `/livez`.
    pages: PageMetrics,
    nftables: NftablesMetrics,
    iptables: IptablesMetrics,
    conntrack: ConntrackMetrics,
    programmed_revision: Gauge<u64, AtomicU64>,
}

/// How long writing the rules takes.
#[derive(Debug)]
struct SyncMetrics {
    all: Histograms,
    /// When everything is looked at.
    full: Histograms,
    /// When only changes are.
    partial: Histograms,
    last: Family<OfFamily, Seconds>,
    /// When a change was last noted.
    last_queued: Family<OfFamily, Seconds>,
}

/// Changes of Services, or of EndpointSlices.
#[derive(Debug)]
pub(crate) struct ChangeMetrics {
    /// Those not yet written.
    pending: Gauge,
    total: Counter,
}

impl ChangeMetrics {
    fn new(group: &mut Group<'_>, what: &str) -> Self {
        Self {
            pending: group.add(&format!("sync_proxy_rules_{what}_changes_pending")),
            total: group.add(&format!("sync_proxy_rules_{what}_changes")),
        }
    }

    /// Another change waits to be written.
    pub(crate) fn note_change(&self) {
        self.total.inc();
        self.pending.inc();
    }
}

#[derive(Debug)]
struct PageMetrics {
    healthz: Family<OfCode, Counter>,
    livez: Family<OfCode, Counter>,
}

#[derive(Debug)]
struct NftablesMetrics {
    /// Batches that the kernel refused.
    failures: Counters,
    /// Old rules that could not be removed.
    cleanup_failures: Counters,
}

#[derive(Debug)]
struct IptablesMetrics {
    /// Restores that were refused.
    failures: Counters,
    /// Those of them that were to change only a part.
    partial_failures: Counters,
    rules: Family<OfTable, Gauge>,
    /// How many rules were written last.
    rules_last: Family<OfTable, Gauge>,
}

#[derive(Debug)]
struct ConntrackMetrics {
    /// How long forgetting stale flows takes.
    duration: Histograms,
    deleted: Counters,
}

/// The metrics that only one data plane has.
#[derive(Debug)]
pub(crate) struct PlaneMetrics<'a> {
    failures: &'a Counters,
    partial_failures: Option<&'a Counters>,
    cleanup_failures: Option<&'a Counters>,
}

/// Names and registers metrics, in this order.
struct Group<'a>(Register<'a>);

impl Group<'_> {
    fn add<M: Metric + Clone + Default>(&mut self, name: &str) -> M {
        self.0.metric(name, &name.replace('_', " "))
    }

    fn histograms(&mut self, name: &str, new: fn() -> Histogram) -> Histograms {
        self.0.histograms(name, &name.replace('_', " "), new)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut root = Registry::default();
        let registry = root.sub_registry_with_prefix("kubeproxy");
        let mut group = Group(Register(registry));
        let sync = SyncMetrics {
            all: group.histograms("sync_proxy_rules_duration_seconds", sync_buckets),
            full: group.histograms("sync_full_proxy_rules_duration_seconds", sync_buckets),
            partial: group.histograms("sync_partial_proxy_rules_duration_seconds", sync_buckets),
            last: group.add("sync_proxy_rules_last_timestamp_seconds"),
            last_queued: group.add("sync_proxy_rules_last_queued_timestamp_seconds"),
        };
        let programming =
            group.histograms("network_programming_duration_seconds", programming_buckets);
        let endpoint_changes = ChangeMetrics::new(&mut group, "endpoint");
        let service_changes = ChangeMetrics::new(&mut group, "service");
        let no_local_endpoints = group.add("sync_proxy_rules_no_local_endpoints_total");
        let pages =
            PageMetrics { healthz: group.add("proxy_healthz"), livez: group.add("proxy_livez") };
        let nftables = NftablesMetrics {
            failures: group.add("sync_proxy_rules_nftables_sync_failures"),
            cleanup_failures: group.add("sync_proxy_rules_nftables_cleanup_failures"),
        };
        let iptables = IptablesMetrics {
            failures: group.add("sync_proxy_rules_iptables_restore_failures"),
            partial_failures: group.add("sync_proxy_rules_iptables_partial_restore_failures"),
            rules: group.add("sync_proxy_rules_iptables_total"),
            rules_last: group.add("sync_proxy_rules_iptables_last"),
        };
        let conntrack = ConntrackMetrics {
            duration: group.histograms("conntrack_reconciler_sync_duration_seconds", sync_buckets),
            deleted: group.add("conntrack_reconciler_deleted_entries"),
        };
        // The first failure is an increase only over a zero that was there before.
        for family in [IpFamily::V4, IpFamily::V6] {
            nftables.failures.get_or_create(&family.into()).inc_by(0);
            iptables.failures.get_or_create(&family.into()).inc_by(0);
        }
        let programmed_revision = group.add("programmed_revision");
        add_silent(&mut group);
        registry.register_collector(Box::new(NamedCounters));
        Self {
            registry: root,
            sync,
            endpoint_changes,
            service_changes,
            programming,
            no_local_endpoints,
            pages,
            nftables,
            iptables,
            conntrack,
            programmed_revision,
        }
    }
}

/// Names that dashboards look for, of things that this proxy does not do.
fn add_silent(group: &mut Group<'_>) {
    for name in [
        "nftables_localhost_nodeport_listener_creation_failures",
        "nftables_localhost_nodeport_rejected_packets",
    ] {
        group.add::<Counter<u64>>(name);
    }
    group.add::<Gauge<i64>>("nftables_localhost_nodeport_listeners");
}

fn sync_buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

fn programming_buckets() -> Histogram {
    let seconds = [0.25, 0.5].into_iter().chain((1..60).map(f64::from));
    let minutes = (60..120).step_by(5).chain((120..=300).step_by(30)).map(f64::from);
    Histogram::new(seconds.chain(minutes))
}

impl Metrics {
    /// Those of nftables.
    pub(crate) fn of_nftables(&self) -> PlaneMetrics<'_> {
        let NftablesMetrics { failures, cleanup_failures } = &self.nftables;
        PlaneMetrics { failures, partial_failures: None, cleanup_failures: Some(cleanup_failures) }
    }

    /// Those of iptables, and of IPVS, whose rules go the same way.
    pub(crate) fn of_iptables(&self) -> PlaneMetrics<'_> {
        let IptablesMetrics { failures, partial_failures, .. } = &self.iptables;
        PlaneMetrics { failures, partial_failures: Some(partial_failures), cleanup_failures: None }
    }

    /// A change waits to be written, in these families.
    pub(crate) fn note_queued(&self, families: impl Iterator<Item = IpFamily>) {
        let now = seconds_now();
        families.for_each(|family| {
            self.sync.last_queued.get_or_create(&family.into()).set(now);
        });
    }

    /// Rules were written, all of them or a part.
    pub(crate) fn note_commit(&self, family: IpFamily, whole: bool, took: Duration) {
        let scope = if whole { &self.sync.full } else { &self.sync.partial };
        for histogram in [&self.sync.all, scope] {
            histogram.get_or_create(&family.into()).observe(took.as_secs_f64());
        }
        self.sync.last.get_or_create(&family.into()).set(seconds_now());
    }

    /// `/healthz` was answered.
    pub(crate) fn note_healthz(&self, code: u16) {
        self.pages.healthz.get_or_create(&OfCode { code }).inc();
    }

    /// `/livez` was answered.
    pub(crate) fn note_livez(&self, code: u16) {
        self.pages.livez.get_or_create(&OfCode { code }).inc();
    }

    /// Everything up to this revision is in the kernel.
    pub(crate) fn note_programmed(&self, revision: u64) {
        self.programmed_revision.set(revision);
        self.service_changes.pending.set(0);
        self.endpoint_changes.pending.set(0);
    }

    /// The change of an endpoint has taken so many seconds.
    pub(crate) fn note_programming(&self, family: IpFamily, seconds: f64) {
        self.programming.get_or_create(&family.into()).observe(seconds);
    }

    /// Stale flows were looked for; so many were deleted, unless that failed.
    pub(crate) fn note_conntrack(&self, family: IpFamily, took: Duration, deleted: Option<usize>) {
        self.conntrack.duration.get_or_create(&family.into()).observe(took.as_secs_f64());
        if let Some(deleted) = deleted.and_then(|deleted| u64::try_from(deleted).ok()) {
            self.conntrack.deleted.get_or_create(&family.into()).inc_by(deleted);
        }
    }

    /// Notes how many service ports have no endpoint here although policy asks for one.
    pub(crate) fn set_no_local_endpoints(
        &self,
        family: IpFamily,
        internal: usize,
        external: usize,
    ) {
        let ip_family = OfFamily::from(family).ip_family;
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let gauge =
                self.no_local_endpoints.get_or_create(&OfPolicy { traffic_policy, ip_family });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Notes how many rules a table of iptables has.
    pub(crate) fn set_rules(&self, family: IpFamily, count: RuleCount) {
        let table = match count.table {
            TableName::Filter => "filter",
            TableName::Nat => "nat",
            TableName::Mangle => return,
        };
        let ip_family = OfFamily::from(family).ip_family;
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let IptablesMetrics { rules, rules_last, .. } = &self.iptables;
        for (gauges, count) in [(rules, count.total), (rules_last, count.last)] {
            gauges.get_or_create(&OfTable { table, ip_family }).set(number(count));
        }
    }

    /// The page that Prometheus reads.
    pub fn page(&self) -> String {
        text(&self.registry)
    }
}

impl PlaneMetrics<'_> {
    /// The kernel refused a commit, of everything or of a part.
    pub(crate) fn note_failure(&self, family: IpFamily, whole: bool) {
        let partial = self.partial_failures.filter(|_| !whole);
        for counters in [Some(self.failures), partial].into_iter().flatten() {
            counters.get_or_create(&family.into()).inc();
        }
    }

    /// What this plane left behind could not be removed.
    pub(crate) fn note_cleanup_failure(&self, family: IpFamily) {
        if let Some(counters) = self.cleanup_failures {
            counters.get_or_create(&family.into()).inc();
        }
    }
}

/// The time of the day, as metrics show it.
fn seconds_now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map(|since| since.as_secs_f64()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_dashboards_know() {
        let metrics = Metrics::default();
        metrics.set_no_local_endpoints(IpFamily::V4, 1, 2);
        metrics.note_commit(IpFamily::V4, true, Duration::from_millis(2));
        metrics.note_healthz(200);
        let count = RuleCount { table: TableName::Nat, total: 7, last: 3 };
        metrics.set_rules(IpFamily::V4, count);
        let page = metrics.page();
        for line in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.002\",ip_family=\"IPv4\"} 1",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\",ip_family=\"IPv4\"} 2",
            "kubeproxy_proxy_healthz_total{code=\"200\"} 1",
            "kubeproxy_sync_proxy_rules_iptables_total{table=\"nat\",ip_family=\"IPv4\"} 7",
            "kubeproxy_sync_proxy_rules_iptables_last{table=\"nat\",ip_family=\"IPv4\"} 3",
            "kubeproxy_sync_proxy_rules_endpoint_changes_total 0",
            "kubeproxy_nftables_localhost_nodeport_listeners 0",
        ] {
            assert!(page.contains(line), "{line} is missing in\n{page}");
        }
    }
}
