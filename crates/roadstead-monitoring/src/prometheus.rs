//! The configuration of a Prometheus that ServiceMonitors and PrometheusRules mean.
//!
//! Where the Prometheus operator runs, it does this; here nobody needs to run for it. What cannot be said in
//! a configuration (passwords in Secrets) is left out, with a note.

mod endpoint;
mod relabel;
mod rules;
mod scrape;
mod targets;

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::Deserialize;
use serde_json::{Value, json};

use self::scrape::ServiceMonitor;

/// How Prometheus finds what it scrapes.
#[derive(Clone, Copy, Debug)]
pub enum Discovery<'a> {
    /// It asks the API server, as whom this kubeconfig says; in a pod, without one.
    Kubernetes(Option<&'a str>),
    /// It is told the addresses that there are now: for those that cannot ask, such as Debian's.
    Static(&'a TargetObjects),
}

/// What targets are found in.
#[derive(Clone, Debug, Default)]
pub struct TargetObjects {
    /// Whose labels are selected by.
    pub services: Vec<Service>,
    /// Their addresses.
    pub slices: Vec<EndpointSlice>,
    /// Whose labels may be taken over, and whose ports have names.
    pub pods: Vec<Pod>,
}

/// A page of metrics that Roadstead itself has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPage {
    /// The job.
    pub job: String,
    /// `ADDRESS:PORT`.
    pub target: String,
    /// Below it.
    pub path: String,
    /// Whether what it says about namespaces, pods and Services counts.
    pub honor_labels: bool,
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct PrometheusInput<'a> {
    /// ServiceMonitors.
    pub monitors: &'a [Value],
    /// PrometheusRules.
    pub rules: &'a [Value],
    /// Roadstead's own pages.
    pub own: &'a [OwnPage],
    /// How targets are found.
    pub discovery: Discovery<'a>,
    /// How often, where nobody says, as in `15s`.
    pub interval: &'a str,
    /// Files of rules, as Prometheus will find them.
    pub rule_files: &'a [String],
}

/// The two files, and what is not in them.
#[derive(Clone, Debug, PartialEq)]
pub struct PrometheusFiles {
    /// The configuration itself.
    pub config: Value,
    /// The rules, a file of their own.
    pub rules: Value,
    /// What could not be said, object by object.
    pub notes: Vec<String>,
}

/// Makes the configuration. The same objects make the same text.
pub fn configuration(wanted: &PrometheusInput<'_>) -> PrometheusFiles {
    let mut notes = Vec::new();
    let mut jobs: Vec<_> = wanted.own.iter().map(own_job).collect();
    let mut monitors = Vec::new();
    for object in wanted.monitors {
        match ServiceMonitor::deserialize(object) {
            Ok(monitor) => monitors.push(monitor),
            Err(error) => notes.push(format!("{}: {error}", name_of("ServiceMonitor", object))),
        }
    }
    monitors.sort_by(|one, other| one.metadata.cmp(&other.metadata));
    for monitor in &monitors {
        jobs.extend(monitor.jobs(wanted.discovery, &mut notes));
    }
    let config = json!({
        "global": {"scrape_interval": wanted.interval, "evaluation_interval": wanted.interval},
        "rule_files": wanted.rule_files,
        "scrape_configs": jobs,
    });
    let rules = rules::file(wanted.rules, &mut notes);
    let notes = BTreeSet::from_iter(notes).into_iter().collect();
    PrometheusFiles { config, rules, notes }
}

fn own_job(page: &OwnPage) -> Value {
    let mut job = json!({
        "job_name": page.job,
        "metrics_path": page.path,
        "static_configs": [{"targets": [page.target]}],
    });
    if page.honor_labels {
        job["honor_labels"] = true.into();
    }
    job
}

/// Where an object is, and how it is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Metadata {
    #[serde(default = "default_namespace")]
    namespace: String,
    #[serde(default)]
    name: String,
}

fn default_namespace() -> String {
    "default".into()
}

fn name_of(kind: &str, object: &Value) -> String {
    let metadata = Metadata::deserialize(&object["metadata"]).unwrap_or_default();
    format!("{kind} {}/{}", metadata.namespace, metadata.name)
}

#[cfg(test)]
mod tests;
