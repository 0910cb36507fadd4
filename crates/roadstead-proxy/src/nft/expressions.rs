//! The statements of a rule as the kernel's expressions.

use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_forwarding::nft::model::{Field, Is, Statement};
use roadstead_forwarding::nft::names::ChainName;
use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::attributes::Attributes;
use roadstead_netlink::nftables::expressions::{
    self, ACCEPT, CT_STATE, DROP, EQUAL, GOTO, INTERFACE_NAME_LENGTH, JUMP, META_INTERFACE_NAME,
    NETWORK_HEADER, NOT_EQUAL, RETURN, TRANSPORT_HEADER, VERDICT_REGISTER, bitwise, compare,
    constant, expression, has_bit, lookup, meta, payload, register, set_meta,
};

const META_PRIORITY: u32 = 2;
const META_MARK: u32 = 3;
const META_PROTOCOL: u32 = 16;
const CT_STATUS: u32 = 2;
const STATE_NEW: u32 = 1 << 3;
const STATUS_DESTINATION_NAT: u32 = 1 << 5;
const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 2;

/// Appends the expressions of a statement to a rule.
pub(super) fn write(rule: &mut Attributes<'_>, family: IpFamily, statement: &Statement) {
    match statement {
        Statement::IsNew => has_bit(rule, CT_STATE, STATE_NEW),
        Statement::IsTranslated => has_bit(rule, CT_STATUS, STATUS_DESTINATION_NAT),
        Statement::Source(is, net) => {
            load(rule, family, Field::Source, 0);
            is_in_network(rule, *is, net);
        }
        Statement::Destination(is, net) => {
            load(rule, family, Field::Destination, 0);
            is_in_network(rule, *is, net);
        }
        Statement::Interface(is, name) => interface(rule, *is, name, INTERFACE_NAME_LENGTH),
        Statement::InterfacePrefix(is, name) => interface(rule, *is, name, name.len()),
        Statement::SourceIsOurs => is_ours(rule, FIB_SOURCE),
        Statement::DestinationIsOurs => is_ours(rule, FIB_DESTINATION),
        Statement::ProtocolIs(protocol) => {
            meta(rule, META_PROTOCOL, 0);
            compare(rule, EQUAL, &[protocol.number()]);
        }
        Statement::MarkSet(bits) => {
            meta(rule, META_MARK, 0);
            bitwise(rule, &bits.to_ne_bytes(), &[0; 4]);
            compare(rule, NOT_EQUAL, &[0; 4]);
        }
        Statement::Member(fields, is, set) => {
            load_all(rule, family, fields);
            lookup(rule, set.name(), operator(*is), None);
        }
        Statement::Remembered(set) => {
            load(rule, family, Field::Source, 0);
            lookup(rule, &set.to_string(), EQUAL, None);
        }
        Statement::Remember(set) => {
            load(rule, family, Field::Source, 0);
            update(rule, &set.to_string());
        }
        Statement::OnceIn(count) => {
            random(rule, *count, 0);
            compare(rule, EQUAL, &[0; 4]);
        }
        Statement::SetMark(bits) => change_mark(rule, !bits, *bits),
        Statement::FlipMark(bits) => change_mark(rule, u32::MAX, *bits),
        Statement::RememberClass(fields, map) => {
            load_all(rule, family, fields);
            lookup(rule, map.name(), EQUAL, Some(register(0)));
            set_meta(rule, META_PRIORITY);
        }
        Statement::GotoByClass(map) => {
            meta(rule, META_PRIORITY, 0);
            lookup(rule, map.name(), EQUAL, Some(VERDICT_REGISTER));
        }
        Statement::ForgetClass => {
            constant(rule, 0, &[0; 4]);
            set_meta(rule, META_PRIORITY);
        }
        Statement::GotoByFields(fields, map) => {
            load_all(rule, family, fields);
            lookup(rule, map.name(), EQUAL, Some(VERDICT_REGISTER));
        }
        Statement::DestinationFromSlot(fields, count, map) => {
            let word = load_all(rule, family, fields);
            random(rule, *count, word);
            lookup(rule, map.name(), EQUAL, Some(register(0)));
            destination_nat(rule, family);
        }
        Statement::DestinationTo(target) => {
            constant(rule, 0, &octets(target.ip()));
            constant(rule, address_words(family), &target.port().to_be_bytes());
            destination_nat(rule, family);
        }
        Statement::Masquerade => masquerade(rule),
        Statement::Reject => reject(rule, family),
        Statement::Drop => expressions::verdict(rule, DROP, None),
        Statement::Accept => expressions::verdict(rule, ACCEPT, None),
        Statement::Return => expressions::verdict(rule, RETURN, None),
        Statement::Jump(chain) => to_chain(rule, JUMP, chain),
        Statement::Goto(chain) => to_chain(rule, GOTO, chain),
    }
}

fn address_words(family: IpFamily) -> u32 {
    match family {
        IpFamily::V4 => 1,
        IpFamily::V6 => 4,
    }
}

/// Loads fields into consecutive registers; returns the first free word.
fn load_all(rule: &mut Attributes<'_>, family: IpFamily, fields: &[Field]) -> u32 {
    fields.iter().fold(0, |word, field| word + load(rule, family, *field, word))
}

/// Loads a field; returns how many words it takes.
fn load(rule: &mut Attributes<'_>, family: IpFamily, field: Field, word: u32) -> u32 {
    let words = address_words(family);
    let (source, destination) = match family {
        IpFamily::V4 => (12, 16),
        IpFamily::V6 => (8, 24),
    };
    match field {
        Field::Source => payload(rule, word, NETWORK_HEADER, (source, 4 * words)),
        Field::Destination => payload(rule, word, NETWORK_HEADER, (destination, 4 * words)),
        Field::Protocol => meta(rule, META_PROTOCOL, word),
        Field::Port => payload(rule, word, TRANSPORT_HEADER, (2, 2)),
    }
    if matches!(field, Field::Source | Field::Destination) { words } else { 1 }
}

/// Compares the address in the first registers.
fn is_in_network(rule: &mut Attributes<'_>, is: Is, net: &IpNet) {
    let mask = octets(net.netmask());
    // As nft does it: a whole address needs no mask.
    if net.prefix_len() < net.max_prefix_len() {
        bitwise(rule, &mask, &vec![0; mask.len()]);
    }
    compare(rule, operator(is), &octets(net.network()));
}

fn operator(is: Is) -> u32 {
    match is {
        Is::In => EQUAL,
        Is::NotIn => NOT_EQUAL,
    }
}

/// Compares as much of the name of the interface as `length` says.
fn interface(rule: &mut Attributes<'_>, is: Is, name: &str, length: usize) {
    let mut bytes = [0; INTERFACE_NAME_LENGTH];
    let length = length.min(INTERFACE_NAME_LENGTH);
    let used = name.len().min(INTERFACE_NAME_LENGTH);
    bytes[..used].copy_from_slice(&name.as_bytes()[..used]);
    meta(rule, META_INTERFACE_NAME, 0);
    compare(rule, operator(is), &bytes[..length]);
}

fn is_ours(rule: &mut Attributes<'_>, which: u32) {
    const ADDRESS_TYPE: u32 = 3;
    const LOCAL: u32 = 2;
    expression(rule, "fib", |data| {
        data.number(1, register(0));
        data.number(2, ADDRESS_TYPE);
        data.number(3, which);
    });
    compare(rule, EQUAL, &LOCAL.to_ne_bytes());
}

fn update(rule: &mut Attributes<'_>, set: &str) {
    const UPDATE: u32 = 1;
    expression(rule, "dynset", |data| {
        data.text(1, set);
        data.number(3, UPDATE);
        data.number(4, register(0));
    });
}

fn change_mark(rule: &mut Attributes<'_>, mask: u32, flip: u32) {
    meta(rule, META_MARK, 0);
    bitwise(rule, &mask.to_ne_bytes(), &flip.to_ne_bytes());
    set_meta(rule, META_MARK);
}

fn random(rule: &mut Attributes<'_>, below: u32, word: u32) {
    const RANDOM: u32 = 1;
    expression(rule, "numgen", |data| {
        data.number(1, register(word));
        data.number(2, below);
        data.number(3, RANDOM);
        data.number(4, 0);
    });
}

fn destination_nat(rule: &mut Attributes<'_>, family: IpFamily) {
    const DESTINATION: u32 = 1;
    expression(rule, "nat", |data| {
        data.number(1, DESTINATION);
        data.number(2, u32::from(family.number()));
        data.number(3, register(0));
        data.number(5, register(address_words(family)));
    });
}

fn masquerade(rule: &mut Attributes<'_>) {
    const FULLY_RANDOM: u32 = 1 << 4;
    expression(rule, "masq", |data| data.number(1, FULLY_RANDOM));
}

fn reject(rule: &mut Attributes<'_>, family: IpFamily) {
    const WITH_ICMP: u32 = 0;
    let port_unreachable = match family {
        IpFamily::V4 => 3,
        IpFamily::V6 => 4,
    };
    expression(rule, "reject", |data| {
        data.number(1, WITH_ICMP);
        data.put(2, &[port_unreachable]);
    });
}

fn to_chain(rule: &mut Attributes<'_>, code: i32, chain: &ChainName) {
    expressions::verdict(rule, code, Some(&chain.to_string()));
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
