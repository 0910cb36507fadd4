//! What is used: `/metrics`, `/stats/summary`, `/metrics/resource` and `/metrics/probes`, in the form of a kubelet.

use std::fmt::Write;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use roadstead_pod::pod_name::PodName;
use serde_json::{Value, json};

use super::own_metrics::{self, OwnProcess};
use super::{Body, PodServer, Refusal};
use crate::measure::{FilesystemUsage, Measured, MeasuredPod, MeasuredUsage};

pub(super) const JSON: &str = "application/json";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

impl PodServer {
    /// Answers a GET of one of the pages about what is used.
    pub(super) fn stats(&self, page: &[&str]) -> Result<Response<Body>, Refusal> {
        if page == ["metrics", "probes"] {
            return Ok(respond(METRICS, self.probes.text()));
        }
        if page == ["metrics"] {
            let text = own_metrics::text(&self.node, &self.pods.all(), &OwnProcess::look());
            return Ok(respond(METRICS, text));
        }
        let measured = self.measurements.as_ref().and_then(|found| found.borrow().clone());
        let late = || Refusal(StatusCode::SERVICE_UNAVAILABLE, "nothing is measured yet".into());
        let measured = measured.ok_or_else(late)?;
        let pods: Vec<_> = self.pods.all().iter().filter_map(|pod| known(pod, &measured)).collect();
        match page {
            ["stats", "summary"] => {
                Ok(respond(JSON, summary(&self.node, &measured, &pods).to_string()))
            }
            ["metrics", "resource"] => Ok(respond(METRICS, resource_metrics(&measured, &pods))),
            _ => Err(Refusal(StatusCode::NOT_FOUND, "404 page not found".to_owned())),
        }
    }
}

pub(super) fn respond(media_type: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Full::from(text).boxed_unsync());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// A pod of which something was measured.
struct PodStats {
    name: PodName,
    started: Option<Timestamp>,
    measured: MeasuredPod,
}

fn known(pod: &Arc<Pod>, measured: &Measured) -> Option<PodStats> {
    let name = PodName::of(pod);
    let measured = measured.pods.get(&name.uid)?.clone();
    let started = pod.status.as_ref().and_then(|status| Some(status.start_time.as_ref()?.0));
    Some(PodStats { name, started, measured })
}

fn summary(node: &str, measured: &Measured, pods: &[PodStats]) -> Value {
    let at = measured.at;
    let pods: Vec<_> = pods.iter().map(|pod| pod.summary(at)).collect();
    let (running, most) = measured.processes;
    let memory = measured.node.usage.memory;
    let mut node = json!({"nodeName": node, "startTime": measured.booted,
        "cpu": cpu(&measured.node, at), "memory": memory_of(&measured.node, at),
        "fs": filesystem(&measured.node_files, at),
        "runtime": {"imageFs": filesystem(&measured.image_files, at)},
        "rlimit": {"time": at, "maxpid": most, "curproc": running}});
    if let Some((memory, total)) = memory.zip(measured.memory) {
        node["memory"]["availableBytes"] = total.saturating_sub(memory.working_set).into();
    }
    json!({"node": node, "pods": pods})
}

impl PodStats {
    fn summary(&self, at: Timestamp) -> Value {
        let containers = self.measured.containers.iter().map(|(name, container)| {
            json!({"name": name, "startTime": container.since,
                "cpu": cpu(&container.usage, at), "memory": memory_of(&container.usage, at)})
        });
        let containers: Vec<_> = containers.collect();
        let PodName { namespace, name, uid } = &self.name;
        let usage = &self.measured.usage;
        json!({"podRef": {"name": name, "namespace": namespace, "uid": uid},
            "startTime": self.started, "containers": containers,
            "cpu": cpu(usage, at), "memory": memory_of(usage, at),
            "process_stats": {"process_count": usage.usage.processes}})
    }
}

fn cpu(measured: &MeasuredUsage, at: Timestamp) -> Value {
    let mut cpu = json!({"time": at});
    if let Some(total) = measured.usage.cpu {
        cpu["usageCoreNanoSeconds"] = total.into();
    }
    if let Some(rate) = measured.rate {
        cpu["usageNanoCores"] = rate.nanocores.into();
        // Upstream does not say over how long; whoever shows the rate wants to.
        cpu["windowNanoSeconds"] = rate.window.into();
    }
    cpu
}

fn memory_of(measured: &MeasuredUsage, at: Timestamp) -> Value {
    let Some(memory) = measured.usage.memory else { return json!({"time": at}) };
    json!({"time": at, "usageBytes": memory.usage, "workingSetBytes": memory.working_set,
        "rssBytes": memory.rss, "pageFaults": memory.page_faults,
        "majorPageFaults": memory.major_page_faults})
}

fn filesystem(found: &FilesystemUsage, at: Timestamp) -> Value {
    json!({"time": at, "capacityBytes": found.capacity, "availableBytes": found.available,
        "usedBytes": found.capacity.saturating_sub(found.available),
        "inodes": found.inodes, "inodesFree": found.inodes_free,
        "inodesUsed": found.inodes.saturating_sub(found.inodes_free)})
}

/// What a family of metrics is about.
#[derive(Clone, Copy)]
enum Subject {
    Container,
    Node,
    Pod,
}

/// A family of metrics: name, type, subject, how it comes about, and what it says of itself.
struct Family(&'static str, &'static str, Subject, fn(&Found<'_>) -> Option<f64>, &'static str);

/// One container, pod or node.
struct Found<'a> {
    labels: String,
    usage: &'a MeasuredUsage,
    since: Option<Timestamp>,
}

fn cpu_seconds(found: &Found<'_>) -> Option<f64> {
    found.usage.usage.cpu.map(|nanoseconds| nanoseconds as f64 / 1e9)
}

fn working_set(found: &Found<'_>) -> Option<f64> {
    found.usage.usage.memory.map(|memory| memory.working_set as f64)
}

fn start(found: &Found<'_>) -> Option<f64> {
    found.since.map(|since| since.as_millisecond() as f64 / 1e3)
}

const FAMILIES: [Family; 7] = [
    Family(
        "container_cpu_usage_seconds_total",
        "counter",
        Subject::Container,
        cpu_seconds,
        "Cumulative cpu time consumed by the container in core-seconds",
    ),
    Family(
        "container_memory_working_set_bytes",
        "gauge",
        Subject::Container,
        working_set,
        "Current working set of the container in bytes",
    ),
    Family(
        "container_start_time_seconds",
        "gauge",
        Subject::Container,
        start,
        "Start time of the container since unix epoch in seconds",
    ),
    Family(
        "node_cpu_usage_seconds_total",
        "counter",
        Subject::Node,
        cpu_seconds,
        "Cumulative cpu time consumed by the node in core-seconds",
    ),
    Family(
        "node_memory_working_set_bytes",
        "gauge",
        Subject::Node,
        working_set,
        "Current working set of the node in bytes",
    ),
    Family(
        "pod_cpu_usage_seconds_total",
        "counter",
        Subject::Pod,
        cpu_seconds,
        "Cumulative cpu time consumed by the pod in core-seconds",
    ),
    Family(
        "pod_memory_working_set_bytes",
        "gauge",
        Subject::Pod,
        working_set,
        "Current working set of the pod in bytes",
    ),
];

fn resource_metrics(measured: &Measured, pods: &[PodStats]) -> String {
    let mut out = String::new();
    let at = measured.at.as_millisecond();
    for Family(name, kind, subject, value, help) in FAMILIES {
        // A String takes everything.
        let _ = write!(out, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}\n");
        for found in subject.all(measured, pods) {
            if let Some(value) = value(&found) {
                let _ = writeln!(out, "{name}{} {value} {at}", found.labels);
            }
        }
    }
    out + "# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container \
           metrics, 0 otherwise\n# TYPE resource_scrape_error gauge\nresource_scrape_error 0\n"
}

impl Subject {
    /// Names of pods and containers have nothing that would have to be escaped.
    fn all<'a>(self, measured: &'a Measured, pods: &'a [PodStats]) -> Vec<Found<'a>> {
        let pod = |pod: &PodStats| {
            format!("namespace=\"{}\",pod=\"{}\"", pod.name.namespace, pod.name.name)
        };
        match self {
            Self::Node => {
                vec![Found { labels: String::new(), usage: &measured.node, since: None }]
            }
            Self::Pod => {
                let found = pods.iter().map(|found| Found {
                    labels: format!("{{{}}}", pod(found)),
                    usage: &found.measured.usage,
                    since: None,
                });
                found.collect()
            }
            Self::Container => {
                let found = pods.iter().flat_map(|of| {
                    of.measured.containers.iter().map(move |(name, container)| Found {
                        labels: format!("{{container=\"{name}\",{}}}", pod(of)),
                        usage: &container.usage,
                        since: Some(container.since),
                    })
                });
                found.collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::MeasuredContainer;
    use roadstead_pod::usage::{CpuRate, MemoryUsage, Usage};

    fn sample() -> (Measured, Vec<PodStats>) {
        let memory = MemoryUsage { usage: 90, working_set: 70, ..MemoryUsage::default() };
        let usage = Usage { cpu: Some(1_500_000_000), memory: Some(memory), processes: Some(2) };
        let rate = Some(CpuRate { nanocores: 250_000_000, window: 15_000_000_000 });
        let usage = MeasuredUsage { usage, rate };
        let second = |second| Timestamp::from_second(second).unwrap();
        let container = MeasuredContainer { id: "id".into(), since: second(7), usage };
        let pod = MeasuredPod { usage, containers: [("c".to_owned(), container)].into() };
        let measured = Measured {
            at: second(10),
            booted: second(1),
            memory: Some(100),
            node: usage,
            node_files: FilesystemUsage { capacity: 9, available: 4, inodes: 3, inodes_free: 1 },
            image_files: FilesystemUsage::default(),
            processes: (5, 100),
            pods: [("u".to_owned(), pod.clone())].into(),
        };
        let name = PodName { namespace: "n".into(), name: "p".into(), uid: "u".into() };
        (measured, vec![PodStats { name, started: Some(second(6)), measured: pod }])
    }

    #[test]
    fn metrics_as_a_kubelet_writes_them() {
        let (measured, pods) = sample();
        let text = resource_metrics(&measured, &pods);
        for line in [
            "# TYPE container_cpu_usage_seconds_total counter",
            "container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 1.5 10000",
            "container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 70 10000",
            "container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 7 10000",
            "# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds",
            "node_cpu_usage_seconds_total 1.5 10000",
            "pod_memory_working_set_bytes{namespace=\"n\",pod=\"p\"} 70 10000",
            "resource_scrape_error 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_summary_as_a_kubelet_writes_it() {
        let (measured, pods) = sample();
        let summary = summary("node", &measured, &pods);
        for (pointer, want) in [
            ("/node/nodeName", json!("node")),
            ("/node/startTime", json!("1970-01-01T00:00:01Z")),
            ("/node/cpu/usageNanoCores", json!(250_000_000)),
            ("/node/memory/availableBytes", json!(30)),
            ("/node/fs/usedBytes", json!(5)),
            ("/node/fs/inodesUsed", json!(2)),
            ("/node/rlimit/curproc", json!(5)),
            ("/pods/0/podRef", json!({"name": "p", "namespace": "n", "uid": "u"})),
            ("/pods/0/process_stats/process_count", json!(2)),
            ("/pods/0/containers/0/name", json!("c")),
            ("/pods/0/containers/0/cpu/usageCoreNanoSeconds", json!(1_500_000_000)),
            ("/pods/0/containers/0/memory/workingSetBytes", json!(70)),
        ] {
            assert_eq!(summary.pointer(pointer), Some(&want), "{pointer}");
        }
    }
}
