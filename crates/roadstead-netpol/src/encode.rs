//! Programs and transactions of policies as netlink batches.

use std::net::IpAddr;

use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::attributes::Attributes;
use roadstead_netlink::nftables::expressions::{
    ACCEPT, AT_LEAST, AT_MOST, CT_STATE, DATA_VALUE, DROP, EQUAL, GOTO, JUMP, NETWORK_HEADER,
    RETURN, VERDICT_REGISTER, bitwise, compare, connection, has_bit, lookup, payload, verdict,
    verdict_code,
};
use roadstead_netlink::nftables::{
    BaseChain, DELETE_ELEMENTS, NEW_ELEMENTS, SetShape, TableBatch, VERDICT_DATA, concatenation,
};
use roadstead_policy::policy::Direction;
use roadstead_policy::program::{
    ChainRule, ElementKey, ElementValue, PolicyChain, PolicySet, PolicyTransaction, SetKey, Step,
    TABLE, rule_text,
};

const CT_SOURCE_V4: u32 = 19;
const CT_SOURCE_V6: u32 = 21;
const CT_PROTOCOL: u32 = 10;
const CT_SOURCE_PORT: u32 = 11;
const INVALID_OR_UNTRACKED: u32 = 1 | 1 << 6;
/// The sides of a connection.
const AS_ASKED: Option<u8> = Some(0);
const AS_ANSWERED: Option<u8> = Some(1);

const PORT_TYPE: (u32, u32) = (13, 2);
const MARK: (u32, u32) = (19, 4);

/// Everything anew: the old table goes in the same instant.
pub(crate) fn replacement(family: IpFamily, whole: &PolicyTransaction) -> TableBatch {
    let mut batch = removal(family);
    batch.make_table();
    append(&mut batch, family, whole);
    batch
}

/// The differences only; of what concerns that family.
pub(crate) fn transaction(family: IpFamily, changes: &PolicyTransaction) -> TableBatch {
    let mut batch = TableBatch::new(family.number(), TABLE);
    append(&mut batch, family, changes);
    batch
}

/// No table, whether there was one or not.
pub(crate) fn removal(family: IpFamily) -> TableBatch {
    let mut batch = TableBatch::new(family.number(), TABLE);
    batch.remove_table();
    batch
}

fn append(batch: &mut TableBatch, family: IpFamily, changes: &PolicyTransaction) {
    for set in &changes.add_sets {
        batch.set(&set.to_string(), shape(family, *set));
    }
    for chain in &changes.add_chains {
        batch.chain(&chain.to_string(), base(chain));
    }
    let delete = changes.delete.iter().map(|key| (*key, None));
    write_elements(batch, DELETE_ELEMENTS, delete);
    let add = changes.add.iter().map(|(key, value)| (*key, Some(*value)));
    write_elements(batch, NEW_ELEMENTS, add);
    for (chain, rules) in &changes.write {
        let name = chain.to_string();
        if !changes.add_chains.contains(chain) {
            batch.clear_chain(&name);
        }
        for rule in rules {
            batch.rule(&name, &signature(family, rule), |list| {
                rule.iter().for_each(|step| write_step(list, family, step));
            });
        }
    }
    // They may lead to each other.
    for chain in &changes.delete_chains {
        batch.clear_chain(&chain.to_string());
    }
    for chain in &changes.delete_chains {
        batch.delete_chain(&chain.to_string());
    }
    for set in &changes.delete_sets {
        batch.delete_set(&set.to_string());
    }
}

/// The clients' policies come before the servers'. Both come after addresses have been translated, and
/// before those of senders are.
fn base(chain: &PolicyChain) -> Option<BaseChain> {
    const FORWARD: u32 = 2;
    match chain {
        PolicyChain::Base(direction) => {
            let priority = match direction {
                Direction::Egress => 0,
                Direction::Ingress => 1,
            };
            Some(BaseChain { kind: "filter", hook: FORWARD, priority })
        }
        _ => None,
    }
}

fn shape(family: IpFamily, set: PolicySet) -> SetShape {
    let address = match family {
        IpFamily::V4 => (7, 4),
        IpFamily::V6 => (8, 16),
    };
    let (key, data) = match set {
        PolicySet::Own => (concatenation([address, address]), None),
        PolicySet::Known => (address, Some(MARK)),
        PolicySet::Subjects(_) => (address, Some(VERDICT_DATA)),
        PolicySet::Group(_) => (address, None),
        PolicySet::Named(_) => (concatenation([address, PORT_TYPE]), None),
    };
    SetShape { key, data }
}

/// Writes elements that come sorted by set.
fn write_elements(
    batch: &mut TableBatch,
    kind: u8,
    elements: impl Iterator<Item = (ElementKey, Option<ElementValue>)>,
) {
    let mut elements = elements.peekable();
    while let Some(set) = elements.peek().map(|(key, _)| key.set) {
        let of_set = std::iter::from_fn(|| elements.next_if(|(key, _)| key.set == set));
        batch.elements(kind, &set.to_string(), of_set, element);
    }
}

fn element(item: &mut Attributes<'_>, (key, value): (ElementKey, Option<ElementValue>)) {
    const KEY: u16 = 1;
    const DATA: u16 = 2;
    item.nest(KEY, |data| data.put(DATA_VALUE, &key_bytes(&key)));
    match value {
        None | Some(ElementValue::Member) => {}
        Some(ElementValue::Goto(direction, number)) => {
            let chain = PolicyChain::Profile(direction, number).to_string();
            item.nest(DATA, |data| verdict_code(data, GOTO, Some(&chain)));
        }
        Some(ElementValue::Mark(mark)) => {
            item.nest(DATA, |data| data.put(DATA_VALUE, &mark.to_ne_bytes()));
        }
    }
}

/// A key as the kernel keeps it.
pub(crate) fn key_bytes(key: &ElementKey) -> Vec<u8> {
    match key.key {
        SetKey::Address(address) if key.set == PolicySet::Own => octets(address).repeat(2),
        SetKey::Address(address) => octets(address),
        SetKey::Port(address, port) => {
            [octets(address), port.to_be_bytes().to_vec(), vec![0; 2]].concat()
        }
    }
}

/// What is under a key; of a verdict, the name of the chain.
pub(crate) fn data_bytes(value: &ElementValue) -> Vec<u8> {
    match value {
        ElementValue::Member => Vec::new(),
        ElementValue::Goto(direction, number) => {
            PolicyChain::Profile(*direction, *number).to_string().into_bytes()
        }
        ElementValue::Mark(mark) => mark.to_ne_bytes().to_vec(),
    }
}

/// What tells our rules from others when they are read back: a hash of the text, in a note that
/// nft passes over.
pub(crate) fn signature(family: IpFamily, rule: &ChainRule) -> [u8; 10] {
    const OWN_TYPE: u8 = 200;
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = rule_text(family, rule).bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    let mut bytes = [OWN_TYPE, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[2..].copy_from_slice(&hash.to_be_bytes());
    bytes
}

fn write_step(rule: &mut Attributes<'_>, family: IpFamily, step: &Step) {
    let words = match family {
        IpFamily::V4 => 1,
        IpFamily::V6 => 4,
    };
    match step {
        Step::Untracked => has_bit(rule, CT_STATE, INVALID_OR_UNTRACKED),
        Step::Itself => {
            client(rule, family, 0);
            server(rule, family, words);
            lookup(rule, &PolicySet::Own.to_string(), EQUAL, None);
        }
        Step::PacketProfile(direction) => {
            let offset = match (family, direction) {
                (IpFamily::V4, Direction::Egress) => 12,
                (IpFamily::V4, Direction::Ingress) => 16,
                (IpFamily::V6, Direction::Egress) => 8,
                (IpFamily::V6, Direction::Ingress) => 24,
            };
            payload(rule, 0, NETWORK_HEADER, (offset, 4 * words));
            to_profile(rule, *direction);
        }
        Step::Profile(direction) => {
            match direction {
                Direction::Egress => client(rule, family, 0),
                Direction::Ingress => server(rule, family, 0),
            }
            to_profile(rule, *direction);
        }
        Step::PeerInGroup(direction, number) => {
            peer(rule, family, *direction);
            lookup(rule, &PolicySet::Group(*number).to_string(), EQUAL, None);
        }
        Step::PeerInNetwork(direction, network) => {
            peer(rule, family, *direction);
            let mask = octets(network.netmask());
            bitwise(rule, &mask, &vec![0; mask.len()]);
            compare(rule, EQUAL, &octets(network.network()));
        }
        Step::Protocol(protocol) => {
            connection(rule, CT_PROTOCOL, None, 0);
            compare(rule, EQUAL, &[protocol.number()]);
        }
        Step::Ports(first, last) => {
            connection(rule, CT_SOURCE_PORT, AS_ANSWERED, 0);
            compare(rule, AT_LEAST, &first.to_be_bytes());
            compare(rule, AT_MOST, &last.to_be_bytes());
        }
        Step::NamedPort(number) => {
            server(rule, family, 0);
            connection(rule, CT_SOURCE_PORT, AS_ANSWERED, words);
            lookup(rule, &PolicySet::Named(*number).to_string(), EQUAL, None);
        }
        Step::Accept => verdict(rule, ACCEPT, None),
        Step::Drop => verdict(rule, DROP, None),
        Step::Return => verdict(rule, RETURN, None),
        Step::Jump(chain) => verdict(rule, JUMP, Some(&chain.to_string())),
    }
}

/// From the pod in the first registers to the chain of its profile.
fn to_profile(rule: &mut Attributes<'_>, direction: Direction) {
    let pods = PolicySet::Subjects(direction).to_string();
    lookup(rule, &pods, EQUAL, Some(VERDICT_REGISTER));
}

/// Who asked, whatever addresses were translated.
fn client(rule: &mut Attributes<'_>, family: IpFamily, word: u32) {
    connection(rule, source(family), AS_ASKED, word);
}

/// Who answers, whatever address was dialled.
fn server(rule: &mut Attributes<'_>, family: IpFamily, word: u32) {
    connection(rule, source(family), AS_ANSWERED, word);
}

fn peer(rule: &mut Attributes<'_>, family: IpFamily, direction: Direction) {
    match direction {
        Direction::Ingress => client(rule, family, 0),
        Direction::Egress => server(rule, family, 0),
    }
}

fn source(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => CT_SOURCE_V4,
        IpFamily::V6 => CT_SOURCE_V6,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
