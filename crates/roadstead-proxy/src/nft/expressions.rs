//! The statements of a rule as the kernel's expressions.
//!
//! The kernel has sixteen registers of four bytes. A lookup key is put together in consecutive
//! ones from the first; a target found in a map comes back the same way.

use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_forwarding::nft::model::{Field, Is, Statement};
use roadstead_forwarding::nft::names::ChainName;
use roadstead_forwarding::service::IpFamily;

use super::encode::LIST_ITEM;
use crate::netlink::Attributes;

pub(super) const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;

const DROP: i32 = 0;
const ACCEPT: i32 = 1;
pub(super) const GOTO: i32 = -4;
const JUMP: i32 = -3;
const RETURN: i32 = -5;

const VERDICT_REGISTER: u32 = 0;
const META_PRIORITY: u32 = 2;
const META_MARK: u32 = 3;
const META_INTERFACE_NAME: u32 = 6;
const META_PROTOCOL: u32 = 16;
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
const STATE_NEW: u32 = 1 << 3;
const STATUS_DESTINATION_NAT: u32 = 1 << 5;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 2;
const INTERFACE_NAME_LENGTH: usize = 16;

/// `AF_INET` or `AF_INET6`.
pub(super) fn family_number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

/// Appends the expressions of a statement to a rule.
pub(super) fn write(rule: &mut Attributes<'_>, family: IpFamily, statement: &Statement) {
    match statement {
        Statement::IsNew => has_bit(rule, CT_STATE, STATE_NEW),
        Statement::IsTranslated => has_bit(rule, CT_STATUS, STATUS_DESTINATION_NAT),
        Statement::Source(is, net) => in_network(rule, family, Field::Source, *is, net),
        Statement::Destination(is, net) => in_network(rule, family, Field::Destination, *is, net),
        Statement::Interface(is, name) => interface(rule, *is, name, INTERFACE_NAME_LENGTH),
        Statement::InterfacePrefix(is, name) => interface(rule, *is, name, name.len()),
        Statement::SourceIsOurs => is_ours(rule, FIB_SOURCE),
        Statement::DestinationIsOurs => is_ours(rule, FIB_DESTINATION),
        Statement::ProtocolIs(protocol) => {
            meta(rule, META_PROTOCOL, 0);
            compare(rule, EQUAL, &[protocol.number()]);
        }
        Statement::MarkClear(bits) => {
            meta(rule, META_MARK, 0);
            bitwise(rule, &bits.to_ne_bytes(), &[0; 4]);
            compare(rule, EQUAL, &[0; 4]);
        }
        Statement::Member(fields, is, set) => {
            load_all(rule, family, fields);
            lookup(rule, set.name(), *is, None);
        }
        Statement::Remembered(set) => {
            load(rule, family, Field::Source, 0);
            lookup(rule, &set.to_string(), Is::In, None);
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
            lookup(rule, map.name(), Is::In, Some(register(0)));
            set_meta(rule, META_PRIORITY);
        }
        Statement::GotoByClass(map) => {
            meta(rule, META_PRIORITY, 0);
            lookup(rule, map.name(), Is::In, Some(VERDICT_REGISTER));
        }
        Statement::ForgetClass => {
            constant(rule, 0, &[0; 4]);
            set_meta(rule, META_PRIORITY);
        }
        Statement::GotoByFields(fields, map) => {
            load_all(rule, family, fields);
            lookup(rule, map.name(), Is::In, Some(VERDICT_REGISTER));
        }
        Statement::DestinationFromSlot(fields, count, map) => {
            let word = load_all(rule, family, fields);
            random(rule, *count, word);
            lookup(rule, map.name(), Is::In, Some(register(0)));
            destination_nat(rule, family);
        }
        Statement::DestinationTo(target) => {
            constant(rule, 0, &octets(target.ip()));
            constant(rule, address_words(family), &target.port().to_be_bytes());
            destination_nat(rule, family);
        }
        Statement::Masquerade => masquerade(rule),
        Statement::Reject => reject(rule, family),
        Statement::Drop => immediate(rule, DROP, None),
        Statement::Accept => immediate(rule, ACCEPT, None),
        Statement::Return => immediate(rule, RETURN, None),
        Statement::Jump(chain) => immediate(rule, JUMP, Some(chain)),
        Statement::Goto(chain) => immediate(rule, GOTO, Some(chain)),
    }
}

/// Writes a verdict into a data nest.
pub(super) fn verdict_code(data: &mut Attributes<'_>, code: i32, chain: Option<&ChainName>) {
    const CODE: u16 = 1;
    const CHAIN: u16 = 2;
    data.nest(DATA_VERDICT, |verdict| {
        verdict.put(CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            verdict.text(CHAIN, &chain.to_string());
        }
    });
}

fn expression(rule: &mut Attributes<'_>, name: &str, fill: impl FnOnce(&mut Attributes<'_>)) {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    rule.nest(LIST_ITEM, |item| {
        item.text(NAME, name);
        item.nest(DATA, fill);
    });
}

/// The register that starts at a word. The first one goes by its older name, as nft does it.
fn register(word: u32) -> u32 {
    if word == 0 { 1 } else { 8 + word }
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
        Field::Source => payload(rule, NETWORK_HEADER, source, 4 * words, word),
        Field::Destination => payload(rule, NETWORK_HEADER, destination, 4 * words, word),
        Field::Protocol => meta(rule, META_PROTOCOL, word),
        Field::Port => payload(rule, TRANSPORT_HEADER, 2, 2, word),
    }
    if matches!(field, Field::Source | Field::Destination) { words } else { 1 }
}

fn in_network(rule: &mut Attributes<'_>, family: IpFamily, field: Field, is: Is, net: &IpNet) {
    load(rule, family, field, 0);
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

/// Puts a value into the registers from a word on.
fn constant(rule: &mut Attributes<'_>, word: u32, value: &[u8]) {
    expression(rule, "immediate", |data| {
        data.number(1, register(word));
        data.nest(2, |nest| nest.put(DATA_VALUE, value));
    });
}

fn update(rule: &mut Attributes<'_>, set: &str) {
    const UPDATE: u32 = 1;
    expression(rule, "dynset", |data| {
        data.text(1, set);
        data.number(3, UPDATE);
        data.number(4, register(0));
    });
}

fn payload(rule: &mut Attributes<'_>, header: u32, offset: u32, length: u32, word: u32) {
    expression(rule, "payload", |data| {
        data.number(1, register(word));
        data.number(2, header);
        data.number(3, offset);
        data.number(4, length);
    });
}

fn meta(rule: &mut Attributes<'_>, key: u32, word: u32) {
    expression(rule, "meta", |data| {
        data.number(1, register(word));
        data.number(2, key);
    });
}

fn has_bit(rule: &mut Attributes<'_>, key: u32, bit: u32) {
    expression(rule, "ct", |data| {
        data.number(1, register(0));
        data.number(2, key);
    });
    bitwise(rule, &bit.to_ne_bytes(), &[0; 4]);
    compare(rule, NOT_EQUAL, &[0; 4]);
}

/// The first register becomes itself `& mask ^ flip`.
fn bitwise(rule: &mut Attributes<'_>, mask: &[u8], flip: &[u8]) {
    expression(rule, "bitwise", |data| {
        data.number(1, register(0));
        data.number(2, register(0));
        data.number(3, u32::try_from(mask.len()).expect("four or sixteen"));
        data.nest(4, |nest| nest.put(DATA_VALUE, mask));
        data.nest(5, |nest| nest.put(DATA_VALUE, flip));
    });
}

fn compare(rule: &mut Attributes<'_>, operator: u32, value: &[u8]) {
    expression(rule, "cmp", |data| {
        data.number(1, register(0));
        data.number(2, operator);
        data.nest(3, |nest| nest.put(DATA_VALUE, value));
    });
}

fn change_mark(rule: &mut Attributes<'_>, mask: u32, flip: u32) {
    meta(rule, META_MARK, 0);
    bitwise(rule, &mask.to_ne_bytes(), &flip.to_ne_bytes());
    set_meta(rule, META_MARK);
}

/// The packet's property becomes what the first register holds.
fn set_meta(rule: &mut Attributes<'_>, key: u32) {
    expression(rule, "meta", |data| {
        data.number(2, key);
        data.number(3, register(0));
    });
}

fn lookup(rule: &mut Attributes<'_>, set: &str, is: Is, result: Option<u32>) {
    const FLAGS: u16 = 5;
    const INVERTED: u32 = 1;
    expression(rule, "lookup", |data| {
        data.text(1, set);
        data.number(2, register(0));
        if let Some(register) = result {
            data.number(3, register);
        }
        if is == Is::NotIn {
            data.number(FLAGS, INVERTED);
        }
    });
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
        data.number(2, u32::from(family_number(family)));
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

fn immediate(rule: &mut Attributes<'_>, code: i32, chain: Option<&ChainName>) {
    expression(rule, "immediate", |data| {
        data.number(1, VERDICT_REGISTER);
        data.nest(2, |nest| verdict_code(nest, code, chain));
    });
}

pub(super) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}
