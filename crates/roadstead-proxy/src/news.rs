//! What the agent tells others after a commit besides the rules: figures for the metrics, and the
//! load balancer addresses. All of it costs as much as changed, never as much as there is.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::announce::{Announced, Announcements};
use roadstead_forwarding::select::TrafficPolicy;
use roadstead_forwarding::service::{IpFamily, ServicePort};
use roadstead_forwarding::tracker::Tracker;
use tokio::sync::watch;

use crate::metrics::Metrics;

/// Says when the change happened that a slice came of.
const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The changes of endpoints that wait to be written, and when they happened.
#[derive(Debug)]
pub struct Triggers {
    started: Timestamp,
    waiting: Vec<(IpFamily, Timestamp)>,
}

impl Triggers {
    /// What happened before `started` was the business of our predecessor.
    pub fn since(started: Timestamp) -> Self {
        Self { started, waiting: Vec::new() }
    }

    /// Takes in a changed slice.
    pub fn observe(&mut self, slice: &EndpointSlice) {
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
    pub fn written(&mut self, now: Timestamp, metrics: &Metrics) {
        for (family, at) in self.waiting.drain(..) {
            let took = now.duration_since(at).as_secs_f64().max(0.0);
            metrics.programming.get_or_create(&family.into()).observe(took);
        }
    }
}

/// How many service ports policy Local leaves without an endpoint on this node.
#[derive(Debug, Default)]
pub struct Unserved(BTreeMap<IpFamily, Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_service: BTreeMap<ObjectKey, (usize, usize)>,
    internal: usize,
    external: usize,
}

impl Unserved {
    /// Takes in the ports that a Service has now.
    pub fn observe<'a>(
        &mut self,
        family: IpFamily,
        key: &ObjectKey,
        ports: impl Iterator<Item = &'a ServicePort>,
    ) {
        let (mut internal, mut external) = (0, 0);
        for port in ports.filter(|port| port.has_endpoints() && port.local.is_empty()) {
            internal += usize::from(port.internal_policy == TrafficPolicy::Local);
            let is_local = port.external_policy == TrafficPolicy::Local;
            external += usize::from(is_local && port.is_external());
        }
        let counts = self.0.entry(family).or_default();
        let before = match (internal, external) {
            (0, 0) => counts.by_service.remove(key),
            now => counts.by_service.insert(key.clone(), now),
        };
        let before = before.unwrap_or_default();
        counts.internal = counts.internal + internal - before.0;
        counts.external = counts.external + external - before.1;
    }

    /// Shows the counts.
    pub fn publish(&self, metrics: &Metrics) {
        for (family, counts) in &self.0 {
            metrics.set_no_local_endpoints(*family, counts.internal, counts.external);
        }
    }
}

/// Brings the load balancer addresses of the changed Services up to date. Those of families that
/// are `behind` stay as they are: nobody should be called to what the kernel does not carry yet.
pub fn announce(
    announcements: &watch::Sender<Arc<Announcements>>,
    tracker: &Tracker,
    dirty: &BTreeSet<ObjectKey>,
    behind: &[IpFamily],
) {
    announcements.send_if_modified(|all| {
        let now = |all: &Announcements, key| match behind {
            [] => tracker.announced(key),
            _ => carried(tracker.announced(key), all.get(key), behind),
        };
        if dirty.iter().all(|key| all.get(key) == now(all, key).as_ref()) {
            return false;
        }
        let all = Arc::make_mut(all);
        for key in dirty {
            match now(all, key) {
                Some(announced) => drop(all.insert(key.clone(), announced)),
                None => drop(all.remove(key)),
            }
        }
        true
    });
}

/// What is announced when some families are behind: of those, what was announced before.
fn carried(
    wanted: Option<Announced>,
    before: Option<&Announced>,
    behind: &[IpFamily],
) -> Option<Announced> {
    let late = |address: &&IpAddr| behind.contains(&IpFamily::of(**address));
    let old = before.iter().flat_map(|before| &before.addresses).filter(late);
    let new = wanted.iter().flat_map(|wanted| &wanted.addresses).filter(|a| !late(a));
    let addresses: BTreeSet<_> = new.chain(old).copied().collect();
    let nodes = wanted.as_ref().or(before).and_then(|announced| announced.nodes.clone());
    let addresses: Vec<_> = addresses.into_iter().collect();
    (!addresses.is_empty()).then_some(Announced { addresses, nodes })
}

#[cfg(test)]
mod tests {
    use roadstead_forwarding::service::{Place, Target};
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

    #[test]
    fn addresses_of_a_family_that_is_behind_stay() {
        let announced = |text: &str| {
            let addresses = text.split_whitespace().map(|a| a.parse().unwrap()).collect();
            (!text.is_empty()).then_some(Announced { addresses, nodes: None })
        };
        let cases = [
            ("a new Service", "192.0.2.1 2001:db8::1", "", "192.0.2.1"),
            ("another address", "192.0.2.1 2001:db8::2", "2001:db8::1", "192.0.2.1 2001:db8::1"),
            ("gone", "", "192.0.2.1 2001:db8::1", "2001:db8::1"),
            ("nothing to carry yet", "2001:db8::1", "", ""),
        ];
        for (name, wanted, before, want) in cases {
            let got = carried(announced(wanted), announced(before).as_ref(), &[IpFamily::V6]);
            assert_eq!(got, announced(want), "{name}");
        }
    }

    #[test]
    fn ports_without_local_endpoints() {
        let (local, cluster) = (TrafficPolicy::Local, TrafficPolicy::Cluster);
        let port = |internal, external, place: Option<Place>| {
            let target = |place| Target { address: [10, 0, 0, 1].into(), port: 80, place };
            let here = place.filter(|place| *place == Place::Here);
            ServicePort {
                internal_policy: internal,
                external_policy: external,
                node_port: Some(30080),
                cluster: place.map(target).into_iter().collect(),
                local: here.map(target).into_iter().collect(),
                ..ServicePort::default()
            }
        };
        let elsewhere = Some(Place::Elsewhere);
        let cases = [
            ("elsewhere, policy Cluster", port(cluster, cluster, elsewhere), (0, 0)),
            ("elsewhere, inside Local", port(local, cluster, elsewhere), (1, 0)),
            ("elsewhere, outside Local", port(cluster, local, elsewhere), (0, 1)),
            ("elsewhere, both Local", port(local, local, elsewhere), (1, 1)),
            ("here", port(local, local, Some(Place::Here)), (0, 0)),
            ("nowhere", port(local, local, None), (0, 0)),
        ];
        let (mut unserved, metrics) = (Unserved::default(), Metrics::default());
        let key = ObjectKey::new("default", "web");
        for (name, port, (internal, external)) in cases {
            unserved.observe(IpFamily::V4, &key, [&port].into_iter());
            unserved.publish(&metrics);
            let page = metrics.page();
            for (policy, count) in [("internal", internal), ("external", external)] {
                let line = format!(
                    "kubeproxy_sync_proxy_rules_no_local_endpoints_total{{traffic_policy=\"{policy}\",ip_family=\"IPv4\"}} {count}"
                );
                assert!(page.contains(&line), "{name}: {line} is missing in\n{page}");
            }
        }
    }
}
