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
use crate::service::IpFamily;
use crate::surroundings::{DetectLocal, NodePorts, Surroundings};

const SERVICES: ChainName = ChainName::Fixed("services");
const NODE_PORTS: ChainName = ChainName::Fixed("nodeports");
const MASQUERADING: ChainName = ChainName::Fixed("masquerading");
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
pub(super) fn definition(name: &ChainName, around: &Surroundings) -> Chain {
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
pub(super) fn shortcuts(around: &Surroundings, to: &ChainName) -> Vec<Rule> {
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
pub(super) fn fixed_chains(around: &Surroundings, family: IpFamily) -> BTreeMap<ChainName, Chain> {
    let base = |name, kind, hook, priority, rules| {
        let base = Some(Base { kind, hook, priority });
        (ChainName::Fixed(name), Chain { base, rules })
    };
    let check = |chain: &ChainName| vec![Statement::IsNew, Statement::Jump(chain.clone())];
    let jump = |chain| vec![vec![Statement::Jump(chain)]];
    let (filter, nat) = (ChainKind::Filter, ChainKind::Nat);
    let checks = |chains: &[ChainName]| chains.iter().map(check).collect::<Vec<_>>();
    let plain = |name, rules| (name, Chain { base: None, rules });
    let firewall = || checks(&[FIREWALL_CHECK]);
    // What has been forwarded is served; that spares every packet the checks. It ends our chain
    // only: the rules of others still see the packet.
    let known = || vec![vec![Statement::IsTranslated, Statement::Accept]];
    let (pre, pre_nat) = ("filter-prerouting-pre-dnat", "filter-output-pre-dnat");
    let input = [SERVICE_ENDPOINTS_CHECK, NODE_PORT_ENDPOINTS_CHECK];
    let forward = [SERVICE_ENDPOINTS_CHECK, CLUSTER_IPS_CHECK];
    let output = [SERVICE_ENDPOINTS_CHECK, NODE_PORT_ENDPOINTS_CHECK, CLUSTER_IPS_CHECK];
    [
        base(pre, filter, Hook::Prerouting, BEFORE_NAT, firewall()),
        base(pre_nat, filter, Hook::Output, BEFORE_NAT, firewall()),
        base("filter-input", filter, Hook::Input, 0, checks(&input)),
        base("filter-forward", filter, Hook::Forward, 0, [known(), checks(&forward)].concat()),
        base("filter-output", filter, Hook::Output, 0, checks(&output)),
        base("nat-prerouting", nat, Hook::Prerouting, DESTINATION_NAT, jump(SERVICES)),
        base("nat-output", nat, Hook::Output, DESTINATION_NAT, jump(SERVICES)),
        base("nat-postrouting", nat, Hook::Postrouting, SOURCE_NAT, jump(MASQUERADING)),
        plain(SERVICES, services(around, family)),
        plain(NODE_PORTS, lookups(NODE_PORT_KEY)),
        plain(MASQUERADING, masquerading(around)),
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
            .map(|rule| on_node(around, family).into_iter().chain(rule).collect())
            .collect(),
        ),
        plain(CLUSTER_IPS_CHECK, cluster_ips_check(around)),
    ]
    .into()
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
fn cluster_ips_check(around: &Surroundings) -> Vec<Rule> {
    let unused = |net: &IpNet| vec![Statement::Destination(Is::In, *net), Statement::Drop];
    let mut rules = vec![vec![to_cluster_ip(), Statement::Reject]];
    rules.extend(around.service_networks.iter().map(unused));
    rules
}

fn to_cluster_ip() -> Statement {
    Statement::Member(&[Field::Destination], Is::In, SetName::ClusterIps)
}

/// The conditions under which a packet may be for a node port.
fn on_node(around: &Surroundings, family: IpFamily) -> Vec<Statement> {
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

fn loopback(family: IpFamily) -> IpNet {
    match family {
        IpFamily::V4 => Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8).into(),
        IpFamily::V6 => Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128).into(),
    }
}

fn services(around: &Surroundings, family: IpFamily) -> Vec<Rule> {
    let mark = Statement::SetMark(around.masquerade_mark);
    let strangers = match around.masquerade_all {
        true => Some(Vec::new()),
        false => from_strangers(&around.detect_local),
    };
    let masquerade = strangers.map(|mut rule| {
        rule.extend([to_cluster_ip(), mark]);
        rule
    });
    let mut to_node = on_node(around, family);
    to_node.push(Statement::Jump(NODE_PORTS));
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

fn masquerading(around: &Surroundings) -> Vec<Rule> {
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
    rules.extend([
        vec![Statement::MarkClear(around.masquerade_mark), Statement::Return],
        vec![Statement::FlipMark(around.masquerade_mark)],
        vec![Statement::Masquerade],
    ]);
    rules
}
