//! Programs and transactions as netlink batches.
//!
//! The numbers are those of `linux/netfilter/nf_tables.h`; the data types are those of nft, which
//! the kernel only stores, so that `nft list` can print keys in a readable form.

use std::net::IpAddr;

use roadstead_forwarding::nft::compile::pick_chain;
use roadstead_forwarding::nft::model::{
    Chain, ChainKind, ChainName, Data, Key, KeyField, Program, SetName, TABLE, Transaction, Type,
    Value,
};
use roadstead_forwarding::nft::print::{comment, count_number};
use roadstead_forwarding::service::{IpFamily, ServicePortName};

use super::expressions::{self, verdict_code};
use crate::netlink::{APPEND, Attributes, Batch, CREATE};

const NEW_TABLE: u16 = 0;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const NEW_SET: u16 = 9;
const NEW_ELEMENTS: u16 = 12;
const DELETE_ELEMENTS: u16 = 14;

/// Every kind of message names the table first.
const IN_TABLE: u16 = 1;
/// A list consists of these.
pub(super) const LIST_ITEM: u16 = 1;

/// A nest holds less than 64 KiB; we stop well before.
const NEST_LIMIT: usize = 60_000;

/// Everything anew: the old table goes in the same instant.
pub(super) fn replacement(program: &Program) -> Batch {
    let mut batch = removal(program.family);
    table(&mut batch, NEW_TABLE);
    for (id, name) in (1..).zip(SetName::ALL) {
        set(&mut batch, program.family, name, id);
    }
    // All chains before all rules and elements, which may refer to any of them.
    for (name, definition) in &program.chains {
        chain(&mut batch, *name, definition);
    }
    let elements = program.elements.iter().map(|(key, value)| (key, Some(value)));
    write_elements(&mut batch, NEW_ELEMENTS, elements);
    for (name, definition) in &program.chains {
        rules(&mut batch, program.family, *name, definition);
    }
    batch
}

/// The differences only.
pub(super) fn transaction(family: IpFamily, transaction: &Transaction) -> Batch {
    let mut batch = Batch::new(expressions::family_number(family));
    for count in &transaction.add_picks {
        let (name, definition) = (ChainName::Pick(*count), pick_chain(*count));
        chain(&mut batch, name, &definition);
        rules(&mut batch, family, name, &definition);
    }
    let mut delete: Vec<_> = transaction.delete.iter().map(|key| (key, None)).collect();
    delete.sort_by_key(|(key, _)| key.set());
    write_elements(&mut batch, DELETE_ELEMENTS, delete.into_iter());
    let mut add: Vec<_> = transaction.add.iter().map(|(key, value)| (key, Some(value))).collect();
    add.sort_by_key(|(key, _)| key.set());
    write_elements(&mut batch, NEW_ELEMENTS, add.into_iter());
    batch
}

/// No table, whether there was one or not: deleting one that is not there would be an error.
pub(super) fn removal(family: IpFamily) -> Batch {
    let mut batch = Batch::new(expressions::family_number(family));
    table(&mut batch, NEW_TABLE);
    table(&mut batch, DELETE_TABLE);
    batch
}

fn table(batch: &mut Batch, kind: u16) {
    let flags = if kind == NEW_TABLE { CREATE } else { 0 };
    batch.message(kind, flags, |message| message.text(IN_TABLE, TABLE));
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
    const FLAG_MAP: u32 = 0x8;
    const VERDICT: u32 = 0xffff_ff00;
    batch.message(NEW_SET, CREATE, |message| {
        message.text(IN_TABLE, TABLE);
        message.text(NAME, name.name());
        let is_map = name.data() != Data::Nothing;
        message.number(FLAGS, if is_map { FLAG_MAP } else { 0 });
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
            Data::Count => {
                let (kind, length) = concatenation(family, &[Type::Count]);
                message.number(DATA_TYPE, kind);
                message.number(DATA_LENGTH, length);
            }
            Data::Target => {
                let (kind, length) = concatenation(family, &[Type::Address, Type::Port]);
                message.number(DATA_TYPE, kind);
                message.number(DATA_LENGTH, length);
            }
        }
        message.number(ID, id);
        message.put(USER_DATA, &byte_orders(name));
    });
}

/// A note to nft: whether keys and data are numbers in the machine's own byte order. The kernel
/// does not care, and of some types nft does not know it.
fn byte_orders(name: SetName) -> Vec<u8> {
    const KEY: u8 = 0;
    const DATA: u8 = 1;
    let order = |of: u8, host: bool| [[of, 4].as_slice(), &u32::from(host).to_ne_bytes()].concat();
    let key = order(KEY, name.key_types() == [Type::Count]);
    [key, order(DATA, name.data() == Data::Count)].concat()
}

/// The type number and the length of a concatenation: six bits per type, whole words per field.
fn concatenation(family: IpFamily, types: &[Type]) -> (u32, u32) {
    let number_and_length = |kind: &Type| match (kind, family) {
        (Type::Address, IpFamily::V4) => (7, 4),
        (Type::Address, IpFamily::V6) => (8, 16),
        (Type::Protocol, _) => (12, 4),
        (Type::Port, _) => (13, 4),
        (Type::Mark, _) => (19, 4),
        (Type::Count, _) => (23, 4),
    };
    let (kind, length) = types
        .iter()
        .map(number_and_length)
        .fold((0, 0), |(types, length), (number, bytes)| ((types << 6) | number, length + bytes));
    // A single type is not padded to words, but ours are words already.
    (kind, length)
}

fn chain(batch: &mut Batch, name: ChainName, definition: &Chain) {
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

fn rules(batch: &mut Batch, family: IpFamily, name: ChainName, definition: &Chain) {
    const CHAIN: u16 = 2;
    const EXPRESSIONS: u16 = 4;
    for rule in &definition.rules {
        batch.message(NEW_RULE, CREATE | APPEND, |message| {
            message.text(IN_TABLE, TABLE);
            message.text(CHAIN, &name.to_string());
            message.nest(EXPRESSIONS, |list| {
                rule.iter().for_each(|statement| expressions::write(list, family, statement));
            });
        });
    }
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
    item.nest(KEY, |data| data.put(expressions::DATA_VALUE, key_bytes(key).as_slice()));
    match value {
        None | Some(Value::Member) => {}
        Some(Value::Unserved(service)) => item.put(USER_DATA, &comment_bytes(service)),
        Some(Value::Slots(count, service)) => {
            let number = count_number(*count).to_ne_bytes();
            item.nest(DATA, |data| data.put(expressions::DATA_VALUE, &number));
            item.put(USER_DATA, &comment_bytes(service));
        }
        Some(Value::Goto(chain)) => {
            item.nest(DATA, |data| verdict_code(data, expressions::GOTO, Some(*chain)));
        }
        Some(Value::Target(target)) => item.nest(DATA, |data| {
            let mut bytes = Bytes::EMPTY;
            bytes.address(target.ip());
            bytes.word(&target.port().to_be_bytes());
            data.put(expressions::DATA_VALUE, bytes.as_slice());
        }),
    }
}

/// The form in which nft keeps a comment: a type, a length, the text and a zero.
fn comment_bytes(service: &ServicePortName) -> Vec<u8> {
    let text = comment(service);
    let length = u8::try_from(text.len() + 1).expect("comments are cut in time");
    [&[0, length], text.as_bytes(), &[0]].concat()
}

fn key_bytes(key: &Key) -> Bytes {
    let mut bytes = Bytes::EMPTY;
    for field in key.fields() {
        match field {
            KeyField::Address(address) => bytes.address(address),
            KeyField::Protocol(protocol) => bytes.word(&[protocol.number()]),
            KeyField::Port(port) => bytes.word(&port.to_be_bytes()),
            // The kernel draws numbers in its own byte order.
            KeyField::Mark(slot) => bytes.word(&slot.to_ne_bytes()),
            KeyField::Count(count) => bytes.word(&count_number(count).to_ne_bytes()),
        }
    }
    bytes
}

/// A key or value while it is being put together; two IPv6 addresses and two words at most.
struct Bytes {
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

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
