//! How long changes of endpoints take until the kernel carries them, for the metrics.

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use roadstead_forwarding::service::IpFamily;

use crate::metrics::Metrics;

/// Says when the change happened that a slice came of.
const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The changes of endpoints that wait to be written, and when they happened.
#[derive(Debug)]
pub(crate) struct Triggers {
    started: Timestamp,
    waiting: Vec<(IpFamily, Timestamp)>,
}

impl Triggers {
    /// What happened before `started` was the business of our predecessor.
    pub(crate) fn since(started: Timestamp) -> Self {
        Self { started, waiting: Vec::new() }
    }

    /// Takes in a changed slice.
    pub(crate) fn observe(&mut self, slice: &EndpointSlice) {
        let family = match slice.address_type.as_str() {
            "IPv4" => IpFamily::V4,
            "IPv6" => IpFamily::V6,
            _ => return,
        };
        let at: Option<Timestamp> =
            slice.annotations().get(TRIGGER).and_then(|text| text.parse().ok());
        self.waiting.extend(at.filter(|at| *at >= self.started).map(|at| (family, at)));
    }

    /// Everything is written, `now`.
    pub(crate) fn written(&mut self, now: Timestamp, metrics: &Metrics) {
        for (family, at) in self.waiting.drain(..) {
            let took = now.duration_since(at).as_secs_f64().max(0.0);
            metrics.note_programming(family, took);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_timed_once() {
        let metrics = Metrics::default();
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let mut triggers = Triggers::since(at(0));
        let slice = |family: &str, trigger: Option<Timestamp>| -> EndpointSlice {
            let annotations = trigger.map(|at| json!({TRIGGER: at.to_string()}));
            let metadata = json!({"name": "web-1", "annotations": annotations});
            let slice = json!({"metadata": metadata, "addressType": family, "endpoints": []});
            serde_json::from_value(slice).unwrap()
        };
        triggers.observe(&slice("IPv4", Some(at(1))));
        triggers.observe(&slice("IPv6", Some(at(2))));
        triggers.observe(&slice("IPv4", None));
        triggers.observe(&slice("IPv4", Some(at(-1))));
        triggers.observe(&slice("FQDN", Some(at(1))));
        triggers.written(at(3), &metrics);
        triggers.written(at(9), &metrics);
        let page = metrics.page();
        for line in [
            "kubeproxy_network_programming_duration_seconds_sum{ip_family=\"IPv4\"} 2.0",
            "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_network_programming_duration_seconds_sum{ip_family=\"IPv6\"} 1.0",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"2.0\",ip_family=\"IPv4\"} 1",
        ] {
            assert!(page.contains(line), "{line} is missing in\n{page}");
        }
    }
}
