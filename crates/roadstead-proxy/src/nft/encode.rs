//! Programs and transactions as netlink batches.

use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_forwarding::nft::model::{
    Chain, ChainKind, Key, KeyField, Program, Rule, TABLE, Transaction, Value,
};
use roadstead_forwarding::nft::names::{AffinitySet, ChainName, Data, SetName, Type};
use roadstead_forwarding::nft::print::{AFFINITY_SIZE, comment, rule_text};
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_netlink::CREATE;
use roadstead_netlink::attributes::Attributes;
use roadstead_netlink::nftables::expressions::{DATA_VALUE, GOTO, LIST_ITEM, verdict_code};
use roadstead_netlink::nftables::{
    self, BaseChain, DELETE_ELEMENTS, NEW_ELEMENTS, NEW_SET, TableBatch, VERDICT_DATA,
};

use super::expressions::{self, octets};

/// Everything anew: the old table goes in the same instant. `fixed` is what does not depend on
/// Services, `services` all that they need.
pub(super) fn replacement(fixed: &Program, services: &Transaction) -> TableBatch {
    let mut batch = removal(fixed.family);
    batch.make_table();
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
pub(super) fn transaction(family: IpFamily, transaction: &Transaction) -> TableBatch {
    let mut batch = TableBatch::new(family.number(), TABLE);
    append(&mut batch, family, transaction);
    batch
}

/// Adds the differences to a batch.
pub(super) fn append(batch: &mut TableBatch, family: IpFamily, transaction: &Transaction) {
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
        batch.clear_chain(&name.to_string());
        rules(batch, family, name, wanted);
    }
    for name in &transaction.delete_chains {
        batch.delete_chain(&name.to_string());
    }
    for set in &transaction.delete_sets {
        batch.delete_set(&set.to_string());
    }
}

/// Deletes elements that we know only by their bytes: a key, and for ranges its end.
pub(super) fn delete_foreign(batch: &mut TableBatch, foreign: &[(SetName, Vec<u8>)]) {
    const KEY: u16 = 1;
    const KEY_END: u16 = 10;
    for (set, key) in foreign {
        let middle = if set.has_ranges() { key.len() / 2 } else { key.len() };
        let (first, last) = key.split_at(middle);
        batch.elements(DELETE_ELEMENTS, set.name(), [()].into_iter(), |item, ()| {
            item.nest(KEY, |data| data.put(DATA_VALUE, first));
            if set.has_ranges() {
                item.nest(KEY_END, |data| data.put(DATA_VALUE, last));
            }
        });
    }
}

/// No table, whether there was one or not: deleting one that is not there would be an error.
pub(super) fn removal(family: IpFamily) -> TableBatch {
    let mut batch = TableBatch::new(family.number(), TABLE);
    batch.remove_table();
    batch
}

/// A chain beside those of the table, to see whether the kernel would take it.
pub(super) fn trial(family: IpFamily, name: &ChainName, definition: &Chain) -> TableBatch {
    let mut batch = TableBatch::new(family.number(), TABLE);
    batch.make_table();
    chain(&mut batch, name, definition);
    rules(&mut batch, family, name, &definition.rules);
    batch
}

fn affinity_set(batch: &mut TableBatch, family: IpFamily, set: &AffinitySet, id: u32) {
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

fn set(batch: &mut TableBatch, family: IpFamily, name: SetName, id: u32) {
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
    batch.message(NEW_SET, CREATE, |message| {
        message.text(NAME, name.name());
        let is_map = name.data() != Data::Nothing;
        let ranges = if name.has_ranges() { FLAG_INTERVAL | FLAG_CONCATENATION } else { 0 };
        message.number(FLAGS, ranges | if is_map { FLAG_MAP } else { 0 });
        let (kind, length) = concatenation(family, name.key_types());
        message.number(KEY_TYPE, kind);
        message.number(KEY_LENGTH, length);
        match name.data() {
            Data::Nothing => {}
            Data::Verdict => {
                message.number(DATA_TYPE, VERDICT_DATA.0);
                message.number(DATA_LENGTH, VERDICT_DATA.1);
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
    nftables::concatenation(types.iter().map(number_and_length))
}

fn chain(batch: &mut TableBatch, name: &ChainName, definition: &Chain) {
    let base = definition.base.map(|base| BaseChain {
        kind: match base.kind {
            ChainKind::Filter => "filter",
            ChainKind::Nat => "nat",
        },
        hook: u32::from(base.hook as u8),
        priority: base.priority,
    });
    batch.chain(&name.to_string(), base);
}

fn rules(batch: &mut TableBatch, family: IpFamily, name: &ChainName, rules: &[Rule]) {
    for rule in rules {
        batch.rule(&name.to_string(), &signature(family, rule), |list| {
            rule.iter().for_each(|statement| expressions::write(list, family, statement));
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

/// Writes elements that come sorted by set.
fn write_elements<'a>(
    batch: &mut TableBatch,
    kind: u8,
    elements: impl Iterator<Item = (&'a Key, Option<&'a Value>)>,
) {
    let mut elements = elements.peekable();
    while let Some(set) = elements.peek().map(|(key, _)| key.set()) {
        let of_set = std::iter::from_fn(|| elements.next_if(|(key, _)| key.set() == set));
        batch.elements(kind, set.name(), of_set, |item, (key, value)| element(item, key, value));
    }
}

fn element(item: &mut Attributes<'_>, key: &Key, value: Option<&Value>) {
    const KEY: u16 = 1;
    const DATA: u16 = 2;
    const USER_DATA: u16 = 6;
    const KEY_END: u16 = 10;
    let (first, last) = key_bytes(key);
    item.nest(KEY, |data| data.put(DATA_VALUE, first.as_slice()));
    if key.set().has_ranges() {
        item.nest(KEY_END, |data| data.put(DATA_VALUE, last.as_slice()));
    }
    match value {
        None | Some(Value::Member) => {}
        Some(Value::Named(service)) => item.put(USER_DATA, &comment_bytes(service)),
        Some(value @ Value::Class(_, service)) => {
            item.nest(DATA, |data| data.put(DATA_VALUE, &data_bytes(value)));
            item.put(USER_DATA, &comment_bytes(service));
        }
        Some(Value::Goto(chain)) => {
            item.nest(DATA, |data| verdict_code(data, GOTO, Some(&chain.to_string())));
        }
        Some(value @ Value::Target(_)) => {
            item.nest(DATA, |data| data.put(DATA_VALUE, &data_bytes(value)));
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
