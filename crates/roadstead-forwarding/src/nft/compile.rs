//! From the table to the program.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;

use super::model::{
    Base, Chain, ChainKind, ChainName, FRONTEND, Field, Hook, Key, Program, Rule, SetName,
    Statement, Value, Vip,
};
use crate::service::{Frontend, FrontendKind, Handling, Host, Place, ServicePortName, Target};
use crate::surroundings::{DetectLocal, MASQUERADE_MARK, Surroundings};
use crate::table::ForwardingTable;

const SERVICES: ChainName = ChainName::Fixed("services");
const MASQUERADING: ChainName = ChainName::Fixed("masquerading");
const SERVICE_ENDPOINTS_CHECK: ChainName = ChainName::Fixed("service-endpoints-check");
const CLUSTER_IPS_CHECK: ChainName = ChainName::Fixed("cluster-ips-check");

const DESTINATION_NAT: i32 = -100;
const SOURCE_NAT: i32 = 100;

/// Compiles the whole table; targets take their slots in order.
pub fn compile(table: &ForwardingTable) -> Program {
    let mut chains = fixed_chains(table.surroundings());
    let mut elements = BTreeMap::new();
    for (name, port) in table.iter() {
        let frontends = vips_of(table, name);
        let handling = port.handling(port.internal_policy);
        if let (Handling::Forward(slots), false) = (handling, frontends.is_empty()) {
            let count = slot_count(slots);
            chains.entry(ChainName::Pick(count)).or_insert_with(|| pick_chain(count));
            elements.extend([pick_element(count)]);
        }
        elements.extend(shared_keys(name, &frontends, handling).map(|key| (key, Value::Member)));
        elements.extend(own_elements(name, &frontends, handling));
    }
    Program { family: table.family(), chains, elements }
}

/// The ClusterIPs of a service port.
pub(super) fn vips_of(table: &ForwardingTable, name: &ServicePortName) -> Vec<Vip> {
    let vip = |(frontend, kind)| match (frontend, kind) {
        (Frontend { host: Host::Address(address), protocol, port }, FrontendKind::ClusterIp) => {
            Some(Vip { address, protocol, port })
        }
        _ => None,
    };
    table.frontends_of(name).into_iter().filter_map(vip).collect()
}

/// The chain that forwards to one of `count` slots.
///
/// The kernel swaps the maps between two lookups of a packet if we commit at that very moment. A
/// packet that drew a slot which has just gone takes slot 0, which every served frontend has.
pub fn pick_chain(count: u32) -> Chain {
    let mut rules = vec![
        vec![Statement::ForgetCount],
        vec![Statement::DestinationFromSlot(count, SetName::Endpoints)],
    ];
    if count > 1 {
        rules.push(vec![Statement::DestinationFromSlot(1, SetName::Endpoints)]);
    }
    Chain { base: None, rules }
}

/// The element that leads to it.
pub fn pick_element(count: u32) -> (Key, Value) {
    (Key::Pick(count), Value::Goto(ChainName::Pick(count)))
}

/// How many slots there are, as the kernel counts.
pub(super) fn slot_count(slots: &[Target]) -> u32 {
    u32::try_from(slots.len()).expect("fewer endpoints than addresses")
}

/// The elements of a service port that other service ports may have, too.
pub(super) fn shared_keys<'a>(
    name: &'a ServicePortName,
    frontends: &'a [Vip],
    handling: Handling<'a>,
) -> impl Iterator<Item = Key> + 'a {
    let targets = if frontends.is_empty() { &[] } else { handling.targets() };
    let here = targets.iter().filter(|target| target.place == Place::Here);
    let hairpins = here.map(|t| Key::Hairpin(t.address, name.protocol, t.port));
    frontends.iter().map(|frontend| Key::ClusterIp(frontend.address)).chain(hairpins)
}

/// The elements of a service port alone, in the order of their keys.
pub(super) fn own_elements(
    name: &Arc<ServicePortName>,
    frontends: &[Vip],
    handling: Handling<'_>,
) -> Vec<(Key, Value)> {
    let each = |key: fn(Vip) -> Key, value: Value| {
        frontends.iter().map(move |frontend| (key(*frontend), value.clone()))
    };
    let unserved = || Value::Unserved(name.clone());
    match handling {
        Handling::Forward(slots) => {
            let count = Value::Slots(slot_count(slots), name.clone());
            let slot = |frontend: &Vip, slot: u32, target: &Target| {
                (Key::Endpoint(*frontend, slot), Value::Target(target.socket()))
            };
            let of_frontend = |frontend| {
                (0..).zip(slots).map(move |(number, target)| slot(frontend, number, target))
            };
            let slots = frontends.iter().flat_map(of_frontend);
            each(Key::Service, count).chain(slots).collect()
        }
        Handling::Reject => each(Key::NoEndpoint, unserved()).collect(),
        Handling::Drop => each(Key::NoLocalEndpoint, unserved()).collect(),
    }
}

/// The chains that do not depend on Services.
pub(super) fn fixed_chains(surroundings: &Surroundings) -> BTreeMap<ChainName, Chain> {
    let base = |name, kind, hook, priority, rules| {
        let base = Some(Base { kind, hook, priority });
        (ChainName::Fixed(name), Chain { base, rules })
    };
    let check = |chain| vec![Statement::IsNew, Statement::Jump(chain)];
    let jump = |chain| vec![vec![Statement::Jump(chain)]];
    let (filter, nat) = (ChainKind::Filter, ChainKind::Nat);
    let checks = || vec![check(SERVICE_ENDPOINTS_CHECK), check(CLUSTER_IPS_CHECK)];
    let plain = |name, rules| (name, Chain { base: None, rules });
    [
        base("filter-input", filter, Hook::Input, 0, vec![check(SERVICE_ENDPOINTS_CHECK)]),
        base("filter-forward", filter, Hook::Forward, 0, checks()),
        base("filter-output", filter, Hook::Output, 0, checks()),
        base("nat-prerouting", nat, Hook::Prerouting, DESTINATION_NAT, jump(SERVICES)),
        base("nat-output", nat, Hook::Output, DESTINATION_NAT, jump(SERVICES)),
        base("nat-postrouting", nat, Hook::Postrouting, SOURCE_NAT, jump(MASQUERADING)),
        plain(SERVICES, services(networks_of(surroundings))),
        plain(MASQUERADING, masquerading()),
        plain(
            SERVICE_ENDPOINTS_CHECK,
            vec![
                vec![Statement::Member(FRONTEND, SetName::NoEndpointServices), Statement::Reject],
                vec![
                    Statement::Member(FRONTEND, SetName::NoLocalEndpointServices),
                    Statement::Drop,
                ],
            ],
        ),
        plain(
            CLUSTER_IPS_CHECK,
            // Whatever still has a ClusterIP as its destination asked for a port that nobody serves.
            vec![vec![to_cluster_ip(), Statement::Reject]],
        ),
    ]
    .into()
}

fn networks_of(surroundings: &Surroundings) -> &[IpNet] {
    match &surroundings.detect_local {
        DetectLocal::Networks(networks) => networks,
        _ => &[],
    }
}

fn to_cluster_ip() -> Statement {
    Statement::Member(&[Field::Destination], SetName::ClusterIps)
}

fn services(cluster_networks: &[IpNet]) -> Vec<Rule> {
    let lookup = vec![
        Statement::RememberCount(FRONTEND, SetName::ServiceIps),
        Statement::GotoByCount(SetName::Picks),
    ];
    if cluster_networks.is_empty() {
        return vec![lookup];
    }
    let outside = cluster_networks.iter().map(|network| Statement::SourceOutside(*network));
    let mark = outside.chain([to_cluster_ip(), Statement::SetMark(MASQUERADE_MARK)]).collect();
    vec![mark, lookup]
}

fn masquerading() -> Vec<Rule> {
    const SELF: &[Field] = &[Field::Source, Field::Destination, Field::Protocol, Field::Port];
    vec![
        vec![
            Statement::IsTranslated,
            Statement::Member(SELF, SetName::HairpinConnections),
            Statement::Masquerade,
        ],
        vec![Statement::MarkClear(MASQUERADE_MARK), Statement::Return],
        vec![Statement::FlipMark(MASQUERADE_MARK)],
        vec![Statement::Masquerade],
    ]
}

#[cfg(test)]
mod tests;
