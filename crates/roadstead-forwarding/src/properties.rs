//! What must hold for every cluster, from the objects that a watch delivers to the packets: the
//! table decides what the rules of Kubernetes say, and every data plane does what it decides.
//!
//! The properties of the data planes start from service ports; here hints, conditions, labels and
//! slices decide which targets these have. `reference` says once more, naively, what is right.

mod clusters;
mod reference;

use proptest::collection::vec;
use proptest::prelude::*;

use self::clusters::{Event, News, news, packets, pods};
use self::reference::{Cluster, frontends, route};
use crate::ipvs::model::Scheduler;
use crate::node_network::NodeNetwork;
use crate::packet::Packet;
use crate::samples::node_network;
use crate::select::NodeView;
use crate::service::{IpFamily, Locality};
use crate::table::ForwardingTable;
use crate::tracker::Tracker;
use crate::{iptables, ipvs, nft};

/// What the proxy of node n1 makes of the news, as it hears them.
fn follow(news: &[News], family: IpFamily, around: &NodeNetwork) -> ForwardingTable {
    let node = |zone: &Option<String>| NodeView { name: "n1".into(), zone: zone.clone() };
    let mut tracker = Tracker::new(node(&None));
    let mut table = ForwardingTable::new(family, around);
    let last = news.len().saturating_sub(1);
    for (number, News { event, pause }) in news.iter().enumerate() {
        match event {
            Event::Service(service) => tracker.observe_service(service),
            Event::NoService(key) => tracker.remove_service(key),
            Event::Slice(slice) => tracker.observe_slice(slice),
            Event::NoSlice(key) => tracker.remove_slice(key),
            Event::Zone(zone) => tracker.observe_node(node(zone)),
        }
        if *pause || number == last {
            for key in tracker.take_dirty() {
                table.replace(&key, tracker.service_ports(&key, family));
            }
        }
    }
    table
}

/// Whether an endpoint of another node calls through this one, perhaps itself. That does not
/// happen, and data planes treat it differently.
fn comes_from_afar(table: &ForwardingTable, packet: &Packet) -> bool {
    let targets = table.iter().flat_map(|(_, port)| port.cluster.iter().chain(&port.local));
    let mut afar = targets.filter(|target| target.locality == Locality::Elsewhere);
    afar.any(|target| target.address == packet.source)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_watched_cluster_is_served_by_the_rules_of_kubernetes(
        (family, around) in node_network(),
        news in vec(news(), 5..60),
        packets in vec(packets(), 1..100),
        before in pods(),
    ) {
        let table = follow(&news, family, &around);
        let cluster = Cluster::after(&news);
        let programs = (
            nft::compile::compile(&table),
            iptables::compile::compile(&table),
            ipvs::compile::compile(&table, Scheduler::RoundRobin),
        );
        let before = before.of(family);
        let frontends = frontends(&cluster, &around);
        for packet in packets.iter().map(|packet| packet.of(family, &frontends)) {
            for before in [None, Some(before)] {
                let wanted = route(&cluster, &around, &packet, before);
                let decision = table.explain(&packet, before);
                prop_assert_eq!(&decision.outcomes, &wanted, "{:?} {:?}", packet, decision);
            }
            nft::properties::agree_on(&table, &programs.0, &packet, before);
            if !comes_from_afar(&table, &packet) {
                iptables::properties::agree_on(&table, &programs.1, &packet);
                ipvs::properties::agree_on(&table, &programs.2, &packet);
            }
        }
    }
}
