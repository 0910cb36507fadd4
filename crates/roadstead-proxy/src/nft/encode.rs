//! Programs and transactions as netlink batches.
//!
//! The numbers are those of `linux/netfilter/nf_tables.h`; the data types are those of nft, which
//! the kernel only stores, so that `nft list` can print keys in a readable form.

use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_forwarding::nft::model::{
    Chain, ChainKind, Key, KeyField, Program, Rule, TABLE, Transaction, Value,
};
use roadstead_forwarding::nft::names::{AffinitySet, ChainName, Data, SetName, Type};
use roadstead_forwarding::nft::print::{AFFINITY_SIZE, comment, rule_text};
use roadstead_forwarding::service::{IpFamily, ServicePortName};

use super::expressions::{self, octets, verdict_code};
use crate::netlink::{APPEND, Attributes, Batch, CREATE};

const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const DELETE_SET: u16 = 11;
const NEW_ELEMENTS: u16 = 12;
const DELETE_ELEMENTS: u16 = 14;

/// Every kind of message names the table first.
const IN_TABLE: u16 = 1;
/// A list consists of these.
pub(super) const LIST_ITEM: u16 = 1;

/// A nest holds less than 64 KiB; we stop well before.
const NEST_LIMIT: usize = 60_000;

/// Everything anew: the old table goes in the same instant. `fixed` is what does not depend on
/// Services, `services` all that they need.
pub(super) fn replacement(fixed: &Program, services: &Transaction) -> Batch {
    let mut batch = removal(fixed.family);
    table(&mut batch, NEW_TABLE);
    for (id, name) in (1..).zip(SetName::ALL) {
        set(&mut batch, fixed.family, name, id);
    }
    // All chains before all rules and elements, which may refer to any of them.
    for (name, definition) in &fixed.chains {
        chain(&mut batch, name, definition);
    }
    append(&mut batch, fixed.family, services);
    let elements = fixed.elements.iter().map(|(key, value)| (key, Some(value)));
    write_elements(&mut batch, NEW_ELEMENTS, elements);
    for (name, definition) in &fixed.chains {
        rules(&mut batch, fixed.family, name, &definition.rules);
    }
    batch
}

/// The differences only.
pub(super) fn transaction(family: IpFamily, transaction: &Transaction) -> Batch {
    let mut batch = Batch::new(expressions::family_number(family));
    append(&mut batch, family, transaction);
    batch
}

/// Adds the differences to a batch.
pub(super) fn append(batch: &mut Batch, family: IpFamily, transaction: &Transaction) {
    for (id, set) in (1000..).zip(&transaction.add_sets) {
        affinity_set(batch, family, set, id);
    }
    for (name, definition) in &transaction.add_chains {
        chain(batch, name, definition);
    }
    let mut delete: Vec<_> = transaction.delete.iter().map(|key| (key, None)).collect();
    delete.sort_by_key(|(key, _)| key.set());
    write_elements(batch, DELETE_ELEMENTS, delete.into_iter());
    let mut add: Vec<_> = transaction.add.iter().map(|(key, value)| (key, Some(value))).collect();
    add.sort_by_key(|(key, _)| key.set());
    write_elements(batch, NEW_ELEMENTS, add.into_iter());
    for (name, definition) in &transaction.add_chains {
        rules(batch, family, name, &definition.rules);
    }
    for (name, wanted) in &transaction.rewrite {
        clear_chain(batch, name);
        rules(batch, family, name, wanted);
    }
    for name in &transaction.delete_chains {
        named(batch, DELETE_CHAIN, 3, &name.to_string());
    }
    for set in &transaction.delete_sets {
        named(batch, DELETE_SET, 2, &set.to_string());
    }
}

/// Deletes elements that we know only by their bytes: a key, and for ranges its end.
pub(super) fn delete_foreign(batch: &mut Batch, foreign: &[(SetName, Vec<u8>)]) {
    const SET: u16 = 2;
    const ELEMENTS: u16 = 3;
    const KEY: u16 = 1;
    const KEY_END: u16 = 10;
    for (set, key) in foreign {
        let middle = if set.has_ranges() { key.len() / 2 } else { key.len() };
        let (first, last) = key.split_at(middle);
        batch.message(DELETE_ELEMENTS, 0, |message| {
            message.text(IN_TABLE, TABLE);
            message.text(SET, set.name());
            message.nest(ELEMENTS, |list| {
                list.nest(LIST_ITEM, |item| {
                    item.nest(KEY, |data| data.put(expressions::DATA_VALUE, first));
                    if set.has_ranges() {
                        item.nest(KEY_END, |data| data.put(expressions::DATA_VALUE, last));
                    }
                });
            });
        });
    }
}

/// No table, whether there was one or not: deleting one that is not there would be an error.
pub(super) fn removal(family: IpFamily) -> Batch {
    let mut batch = Batch::new(expressions::family_number(family));
    table(&mut batch, NEW_TABLE);
    table(&mut batch, DELETE_TABLE);
    batch
}

/// A chain beside those of the table, to see whether the kernel would take it.
pub(super) fn trial(family: IpFamily, name: &ChainName, definition: &Chain) -> Batch {
    let mut batch = Batch::new(expressions::family_number(family));
    table(&mut batch, NEW_TABLE);
    chain(&mut batch, name, definition);
    rules(&mut batch, family, name, &definition.rules);
    batch
}

fn table(batch: &mut Batch, kind: u16) {
    let flags = if kind == NEW_TABLE { CREATE } else { 0 };
    batch.message(kind, flags, |message| message.text(IN_TABLE, TABLE));
}

/// A message that is about one object of the table, by name.
fn named(batch: &mut Batch, kind: u16, attribute: u16, name: &str) {
    batch.message(kind, 0, |message| {
        message.text(IN_TABLE, TABLE);
        message.text(attribute, name);
    });
}

/// Deletes all rules of a chain.
fn clear_chain(batch: &mut Batch, name: &ChainName) {
    const CHAIN: u16 = 2;
    named(batch, DELETE_RULE, CHAIN, &name.to_string());
}

fn affinity_set(batch: &mut Batch, family: IpFamily, set: &AffinitySet, id: u32) {
    const NAME: u16 = 2;
    const FLAGS: u16 = 3;
    const KEY_TYPE: u16 = 4;
    const KEY_LENGTH: u16 = 5;
    const DESCRIPTION: u16 = 9;
    const ID: u16 = 10;
    const TIMEOUT: u16 = 11;
    const SIZE: u16 = 1;
    const FLAG_TIMEOUT: u32 = 0x10;
    const FLAG_DYNAMIC: u32 = 0x20;
    let milliseconds = u64::try_from(set.timeout.as_millis()).unwrap_or(u64::MAX);
    batch.message(NEW_SET, CREATE, |message| {
        message.text(IN_TABLE, TABLE);
        message.text(NAME, &set.to_string());
        message.number(FLAGS, FLAG_TIMEOUT | FLAG_DYNAMIC);
        let (kind, length) = concatenation(family, &[Type::Address]);
        message.number(KEY_TYPE, kind);
        message.number(KEY_LENGTH, length);
        message.nest(DESCRIPTION, |nest| nest.number(SIZE, AFFINITY_SIZE));
        message.put(TIMEOUT, &milliseconds.to_be_bytes());
        message.number(ID, id);
    });
}

fn set(batch: &mut Batch, family: IpFamily, name: SetName, id: u32) {
    const NAME: u16 = 2;
    const FLAGS: u16 = 3;
    const KEY_TYPE: u16 = 4;
    const KEY_LENGTH: u16 = 5;
    const DATA_TYPE: u16 = 6;
    const DATA_LENGTH: u16 = 7;
    const ID: u16 = 10;
    const USER_DATA: u16 = 13;
    const DESCRIPTION: u16 = 9;
    const FLAG_INTERVAL: u32 = 0x4;
    const FLAG_MAP: u32 = 0x8;
    const FLAG_CONCATENATION: u32 = 0x80;
    const VERDICT: u32 = 0xffff_ff00;
    batch.message(NEW_SET, CREATE, |message| {
        message.text(IN_TABLE, TABLE);
        message.text(NAME, name.name());
        let is_map = name.data() != Data::Nothing;
        let ranges = if name.has_ranges() { FLAG_INTERVAL | FLAG_CONCATENATION } else { 0 };
        message.number(FLAGS, ranges | if is_map { FLAG_MAP } else { 0 });
        let (kind, length) = concatenation(family, name.key_types());
        message.number(KEY_TYPE, kind);
        message.number(KEY_LENGTH, length);
        match name.data() {
            Data::Nothing => {}
            // A verdict has no length of its own.
            Data::Verdict => {
                message.number(DATA_TYPE, VERDICT);
                message.number(DATA_LENGTH, 16);
            }
            Data::Class => {
                let (kind, length) = concatenation(family, &[Type::Class]);
                message.number(DATA_TYPE, kind);
                message.number(DATA_LENGTH, length);
            }
            Data::Target => {
                let (kind, length) = concatenation(family, &[Type::Address, Type::Port]);
                message.number(DATA_TYPE, kind);
                message.number(DATA_LENGTH, length);
            }
        }
        if name.has_ranges() {
            message.nest(DESCRIPTION, |nest| field_lengths(nest, family, name.key_types()));
        }
        message.number(ID, id);
        message.put(USER_DATA, &byte_orders(name));
    });
}

/// Where ranges are concatenated, the kernel must know where each field ends.
fn field_lengths(description: &mut Attributes<'_>, family: IpFamily, types: &[Type]) {
    const CONCATENATION: u16 = 2;
    const LENGTH: u16 = 1;
    let length = |kind: &Type| match (kind, family) {
        (Type::Address, IpFamily::V4) => 4,
        (Type::Address, IpFamily::V6) => 16,
        (Type::Protocol, _) => 1,
        (Type::Port, _) => 2,
        (Type::Mark | Type::Class, _) => 4,
    };
    description.nest(CONCATENATION, |fields| {
        for kind in types {
            fields.nest(LIST_ITEM, |field| field.number(LENGTH, length(kind)));
        }
    });
}

/// A note to nft: whether keys and data are numbers in the machine's own byte order. The kernel
/// does not care, and of some types nft does not know it.
fn byte_orders(name: SetName) -> Vec<u8> {
    const KEY: u8 = 0;
    const DATA: u8 = 1;
    let order = |of: u8, host: bool| [[of, 4].as_slice(), &u32::from(host).to_ne_bytes()].concat();
    let key = order(KEY, name.key_types() == [Type::Class]);
    [key, order(DATA, name.data() == Data::Class)].concat()
}

/// The type number and the length of a concatenation: six bits per type, whole words per field.
fn concatenation(family: IpFamily, types: &[Type]) -> (u32, u32) {
    let number_and_length = |kind: &Type| match (kind, family) {
        (Type::Address, IpFamily::V4) => (7, 4),
        (Type::Address, IpFamily::V6) => (8, 16),
        (Type::Protocol, _) => (12, 4),
        (Type::Port, _) => (13, 4),
        (Type::Mark, _) => (19, 4),
        (Type::Class, _) => (23, 4),
    };
    let (kind, length) = types
        .iter()
        .map(number_and_length)
        .fold((0, 0), |(types, length), (number, bytes)| ((types << 6) | number, length + bytes));
    // A single type is not padded to words, but ours are words already.
    (kind, length)
}

fn chain(batch: &mut Batch, name: &ChainName, definition: &Chain) {
    const NAME: u16 = 3;
    const HOOK: u16 = 4;
    const POLICY: u16 = 5;
    const KIND: u16 = 7;
    const HOOK_NUMBER: u16 = 1;
    const HOOK_PRIORITY: u16 = 2;
    const ACCEPT: u32 = 1;
    batch.message(NEW_CHAIN, CREATE, |message| {
        message.text(IN_TABLE, TABLE);
        message.text(NAME, &name.to_string());
        if let Some(base) = definition.base {
            message.nest(HOOK, |hook| {
                hook.number(HOOK_NUMBER, u32::from(base.hook as u8));
                hook.put(HOOK_PRIORITY, &base.priority.to_be_bytes());
            });
            message.number(POLICY, ACCEPT);
            message.text(
                KIND,
                match base.kind {
                    ChainKind::Filter => "filter",
                    ChainKind::Nat => "nat",
                },
            );
        }
    });
}

fn rules(batch: &mut Batch, family: IpFamily, name: &ChainName, rules: &[Rule]) {
    const CHAIN: u16 = 2;
    const EXPRESSIONS: u16 = 4;
    const USER_DATA: u16 = 7;
    for rule in rules {
        batch.message(NEW_RULE, CREATE | APPEND, |message| {
            message.text(IN_TABLE, TABLE);
            message.text(CHAIN, &name.to_string());
            message.nest(EXPRESSIONS, |list| {
                rule.iter().for_each(|statement| expressions::write(list, family, statement));
            });
            message.put(USER_DATA, &signature(family, rule));
        });
    }
}

/// What tells our rules from others when they are read back: a hash of the text, in a note that
/// nft passes over.
pub(super) fn signature(family: IpFamily, rule: &Rule) -> [u8; 10] {
    const OWN_TYPE: u8 = 200;
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = rule_text(family, rule).bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
    let mut bytes = [OWN_TYPE, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes[2..].copy_from_slice(&hash.to_be_bytes());
    bytes
}

/// Writes elements that come sorted by set, in as few messages as their size allows.
fn write_elements<'a>(
    batch: &mut Batch,
    kind: u16,
    elements: impl Iterator<Item = (&'a Key, Option<&'a Value>)>,
) {
    const SET: u16 = 2;
    const ELEMENTS: u16 = 3;
    let mut elements = elements.peekable();
    while let Some(set) = elements.peek().map(|(key, _)| key.set()) {
        let flags = if kind == NEW_ELEMENTS { CREATE } else { 0 };
        batch.message(kind, flags, |message| {
            message.text(IN_TABLE, TABLE);
            message.text(SET, set.name());
            message.nest(ELEMENTS, |list| {
                let start = list.written();
                while list.written() - start < NEST_LIMIT
                    && let Some((key, value)) = elements.next_if(|(key, _)| key.set() == set)
                {
                    list.nest(LIST_ITEM, |item| element(item, key, value));
                }
            });
        });
    }
}

fn element(item: &mut Attributes<'_>, key: &Key, value: Option<&Value>) {
    const KEY: u16 = 1;
    const DATA: u16 = 2;
    const USER_DATA: u16 = 6;
    const KEY_END: u16 = 10;
    let (first, last) = key_bytes(key);
    item.nest(KEY, |data| data.put(expressions::DATA_VALUE, first.as_slice()));
    if key.set().has_ranges() {
        item.nest(KEY_END, |data| data.put(expressions::DATA_VALUE, last.as_slice()));
    }
    match value {
        None | Some(Value::Member) => {}
        Some(Value::Named(service)) => item.put(USER_DATA, &comment_bytes(service)),
        Some(value @ Value::Class(_, service)) => {
            item.nest(DATA, |data| data.put(expressions::DATA_VALUE, &data_bytes(value)));
            item.put(USER_DATA, &comment_bytes(service));
        }
        Some(Value::Goto(chain)) => {
            item.nest(DATA, |data| verdict_code(data, expressions::GOTO, Some(chain)));
        }
        Some(value @ Value::Target(_)) => {
            item.nest(DATA, |data| data.put(expressions::DATA_VALUE, &data_bytes(value)));
        }
    }
}

/// What an element holds, as the kernel keeps it; of a verdict, the name of the chain.
pub(super) fn data_bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::Member | Value::Named(_) => Vec::new(),
        Value::Class(class, _) => class.number().to_ne_bytes().to_vec(),
        Value::Goto(chain) => chain.to_string().into_bytes(),
        Value::Target(target) => {
            let mut bytes = Bytes::EMPTY;
            bytes.address(target.ip());
            bytes.word(&target.port().to_be_bytes());
            bytes.as_slice().to_vec()
        }
    }
}

/// The form in which nft keeps a comment: a type, a length, the text and a zero.
fn comment_bytes(service: &ServicePortName) -> Vec<u8> {
    let text = comment(service);
    let length = u8::try_from(text.len() + 1).expect("comments are cut in time");
    [&[0, length], text.as_bytes(), &[0]].concat()
}

/// The key, and the last one of its range.
pub(super) fn key_bytes(key: &Key) -> (Bytes, Bytes) {
    let (mut first, mut last) = (Bytes::EMPTY, Bytes::EMPTY);
    let mut both = |bytes: &[u8]| {
        first.word(bytes);
        last.word(bytes);
    };
    let mut network: Option<IpNet> = None;
    for field in key.fields() {
        match field {
            KeyField::Address(address) => {
                octets(address).chunks(4).for_each(&mut both);
            }
            KeyField::Protocol(protocol) => both(&[protocol.number()]),
            KeyField::Port(port) => both(&port.to_be_bytes()),
            // The kernel draws numbers in its own byte order.
            KeyField::Mark(slot) => both(&slot.to_ne_bytes()),
            KeyField::Class(class) => both(&class.number().to_ne_bytes()),
            KeyField::Network(range) => network = Some(range),
        }
    }
    if let Some(network) = network {
        first.address(network.network());
        last.address(network.broadcast());
    }
    (first, last)
}

/// A key or value while it is being put together; two IPv6 addresses and two words at most.
pub(super) struct Bytes {
    bytes: [u8; 40],
    length: usize,
}

impl Bytes {
    const EMPTY: Self = Self { bytes: [0; 40], length: 0 };

    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.word(&address.octets()),
            IpAddr::V6(address) => address.octets().chunks(4).for_each(|word| self.word(word)),
        }
    }

    /// Appends up to four bytes and fills them up to four.
    fn word(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += 4;
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
