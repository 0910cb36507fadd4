//! Which flows of the kernel's connection tracking (conntrack) a change has made stale.
//!
//! The kernel remembers where it sends the packets of a flow for as long as they keep coming. TCP
//! notices when the other end is gone; a client of UDP or SCTP may send into the void for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::SocketAddr;

use roadstead_api::key::ObjectKey;

use crate::service::{Frontend, Protocol, ServicePortName};
use crate::table::ForwardingTable;

/// Where the flows of each frontend may go.
type Flows = BTreeMap<Frontend, BTreeSet<SocketAddr>>;

/// Flows of a frontend that must be forgotten: all but those to these targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    /// What the client dialled.
    pub frontend: Frontend,
    /// Flows to these stay.
    pub keep: BTreeSet<SocketAddr>,
}

/// Finds the flows that go stale from one commit of an address family to the next.
#[derive(Debug, Default)]
pub struct FlowTracker {
    /// Whether a commit has succeeded since we know of nothing that a predecessor did.
    took_over: bool,
    /// The Services that changed since the last good commit.
    changed: BTreeSet<ObjectKey>,
    /// Where their flows may go until the next one.
    before: Flows,
}

impl FlowTracker {
    /// Remembers where the flows of a Service go, before a table takes in a change of it. What the
    /// kernel has refused so far changes nothing about that.
    pub fn note_change(&mut self, table: &ForwardingTable, service: &ObjectKey) {
        if self.took_over && self.changed.insert(service.clone()) {
            let ports = table.ports_of(service);
            ports.for_each(|(name, _)| add_flows(&mut self.before, table, &name));
        }
    }

    /// The conntrack entries to delete after a commit has succeeded: what it made stale, and all
    /// that the kernel refused before it. After the first one, those that lead where nothing
    /// should.
    pub fn stale_conntrack_flows(&mut self, table: &ForwardingTable) -> Vec<FlowFilter> {
        let mut after = Flows::new();
        if !mem::replace(&mut self.took_over, true) {
            table.iter().for_each(|(name, _)| add_flows(&mut after, table, name));
            return unexpected_flows(after);
        }
        for key in mem::take(&mut self.changed) {
            table.ports_of(&key).for_each(|(name, _)| add_flows(&mut after, table, &name));
        }
        stale_flows(&mem::take(&mut self.before), &after)
    }
}

/// Adds the flows of a service port of a table, if its protocol has any that can go stale. What it
/// claims in vain has none of its flows. Of a frontend that changes hands, the first counts.
fn add_flows(flows: &mut Flows, table: &ForwardingTable, name: &ServicePortName) {
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
fn stale_flows(before: &Flows, after: &Flows) -> Vec<FlowFilter> {
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
fn unexpected_flows(flows: Flows) -> Vec<FlowFilter> {
    flows.into_iter().map(|(frontend, keep)| FlowFilter { frontend, keep }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::{IpFamily, Locality, ServicePort, Target};

    /// Each letter is a target; `-` is a frontend without any, an empty text none at all.
    fn flows(text: &str, protocol: Protocol) -> Flows {
        let target =
            |c: u8| Target { address: [10, 0, 0, c].into(), port: 53, locality: Locality::Here };
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
        add_flows(&mut flows, &table, &name);
        flows
    }

    #[test]
    fn who_claims_in_vain_has_no_flows() {
        let target =
            |last| Target { address: [10, 0, 0, last].into(), port: 53, locality: Locality::Here };
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
        add_flows(&mut flows, &table, &name("young"));
        assert!(flows.is_empty());
        add_flows(&mut flows, &table, &name("old"));
        assert_eq!(flows.into_values().collect::<Vec<_>>(), [[target(1).socket()].into()]);
    }

    #[test]
    fn what_goes_stale() {
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
            let got = stale_flows(&flows(before, udp), &flows(after, udp));
            assert_eq!(got.first().map(|filter| filter.keep.len()), want, "{name}");
            assert!(
                stale_flows(&flows(before, tcp), &flows(after, tcp)).is_empty(),
                "{name}, by TCP"
            );
        }
    }
}
