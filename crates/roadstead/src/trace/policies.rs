//! What NetworkPolicies say of the ways that a packet can go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use roadstead_api::ip;
use roadstead_forwarding::packet::{Decision, Origin, Outcome, Packet};
use roadstead_node::config::gateway;
use roadstead_policy::cluster::PolicyCluster;
use roadstead_policy::decide::{Attempt, Judgement, Scope, decide};
use roadstead_policy::pod::pod_blocks;

/// Which node has which address. In its own pods' networks it has the first.
#[derive(Debug, Default)]
pub(crate) struct Hosts(BTreeMap<IpAddr, String>);

impl Hosts {
    pub(crate) fn of(nodes: &[Node]) -> Self {
        let all = nodes.iter().flat_map(|node| {
            let listed = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
            let own = listed.filter_map(|own| ip::parse(&own.address));
            let bridges = pod_blocks(node).into_iter().map(|block| gateway(&block));
            own.chain(bridges).map(|address| (address, node.name_any())).collect::<Vec<_>>()
        });
        Self(all.collect())
    }

    /// Whether an address is that of the node on which a pod runs: nobody keeps the two apart.
    fn is_own(&self, policies: &PolicyCluster, pod: IpAddr, other: IpAddr) -> bool {
        let pod = policies.owner(pod).and_then(|key| policies.pod(key));
        pod.is_some_and(|pod| self.0.get(&other) == Some(&pod.node))
    }
}

/// What they say of each way, if they are enforced. They judge the pods behind a Service, and never what a
/// pod and its own node say to each other.
pub(super) fn judgements(
    policies: &PolicyCluster,
    hosts: &Hosts,
    packet: &Packet,
    decision: &Decision,
) -> String {
    let mut lines = BTreeSet::new();
    for outcome in &decision.outcomes {
        let server = match outcome {
            Outcome::Forward { target, .. } => *target,
            Outcome::Pass => (packet.destination, packet.port).into(),
            Outcome::Reject | Outcome::Drop => continue,
        };
        let attempt = Attempt {
            client: packet.source,
            server: server.ip(),
            protocol: Some(packet.protocol),
            port: server.port(),
        };
        let own = hosts.is_own(policies, attempt.client, attempt.server)
            || hosts.is_own(policies, attempt.server, attempt.client);
        if packet.origin == Origin::Node || own {
            continue;
        }
        let verdict = decide(policies, Scope::Everywhere, &attempt);
        for (way, judgement) in [("egress", verdict.egress), ("ingress", verdict.ingress)] {
            match judgement {
                None | Some(Judgement::Free(_) | Judgement::Itself(_)) => {}
                Some(Judgement::Allowed(pod, by)) => {
                    lines.insert(format!("policy   {by} allows {way} of {pod} ({server})"));
                }
                Some(Judgement::Denied(pod, by)) => {
                    let by: Vec<_> = by.iter().map(ToString::to_string).collect();
                    let by = by.join(", ");
                    lines.insert(format!("denied   {way} of {pod} ({server}), by {by}"));
                }
            }
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use roadstead_api::key::ObjectKey;
    use roadstead_api::selector::Selector;
    use roadstead_forwarding::node_network::NodeNetwork;
    use roadstead_forwarding::service::{IpFamily, Protocol};
    use roadstead_forwarding::table::ForwardingTable;
    use roadstead_policy::pod::PolicyPod;
    use roadstead_policy::policy::Policy;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_pod_and_nodes_say_to_each_other() {
        let node = |name: &str, address: &str, block: &str| -> Node {
            let addresses = json!([{"type": "InternalIP", "address": address}]);
            serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {"podCIDR": block, "podCIDRs": [block]},
                "status": {"addresses": addresses},
            }))
            .unwrap()
        };
        let hosts = Hosts::of(&[
            node("n1", "192.0.2.1", "10.244.1.0/24"),
            node("n2", "192.0.2.2", "10.244.2.0/24"),
        ]);
        let mut policies = PolicyCluster::default();
        let web = PolicyPod {
            node: "n1".into(),
            addresses: vec![[10, 244, 1, 7].into()],
            ..PolicyPod::default()
        };
        policies.observe_pod(ObjectKey::new("ns", "web"), Some(web));
        let deny = Policy {
            subjects: Selector::default(),
            ingress: Some(Vec::new()),
            egress: Some(Vec::new()),
        };
        policies.observe_policy(&ObjectKey::new("ns", "deny"), Some(deny));
        let cases = [
            ("to its node", "10.244.1.7", "192.0.2.1", ""),
            ("to its bridge", "10.244.1.7", "10.244.1.1", ""),
            ("from its node", "192.0.2.1", "10.244.1.7", ""),
            ("to another node", "10.244.1.7", "192.0.2.2", "denied   egress of ns/web"),
            ("from another node", "192.0.2.2", "10.244.1.7", "denied   ingress of ns/web"),
            ("from elsewhere", "198.51.100.1", "10.244.1.7", "denied   ingress of ns/web"),
        ];
        let table = ForwardingTable::new(IpFamily::V4, &NodeNetwork::default());
        for (name, from, to, want) in cases {
            let packet = Packet {
                source: from.parse().unwrap(),
                destination: to.parse().unwrap(),
                protocol: Protocol::Tcp,
                port: 80,
                origin: Origin::Network("eth0".into()),
            };
            let said = judgements(&policies, &hosts, &packet, &table.explain(&packet, None));
            assert!(said.starts_with(want) && said.is_empty() == want.is_empty(), "{name}: {said}");
        }
    }
}
