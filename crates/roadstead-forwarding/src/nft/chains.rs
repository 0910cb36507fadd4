//! The chains that Services share.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::compile::slots_of;
use super::model::{
    ADDRESS_KEY, Base, Chain, ChainKind, Class, Field, Hook, Is, NODE_PORT_KEY, Rule, Statement,
    Way,
};
use super::names::{ChainName, SetName, Slots};
use crate::node_network::{DetectLocal, NodeNetwork, NodePorts};
use crate::service::IpFamily;

const SERVICES: ChainName = ChainName::Fixed("services");
const NODE_PORTS: ChainName = ChainName::Fixed("nodeports");
const NODE_SERVICES: ChainName = ChainName::Fixed("node-services");
const INPUT_CHECK: ChainName = ChainName::Fixed("input-check");
const FORWARD_CHECK: ChainName = ChainName::Fixed("forward-check");
const OUTPUT_CHECK: ChainName = ChainName::Fixed("output-check");
const FIREWALL_CHECK: ChainName = ChainName::Fixed("firewall-check");
const SERVICE_ENDPOINTS_CHECK: ChainName = ChainName::Fixed("service-endpoints-check");
const NODE_PORT_ENDPOINTS_CHECK: ChainName = ChainName::Fixed("nodeport-endpoints-check");
const CLUSTER_IPS_CHECK: ChainName = ChainName::Fixed("cluster-ips-check");

const DESTINATION_NAT: i32 = -100;
const BEFORE_NAT: i32 = DESTINATION_NAT - 10;
const SOURCE_NAT: i32 = 100;

/// The chain that a class leads to.
pub(super) fn entry(class: Class) -> ChainName {
    let slots = slots_of(class.way);
    match class.way {
        Way::Plain | Way::Local | Way::NodePortLocal => ChainName::Pick(slots, class.count),
        Way::External | Way::NodePortExternal => ChainName::External(slots, class.count),
        Way::Shortcut | Way::NodePortShortcut => ChainName::Shortcut(slots, class.count),
    }
}

/// All chains that a class needs.
pub(super) fn behind(class: Class) -> impl Iterator<Item = ChainName> {
    let pick = ChainName::Pick(slots_of(class.way), class.count);
    let entry = entry(class);
    let other = (entry != pick).then_some(entry);
    [pick].into_iter().chain(other)
}

/// The rules of a chain that was made for a class.
pub(super) fn definition(name: &ChainName, around: &NodeNetwork) -> Chain {
    let rules = match name {
        ChainName::Pick(slots, count) => pick(*slots, *count),
        ChainName::External(slots, count) => {
            let mark = vec![Statement::SetMark(around.masquerade_mark)];
            vec![mark, vec![Statement::Goto(ChainName::Pick(*slots, *count))]]
        }
        ChainName::Shortcut(slots, count) => {
            let (fields, local) = match slots {
                Slots::NodePort | Slots::LocalNodePort => {
                    (NODE_PORT_KEY, SetName::LocalServiceNodePorts)
                }
                _ => (ADDRESS_KEY, SetName::LocalServiceIps),
            };
            let local = Statement::RememberClass(fields, local);
            let mut rules = shortcuts(around, &ChainName::Pick(*slots, *count));
            rules.push(vec![Statement::ForgetClass]);
            rules.push(vec![local, Statement::GotoByClass(SetName::LocalPicks)]);
            rules
        }
        _ => Vec::new(),
    };
    Chain { base: None, rules }
}

/// Inside the cluster the external frontends are mere names for the Service.
pub(super) fn shortcuts(around: &NodeNetwork, to: &ChainName) -> Vec<Rule> {
    let goto = || Statement::Goto(to.clone());
    let pods = from_pods(&around.detect_local).into_iter().map(|is_pod| vec![is_pod, goto()]);
    let mark = Statement::SetMark(around.masquerade_mark);
    pods.chain([vec![Statement::SourceIsOurs, mark, goto()]]).collect()
}

/// The kernel swaps the maps between two lookups of a packet if we commit at that very moment. A
/// packet that drew a slot which has just gone takes slot 0, which every served frontend has.
fn pick(slots: Slots, count: u32) -> Vec<Rule> {
    let from = |count| vec![Statement::DestinationFromSlot(slots.fields(), count, slots.set())];
    let mut rules = vec![vec![Statement::ForgetClass], from(count)];
    if count > 1 {
        rules.push(from(1));
    }
    rules
}

/// One condition for each way to be a pod.
fn from_pods(detect_local: &DetectLocal) -> Vec<Statement> {
    match detect_local {
        DetectLocal::Unknown => Vec::new(),
        DetectLocal::Networks(networks) => {
            networks.iter().map(|net| Statement::Source(Is::In, *net)).collect()
        }
        DetectLocal::Bridge(name) => vec![Statement::Interface(Is::In, name.clone())],
        DetectLocal::InterfacePrefix(name) => {
            vec![Statement::InterfacePrefix(Is::In, name.clone())]
        }
    }
}

/// All conditions that a stranger meets; `None` if nobody can tell.
fn from_strangers(detect_local: &DetectLocal) -> Option<Vec<Statement>> {
    let turned = |statement| match statement {
        Statement::Source(_, net) => Statement::Source(Is::NotIn, net),
        Statement::Interface(_, name) => Statement::Interface(Is::NotIn, name),
        Statement::InterfacePrefix(_, name) => Statement::InterfacePrefix(Is::NotIn, name),
        other => other,
    };
    let pods = from_pods(detect_local);
    (!pods.is_empty()).then(|| pods.into_iter().map(turned).collect())
}

/// The chains that do not depend on Services.
///
/// Every packet of the machine comes by the base chains, whether or not it is for a Service. So
/// each of them asks as little as possible before it lets go of a packet: whether it is the first
/// of its connection, and whether its destination may be a frontend.
pub(super) fn fixed_chains(around: &NodeNetwork, family: IpFamily) -> BTreeMap<ChainName, Chain> {
    let base = |name, kind, hook, priority, rules| {
        let base = Some(Base { kind, hook, priority });
        (ChainName::Fixed(name), Chain { base, rules })
    };
    let new = |chain: ChainName| vec![vec![Statement::IsNew, Statement::Jump(chain)]];
    let (filter, nat) = (ChainKind::Filter, ChainKind::Nat);
    let plain = |name, rules| (name, Chain { base: None, rules });
    let to_services = || vec![elsewhere(around, NODE_SERVICES), vec![Statement::Jump(SERVICES)]];
    let checks = |chains: &[ChainName]| {
        let jumps = chains.iter().map(|chain| vec![Statement::Jump(chain.clone())]);
        let first = elsewhere(around, NODE_PORT_ENDPOINTS_CHECK);
        [first].into_iter().chain(jumps).collect::<Vec<_>>()
    };
    let input = [SERVICE_ENDPOINTS_CHECK, NODE_PORT_ENDPOINTS_CHECK];
    let output = [SERVICE_ENDPOINTS_CHECK, NODE_PORT_ENDPOINTS_CHECK, CLUSTER_IPS_CHECK];
    let mut to_node = on_node_port(around, family);
    to_node.push(Statement::Jump(NODE_PORTS));
    [
        base("filter-input", filter, Hook::Input, 0, new(INPUT_CHECK)),
        base("filter-forward", filter, Hook::Forward, 0, new(FORWARD_CHECK)),
        base("filter-output", filter, Hook::Output, 0, new(OUTPUT_CHECK)),
        base("nat-prerouting", nat, Hook::Prerouting, DESTINATION_NAT, to_services()),
        base("nat-output", nat, Hook::Output, DESTINATION_NAT, to_services()),
        base("nat-postrouting", nat, Hook::Postrouting, SOURCE_NAT, masquerading(around)),
        plain(SERVICES, services(around)),
        plain(NODE_SERVICES, vec![to_node]),
        plain(NODE_PORTS, lookups(NODE_PORT_KEY)),
        plain(INPUT_CHECK, checks(&input)),
        plain(FORWARD_CHECK, forward_check(around)),
        plain(OUTPUT_CHECK, checks(&output)),
        plain(FIREWALL_CHECK, vec![firewall_check()]),
        plain(
            SERVICE_ENDPOINTS_CHECK,
            unserved(ADDRESS_KEY, SetName::NoEndpointServices, SetName::NoLocalEndpointServices),
        ),
        plain(
            NODE_PORT_ENDPOINTS_CHECK,
            unserved(
                NODE_PORT_KEY,
                SetName::NoEndpointNodePorts,
                SetName::NoLocalEndpointNodePorts,
            )
            .into_iter()
            .map(|mut rule| {
                // Few ports are without endpoints, so that is asked before where the packet goes.
                rule.splice(1..1, on_node(around, family));
                rule
            })
            .collect(),
        ),
        plain(CLUSTER_IPS_CHECK, cluster_ips_check(around)),
    ]
    .into()
}

/// The chains that only frontends need which not everybody may call. They see every packet, so they
/// are there only as long as there are such frontends.
pub(super) fn fences() -> impl Iterator<Item = (ChainName, Chain)> {
    let check = || vec![vec![Statement::IsNew, Statement::Jump(FIREWALL_CHECK)]];
    let fence = move |name, hook| {
        let base = Some(Base { kind: ChainKind::Filter, hook, priority: BEFORE_NAT });
        (ChainName::Fixed(name), Chain { base, rules: check() })
    };
    [
        fence("filter-prerouting-pre-dnat", Hook::Prerouting),
        fence("filter-output-pre-dnat", Hook::Output),
    ]
    .into_iter()
}

/// Lets go of what is for no address that a frontend has. Where node ports are served on every
/// address of the node, which come and go unseen, it may still be for one of those: its port says.
fn elsewhere(around: &NodeNetwork, node_ports: ChainName) -> Rule {
    let mut rule = not_for_frontends(around);
    rule.push(match around.node_ports {
        NodePorts::Every { .. } => Statement::Goto(node_ports),
        NodePorts::On(_) => Statement::Return,
    });
    rule
}

fn not_for_frontends(around: &NodeNetwork) -> Rule {
    let outside = |net: &IpNet| Statement::Destination(Is::NotIn, *net);
    let mut rule: Rule = around.service_networks.iter().map(outside).collect();
    rule.push(Statement::Member(&[Field::Destination], Is::NotIn, SetName::FrontendIps));
    rule
}

/// What goes on to another machine is never for a node port; and what has been forwarded is served.
fn forward_check(around: &NodeNetwork) -> Vec<Rule> {
    let mut elsewhere = not_for_frontends(around);
    elsewhere.push(Statement::Return);
    vec![
        elsewhere,
        vec![Statement::IsTranslated, Statement::Return],
        vec![Statement::Jump(SERVICE_ENDPOINTS_CHECK)],
        vec![Statement::Jump(CLUSTER_IPS_CHECK)],
    ]
}

fn unserved(fields: &'static [Field], none: SetName, none_local: SetName) -> Vec<Rule> {
    let rule = |set, verdict| vec![Statement::Member(fields, Is::In, set), verdict];
    vec![rule(none, Statement::Reject), rule(none_local, Statement::Drop)]
}

fn firewall_check() -> Rule {
    const WITH_SOURCE: &[Field] =
        &[Field::Destination, Field::Protocol, Field::Port, Field::Source];
    vec![
        Statement::Member(ADDRESS_KEY, Is::In, SetName::FirewallIps),
        Statement::Member(WITH_SOURCE, Is::NotIn, SetName::FirewallAllowed),
        Statement::Drop,
    ]
}

/// Whatever still has a ClusterIP as its destination asked for a port that nobody serves.
fn cluster_ips_check(around: &NodeNetwork) -> Vec<Rule> {
    let unused = |net: &IpNet| vec![Statement::Destination(Is::In, *net), Statement::Drop];
    let mut rules = vec![vec![to_cluster_ip(), Statement::Reject]];
    rules.extend(around.service_networks.iter().map(unused));
    rules
}

fn to_cluster_ip() -> Statement {
    Statement::Member(&[Field::Destination], Is::In, SetName::ClusterIps)
}

/// The conditions under which a packet may be for a node port.
fn on_node(around: &NodeNetwork, family: IpFamily) -> Vec<Statement> {
    match around.node_ports {
        NodePorts::Every { loopback: true } => vec![Statement::DestinationIsOurs],
        NodePorts::Every { loopback: false } => {
            vec![Statement::DestinationIsOurs, Statement::Destination(Is::NotIn, loopback(family))]
        }
        NodePorts::On(_) => {
            vec![Statement::Member(&[Field::Destination], Is::In, SetName::NodePortIps)]
        }
    }
}

/// The same for a packet that may be for any port. What is forwarded to a pod goes to none of the
/// ports in use, as a rule, and is spared the kernel's question whose the destination is.
fn on_node_port(around: &NodeNetwork, family: IpFamily) -> Rule {
    let in_use = Statement::Member(NODE_PORT_KEY, Is::In, SetName::NodePortsInUse);
    let of_every = matches!(around.node_ports, NodePorts::Every { .. }).then_some(in_use);
    of_every.into_iter().chain(on_node(around, family)).collect()
}

fn loopback(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        IpFamily::V6 => Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128).into(),
    }
}

fn services(around: &NodeNetwork) -> Vec<Rule> {
    let mark = Statement::SetMark(around.masquerade_mark);
    let strangers = match around.masquerade_all {
        true => Some(Vec::new()),
        false => from_strangers(&around.detect_local),
    };
    let masquerade = strangers.map(|mut rule| {
        rule.extend([to_cluster_ip(), mark]);
        rule
    });
    let to_node = vec![Statement::Goto(NODE_SERVICES)];
    masquerade.into_iter().chain(lookups(ADDRESS_KEY)).chain([to_node]).collect()
}

fn lookups(fields: &'static [Field]) -> Vec<Rule> {
    let (affinity, services) = match fields == ADDRESS_KEY {
        true => (SetName::AffinityServices, SetName::ServiceIps),
        false => (SetName::AffinityNodePorts, SetName::ServiceNodePorts),
    };
    // Few Services have affinity, so the others do not pay for the second question.
    vec![
        vec![Statement::RememberClass(fields, services), Statement::GotoByClass(SetName::Picks)],
        vec![Statement::GotoByFields(fields, affinity)],
    ]
}

fn masquerading(around: &NodeNetwork) -> Vec<Rule> {
    const SELF: &[Field] = &[Field::Source, Field::Destination, Field::Protocol, Field::Port];
    let mut rules = vec![vec![
        Statement::IsTranslated,
        Statement::Member(SELF, Is::In, SetName::HairpinConnections),
        Statement::Masquerade,
    ]];
    if let (true, DetectLocal::Networks(networks)) =
        (around.masquerade_egress, &around.detect_local)
    {
        for net in networks {
            let outside = networks.iter().map(|net| Statement::Destination(Is::NotIn, *net));
            let from_pod = [Statement::Source(Is::In, *net)];
            rules
                .push(from_pod.into_iter().chain(outside).chain([Statement::Masquerade]).collect());
        }
    }
    let mark = around.masquerade_mark;
    rules.push(vec![Statement::MarkSet(mark), Statement::FlipMark(mark), Statement::Masquerade]);
    rules
}
