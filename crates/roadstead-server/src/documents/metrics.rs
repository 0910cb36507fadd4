//! Counts and durations of requests, under upstream's names.

use std::fmt::Write;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use roadstead_api::kind::Info;

use crate::api::Api;
use crate::kinds::service::allocate;
use crate::kinds::service::allocate::metrics::Counters;
use crate::request::path::ResourcePath;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: String,
    component: String,
    code: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: String,
    component: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    group: String,
    version: String,
    resource: String,
}

/// Everything that the API server counts.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter<u64, AtomicU64>>,
    durations: Family<DurationLabels, Histogram>,
    watchers: Family<KindLabels, Gauge>,
    /// What is counted about addresses and node ports.
    pub(crate) allocations: Counters,
}

impl Default for Metrics {
    fn default() -> Self {
        let requests = Family::default();
        let durations = Family::new_with_constructor(histogram as fn() -> Histogram);
        let watchers = Family::default();
        let mut registry = Registry::default();
        // The library adds `_total` by itself.
        registry.register(
            "apiserver_request",
            "Requests by verb, resource and code",
            requests.clone(),
        );
        registry.register(
            "apiserver_request_duration_seconds",
            "How long requests take",
            durations.clone(),
        );
        registry.register("apiserver_longrunning_requests", "Watches under way", watchers.clone());
        let allocations = Counters::default();
        allocations.register(&mut registry);
        Self { registry, requests, durations, watchers, allocations }
    }
}

fn histogram() -> Histogram {
    let seconds =
        [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];
    Histogram::new(seconds)
}

/// The label for a verb: clients can invent methods.
fn verb(verb: &str) -> &'static str {
    match verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "update" | "put" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "create" | "post" => "POST",
        "head" => "HEAD",
        "options" => "OPTIONS",
        "connect" => "CONNECT",
        _ => "other",
    }
}

/// A watch under way; ends when dropped.
pub(crate) struct Watching(Gauge);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Counts an answered request.
    pub(crate) fn answered(&self, wanted: &str, path: &ResourcePath, code: u16, seconds: f64) {
        let verb = verb(wanted).to_owned();
        let scope = path.scope().to_owned();
        let (group, version) = (path.group.clone(), path.version.clone());
        let (resource, subresource) = (path.plural.clone(), path.subresource.clone());
        let component = "apiserver".to_owned();
        let labels =
            DurationLabels { verb, group, version, resource, subresource, scope, component };
        if wanted != "watch" {
            self.durations.get_or_create(&labels).observe(seconds);
        }
        let DurationLabels { verb, group, version, resource, subresource, scope, component } =
            labels;
        let code = code.to_string();
        let labels =
            RequestLabels { verb, group, version, resource, subresource, scope, component, code };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a watch until the result is dropped.
    pub(crate) fn watching(&self, path: &ResourcePath) -> Watching {
        let (group, version) = (path.group.clone(), path.version.clone());
        let labels = KindLabels { group, version, resource: path.plural.clone() };
        let gauge = self.watchers.get_or_create(&labels).clone();
        gauge.inc();
        Watching(gauge)
    }

    /// All figures in the text format of Prometheus.
    pub(crate) fn text(&self, api: &Api) -> String {
        let mut out = String::new();
        encode_registry(&mut out, &self.registry).expect("text can be appended to a string");
        let [reading, writing] = api.traffic.fairness.under_way();
        out.push_str("# HELP apiserver_current_inflight_requests Requests under way.\n");
        out.push_str("# TYPE apiserver_current_inflight_requests gauge\n");
        for (kind, count) in [("readOnly", reading), ("mutating", writing)] {
            let _ = writeln!(
                out,
                "apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} {count}"
            );
        }
        api.traffic.fairness.write_metrics(&mut out);
        allocate::metrics::gauges(api, &mut out);
        out.push_str("# HELP apiserver_storage_objects Objects by resource.\n");
        out.push_str("# TYPE apiserver_storage_objects gauge\n");
        let (mut bytes, mut lines) = (0, String::new());
        let registry = api.registry();
        let counted = |info: &Info| !info.review && !info.is_view();
        for resource in registry.iter().filter(|resource| counted(resource.info())) {
            let Ok(snapshot) = api.storage.store.list(&resource.bucket, "", None) else { continue };
            bytes += snapshot.entries.iter().map(|entry| entry.value.len()).sum::<usize>();
            let count = snapshot.entries.len();
            let _ = writeln!(
                lines,
                "apiserver_storage_objects{{resource=\"{}\"}} {count}",
                resource.bucket
            );
        }
        out.push_str(&lines);
        out.push_str("# HELP apiserver_storage_size_bytes The size of all objects.\n");
        out.push_str("# TYPE apiserver_storage_size_bytes gauge\n");
        let _ = writeln!(out, "apiserver_storage_size_bytes {bytes}");
        let (used, quota) = api.storage.store.usage();
        for (name, help, number) in [
            ("roadstead_store_used_bytes", "What all objects take of the quota.", used),
            (
                "roadstead_store_quota_bytes",
                "What all objects may take; 0: any.",
                quota.unwrap_or(0),
            ),
            (
                "roadstead_store_damaged",
                "Damage that the last reading of the disk found.",
                api.storage.store.damage().len() as u64,
            ),
            (
                "roadstead_store_read_only",
                "Whether writes are refused because the disk failed.",
                u64::from(api.storage.store.failure().is_some()),
            ),
        ] {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {number}");
        }
        let _ = writeln!(out, "# EOF");
        out
    }
}
