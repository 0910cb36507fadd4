//! `/metrics`: what the agent says of itself, under the names that a kubelet has for it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerState, Pod};

/// The kernel counts for programs in these parts of a second, whatever it uses itself.
const TICKS: f64 = 100.0;

/// What the kernel says of the process that the agent is in.
#[derive(Debug, Default, PartialEq)]
pub(super) struct OwnProcess {
    /// In seconds.
    cpu: f64,
    /// In bytes.
    memory: u64,
    open_files: usize,
}

impl OwnProcess {
    pub(super) fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let memory = resident(&read("/proc/self/status"));
        let open_files = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Self { cpu: seconds(&read("/proc/self/stat")), memory, open_files }
    }
}

fn resident(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

/// Of the 14th and 15th field of `stat`; the second is a name, which may have anything in it.
fn seconds(stat: &str) -> f64 {
    let after_name = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks =
        after_name.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS
}

/// As Prometheus reads it.
pub(super) fn text(node: &str, pods: &[Arc<Pod>], process: &OwnProcess) -> String {
    let mut states = BTreeMap::from([("created", 0), ("exited", 0), ("running", 0)]);
    let mut running = 0;
    for pod in pods {
        let statuses =
            pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        let here: Vec<_> = statuses.map(|status| kind(status.state.as_ref())).collect();
        running += usize::from(here.contains(&"running"));
        for kind in here {
            *states.entry(kind).or_default() += 1;
        }
    }
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
        // A String takes everything.
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for (labels, value) in values {
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    };
    let one = |value: f64| [(String::new(), value)];
    let of_states = states
        .into_iter()
        .map(|(state, count)| (format!("{{container_state=\"{state}\"}}"), f64::from(count)))
        .collect::<Vec<_>>();
    let help = "[ALPHA] The node's name. The count is always 1.";
    family("kubelet_node_name", "gauge", help, &[(format!("{{node=\"{node}\"}}"), 1.0)]);
    let help = "[BETA] Number of containers currently running";
    family("kubelet_running_containers", "gauge", help, &of_states);
    let help = "[BETA] Number of pods that have a running pod sandbox";
    family("kubelet_running_pods", "gauge", help, &one(running as f64));
    let help = "Total user and system CPU time spent in seconds.";
    family("process_cpu_seconds_total", "counter", help, &one(process.cpu));
    let help = "Number of open file descriptors.";
    family("process_open_fds", "gauge", help, &one(process.open_files as f64));
    let help = "Resident memory size in bytes.";
    family("process_resident_memory_bytes", "gauge", help, &one(process.memory as f64));
    out
}

fn kind(state: Option<&ContainerState>) -> &'static str {
    match state {
        Some(ContainerState { running: Some(_), .. }) => "running",
        Some(ContainerState { terminated: Some(_), .. }) => "exited",
        _ => "created",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_agent_says_of_itself() {
        let pod = |states: serde_json::Value| {
            let statuses = states.as_array().unwrap().iter().map(|state| {
                json!({"name": "c", "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "state": state})
            });
            let status = json!({"containerStatuses": statuses.collect::<Vec<_>>()});
            Arc::new(
                serde_json::from_value::<Pod>(json!({"metadata": {}, "status": status})).unwrap(),
            )
        };
        let pods = [
            pod(json!([{"running": {}}, {"terminated": {"exitCode": 0}}])),
            pod(json!([{"waiting": {}}, {"terminated": {"exitCode": 0}}])),
            pod(json!([])),
        ];
        let process = OwnProcess { cpu: 1.5, memory: 4096, open_files: 7 };
        let text = text("n", &pods, &process);
        let values: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            values,
            [
                "kubelet_node_name{node=\"n\"} 1",
                "kubelet_running_containers{container_state=\"created\"} 1",
                "kubelet_running_containers{container_state=\"exited\"} 2",
                "kubelet_running_containers{container_state=\"running\"} 1",
                "kubelet_running_pods 1",
                "process_cpu_seconds_total 1.5",
                "process_open_fds 7",
                "process_resident_memory_bytes 4096",
            ]
        );
    }

    #[test]
    fn what_the_kernel_says() {
        assert_eq!(resident("VmHWM:\t  9 kB\nVmRSS:\t  25 kB\n"), 25 << 10);
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 10 0 0 0 150 50 0 0 20 0 1 0 5 6";
        assert_eq!(seconds(stat), 2.0);
        assert!(OwnProcess::look().memory > 0);
    }
}
