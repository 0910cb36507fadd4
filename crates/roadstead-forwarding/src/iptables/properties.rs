//! What must hold for every cluster: the rules do what the table decides, with exactly the right
//! chances, and updates lead to the compiled program.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::compile::compile;
use super::diff::{Kept, Layout, carry_out, removal, untouched};
use super::listing::Listing;
use super::model::{ChainName, Program, TableName};
use super::names::endpoint_chain;
use super::trace::{World, trace};
use crate::packet::{Origin, Outcome, Packet, Reason};
use crate::samples::{Edit, apply, edits, node_network, packets};
use crate::service::{FrontendKind, Handling};
use crate::table::ForwardingTable;

/// What the table decides, but for what upstream's iptables mode does differently.
fn expected(
    table: &ForwardingTable,
    packet: &Packet,
    before: Option<SocketAddr>,
) -> BTreeSet<Outcome> {
    let decision = table.explain(packet, before);
    let kind = decision.owner.as_ref().map(|(_, kind)| *kind);
    match (decision.reason, kind) {
        (Reason::UnusedPort | Reason::UnusedAddress, _) => [Outcome::Pass].into(),
        // `KUBE-EXTERNAL-SERVICES` is not asked about what the node itself sends out.
        (Reason::NoEndpoints, Some(FrontendKind::ExternalIp | FrontendKind::LoadBalancer))
            if packet.origin == Origin::Node && !is_own(table, packet) =>
        {
            [Outcome::Pass].into()
        }
        (Reason::NoService, _) => [refused_node_port(table, packet)].into(),
        _ => decision.outcomes,
    }
}

/// A node port without endpoints is refused on all addresses of the node, even on those that
/// serve no node ports.
fn refused_node_port(table: &ForwardingTable, packet: &Packet) -> Outcome {
    let node_network = table.node_network();
    let served = node_network.node_address.unwrap();
    if !is_own(table, packet) {
        return Outcome::Pass;
    }
    let elsewhere = Packet { destination: served, ..packet.clone() };
    let Some((name, FrontendKind::NodePort)) = table.explain(&elsewhere, None).owner else {
        return Outcome::Pass;
    };
    let port = table.get(&name).unwrap();
    match port.handling(port.external_policy) {
        Handling::Forward(_) => Outcome::Pass,
        Handling::Reject => Outcome::Reject,
        Handling::Drop => Outcome::Drop,
    }
}

fn is_own(table: &ForwardingTable, packet: &Packet) -> bool {
    table.node_network().node_addresses.contains(&packet.destination)
}

fn agree(table: &ForwardingTable) {
    let program = compile(table);
    packets(table.family()).iter().for_each(|packet| agree_on(table, &program, packet));
}

/// The rules do with a packet what the table decides, and upstream would.
pub(crate) fn agree_on(table: &ForwardingTable, program: &Program, packet: &Packet) {
    fresh_clients(table, program, packet);
    returning_clients(table, program, packet);
}

fn fresh_clients(table: &ForwardingTable, program: &Program, packet: &Packet) {
    let permitted = expected(table, packet, None);
    let found = follow(table, program, packet, &BTreeSet::new());
    let outcomes: BTreeSet<_> = found.keys().copied().collect();
    assert_eq!(outcomes, permitted, "{packet:?} in\n{program}");
    let equal = (1, permitted.len() as u64);
    assert!(found.values().all(|chance| *chance == equal), "{packet:?}: {found:?}");
}

/// A client of a Service with affinity goes where it was before.
fn returning_clients(table: &ForwardingTable, program: &Program, packet: &Packet) {
    let Some((name, _)) = table.explain(packet, None).owner else { return };
    let Some(port) = table.get(&name).filter(|port| port.affinity.is_some()) else { return };
    for target in &port.cluster {
        let list = endpoint_chain(&name, target.socket());
        let found = follow(table, program, packet, &BTreeSet::from([list]));
        let permitted = expected(table, packet, Some(target.socket()));
        let outcomes: BTreeSet<_> = found.keys().copied().collect();
        assert_eq!(outcomes, permitted, "{packet:?} after {target:?} in\n{program}");
    }
}

fn follow(
    table: &ForwardingTable,
    program: &Program,
    packet: &Packet,
    lists: &BTreeSet<ChainName>,
) -> std::collections::BTreeMap<Outcome, (u64, u64)> {
    let node_addresses = &table.node_network().node_addresses;
    trace(program, &World { node_addresses, lists, in_set: &|_, _, _| false }, packet)
}

/// The texts of our chains, as a fresh kernel would have them.
fn compiled(table: &ForwardingTable) -> Listing {
    let mut kernel = untouched();
    let (_, restore) = Layout::adopt(table, &kernel);
    carry_out(&mut kernel, &restore).unwrap();
    kernel
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn the_rules_do_what_the_table_decides(
        node_network in node_network(),
        counted in any::<bool>(),
        edits in proptest::collection::vec(edits(), 0..6),
    ) {
        let (family, mut node_network) = node_network;
        node_network.named_counters = counted;
        let mut table = ForwardingTable::new(family, &node_network);
        for edit in &edits {
            apply(&mut table, edit);
        }
        agree(&table);
    }

    #[test]
    fn updates_lead_to_the_compiled_program(
        node_network in node_network(),
        edits in proptest::collection::vec(edits(), 1..20),
    ) {
        let (family, node_network) = node_network;
        let mut table = ForwardingTable::new(family, &node_network);
        let mut kernel = untouched();
        let (mut layout, first) = Layout::adopt(&table, &kernel);
        carry_out(&mut kernel, &first).unwrap();
        for edit in &edits {
            let changed = apply(&mut table, edit);
            let restore = layout.update(&table, changed);
            carry_out(&mut kernel, &restore).unwrap();
            prop_assert_eq!(&kernel, &compiled(&table));
            for name in TableName::ALL {
                let rules = kernel.chains.iter().filter(|((of, chain), _)| {
                    *of == name && chain.starts_with("KUBE-")
                });
                prop_assert_eq!(layout.rules(name), rules.map(|(_, rules)| rules.len()).sum::<usize>());
            }
        }
        let (_, again) = Layout::adopt(&table, &kernel);
        prop_assert!(again.is_empty(), "a restart changes nothing: {}", again);
        let everything = removal(family, &kernel, &Kept::nothing());
        carry_out(&mut kernel, &everything).unwrap();
        prop_assert_eq!(kernel, untouched());
    }

    #[test]
    fn one_endpoint_rewrites_only_its_service(others in proptest::collection::vec(edits(), 0..20)) {
        let mut table = ForwardingTable::new(crate::service::IpFamily::V4, &Default::default());
        for edit in &others {
            apply(&mut table, edit);
        }
        let (mut layout, _) = Layout::adopt(&table, &untouched());
        for count in 1..8 {
            let changed = apply(&mut table, &Edit::simple(9, count));
            let text = layout.update(&table, changed).to_string();
            if count > 1 {
                prop_assert!(!text.contains("KUBE-SERVICES"), "{}", text);
                prop_assert!(text.lines().count() <= 8 + usize::from(count), "{}", text);
            }
        }
    }
}

#[test]
fn a_flushed_kernel_is_healed() {
    let table = ForwardingTable::new(crate::service::IpFamily::V4, &Default::default());
    let mut kernel = compiled(&table);
    let whole = kernel.clone();
    kernel.chains.retain(|(table, _), _| *table != TableName::Nat);
    kernel.chains.extend(untouched().chains.into_iter().filter(|((t, _), _)| *t == TableName::Nat));
    let (_, restore) = Layout::adopt(&table, &kernel);
    carry_out(&mut kernel, &restore).unwrap();
    assert_eq!(kernel, whole);
}
