//! What the proxy counts, under kube-proxy's names.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use roadstead_forwarding::iptables::model::TableName;
use roadstead_forwarding::service::IpFamily;

use crate::accounting::NamedCounters;
use crate::iptables::RuleCount;

/// The label of most of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfFamily {
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
pub struct OfCode {
    /// Such as 200.
    pub code: u16,
}

/// `internal` or `external`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfPolicy {
    traffic_policy: &'static str,
    ip_family: &'static str,
}

/// A table of iptables.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OfTable {
    table: &'static str,
    ip_family: &'static str,
}

type Histograms = Family<OfFamily, Histogram, fn() -> Histogram>;
type Counters = Family<OfFamily, Counter>;
type Seconds = Gauge<f64, AtomicU64>;

/// All of it.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// How long writing the rules takes.
    pub sync: Histograms,
    /// The same, when everything is looked at.
    pub full_sync: Histograms,
    /// The same, when only changes are.
    pub partial_sync: Histograms,
    /// When rules were last written.
    pub last_sync: Family<OfFamily, Seconds>,
    /// When a change was last noted.
    pub last_queued: Family<OfFamily, Seconds>,
    /// From the change of an endpoint to the rules.
    pub programming: Histograms,
    /// Changes of endpoints not yet written.
    pub endpoints_pending: Gauge,
    /// All changes of endpoints.
    pub endpoints_total: Counter,
    /// Changes of Services not yet written.
    pub services_pending: Gauge,
    /// All changes of Services.
    pub services_total: Counter,
    /// Service ports that policy Local leaves without an endpoint here.
    pub no_local_endpoints: Family<OfPolicy, Gauge>,
    /// Answers of `/healthz`.
    pub healthz: Family<OfCode, Counter>,
    /// Answers of `/livez`.
    pub livez: Family<OfCode, Counter>,
    /// Batches that nftables refused.
    pub nftables_failures: Counters,
    /// Restores that iptables refused.
    pub iptables_failures: Counters,
    /// Those of them that were to change only a part.
    pub iptables_partial_failures: Counters,
    /// How many rules of ours iptables has.
    pub iptables_rules: Family<OfTable, Gauge>,
    /// How many of them were written last.
    pub iptables_rules_last: Family<OfTable, Gauge>,
    /// Old rules of nftables that could not be removed.
    pub nftables_cleanup_failures: Counters,
    /// How long forgetting stale flows takes.
    pub conntrack: Histograms,
    /// How many were forgotten.
    pub conntrack_deleted: Counters,
    /// The newest revision that is in the kernel.
    pub programmed_revision: Gauge<u64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut root = Registry::default();
        let registry = root.sub_registry_with_prefix("kubeproxy");
        let short = || Family::new_with_constructor(sync_buckets as fn() -> Histogram);
        let sync = add(registry, "sync_proxy_rules_duration_seconds", short());
        let full_sync = add(registry, "sync_full_proxy_rules_duration_seconds", short());
        let partial_sync = add(registry, "sync_partial_proxy_rules_duration_seconds", short());
        let last_sync = add(registry, "sync_proxy_rules_last_timestamp_seconds", Family::default());
        let name = "sync_proxy_rules_last_queued_timestamp_seconds";
        let last_queued = add(registry, name, Family::default());
        let long = Family::new_with_constructor(programming_buckets as fn() -> Histogram);
        let programming = add(registry, "network_programming_duration_seconds", long);
        let pending = |what: &str| format!("sync_proxy_rules_{what}_changes_pending");
        let total = |what: &str| format!("sync_proxy_rules_{what}_changes");
        let endpoints_pending = add(registry, &pending("endpoint"), Gauge::default());
        let endpoints_total = add(registry, &total("endpoint"), Counter::default());
        let services_pending = add(registry, &pending("service"), Gauge::default());
        let services_total = add(registry, &total("service"), Counter::default());
        let name = "sync_proxy_rules_no_local_endpoints_total";
        let no_local_endpoints = add(registry, name, Family::default());
        let healthz = add(registry, "proxy_healthz", Family::default());
        let livez = add(registry, "proxy_livez", Family::default());
        let name = "sync_proxy_rules_nftables_sync_failures";
        let nftables_failures = add(registry, name, Counters::default());
        let name = "sync_proxy_rules_iptables_restore_failures";
        let iptables_failures = add(registry, name, Counters::default());
        let name = "sync_proxy_rules_iptables_partial_restore_failures";
        let iptables_partial_failures = add(registry, name, Counters::default());
        let iptables_rules = add(registry, "sync_proxy_rules_iptables_total", Family::default());
        let name = "sync_proxy_rules_iptables_last";
        let iptables_rules_last = add(registry, name, Family::default());
        let name = "sync_proxy_rules_nftables_cleanup_failures";
        let nftables_cleanup_failures = add(registry, name, Counters::default());
        let name = "conntrack_reconciler_sync_duration_seconds";
        let conntrack = add(registry, name, short());
        let name = "conntrack_reconciler_deleted_entries";
        let conntrack_deleted = add(registry, name, Counters::default());
        let programmed_revision = add(registry, "programmed_revision", Gauge::default());
        add_silent(registry);
        registry.register_collector(Box::new(NamedCounters));
        Self {
            registry: root,
            sync,
            full_sync,
            partial_sync,
            last_sync,
            last_queued,
            programming,
            endpoints_pending,
            endpoints_total,
            services_pending,
            services_total,
            no_local_endpoints,
            healthz,
            livez,
            nftables_failures,
            iptables_failures,
            iptables_partial_failures,
            iptables_rules,
            iptables_rules_last,
            nftables_cleanup_failures,
            conntrack,
            conntrack_deleted,
            programmed_revision,
        }
    }
}

/// Names that dashboards look for, of things that this proxy does not do.
fn add_silent(registry: &mut Registry) {
    for name in [
        "nftables_localhost_nodeport_listener_creation_failures",
        "nftables_localhost_nodeport_rejected_packets",
    ] {
        add(registry, name, Counter::<u64>::default());
    }
    add(registry, "nftables_localhost_nodeport_listeners", Gauge::<i64>::default());
}

fn add<M: Metric + Clone>(registry: &mut Registry, name: &str, metric: M) -> M {
    registry.register(name, name.replace('_', " "), metric.clone());
    metric
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
    /// Notes how many service ports have no endpoint here although policy asks for one.
    pub fn set_no_local_endpoints(&self, family: IpFamily, internal: usize, external: usize) {
        let ip_family = OfFamily::from(family).ip_family;
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let gauge =
                self.no_local_endpoints.get_or_create(&OfPolicy { traffic_policy, ip_family });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Notes how many rules a table of iptables has.
    pub fn set_rules(&self, family: IpFamily, count: RuleCount) {
        let table = match count.table {
            TableName::Filter => "filter",
            TableName::Nat => "nat",
            TableName::Mangle => return,
        };
        let ip_family = OfFamily::from(family).ip_family;
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let all = [(&self.iptables_rules, count.total), (&self.iptables_rules_last, count.last)];
        for (gauges, count) in all {
            gauges.get_or_create(&OfTable { table, ip_family }).set(number(count));
        }
    }

    /// The page that Prometheus reads.
    pub fn page(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string cannot fail");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_dashboards_know() {
        let metrics = Metrics::default();
        metrics.set_no_local_endpoints(IpFamily::V4, 1, 2);
        metrics.sync.get_or_create(&IpFamily::V4.into()).observe(0.002);
        metrics.healthz.get_or_create(&OfCode { code: 200 }).inc();
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
