//! What must hold for every cluster: the compiled program does what the table decides, and
//! transactions lead to the compiled program at a cost that follows the change.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use roadstead_api::key::ObjectKey;

use super::compile::compile;
use super::diff::Layout;
use super::model::{Chain, Key, Program, Transaction, Value};
use super::names::{ChainName, SetName};
use super::trace::{Path, Situation, trace};
use crate::node_network::{DetectLocal, NodeNetwork, NodePorts};
use crate::packet::{Origin, Outcome, Packet};
use crate::select::TrafficPolicy;
use crate::service::{IpFamily, Locality, Protocol, ServicePort, ServicePortName, Target};
use crate::table::ForwardingTable;

/// Addresses are few, so that Services collide and endpoints are shared.
fn address(family: IpFamily, net: u8, host: u8) -> IpAddr {
    match family {
        IpFamily::V4 => [10, net, 0, host].into(),
        IpFamily::V6 => [0xfd00, net.into(), 0, 0, 0, 0, 0, host.into()].into(),
    }
}

fn network(family: IpFamily, net: u8) -> IpNet {
    let length = if family == IpFamily::V4 { 16 } else { 32 };
    IpNet::new(address(family, net, 0), length).unwrap().trunc()
}

const VIPS: u8 = 96;
const EXTERNAL: u8 = 97;
const PODS: u8 = 0;
const NODES: u8 = 150;
const OUTSIDE: u8 = 200;

/// One port of a Service, before it has a family. Hosts that are multiples of three run here.
#[derive(Clone, Debug)]
struct Port {
    protocol: Protocol,
    number: u16,
    vips: BTreeSet<u8>,
    external: BTreeSet<u8>,
    balancer: BTreeSet<u8>,
    node_port: Option<u16>,
    policies: (TrafficPolicy, TrafficPolicy),
    /// `None` for everybody.
    ranges: Option<BTreeSet<u8>>,
    created: i64,
    sticky: bool,
    targets: BTreeSet<u8>,
    draining: BTreeSet<u8>,
}

/// One Service with all its ports.
#[derive(Clone, Debug)]
struct Edit {
    service: u8,
    ports: Vec<Port>,
}

fn policies() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![2 => Just(TrafficPolicy::Cluster), 1 => Just(TrafficPolicy::Local)]
}

fn ports() -> impl Strategy<Value = Port> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    // External addresses are also those of load balancers, and number 3 is a ClusterIP.
    let frontends = (btree_set(0..3u8, 1..3), btree_set(0..4u8, 0..3), btree_set(0..3u8, 0..2));
    let node_port = prop::option::of(30_000..30_002u16);
    let ranges = (prop::option::weighted(0.7, btree_set(0..3u8, 0..2)), 0..2i64);
    let rest = ((policies(), policies()), ranges, prop::bool::weighted(0.3));
    let targets = (btree_set(0..12u8, 0..7), btree_set(0..12u8, 0..3));
    (protocol, 80..82u16, frontends, node_port, rest, targets).prop_map(
        |(protocol, number, frontends, node_port, rest, targets)| {
            let (vips, external, balancer) = frontends;
            let (policies, (ranges, created), sticky) = rest;
            let (targets, draining) = targets;
            Port {
                protocol,
                number,
                vips,
                external,
                balancer,
                node_port,
                policies,
                ranges,
                created,
                sticky,
                targets,
                draining,
            }
        },
    )
}

fn edits() -> impl Strategy<Value = Edit> {
    (0..5u8, vec(ports(), 0..3)).prop_map(|(service, ports)| Edit { service, ports })
}

fn families() -> impl Strategy<Value = IpFamily> {
    prop_oneof![Just(IpFamily::V4), Just(IpFamily::V6)]
}

/// A family, and what is around the table.
fn worlds() -> impl Strategy<Value = (IpFamily, NodeNetwork)> {
    (families(), 0..4u8, any::<bool>(), 0..3u8, any::<bool>()).prop_map(
        |(family, detect, masquerade_all, node_ports, known_networks)| {
            let detect_local = match detect {
                0 => DetectLocal::Unknown,
                1 => DetectLocal::Networks(vec![network(family, PODS)]),
                2 => DetectLocal::Bridge("bridge0".into()),
                _ => DetectLocal::InterfacePrefix("bri".into()),
            };
            let own = address(family, NODES, 1);
            let loopback: IpAddr = match family {
                IpFamily::V4 => [127, 0, 0, 1].into(),
                IpFamily::V6 => "::1".parse().unwrap(),
            };
            let node_ports = match node_ports {
                0 => NodePorts::Every { loopback: false },
                1 => NodePorts::Every { loopback: true },
                _ => NodePorts::On([own].into()),
            };
            let service_networks =
                if known_networks { vec![network(family, VIPS)] } else { vec![] };
            let node_network = NodeNetwork {
                detect_local,
                masquerade_all,
                node_ports,
                node_address: Some(own),
                node_addresses: [own, address(family, NODES, 2), loopback].into(),
                service_networks,
                ..NodeNetwork::default()
            };
            (family, node_network)
        },
    )
}

fn apply(table: &mut ForwardingTable, edit: &Edit) -> BTreeSet<Arc<ServicePortName>> {
    let family = table.family();
    let addresses = |net, hosts: &BTreeSet<u8>| -> Vec<IpAddr> {
        hosts.iter().map(|host| address(family, net, *host)).collect()
    };
    let port = |given: &Port| {
        let target = |host: &u8| Target {
            address: address(family, PODS, *host),
            port: 8080 + u16::from(host % 2),
            locality: if host.is_multiple_of(3) { Locality::Here } else { Locality::Elsewhere },
        };
        let name = ServicePortName {
            namespace: "ns".into(),
            name: format!("s{}", edit.service),
            port: given.number.to_string(),
            protocol: given.protocol,
        };
        let ranges =
            |nets: &BTreeSet<u8>| nets.iter().map(|net| network(family, OUTSIDE + net)).collect();
        let external = |host: &u8| match host {
            3 => address(family, VIPS, 1),
            host => address(family, EXTERNAL, *host),
        };
        let mut port = ServicePort {
            port: given.number,
            cluster_ips: addresses(VIPS, &given.vips),
            external_ips: given.external.iter().map(external).collect(),
            load_balancer_ips: addresses(EXTERNAL, &given.balancer),
            node_port: given.node_port,
            internal_policy: given.policies.0,
            external_policy: given.policies.1,
            source_ranges: given.ranges.as_ref().map(ranges),
            created: given.created,
            health_check_port: None,
            affinity: given.sticky.then_some(Duration::from_secs(60)),
            cluster: given.targets.iter().map(target).collect(),
            local: Vec::new(),
        };
        if port.uses_local() && port.has_endpoints() {
            let here = |targets: &BTreeSet<u8>| -> Vec<Target> {
                targets.iter().map(target).filter(|t| t.locality == Locality::Here).collect()
            };
            port.local = here(&given.targets);
            if port.local.is_empty() {
                port.local = here(&given.draining);
            }
        }
        (name, port)
    };
    let key = ObjectKey::new("ns", format!("s{}", edit.service));
    table.replace(&key, edit.ports.iter().map(port).collect())
}

/// Every packet that could make a difference.
fn packets(family: IpFamily) -> Vec<Packet> {
    let sources = [
        (PODS, 0, "bridge0"),
        (PODS, 3, "bridge0"),
        (PODS, 99, "eth0"),
        (OUTSIDE, 1, "eth0"),
        (OUTSIDE + 1, 1, "bridge0"),
        (EXTERNAL, 0, "eth0"),
        (NODES, 1, ""),
    ];
    let destinations = [
        (VIPS, 0, 80),
        (VIPS, 1, 81),
        (VIPS, 9, 80),
        (EXTERNAL, 0, 80),
        (EXTERNAL, 1, 81),
        (NODES, 1, 30_000),
        (NODES, 2, 30_001),
        (PODS, 3, 8081),
    ];
    let mut packets = Vec::new();
    for (source, from, interface) in sources {
        for (destination, to, port) in destinations {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                packets.push(Packet {
                    source: address(family, source, from),
                    destination: address(family, destination, to),
                    protocol,
                    port,
                    origin: match interface {
                        "" => Origin::Node,
                        name => Origin::Network(name.into()),
                    },
                });
            }
        }
    }
    packets
}

fn situation<'a>(around: &'a NodeNetwork, packet: &'a Packet) -> Situation<'a> {
    Situation { packet, node_addresses: &around.node_addresses, before: None }
}

/// How likely each outcome is, in lowest terms.
fn chances(paths: &[Path]) -> BTreeMap<Outcome, (u64, u64)> {
    fn gcd(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    let mut sums: BTreeMap<Outcome, (u64, u64)> = BTreeMap::new();
    for Path { outcome, chance: (n, d) } in paths {
        let (sum_n, sum_d) = sums.get(outcome).copied().unwrap_or((0, 1));
        let (n, d) = (sum_n * d + n * sum_d, sum_d * d);
        let common = gcd(n, d);
        sums.insert(*outcome, (n / common, d / common));
    }
    sums
}

fn agree(table: &ForwardingTable, program: &Program) {
    let before: SocketAddr = (address(table.family(), PODS, 3), 8081).into();
    packets(table.family()).iter().for_each(|packet| agree_on(table, program, packet, before));
}

/// The program allows exactly what the table decides, each outcome equally often; also for a client
/// that comes back after it went to `before`.
pub(crate) fn agree_on(
    table: &ForwardingTable,
    program: &Program,
    packet: &Packet,
    before: SocketAddr,
) {
    let permitted = table.decide(packet);
    let situation = situation(table.node_network(), packet);
    let found = chances(&trace(program, &situation));
    let each = (1, permitted.len() as u64);
    let wanted: BTreeMap<_, _> = permitted.iter().map(|outcome| (*outcome, each)).collect();
    assert_eq!(found, wanted, "{packet:?} in\n{program}");
    let again = Situation { before: Some(before), ..situation };
    let found: BTreeSet<_> = chances(&trace(program, &again)).into_keys().collect();
    assert_eq!(found, table.explain(packet, Some(before)).outcomes, "{packet:?} again");
}

/// Does what the kernel would do, and refuses what it would refuse.
fn commit(program: &mut Program, transaction: &Transaction) {
    for set in &transaction.add_sets {
        assert!(program.affinity.insert(set.clone()), "{set} exists");
    }
    for (name, chain) in &transaction.add_chains {
        let before = program.chains.insert(name.clone(), chain.clone());
        assert!(before.is_none(), "{name} exists");
    }
    for key in &transaction.delete {
        assert!(program.elements.remove(key).is_some(), "{key:?} does not exist");
    }
    for (key, value) in &transaction.add {
        let before = program.elements.insert(*key, value.clone());
        assert!(before.is_none(), "{key:?} exists");
    }
    for (name, rules) in &transaction.rewrite {
        program.chains.get_mut(name).expect("only chains that exist").rules = rules.clone();
    }
    for name in &transaction.delete_chains {
        assert!(program.chains.remove(name).is_some(), "{name} does not exist");
    }
    for set in &transaction.delete_sets {
        assert!(program.affinity.remove(set), "{set} does not exist");
    }
}

/// Without chains nobody uses, and with the targets of each frontend in order.
fn normal(mut program: Program) -> Program {
    let is_slot = |key: &Key| matches!(key, Key::Endpoint(..) | Key::LocalEndpoint(..));
    let targets = program.elements.iter().filter_map(|(key, value)| match value {
        Value::Target(target) if is_slot(key) => Some((key.at_slot(0), *target)),
        _ => None,
    });
    let mut targets: Vec<_> = targets.collect();
    targets.sort();
    let slots = program.elements.iter_mut().filter(|(key, _)| is_slot(key));
    for ((key, value), (first, target)) in slots.zip(targets) {
        assert_eq!(key.at_slot(0), first);
        *value = Value::Target(target);
    }
    let class = |value: &Value| match value {
        Value::Class(class, _) => Some(Key::Pick(*class)),
        _ => None,
    };
    let used: BTreeSet<Key> = program.elements.values().filter_map(class).collect();
    program.elements.retain(|key, _| !matches!(key, Key::Pick(_)) || used.contains(key));
    program.chains.retain(|name, chain| match name {
        ChainName::Fixed(_) => true,
        ChainName::Service(..) | ChainName::Endpoint(_) => *chain != Chain::default(),
        // What the classes in use need is the same on both sides.
        _ => false,
    });
    let sets = program.chains.keys().filter_map(|name| match name {
        ChainName::Endpoint(set) => Some(set.clone()),
        _ => None,
    });
    program.affinity = sets.collect();
    program
}

/// A packet that saw the old `service-ips` and the new `endpoints`.
fn caught_in_the_middle(old: &Program, new: &Program) -> Program {
    let of = |program: &Program, wanted: fn(SetName) -> bool| -> Vec<_> {
        let elements = program.elements.iter().filter(|(key, _)| wanted(key.set()));
        elements.map(|(key, value)| (*key, value.clone())).collect()
    };
    let mut mixed = new.clone();
    let first = |set| matches!(set, SetName::ServiceIps | SetName::ServiceNodePorts);
    mixed.elements = of(old, first).into_iter().collect();
    mixed
        .elements
        .extend(of(new, |set| !matches!(set, SetName::ServiceIps | SetName::ServiceNodePorts)));
    mixed
}

fn is_forward(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Forward { .. })
}

/// Which target is in which slot.
fn slots(program: &Program) -> Vec<(Key, Value)> {
    let slots = program.elements.iter().filter(|(_, value)| matches!(value, Value::Target(_)));
    slots.map(|(key, value)| (*key, value.clone())).collect()
}

#[test]
fn a_successor_finds_the_local_slots_of_a_service_whose_cluster_ip_is_taken() {
    use TrafficPolicy::{Cluster, Local};
    let edit = |service, vip: u8, balancer: &[u8], policies, targets: &[u8]| {
        let port = Port {
            protocol: Protocol::Tcp,
            number: 80,
            vips: [vip].into(),
            external: BTreeSet::new(),
            balancer: balancer.iter().copied().collect(),
            node_port: None,
            policies,
            ranges: None,
            created: 0,
            sticky: false,
            targets: targets.iter().copied().collect(),
            draining: BTreeSet::new(),
        };
        Edit { service, ports: vec![port] }
    };
    let mut table = ForwardingTable::new(IpFamily::V4, &NodeNetwork::default());
    let mut layout = Layout::new(&table);
    for edit in [
        edit(4, 0, &[], (Local, Cluster), &[9]),
        edit(4, 1, &[0], (Local, Local), &[3, 9]),
        edit(0, 1, &[], (Cluster, Cluster), &[]),
    ] {
        let changed = apply(&mut table, &edit);
        layout.update(&table, changed);
    }
    let kernel = layout.program();
    assert_eq!(slots(&kernel).len(), 4, "{kernel}");
    let successor = Layout::resume(&table, &kernel.elements, []).program();
    assert_eq!(slots(&successor), slots(&kernel));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn the_program_does_what_the_table_decides(world in worlds(), edits in vec(edits(), 0..8)) {
        let mut table = ForwardingTable::new(world.0, &world.1);
        for edit in &edits {
            apply(&mut table, edit);
        }
        agree(&table, &compile(&table));
    }

    #[test]
    fn transactions_lead_to_the_compiled_program(world in worlds(), edits in vec(edits(), 1..20)) {
        let mut table = ForwardingTable::new(world.0, &world.1);
        let mut layout = Layout::new(&table);
        let mut kernel = layout.program();
        for edit in &edits {
            let changed = apply(&mut table, edit);
            let transaction = layout.update(&table, changed);
            commit(&mut kernel, &transaction);
            prop_assert_eq!(&kernel, &layout.program());
            prop_assert_eq!(normal(kernel.clone()), normal(compile(&table)));
        }
        agree(&table, &kernel);
        // A successor takes over as it is.
        let successor = Layout::resume(&table, &kernel.elements, []).program();
        prop_assert_eq!(slots(&successor), slots(&kernel));
    }

    #[test]
    fn a_served_frontend_is_served_at_every_instant(world in worlds(), edits in vec(edits(), 1..10)) {
        let mut table = ForwardingTable::new(world.0, &world.1);
        let mut layout = Layout::new(&table);
        for edit in &edits {
            let old = layout.program();
            let served = |program: &Program, packet: &Packet| {
                let situation = situation(&world.1, packet);
                trace(program, &situation).iter().all(|path| is_forward(&path.outcome))
            };
            // The way that its connections take; a new way may catch a packet in the middle. With
            // session affinity the first lookup decides, so there is no middle.
            let way = |table: &ForwardingTable, packet: &Packet| {
                let (name, kind) = table.explain(packet, None).owner?;
                let port = table.get(&name)?;
                port.affinity.is_none().then(|| (kind, port.policy(kind)))
            };
            let before: Vec<_> = packets(world.0)
                .into_iter()
                .filter(|packet| served(&old, packet))
                .map(|packet| (way(&table, &packet), packet))
                .collect();
            let changed = apply(&mut table, edit);
            layout.update(&table, changed);
            let new = layout.program();
            let mixed = caught_in_the_middle(&old, &new);
            for (was, packet) in &before {
                let same = was.is_some() && *was == way(&table, packet);
                if !same || !served(&new, packet) {
                    continue;
                }
                prop_assert!(served(&mixed, packet), "{:?}", packet);
            }
        }
    }

    #[test]
    fn one_endpoint_costs_a_handful_of_operations(
        others in vec(edits(), 0..20),
        toggles in vec(0..60u8, 1..40),
        local in policies(),
    ) {
        let mut table = ForwardingTable::new(IpFamily::V4, &NodeNetwork::default());
        let mut layout = Layout::new(&table);
        for edit in &others {
            let changed = apply(&mut table, edit);
            layout.update(&table, changed);
        }
        layout.update(&table, []);
        let mut targets: BTreeSet<u8> = (60..90).collect();
        let mut edit = |targets: &BTreeSet<u8>| {
            let port = Port {
                protocol: Protocol::Tcp,
                number: 80,
                vips: [7].into(),
                external: [7].into(),
                balancer: [8].into(),
                node_port: Some(31_000),
                policies: (TrafficPolicy::Cluster, local),
                ranges: Some([1].into()),
                created: 0,
                sticky: false,
                targets: targets.clone(),
                draining: BTreeSet::new(),
            };
            let changed = apply(&mut table, &Edit { service: 9, ports: vec![port] });
            layout.update(&table, changed).operations()
        };
        edit(&targets);
        for host in toggles {
            if !targets.remove(&host) {
                targets.insert(host);
            }
            let operations = edit(&targets);
            // Four frontends, two lists each: the last slot moves, the class changes, and a new
            // number of targets may need its chains.
            prop_assert!(operations <= 60, "{} operations", operations);
        }
    }
}
