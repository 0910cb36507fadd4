//! The expressions that the rules of nftables are made of.
//!
//! The kernel has sixteen registers of four bytes. A lookup key is put together in consecutive
//! ones from the first; what is found in a map comes back the same way. The numbers are those of
//! `linux/netfilter/nf_tables.h`.

use crate::attributes::Attributes;

/// A list consists of these.
pub const LIST_ITEM: u16 = 1;
/// A value within data.
pub const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;

/// The packet is thrown away.
pub const DROP: i32 = 0;
/// The packet may pass.
pub const ACCEPT: i32 = 1;
/// On to another chain, and not back.
pub const GOTO: i32 = -4;
/// On to another chain, and back.
pub const JUMP: i32 = -3;
/// Back to where the chain was jumped to from.
pub const RETURN: i32 = -5;

/// Where verdicts go.
pub const VERDICT_REGISTER: u32 = 0;
/// The name of the interface by which a packet came in.
pub const META_INTERFACE_NAME: u32 = 6;
/// The type of an Ethernet frame.
pub const META_ETHER_TYPE: u32 = 1;
/// The state of a packet's connection.
pub const CT_STATE: u32 = 0;
/// The Ethernet header.
pub const LINK_HEADER: u32 = 0;
/// The IP header.
pub const NETWORK_HEADER: u32 = 1;
/// The header of TCP, UDP or SCTP.
pub const TRANSPORT_HEADER: u32 = 2;
/// Compares for equality.
pub const EQUAL: u32 = 0;
/// Compares for the opposite.
pub const NOT_EQUAL: u32 = 1;
/// Not greater than.
pub const AT_MOST: u32 = 3;
/// Not less than.
pub const AT_LEAST: u32 = 5;
/// The kernel's names of interfaces have so many bytes.
pub const INTERFACE_NAME_LENGTH: usize = 16;

/// Writes a verdict into a data nest.
pub fn verdict_code(data: &mut Attributes<'_>, code: i32, chain: Option<&str>) {
    const CODE: u16 = 1;
    const CHAIN: u16 = 2;
    data.nest(DATA_VERDICT, |verdict| {
        verdict.put(CODE, &code.to_be_bytes());
        if let Some(chain) = chain {
            verdict.text(CHAIN, chain);
        }
    });
}

/// Appends an expression by its name; `fill` writes its attributes.
pub fn expression(rule: &mut Attributes<'_>, name: &str, fill: impl FnOnce(&mut Attributes<'_>)) {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    rule.nest(LIST_ITEM, |item| {
        item.text(NAME, name);
        item.nest(DATA, fill);
    });
}

/// The register that starts at a word. The first one goes by its older name, as nft does it.
pub fn register(word: u32) -> u32 {
    if word == 0 { 1 } else { 8 + word }
}

/// Puts a value into the registers from a word on.
pub fn constant(rule: &mut Attributes<'_>, word: u32, value: &[u8]) {
    expression(rule, "immediate", |data| {
        data.number(1, register(word));
        data.nest(2, |nest| nest.put(DATA_VALUE, value));
    });
}

/// Puts bytes of a header into the registers from a word on: from where, and how many.
pub fn payload(rule: &mut Attributes<'_>, word: u32, header: u32, (offset, length): (u32, u32)) {
    expression(rule, "payload", |data| {
        data.number(1, register(word));
        data.number(2, header);
        data.number(3, offset);
        data.number(4, length);
    });
}

/// Puts a property of the packet into the registers from a word on.
pub fn meta(rule: &mut Attributes<'_>, key: u32, word: u32) {
    expression(rule, "meta", |data| {
        data.number(1, register(word));
        data.number(2, key);
    });
}

/// The packet's property becomes what the first register holds.
pub fn set_meta(rule: &mut Attributes<'_>, key: u32) {
    expression(rule, "meta", |data| {
        data.number(2, key);
        data.number(3, register(0));
    });
}

/// Puts a property of the packet's connection into the registers from a word on. Some have two
/// sides: 0 is as it was asked, 1 as it is answered.
pub fn connection(rule: &mut Attributes<'_>, key: u32, side: Option<u8>, word: u32) {
    expression(rule, "ct", |data| {
        data.number(1, register(word));
        data.number(2, key);
        if let Some(side) = side {
            data.put(3, &[side]);
        }
    });
}

/// Goes on if the connection's property has one of these bits.
pub fn has_bit(rule: &mut Attributes<'_>, key: u32, bits: u32) {
    connection(rule, key, None, 0);
    bitwise(rule, &bits.to_ne_bytes(), &[0; 4]);
    compare(rule, NOT_EQUAL, &[0; 4]);
}

/// The first register becomes itself `& mask ^ flip`.
pub fn bitwise(rule: &mut Attributes<'_>, mask: &[u8], flip: &[u8]) {
    expression(rule, "bitwise", |data| {
        data.number(1, register(0));
        data.number(2, register(0));
        data.number(3, u32::try_from(mask.len()).expect("four or sixteen"));
        data.nest(4, |nest| nest.put(DATA_VALUE, mask));
        data.nest(5, |nest| nest.put(DATA_VALUE, flip));
    });
}

/// Goes on if the first registers compare like that with the value.
pub fn compare(rule: &mut Attributes<'_>, operator: u32, value: &[u8]) {
    expression(rule, "cmp", |data| {
        data.number(1, register(0));
        data.number(2, operator);
        data.nest(3, |nest| nest.put(DATA_VALUE, value));
    });
}

/// Looks the key in the first registers up. What a map has under it goes to the register `result`.
pub fn lookup(rule: &mut Attributes<'_>, set: &str, operator: u32, result: Option<u32>) {
    const FLAGS: u16 = 5;
    const INVERTED: u32 = 1;
    expression(rule, "lookup", |data| {
        data.text(1, set);
        data.number(2, register(0));
        if let Some(register) = result {
            data.number(3, register);
        }
        if operator == NOT_EQUAL {
            data.number(FLAGS, INVERTED);
        }
    });
}

/// Ends the rule with a verdict.
pub fn verdict(rule: &mut Attributes<'_>, code: i32, chain: Option<&str>) {
    expression(rule, "immediate", |data| {
        data.number(1, VERDICT_REGISTER);
        data.nest(2, |nest| verdict_code(nest, code, chain));
    });
}
