//! The iptables rules around IPVS. They do not depend on Services, only the ipsets do; the one
//! exception is who may not call a load balancer from the node itself.

use super::model::{Server, SetName};
use crate::iptables::compile::{
    CANARY, Context, EGRESS, MARK_MASQUERADE, MARK_OUTSIDE, forward, hook, mark_chains, postrouting,
};
use crate::iptables::diff::{Kept, Restore, remove};
use crate::iptables::listing::Listing;
use crate::iptables::model::{
    Field, Hook, Match, Program, Rule, Sense, TableName, TrackedState, Verdict,
};
use crate::service::{IpFamily, Protocol};

const SERVICES: &str = "KUBE-SERVICES";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const NODE_PORT: &str = "KUBE-NODE-PORT";
const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
const FORWARD: &str = "KUBE-FORWARD";
const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const SOURCE_RANGES: &str = "KUBE-SOURCE-RANGES-FIREWALL";
const ACCESS: &str = "KUBE-IPVS-FILTER";
const OUTGOING: &str = "KUBE-IPVS-OUT-FILTER";

const BOTH: &[Field] = &[Field::Destination, Field::Destination];
const ALL_THREE: &[Field] = &[Field::Destination, Field::Destination, Field::Source];
const ONE: &[Field] = &[Field::Destination];

/// Compiles the rules. `closed` are the servers that the node itself must not call.
pub(super) fn compile(
    family: IpFamily,
    context: &Context<'_>,
    closed: impl IntoIterator<Item = Server>,
) -> Program {
    let writer = Writer { family };
    let mut chains = mark_chains(context);
    let mut add = |table, name: &str, rules| chains.insert((table, name.into()), rules);
    let (nat, filter) = (TableName::Nat, TableName::Filter);
    add(nat, SERVICES, writer.services(context));
    add(nat, LOAD_BALANCER, writer.load_balancer());
    add(nat, NODE_PORT, writer.node_port());
    add(nat, POSTROUTING, writer.postrouting(context));
    // Upstream does not drop invalid packets in this mode, and neither do we.
    let mut passing = forward(context.node_network.masquerade_mark);
    passing.remove(0);
    add(filter, FORWARD, passing);
    add(filter, NODE_PORT, vec![writer.health_checks()]);
    add(filter, FIREWALL, vec![writer.firewall()]);
    add(filter, SOURCE_RANGES, writer.source_ranges());
    add(filter, ACCESS, writer.access());
    add(filter, OUTGOING, closed.into_iter().map(closed_to_the_node).collect());
    Program { family, chains, hooks: hooks() }
}

/// Deletes all chains that a listing shows, and the jumps to them.
pub fn removal(family: IpFamily, listing: &Listing, kept: &Kept) -> Restore {
    remove(family, listing, is_ours, kept)
}

/// All that this mode uses stays.
pub fn kept() -> Kept {
    Kept { is_kept: is_ours, hooks: hooks() }
}

/// Whether a chain belongs to this mode.
fn is_ours(table: TableName, chain: &str) -> bool {
    const NAT: [&str; 7] =
        [SERVICES, LOAD_BALANCER, NODE_PORT, POSTROUTING, MARK_MASQUERADE, MARK_OUTSIDE, EGRESS];
    const FILTER: [&str; 6] = [FORWARD, NODE_PORT, FIREWALL, SOURCE_RANGES, ACCESS, OUTGOING];
    chain == CANARY
        || match table {
            TableName::Mangle => false,
            TableName::Nat => NAT.contains(&chain),
            TableName::Filter => FILTER.contains(&chain),
        }
}

fn hooks() -> Vec<Hook> {
    let (nat, filter) = (TableName::Nat, TableName::Filter);
    [
        (nat, "OUTPUT", SERVICES, "kubernetes service portals"),
        (nat, "PREROUTING", SERVICES, "kubernetes service portals"),
        (nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
        (filter, "FORWARD", FORWARD, "kubernetes forwarding rules"),
        (filter, "INPUT", NODE_PORT, "kubernetes health check rules"),
        (filter, "INPUT", FIREWALL, "kube-proxy firewall rules"),
        (filter, "FORWARD", FIREWALL, "kube-proxy firewall rules"),
        (filter, "INPUT", ACCESS, "kubernetes ipvs access filter"),
        (filter, "OUTPUT", OUTGOING, "kubernetes ipvs access filter"),
    ]
    .into_iter()
    .map(|(table, from, to, comment)| hook(table, from, to, [Match::Comment(comment.into())]))
    .collect()
}

/// For the kernel a node that calls a virtual address has that address as its source.
fn closed_to_the_node(server: Server) -> Rule {
    let own = Match::Source(server.address.into(), Sense::Is);
    let through = Match::Virtual(server.address, server.protocol, server.port);
    Rule::new([own, through], Verdict::Drop)
}

struct Writer {
    family: IpFamily,
}

impl Writer {
    fn set(&self, set: SetName, fields: &[Field]) -> Match {
        Match::InSet(set.text(self.family), fields.to_vec(), Sense::Is)
    }

    fn rule(&self, comment: &str, set: SetName, fields: &[Field], verdict: Verdict) -> Rule {
        Rule::new([Match::Comment(comment.into()), self.set(set, fields)], verdict)
    }

    fn services(&self, context: &Context<'_>) -> Vec<Rule> {
        const EXTERNAL: &str =
            "Kubernetes service external ip + port for masquerade and filter purpose";
        const LOCAL: &str =
            "Kubernetes service external ip + port with externalTrafficPolicy=local";
        let loopback = match self.family {
            IpFamily::V4 => "127.0.0.0/8",
            IpFamily::V6 => "::1/128",
        };
        let loopback = loopback.parse().expect("both are networks");
        let mut rules = vec![
            Rule::new([Match::Source(loopback, Sense::Is)], Verdict::Return),
            self.rule(
                "Kubernetes service lb portal",
                SetName::LoadBalancer,
                BOTH,
                Verdict::Jump(LOAD_BALANCER.into()),
            ),
            self.cluster_ips(context),
            self.rule(EXTERNAL, SetName::ExternalIp, BOTH, mark()),
        ];
        for (comment, set) in [(EXTERNAL, SetName::ExternalIp), (LOCAL, SetName::ExternalIpLocal)] {
            let comment = Match::Comment(comment.into());
            let matches = [comment, self.set(set, BOTH), Match::DestinationLocal];
            rules.push(Rule::new(matches, Verdict::Accept));
        }
        rules.push(Rule::new([Match::DestinationLocal], Verdict::Jump(NODE_PORT.into())));
        // Nobody else's rules may translate what IPVS will take.
        let accept = |set| Rule::new([self.set(set, BOTH)], Verdict::Accept);
        rules.extend([SetName::ClusterIp, SetName::LoadBalancer].map(accept));
        rules
    }

    fn cluster_ips(&self, context: &Context<'_>) -> Rule {
        const COMMENT: &str = "Kubernetes service cluster ip + port for masquerade purpose";
        match context.masqueraded_callers() {
            Some((from, verdict)) => {
                let own = [Match::Comment(COMMENT.into()), self.set(SetName::ClusterIp, BOTH)];
                Rule::new(from.into_iter().chain(own), verdict)
            }
            // The node has the virtual address as its source, which no endpoint could answer.
            None => {
                self.rule(COMMENT, SetName::ClusterIp, &[Field::Source, Field::Destination], mark())
            }
        }
    }

    fn load_balancer(&self) -> Vec<Rule> {
        const LOCAL: &str =
            "Kubernetes service load balancer ip + port with externalTrafficPolicy=local";
        vec![
            self.rule(LOCAL, SetName::LoadBalancerLocal, BOTH, Verdict::Return),
            Rule::new([], mark()),
        ]
    }

    fn node_port(&self) -> Vec<Rule> {
        [
            (Protocol::Tcp, "TCP", SetName::NodePortLocalTcp, SetName::NodePortTcp, ONE),
            (Protocol::Udp, "UDP", SetName::NodePortLocalUdp, SetName::NodePortUdp, ONE),
            (Protocol::Sctp, "SCTP", SetName::NodePortLocalSctp, SetName::NodePortSctp, BOTH),
        ]
        .into_iter()
        .flat_map(|(protocol, name, local, all, fields)| {
            let rule = |comment: String, set, verdict| {
                let matches = [Match::Protocol(protocol), Match::Comment(comment)];
                Rule::new(matches.into_iter().chain([self.set(set, fields)]), verdict)
            };
            let with_local =
                format!("Kubernetes nodeport {name} port with externalTrafficPolicy=local");
            let masquerade = format!("Kubernetes nodeport {name} port for masquerade purpose");
            [rule(with_local, local, Verdict::Return), rule(masquerade, all, mark())]
        })
        .collect()
    }

    fn postrouting(&self, context: &Context<'_>) -> Vec<Rule> {
        const COMMENT: &str =
            "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose";
        let hairpin = self.rule(COMMENT, SetName::LoopBack, ALL_THREE, Verdict::Masquerade);
        [hairpin].into_iter().chain(postrouting(context)).collect()
    }

    fn health_checks(&self) -> Rule {
        let set = SetName::HealthCheckNodePort;
        self.rule("Kubernetes health check node port", set, ONE, Verdict::Accept)
    }

    fn firewall(&self) -> Rule {
        const COMMENT: &str = "Kubernetes service load balancer ip + port for load balancer with \
                               sourceRange";
        let jump = Verdict::Jump(SOURCE_RANGES.into());
        self.rule(COMMENT, SetName::LoadBalancerFirewall, BOTH, jump)
    }

    fn source_ranges(&self) -> Vec<Rule> {
        const NETWORK: &str =
            "Kubernetes service load balancer ip + port + source cidr for packet filter purpose";
        const ADDRESS: &str =
            "Kubernetes service load balancer ip + port + source IP for packet filter purpose";
        vec![
            self.rule(NETWORK, SetName::LoadBalancerSourceNetwork, ALL_THREE, Verdict::Return),
            self.rule(ADDRESS, SetName::LoadBalancerSourceIp, ALL_THREE, Verdict::Return),
            Rule::new([], Verdict::Drop),
        ]
    }

    /// Virtual addresses are addresses of this machine, but none of its own ports is meant.
    fn access(&self) -> Vec<Rule> {
        let served = [
            (SetName::LoadBalancer, BOTH),
            (SetName::ClusterIp, BOTH),
            (SetName::ExternalIp, BOTH),
            (SetName::ExternalIpLocal, BOTH),
            (SetName::HealthCheckNodePort, ONE),
        ];
        let mut rules: Vec<_> = served
            .into_iter()
            .map(|(set, fields)| Rule::new([self.set(set, fields)], Verdict::Return))
            .collect();
        let new = Match::State(TrackedState::New);
        rules.push(Rule::new([new, self.set(SetName::VirtualAddresses, ONE)], Verdict::Reject));
        rules
    }
}

fn mark() -> Verdict {
    Verdict::Jump(MARK_MASQUERADE.into())
}
