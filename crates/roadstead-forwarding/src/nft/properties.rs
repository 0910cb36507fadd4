//! What must hold for every cluster: the compiled program does what the table decides, and
//! transactions lead to the compiled program at a cost that follows the change.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use roadstead_api::key::ObjectKey;

use super::compile::{compile, pick_chain};
use super::diff::Layout;
use super::model::{ChainName, Key, Program, SetName, Transaction, Value};
use super::trace::trace;
use crate::packet::{Origin, Outcome, Packet};
use crate::select::TrafficPolicy;
use crate::service::{IpFamily, Place, Protocol, ServicePort, ServicePortName, Target};
use crate::surroundings::{DetectLocal, Surroundings};
use crate::table::ForwardingTable;

/// Addresses are few, so that Services collide and endpoints are shared.
fn address(family: IpFamily, net: u8, host: u8) -> std::net::IpAddr {
    match family {
        IpFamily::V4 => [10, net, 0, host].into(),
        IpFamily::V6 => [0xfd00, net.into(), 0, 0, 0, 0, 0, host.into()].into(),
    }
}

const VIPS: u8 = 96;
const PODS: u8 = 0;
const OUTSIDE: u8 = 200;

/// Protocol, number, frontends, and targets: `None` means drop, no targets mean reject.
type Port = (Protocol, u16, BTreeSet<u8>, Option<BTreeSet<u8>>);

/// One Service with all its ports, before it has a family.
#[derive(Clone, Debug)]
struct Edit {
    service: u8,
    ports: Vec<Port>,
}

fn edits() -> impl Strategy<Value = Edit> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let targets = prop_oneof![8 => btree_set(0..12u8, 0..8).prop_map(Some), 1 => Just(None)];
    let port = (protocol, 80..82u16, btree_set(0..3u8, 1..3), targets);
    (0..5u8, vec(port, 0..3)).prop_map(|(service, ports)| Edit { service, ports })
}

fn families() -> impl Strategy<Value = IpFamily> {
    prop_oneof![Just(IpFamily::V4), Just(IpFamily::V6)]
}

fn table(family: IpFamily) -> ForwardingTable {
    let network =
        ipnet::IpNet::new(address(family, PODS, 0), if family == IpFamily::V4 { 16 } else { 32 });
    let detect_local = DetectLocal::Networks(vec![network.unwrap()]);
    ForwardingTable::new(family, &Surroundings { detect_local, ..Surroundings::default() })
}

fn apply(table: &mut ForwardingTable, edit: &Edit) -> BTreeSet<Arc<ServicePortName>> {
    let family = table.family();
    let port = |(protocol, number, vips, targets): &Port| {
        let target = |host: &u8| Target {
            address: address(family, PODS, *host),
            port: 8080 + u16::from(host % 2),
            place: if host.is_multiple_of(3) { Place::Here } else { Place::Elsewhere },
        };
        let (targets, internal_policy) = match targets {
            None => (vec![target(&9)], TrafficPolicy::Local),
            Some(targets) => (targets.iter().map(target).collect(), TrafficPolicy::Cluster),
        };
        let name = ServicePortName {
            namespace: "ns".into(),
            name: format!("s{}", edit.service),
            port: number.to_string(),
            protocol: *protocol,
        };
        let port = ServicePort {
            port: *number,
            cluster_ips: vips.iter().map(|vip| address(family, VIPS, *vip)).collect(),
            internal_policy,
            cluster: targets,
            ..ServicePort::default()
        };
        (name, port)
    };
    let key = ObjectKey::new("ns", format!("s{}", edit.service));
    table.replace(&key, edit.ports.iter().map(port).collect())
}

/// Every packet that could make a difference.
fn packets(family: IpFamily) -> Vec<Packet> {
    let sources = [(PODS, 0), (PODS, 1), (PODS, 3), (PODS, 99), (OUTSIDE, 1)];
    let destinations = [(VIPS, 0), (VIPS, 1), (VIPS, 2), (VIPS, 9), (PODS, 3)];
    let mut packets = Vec::new();
    for (source, destination) in
        sources.iter().flat_map(|s| destinations.iter().map(move |d| (s, d)))
    {
        for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Udp, 81), (Protocol::Tcp, 8081)] {
            for origin in [Origin::Node, Origin::Network("eth0".into())] {
                packets.push(Packet {
                    source: address(family, source.0, source.1),
                    destination: address(family, destination.0, destination.1),
                    protocol,
                    port,
                    origin,
                });
            }
        }
    }
    packets
}

/// The program allows exactly what the table decides, each outcome equally often.
fn agree(table: &ForwardingTable, program: &Program) {
    for packet in packets(table.family()) {
        let permitted = table.decide(&packet);
        let paths = trace(program, &packet);
        let found: BTreeSet<_> = paths.iter().map(|path| path.outcome).collect();
        assert_eq!(found, permitted, "{packet:?} in\n{program}");
        assert_eq!(paths.len(), permitted.len(), "an outcome is twice as likely: {packet:?}");
        assert!(paths.iter().all(|path| path.one_in == permitted.len() as u64), "{packet:?}");
    }
}

/// Does what the kernel would do, and refuses what it would refuse.
fn commit(program: &mut Program, transaction: &Transaction) {
    for count in &transaction.add_picks {
        let before = program.chains.insert(ChainName::Pick(*count), pick_chain(*count));
        assert!(before.is_none(), "pick-{count} exists");
    }
    for key in &transaction.delete {
        assert!(program.elements.remove(key).is_some(), "{key:?} does not exist");
    }
    for (key, value) in &transaction.add {
        let before = program.elements.insert(*key, value.clone());
        assert!(before.is_none(), "{key:?} exists");
    }
}

/// Without chains nobody uses, and with the targets of each frontend in order.
fn normal(mut program: Program) -> Program {
    let mut targets: Vec<_> = program
        .elements
        .iter()
        .filter_map(|(key, value)| match (key, value) {
            (Key::Endpoint(frontend, _), Value::Target(target)) => Some((*frontend, *target)),
            _ => None,
        })
        .collect();
    targets.sort();
    let slots = program.elements.iter_mut().filter(|(key, _)| key.set() == SetName::Endpoints);
    for ((key, value), (frontend, target)) in slots.zip(targets) {
        assert!(matches!(key, Key::Endpoint(f, _) if *f == frontend));
        *value = Value::Target(target);
    }
    let slots =
        |value: &Value| if let Value::Slots(count, _) = value { Some(*count) } else { None };
    let used: BTreeSet<u32> = program.elements.values().filter_map(slots).collect();
    let kept = |count: &u32| used.contains(count);
    program.chains.retain(|name, _| !matches!(name, ChainName::Pick(count) if !kept(count)));
    program.elements.retain(|key, _| !matches!(key, Key::Pick(count) if !kept(count)));
    program
}

/// A packet that saw the old `service-ips` and the new `endpoints`.
fn caught_in_the_middle(old: &Program, new: &Program) -> Program {
    let of = |program: &Program, wanted: fn(SetName) -> bool| -> Vec<_> {
        let elements = program.elements.iter().filter(|(key, _)| wanted(key.set()));
        elements.map(|(key, value)| (*key, value.clone())).collect()
    };
    let mut mixed = new.clone();
    mixed.elements = of(old, |set| set == SetName::ServiceIps).into_iter().collect();
    mixed.elements.extend(of(new, |set| set != SetName::ServiceIps));
    mixed
}

fn is_forward(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Forward { .. })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn the_program_does_what_the_table_decides(family in families(), edits in vec(edits(), 0..8)) {
        let mut table = table(family);
        for edit in &edits {
            apply(&mut table, edit);
        }
        agree(&table, &compile(&table));
    }

    #[test]
    fn transactions_lead_to_the_compiled_program(family in families(), edits in vec(edits(), 1..25)) {
        let mut table = table(family);
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
    }

    #[test]
    fn a_served_frontend_is_served_at_every_instant(family in families(), edits in vec(edits(), 1..12)) {
        let mut table = table(family);
        let mut layout = Layout::new(&table);
        for edit in &edits {
            let old = layout.program();
            let served = |program: &Program, packet: &Packet| {
                trace(program, packet).iter().all(|path| is_forward(&path.outcome))
            };
            let before: Vec<_> = packets(family).into_iter().filter(|p| served(&old, p)).collect();
            let changed = apply(&mut table, edit);
            layout.update(&table, changed);
            let new = layout.program();
            let mixed = caught_in_the_middle(&old, &new);
            for packet in before.iter().filter(|packet| served(&new, packet)) {
                prop_assert!(served(&mixed, packet), "{:?}", packet);
            }
        }
    }

    #[test]
    fn one_endpoint_costs_a_handful_of_operations(
        others in vec(edits(), 0..20),
        toggles in vec(0..60u8, 1..40),
    ) {
        let mut table = table(IpFamily::V4);
        let mut layout = Layout::new(&table);
        for edit in &others {
            let changed = apply(&mut table, edit);
            layout.update(&table, changed);
        }
        let mut hosts: BTreeSet<u8> = (60..90).collect();
        let mut edit = |hosts: &BTreeSet<u8>| {
            let port = (Protocol::Tcp, 80, BTreeSet::from([7]), Some(hosts.clone()));
            let changed = apply(&mut table, &Edit { service: 9, ports: vec![port] });
            layout.update(&table, changed).operations()
        };
        edit(&hosts);
        for host in toggles {
            if !hosts.remove(&host) {
                hosts.insert(host);
            }
            let operations = edit(&hosts);
            prop_assert!(operations <= 7, "{} operations", operations);
        }
    }
}
