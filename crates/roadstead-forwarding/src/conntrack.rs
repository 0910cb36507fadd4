//! Which known flows a change has made stale.
//!
//! The kernel remembers where it sends the packets of a flow for as long as they keep coming. TCP
//! notices when the other end is gone; a client of UDP or SCTP may send into the void for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::service::{Frontend, Protocol, ServicePortName};
use crate::table::ForwardingTable;

/// Where the flows of each frontend may go.
pub type Flows = BTreeMap<Frontend, BTreeSet<SocketAddr>>;

/// Flows of a frontend that must be forgotten: all but those to these targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    /// What the client dialled.
    pub frontend: Frontend,
    /// Flows to these stay.
    pub keep: BTreeSet<SocketAddr>,
}

/// Notes the flows of a service port of a table, if its protocol has any that can go stale. What it
/// claims in vain has none of its flows. Of a frontend that changes hands, the first note counts.
pub fn note(flows: &mut Flows, table: &ForwardingTable, name: &ServicePortName) {
    if name.protocol == Protocol::Tcp {
        return;
    }
    let Some(port) = table.get(name) else { return };
    let targets = port.cluster.iter().chain(&port.local).map(|target| target.socket());
    let targets: BTreeSet<_> = targets.collect();
    for (frontend, _) in table.frontends_of(name) {
        flows.entry(frontend).or_insert_with(|| targets.clone());
    }
}

/// What to forget after a change: flows to targets that are gone, and those of clients who called
/// before there was anybody to answer.
pub fn stale(before: &Flows, after: &Flows) -> Vec<FlowFilter> {
    let none = BTreeSet::new();
    let frontends: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let filter = |frontend: &Frontend| {
        let was = before.get(frontend).unwrap_or(&none);
        let keep = after.get(frontend).unwrap_or(&none);
        let gone = !was.is_subset(keep);
        let appeared = was.is_empty() && !keep.is_empty();
        (gone || appeared).then(|| FlowFilter { frontend: *frontend, keep: keep.clone() })
    };
    frontends.into_iter().filter_map(filter).collect()
}

/// What whoever takes over forgets: it does not know what changed before its time, but it knows
/// where the flows of each frontend may go now.
pub fn misled(flows: Flows) -> Vec<FlowFilter> {
    flows.into_iter().map(|(frontend, keep)| FlowFilter { frontend, keep }).collect()
}

#[cfg(test)]
mod tests {
    use roadstead_api::key::ObjectKey;

    use super::*;
    use crate::service::{IpFamily, Place, ServicePort, Target};

    /// Each letter is a target; `-` is a frontend without any, an empty text none at all.
    fn flows(text: &str, protocol: Protocol) -> Flows {
        let target = |c: u8| Target { address: [10, 0, 0, c].into(), port: 53, place: Place::Here };
        let port = ServicePort {
            port: 53,
            cluster_ips: vec![[10, 96, 0, 10].into()],
            cluster: text.bytes().filter(u8::is_ascii_lowercase).map(target).collect(),
            ..ServicePort::default()
        };
        let name = ServicePortName {
            namespace: "ns".into(),
            name: "dns".into(),
            port: String::new(),
            protocol,
        };
        let mut table = ForwardingTable::new(IpFamily::V4, &Default::default());
        if !text.is_empty() {
            table.replace(&ObjectKey::new("ns", "dns"), vec![(name.clone(), port)]);
        }
        let mut flows = Flows::new();
        note(&mut flows, &table, &name);
        flows
    }

    #[test]
    fn who_claims_in_vain_has_no_flows() {
        let target =
            |last| Target { address: [10, 0, 0, last].into(), port: 53, place: Place::Here };
        let port = |created, last| ServicePort {
            port: 53,
            created,
            load_balancer_ips: vec![[192, 0, 2, 1].into()],
            cluster: vec![target(last)],
            ..ServicePort::default()
        };
        let name = |name: &str| ServicePortName {
            namespace: "ns".into(),
            name: name.into(),
            port: String::new(),
            protocol: Protocol::Udp,
        };
        let mut table = ForwardingTable::new(IpFamily::V4, &Default::default());
        for (service, created) in [("old", 1), ("young", 2)] {
            let ports = vec![(name(service), port(created, created as u8))];
            table.replace(&ObjectKey::new("ns", service), ports);
        }
        let mut flows = Flows::new();
        note(&mut flows, &table, &name("young"));
        assert!(flows.is_empty());
        note(&mut flows, &table, &name("old"));
        assert_eq!(flows.into_values().collect::<Vec<_>>(), [[target(1).socket()].into()]);
    }

    #[test]
    fn stale_flows() {
        let cases = [
            ("nothing changed", "ab", "ab", None),
            ("one more", "ab", "abc", None),
            ("one less", "ab", "a", Some(1)),
            ("none left", "ab", "-", Some(0)),
            ("the Service is gone", "ab", "", Some(0)),
            ("the first one", "-", "ab", Some(2)),
            ("a new Service", "", "ab", Some(2)),
            ("a new Service without any", "", "-", None),
        ];
        for (name, before, after, want) in cases {
            let (udp, tcp) = (Protocol::Udp, Protocol::Tcp);
            let got = stale(&flows(before, udp), &flows(after, udp));
            assert_eq!(got.first().map(|filter| filter.keep.len()), want, "{name}");
            assert!(stale(&flows(before, tcp), &flows(after, tcp)).is_empty(), "{name}, by TCP");
        }
    }
}
