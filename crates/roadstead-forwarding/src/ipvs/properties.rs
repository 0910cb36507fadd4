//! What must hold for every cluster: IPVS does what the table decides, but for the differences
//! that are listed here and nowhere else.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::compile::compile;
use super::diff::{Delta, Layout};
use super::model::{Program, Scheduler, SetName};
use super::trace::trace;
use crate::packet::{Origin, Outcome, Packet, Reason};
use crate::samples::{Edit, apply, edits, node_network, packets};
use crate::select::TrafficPolicy;
use crate::service::{FrontendKind, IpFamily, Locality, Target};
use crate::table::ForwardingTable;

/// What the table decides, but for what IPVS cannot do.
fn expected(table: &ForwardingTable, packet: &Packet) -> BTreeSet<Outcome> {
    let decision = table.explain(packet, None);
    let owned = decision.owner.as_ref().map(|(name, kind)| (table.get(name).unwrap(), *kind));
    match (decision.reason, owned) {
        // IPVS serves no node ports there: the kernel does not let loopback addresses out.
        _ if packet.destination.is_loopback() => [Outcome::Pass].into(),
        // Virtual addresses of all kinds are on a link, so unused ports of all are refused.
        (Reason::NoService | Reason::UnusedAddress, _) if is_virtual(table, packet) => {
            [Outcome::Reject].into()
        }
        // An address that no Service has is on no link of ours.
        (Reason::UnusedAddress, _) => [Outcome::Pass].into(),
        // There is one list of destinations, and an empty one refuses.
        (Reason::NoLocalEndpoints, Some((_, FrontendKind::ClusterIp))) => [Outcome::Reject].into(),
        // What the node sends to an empty list is refused before any filter.
        (Reason::SourceNotAllowed, Some((port, _)))
            if packet.origin == Origin::Node && !port.has_endpoints() =>
        {
            [Outcome::Reject].into()
        }
        // The node has the virtual address as its source. If it insists on another one, the
        // source ranges do not see it.
        (Reason::SourceNotAllowed, Some((port, kind)))
            if packet.origin == Origin::Node && packet.source != packet.destination =>
        {
            one_list(port, kind, packet)
        }
        // Likewise nothing but the sender's address is looked at where the node is not allowed.
        (_, Some((port, kind)))
            if kind != FrontendKind::ClusterIp
                && port.external_policy == TrafficPolicy::Local
                && port.has_endpoints()
                && decision.reason != Reason::SourceNotAllowed =>
        {
            one_list(port, kind, packet)
        }
        _ => decision.outcomes,
    }
}

/// Policy Local does not tell senders inside the cluster from others; without local endpoints it
/// falls back to all.
fn one_list(
    port: &crate::service::ServicePort,
    kind: FrontendKind,
    packet: &Packet,
) -> BTreeSet<Outcome> {
    let local = port.targets(port.policy(kind));
    let targets = if local.is_empty() { &port.cluster } else { local };
    let masquerade = port.external_policy == TrafficPolicy::Cluster;
    let outcome = |target: &Target| Outcome::Forward {
        target: target.socket(),
        masquerade: masquerade
            || (target.locality == Locality::Here && target.address == packet.source),
    };
    targets.iter().map(outcome).collect()
}

fn is_virtual(table: &ForwardingTable, packet: &Packet) -> bool {
    let frontends = table.iter().flat_map(|(name, _)| table.frontends_of(name));
    let mut addresses = frontends.map(|(frontend, _)| frontend.host);
    // An address that the node has anyway is on no link of ours.
    !table.node_network().node_addresses.contains(&packet.destination)
        && addresses.any(|host| host == crate::service::Host::Address(packet.destination))
}

/// IPVS does with a packet what the table decides, but for the known differences.
pub(crate) fn agree_on(table: &ForwardingTable, program: &Program, packet: &Packet) {
    let found = trace(program, &table.node_network().node_addresses, packet);
    assert_eq!(found, expected(table, packet), "{packet:?} in\n{program}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn ipvs_does_what_the_table_decides(
        node_network in node_network(),
        edits in proptest::collection::vec(edits(), 0..6),
    ) {
        let (family, node_network) = node_network;
        let mut table = ForwardingTable::new(family, &node_network);
        for edit in &edits {
            apply(&mut table, edit);
        }
        let program = compile(&table, Scheduler::RoundRobin);
        for packet in packets(family) {
            agree_on(&table, &program, &packet);
        }
    }
}

/// Does what a delta says, and refuses what the kernel would refuse.
fn carry_out(program: &mut Program, delta: &Delta) {
    for (set, entry) in &delta.add {
        assert!(program.sets.get_mut(set).unwrap().insert(*entry), "{entry} is there");
    }
    for (set, entry) in &delta.delete {
        assert!(program.sets.get_mut(set).unwrap().remove(entry), "{entry} is not there");
    }
    for (server, (before, after)) in &delta.servers {
        assert_eq!(program.servers.get(server), before.as_ref(), "{server:?}");
        match after {
            Some(after) => drop(program.servers.insert(*server, after.clone())),
            None => drop(program.servers.remove(server)),
        }
    }
    delta.add_addresses.iter().for_each(|a| assert!(program.addresses.insert(*a), "{a}"));
    delta.delete_addresses.iter().for_each(|a| assert!(program.addresses.remove(a), "{a}"));
    if let Some((before, after)) = &delta.rules {
        assert_eq!(&program.rules, before);
        program.rules = after.clone();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn updates_lead_to_the_compiled_program(
        node_network in node_network(),
        others in node_network(),
        edits in proptest::collection::vec(edits(), 1..20),
    ) {
        let (family, node_network) = node_network;
        let mut table = ForwardingTable::new(family, &node_network);
        let mut layout = Layout::new(&table, Scheduler::RoundRobin);
        let mut kernel = layout.program();
        for edit in &edits {
            let changed = apply(&mut table, edit);
            carry_out(&mut kernel, &layout.update(&table, changed));
            prop_assert_eq!(&kernel, &compile(&table, Scheduler::RoundRobin));
        }
        // And the node has other addresses now.
        table.set_node_network(&others.1);
        carry_out(&mut kernel, &layout.update(&table, []));
        prop_assert_eq!(&kernel, &compile(&table, Scheduler::RoundRobin));
    }

    #[test]
    fn an_endpoint_costs_the_same_in_any_cluster(
        others in proptest::collection::vec(edits(), 0..20),
    ) {
        let mut table = ForwardingTable::new(IpFamily::V4, &Default::default());
        for edit in &others {
            apply(&mut table, edit);
        }
        let mut layout = Layout::new(&table, Scheduler::RoundRobin);
        for count in 1..8 {
            let changed = apply(&mut table, &Edit::simple(9, count));
            let delta = layout.update(&table, changed);
            if count > 1 {
                prop_assert!(delta.operations() <= 2, "{:?}", delta);
            }
        }
    }
}

#[test]
fn names_fit_the_kernel() {
    for family in [IpFamily::V4, IpFamily::V6] {
        let names: BTreeSet<_> = SetName::ALL.map(|set| set.text(family)).into();
        assert_eq!(names.len(), SetName::ALL.len(), "no two are the same");
        assert!(names.iter().all(|name| name.len() <= 31));
    }
}

#[test]
fn schedulers_have_names() {
    for name in ["rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sed", "nq", "dh", "sh", "mh"] {
        assert_eq!(Scheduler::parse(name).map(Scheduler::name), Some(name));
    }
    assert_eq!(Scheduler::parse("best"), None);
}

#[test]
fn switching_between_ipvs_and_iptables_leaves_nothing_behind() {
    use super::rules;
    use crate::iptables::diff::{self, Kept, Layout, carry_out, install, untouched};
    let family = IpFamily::V4;
    let mut table = ForwardingTable::new(family, &Default::default());
    apply(&mut table, &crate::samples::Edit::simple(1, 3));
    let by_ipvs = compile(&table, Scheduler::RoundRobin).rules;
    let fresh = |restore: diff::Restore| {
        let mut kernel = untouched();
        carry_out(&mut kernel, &restore).unwrap();
        kernel
    };
    let only_ipvs = fresh(install(&by_ipvs, &untouched()));
    let only_iptables = fresh(Layout::adopt(&table, &untouched()).1);

    let mut kernel = only_iptables.clone();
    let switch = install(&by_ipvs, &kernel);
    carry_out(&mut kernel, &switch).unwrap();
    let clean = diff::removal(family, &kernel, &rules::kept());
    carry_out(&mut kernel, &clean).unwrap();
    assert_eq!(sorted(&kernel), sorted(&only_ipvs));

    let switch = Layout::adopt(&table, &kernel).1;
    carry_out(&mut kernel, &switch).unwrap();
    let clean = rules::removal(family, &kernel, &Kept::ours());
    carry_out(&mut kernel, &clean).unwrap();
    assert_eq!(sorted(&kernel), sorted(&only_iptables));
}

/// Jumps that both modes have keep the place they had.
fn sorted(kernel: &crate::iptables::listing::Listing) -> crate::iptables::listing::Listing {
    let mut kernel = kernel.clone();
    for ((_, chain), rules) in &mut kernel.chains {
        if !chain.starts_with("KUBE-") {
            rules.sort();
        }
    }
    kernel
}
