//! From the table to the program: the chains that do not depend on Services, and all the rest.

use std::collections::BTreeMap;

use ipnet::IpNet;

use super::model::{Chains, Hook, Match, Program, Rule, Sense, TableName, TrackedState, Verdict};
use super::service::{Shared, compile_port};
use crate::node_network::{DetectLocal, NodeNetwork, NodePorts};
use crate::service::IpFamily;
use crate::table::ForwardingTable;

/// Marks a packet for masquerading.
pub(crate) const MARK_MASQUERADE: &str = "KUBE-MARK-MASQ";
/// Marks a packet for masquerading unless it comes from one of several pod networks. Upstream
/// knows only one network, and needs no such chain.
pub(crate) const MARK_OUTSIDE: &str = "KUBE-MARK-OUTSIDE";
const SERVICES: &str = "KUBE-SERVICES";
const NODE_PORTS: &str = "KUBE-NODEPORTS";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const FORWARD: &str = "KUBE-FORWARD";
/// Where Roadstead runs the pods, their way out of the cluster. Upstream leaves that to others.
pub(crate) const EGRESS: &str = "KUBE-EGRESS";
/// Empty, and gone when somebody has flushed the tables.
pub const CANARY: &str = "KUBE-PROXY-CANARY";
/// Keeps strangers from calling 127.0.0.1 where the kernel would let them, and is empty elsewhere.
/// The kubelet has the same.
pub const GUARD: &str = "KUBE-FIREWALL";
/// Counts node ports called by a loopback address.
pub const LOCALHOST_ACCEPTED: &str = "localhost_nps_accepted_pkts";
/// Counts packets that fit no connection.
pub const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
/// With more targets than this, rules for single endpoints have no comments.
const LARGE: usize = 1000;

/// What all service ports have in common.
#[derive(Debug)]
pub struct Context<'a> {
    /// The node and the networks around it.
    pub node_network: &'a NodeNetwork,
    /// Whether to save space.
    pub large: bool,
}

impl<'a> Context<'a> {
    /// That of a table.
    pub fn of(table: &'a ForwardingTable) -> Self {
        Self { node_network: table.node_network(), large: table.target_count() > LARGE }
    }

    /// Who is masqueraded on the way to a ClusterIP, and by which jump; `None` if nobody is.
    pub(crate) fn masqueraded_callers(&self) -> Option<(Option<Match>, Verdict)> {
        let mark = || Verdict::Jump(MARK_MASQUERADE.into());
        if self.node_network.masquerade_all {
            return Some((None, mark()));
        }
        match (&self.node_network.detect_local, interface(&self.node_network.detect_local)) {
            (_, Some(name)) => Some((Some(Match::Input(name, Sense::IsNot)), mark())),
            (DetectLocal::Networks(networks), None) => match networks.as_slice() {
                [] => None,
                [only] => Some((Some(Match::Source(*only, Sense::IsNot)), mark())),
                _ => Some((None, Verdict::Jump(MARK_OUTSIDE.into()))),
            },
            _ => None,
        }
    }

    /// How each kind of pods is recognised.
    pub(crate) fn local_callers(&self) -> Vec<Match> {
        match (&self.node_network.detect_local, interface(&self.node_network.detect_local)) {
            (_, Some(name)) => vec![Match::Input(name, Sense::Is)],
            (DetectLocal::Networks(networks), None) => {
                networks.iter().map(|network| Match::Source(*network, Sense::Is)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether calls of node ports by a loopback address are counted.
    pub(super) fn counts_localhost(&self) -> bool {
        self.node_network.named_counters && self.node_network.serves_loopback()
    }

    fn networks(&self) -> &[IpNet] {
        match &self.node_network.detect_local {
            DetectLocal::Networks(networks) => networks,
            _ => &[],
        }
    }
}

/// The pattern of a link's name, if that tells pods from others.
fn interface(detect: &DetectLocal) -> Option<String> {
    match detect {
        DetectLocal::Bridge(name) => Some(name.clone()),
        DetectLocal::InterfacePrefix(prefix) => Some(format!("{prefix}+")),
        DetectLocal::Networks(_) | DetectLocal::Unknown => None,
    }
}

/// Compiles the whole table.
pub fn compile(table: &ForwardingTable) -> Program {
    let context = Context::of(table);
    let mut shared: BTreeMap<Shared, Vec<Rule>> = BTreeMap::new();
    let mut chains = fixed_chains(&context);
    for (name, port) in table.iter() {
        let rules = compile_port(&context, name, port, &table.frontends_of(name));
        for (chain, rule) in rules.shared {
            shared.entry(chain).or_default().push(rule);
        }
        let own = rules.own.into_iter();
        chains.extend(own.map(|(chain, rules)| ((TableName::Nat, chain), rules)));
    }
    for chain in Shared::ALL {
        let (table_name, name) = chain.place();
        let mut rules = shared.remove(&chain).unwrap_or_default();
        rules.extend(last_rules(chain, table.family(), &context));
        chains.insert((table_name, name.into()), rules);
    }
    Program { family: table.family(), chains, hooks: hooks() }
}

impl Shared {
    /// All of them.
    pub const ALL: [Shared; 6] = [
        Shared::Services,
        Shared::NodePorts,
        Shared::Unserved,
        Shared::ExternalUnserved,
        Shared::Firewall,
        Shared::HealthChecks,
    ];

    /// The table and name of the chain.
    pub fn place(self) -> (TableName, &'static str) {
        match self {
            Shared::Services => (TableName::Nat, SERVICES),
            Shared::NodePorts => (TableName::Nat, NODE_PORTS),
            Shared::Unserved => (TableName::Filter, SERVICES),
            Shared::ExternalUnserved => (TableName::Filter, EXTERNAL_SERVICES),
            Shared::Firewall => (TableName::Filter, FIREWALL),
            Shared::HealthChecks => (TableName::Filter, NODE_PORTS),
        }
    }
}

/// The rules that come after those of all service ports.
pub(super) fn last_rules(chain: Shared, family: IpFamily, context: &Context<'_>) -> Vec<Rule> {
    const COMMENT: &str =
        "kubernetes service nodeports; NOTE: this must be the last rule in this chain";
    if chain != Shared::Services {
        return Vec::new();
    }
    let jump = |matches: Vec<Match>| {
        let comment = Match::Comment(COMMENT.into());
        Rule::new([comment].into_iter().chain(matches), Verdict::Jump(NODE_PORTS.into()))
    };
    match &context.node_network.node_ports {
        NodePorts::Every { loopback: true } => vec![jump(vec![Match::DestinationLocal])],
        NodePorts::Every { loopback: false } => {
            let not_loopback = Match::Destination(loopback(family), Sense::IsNot);
            vec![jump(vec![Match::DestinationLocal, not_loopback])]
        }
        NodePorts::On(addresses) => {
            let to = |address| vec![Match::Destination(IpNet::from(address), Sense::Is)];
            addresses.iter().copied().map(|address| jump(to(address))).collect()
        }
    }
}

pub(super) fn loopback(family: IpFamily) -> IpNet {
    let text = match family {
        IpFamily::V4 => "127.0.0.0/8",
        IpFamily::V6 => "::1/128",
    };
    text.parse().expect("both are networks")
}

/// The chains that only depend on the NodeNetwork.
pub(super) fn fixed_chains(context: &Context<'_>) -> Chains {
    let mut chains = mark_chains(context);
    chains.insert((TableName::Nat, POSTROUTING.into()), postrouting(context));
    let mut forward = forward(context.node_network.masquerade_mark);
    if !context.node_network.drop_invalid {
        forward.remove(0);
    } else if context.node_network.named_counters {
        forward[0].matches.push(Match::Count(INVALID_DROPPED));
    }
    chains.insert((TableName::Filter, FORWARD.into()), forward);
    let guard = context.node_network.serves_loopback().then(guard);
    chains.insert((TableName::Filter, GUARD.into()), guard.into_iter().collect());
    chains
}

/// With `route_localnet` the kernel takes packets for 127.0.0.0/8 from anywhere; this does not.
fn guard() -> Rule {
    let local = loopback(IpFamily::V4);
    let why = Match::Comment("block incoming localnet connections".into());
    let (from, to) = (Match::Source(local, Sense::IsNot), Match::Destination(local, Sense::Is));
    Rule::new([from, to, why, Match::Uninvited], Verdict::Drop)
}

/// The canaries, and the chains that mark packets.
pub(crate) fn mark_chains(context: &Context<'_>) -> Chains {
    let bit = context.node_network.masquerade_mark;
    let mut chains: Chains =
        TableName::ALL.map(|table| ((table, CANARY.into()), Vec::new())).into();
    let mut add = |name: &str, rules| chains.insert((TableName::Nat, name.into()), rules);
    add(MARK_MASQUERADE, vec![Rule::new([], Verdict::Mark(bit))]);
    if context.networks().len() > 1 {
        let back = |net: &IpNet| Rule::new([Match::Source(*net, Sense::Is)], Verdict::Return);
        let mut rules: Vec<_> = context.networks().iter().map(back).collect();
        rules.push(Rule::new([], Verdict::Jump(MARK_MASQUERADE.into())));
        add(MARK_OUTSIDE, rules);
    }
    if context.node_network.masquerade_egress {
        add(EGRESS, egress(context.networks()));
    }
    chains
}

/// Gives marked packets the node's address.
pub(crate) fn postrouting(context: &Context<'_>) -> Vec<Rule> {
    let bit = context.node_network.masquerade_mark;
    let why = Match::Comment("kubernetes service traffic requiring SNAT".into());
    let mut rules = Vec::new();
    if context.node_network.masquerade_egress {
        let from =
            |net: &IpNet| Rule::new([Match::Source(*net, Sense::Is)], Verdict::Jump(EGRESS.into()));
        rules.extend(context.networks().iter().map(from));
    }
    rules.extend([
        Rule::new([Match::Marked(bit, Sense::IsNot)], Verdict::Return),
        Rule::new([], Verdict::Unmark(bit)),
        Rule::new([why], Verdict::Masquerade),
    ]);
    rules
}

/// Pods that call somebody outside all pod networks appear as the node.
fn egress(networks: &[IpNet]) -> Vec<Rule> {
    let why = Match::Comment("pods appear as the node outside the cluster".into());
    let inside = |net: &IpNet| Rule::new([Match::Destination(*net, Sense::Is)], Verdict::Return);
    let leave = Rule::new([why], Verdict::Masquerade);
    networks.iter().map(inside).chain([leave]).collect()
}

/// Lets what we have forwarded pass, even where the policy of the machine is to drop.
pub(crate) fn forward(bit: u32) -> Vec<Rule> {
    let comment = |text: &str| Match::Comment(text.into());
    vec![
        Rule::new([Match::State(TrackedState::Invalid)], Verdict::Drop),
        Rule::new(
            [comment("kubernetes forwarding rules"), Match::Marked(bit, Sense::Is)],
            Verdict::Accept,
        ),
        Rule::new(
            [
                comment("kubernetes forwarding conntrack rule"),
                Match::State(TrackedState::Established),
            ],
            Verdict::Accept,
        ),
    ]
}

/// The names of all chains that are not of a single service port.
pub(crate) fn shared_chains() -> impl Iterator<Item = (TableName, &'static str)> {
    let nat =
        [MARK_MASQUERADE, MARK_OUTSIDE, EGRESS, POSTROUTING].map(|name| (TableName::Nat, name));
    let canaries = TableName::ALL.map(|table| (table, CANARY));
    let shared = Shared::ALL.map(Shared::place);
    shared.into_iter().chain(nat).chain(canaries).chain([(TableName::Filter, FORWARD)])
}

/// The jumps into our chains, in the order in which kube-proxy makes them.
pub(super) fn hooks() -> Vec<Hook> {
    const VISIBLE: &str = "kubernetes externally-visible service portals";
    const PORTALS: &str = "kubernetes service portals";
    const BALANCER: &str = "kubernetes load balancer firewall";
    let (nat, filter) = (TableName::Nat, TableName::Filter);
    [
        (filter, "INPUT", EXTERNAL_SERVICES, VISIBLE, true),
        (filter, "FORWARD", EXTERNAL_SERVICES, VISIBLE, true),
        (filter, "INPUT", NODE_PORTS, "kubernetes health check service ports", false),
        (filter, "FORWARD", SERVICES, PORTALS, true),
        (filter, "OUTPUT", SERVICES, PORTALS, true),
        (filter, "FORWARD", FORWARD, "kubernetes forwarding rules", false),
        (filter, "INPUT", FIREWALL, BALANCER, true),
        (filter, "OUTPUT", FIREWALL, BALANCER, true),
        (filter, "FORWARD", FIREWALL, BALANCER, true),
        (filter, "INPUT", GUARD, "", false),
        (filter, "OUTPUT", GUARD, "", false),
        (nat, "OUTPUT", SERVICES, PORTALS, false),
        (nat, "PREROUTING", SERVICES, PORTALS, false),
        (nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules", false),
    ]
    .into_iter()
    .map(|(table, from, to, comment, only_new)| {
        // Many are for new connections only.
        let state = only_new.then_some(Match::State(TrackedState::New));
        let comment = (!comment.is_empty()).then(|| Match::Comment(comment.into()));
        hook(table, from, to, state.into_iter().chain(comment))
    })
    .collect()
}

/// A jump into a chain.
pub(crate) fn hook(
    table: TableName,
    from: &'static str,
    to: &str,
    matches: impl IntoIterator<Item = Match>,
) -> Hook {
    Hook { table, from, rule: Rule::new(matches, Verdict::Jump(to.into())) }
}

#[cfg(test)]
mod tests;
