//! What the enforcement of policies counts.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use roadstead_component::metrics::{Register, text};

/// All metrics of the enforcement of policies.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    commits: Histogram,
    failures: Counter,
    healed: Counter,
    policies: Gauge,
    pods: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("roadstead_netpol");
        let mut add = Register(&mut registry);
        let commits = Histogram::new(exponential_buckets(0.000_1, 2.0, 16));
        let commits = add.add("commit_duration_seconds", "How long writing rules takes", commits);
        let failures = add.metric("commit_failures", "Commits that the kernel refused");
        let healed = add.metric("healed", "How often somebody had destroyed our rules");
        let policies = add.metric("policies", "NetworkPolicies of the cluster");
        let pods = add.metric("isolated_pods", "Pods of this node that are under policies");
        Self { registry, commits, failures, healed, policies, pods }
    }
}

impl Metrics {
    /// The page `/metrics`.
    pub fn page(&self) -> String {
        text(&self.registry)
    }

    pub(crate) fn note_commit(&self, took: Duration, done: bool) {
        self.commits.observe(took.as_secs_f64());
        if !done {
            self.failures.inc();
        }
    }

    pub(crate) fn note_healed(&self) {
        self.healed.inc();
    }

    pub(crate) fn note_size(&self, policies: usize, pods: usize) {
        self.policies.set(i64::try_from(policies).unwrap_or(i64::MAX));
        self.pods.set(i64::try_from(pods).unwrap_or(i64::MAX));
    }
}
