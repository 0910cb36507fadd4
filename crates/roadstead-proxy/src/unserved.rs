//! Service ports that policy Local leaves without an endpoint on this node, for the metrics.
//! A change costs as much as changed, never as much as there is.

use std::collections::BTreeMap;

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::select::TrafficPolicy;
use roadstead_forwarding::service::{IpFamily, ServicePort};

use crate::metrics::Metrics;

/// How many service ports policy Local leaves without an endpoint on this node.
#[derive(Debug, Default)]
pub(crate) struct Unserved(BTreeMap<IpFamily, Counts>);

#[derive(Debug, Default)]
struct Counts {
    by_service: BTreeMap<ObjectKey, (usize, usize)>,
    internal: usize,
    external: usize,
}

impl Unserved {
    /// Takes in the ports that a Service has now.
    pub(crate) fn observe<'a>(
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
    pub(crate) fn publish(&self, metrics: &Metrics) {
        for (family, counts) in &self.0 {
            metrics.set_no_local_endpoints(*family, counts.internal, counts.external);
        }
    }
}

#[cfg(test)]
mod tests {
    use roadstead_forwarding::service::{Locality, Target};

    use super::*;

    #[test]
    fn ports_without_local_endpoints() {
        let (local, cluster) = (TrafficPolicy::Local, TrafficPolicy::Cluster);
        let port = |internal, external, locality: Option<Locality>| {
            let target = |locality| Target { address: [10, 0, 0, 1].into(), port: 80, locality };
            let here = locality.filter(|locality| *locality == Locality::Here);
            ServicePort {
                internal_policy: internal,
                external_policy: external,
                node_port: Some(30080),
                cluster: locality.map(target).into_iter().collect(),
                local: here.map(target).into_iter().collect(),
                ..ServicePort::default()
            }
        };
        let elsewhere = Some(Locality::Elsewhere);
        let cases = [
            ("elsewhere, policy Cluster", port(cluster, cluster, elsewhere), (0, 0)),
            ("elsewhere, inside Local", port(local, cluster, elsewhere), (1, 0)),
            ("elsewhere, outside Local", port(cluster, local, elsewhere), (0, 1)),
            ("elsewhere, both Local", port(local, local, elsewhere), (1, 1)),
            ("here", port(local, local, Some(Locality::Here)), (0, 0)),
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
