//! Tables of nftables as messages: what is in a table is up to whoever has it.
//!
//! The numbers are those of `linux/netfilter/nf_tables.h`; the data types are those of nft, which
//! the kernel only stores, so that `nft list` can print keys in a readable form.

pub mod expressions;
pub mod others;
pub mod readback;

use self::expressions::LIST_ITEM;
use crate::attributes::Attributes;
use crate::batch::Batch;
use crate::{APPEND, CREATE};

const NEW_TABLE: u8 = 0;
const DELETE_TABLE: u8 = 2;
const NEW_CHAIN: u8 = 3;
const DELETE_CHAIN: u8 = 5;
const NEW_RULE: u8 = 6;
const DELETE_RULE: u8 = 8;
/// Makes a set.
pub const NEW_SET: u8 = 9;
const DELETE_SET: u8 = 11;
/// Adds elements to a set.
pub const NEW_ELEMENTS: u8 = 12;
/// Takes elements out of a set.
pub const DELETE_ELEMENTS: u8 = 14;

/// Every kind of message names the table first.
pub(crate) const IN_TABLE: u16 = 1;
/// A nest holds less than 64 KiB; we stop well before.
const NEST_LIMIT: usize = 60_000;

/// Where and when a base chain runs.
#[derive(Clone, Copy, Debug)]
pub struct BaseChain {
    /// `filter` or `nat`.
    pub kind: &'static str,
    /// The number of the place in a packet's path.
    pub hook: u32,
    /// Lower runs earlier.
    pub priority: i32,
}

/// What a plain set or map is made of: types by nft's numbers, lengths in bytes.
#[derive(Clone, Copy, Debug)]
pub struct SetShape {
    /// Of keys.
    pub key: (u32, u32),
    /// Of what is under them, if it is a map.
    pub data: Option<(u32, u32)>,
}

/// The type and the length of verdicts in maps.
pub const VERDICT_DATA: (u32, u32) = (0xffff_ff00, 16);

/// The type number and the length of a concatenation: six bits per type, whole words per field.
pub fn concatenation(fields: impl IntoIterator<Item = (u32, u32)>) -> (u32, u32) {
    let join = |(types, length), (number, bytes): (u32, u32)| {
        ((types << 6) | number, length + bytes.next_multiple_of(4))
    };
    fields.into_iter().fold((0, 0), join)
}

/// Makes or deletes a table in a batch.
#[derive(Debug)]
pub struct TableBatch {
    batch: Batch,
    table: &'static str,
    next_set: u32,
}

impl TableBatch {
    /// Starts a batch about a table of an address family.
    pub fn new(family: u8, table: &'static str) -> Self {
        Self { batch: Batch::new(family), table, next_set: 0 }
    }

    /// Makes the table, unless it is there.
    pub fn make_table(&mut self) {
        self.about(NEW_TABLE, CREATE, |_| {});
    }

    /// No table, whether there was one or not: deleting one that is not there would be an error.
    pub fn remove_table(&mut self) {
        self.make_table();
        self.about(DELETE_TABLE, 0, |_| {});
    }

    /// Makes a chain.
    pub fn chain(&mut self, name: &str, base: Option<BaseChain>) {
        const NAME: u16 = 3;
        const HOOK: u16 = 4;
        const POLICY: u16 = 5;
        const KIND: u16 = 7;
        const HOOK_NUMBER: u16 = 1;
        const HOOK_PRIORITY: u16 = 2;
        const ACCEPT: u32 = 1;
        self.about(NEW_CHAIN, CREATE, |message| {
            message.text(NAME, name);
            if let Some(base) = base {
                message.nest(HOOK, |hook| {
                    hook.number(HOOK_NUMBER, base.hook);
                    hook.put(HOOK_PRIORITY, &base.priority.to_be_bytes());
                });
                message.number(POLICY, ACCEPT);
                message.text(KIND, base.kind);
            }
        });
    }

    /// Appends a rule to a chain, with a note by which we know it again.
    pub fn rule(&mut self, chain: &str, note: &[u8], fill: impl FnOnce(&mut Attributes<'_>)) {
        const CHAIN: u16 = 2;
        const EXPRESSIONS: u16 = 4;
        const USER_DATA: u16 = 7;
        self.about(NEW_RULE, CREATE | APPEND, |message| {
            message.text(CHAIN, chain);
            message.nest(EXPRESSIONS, fill);
            message.put(USER_DATA, note);
        });
    }

    /// Deletes all rules of a chain.
    pub fn clear_chain(&mut self, chain: &str) {
        const CHAIN: u16 = 2;
        self.about(DELETE_RULE, 0, |message| message.text(CHAIN, chain));
    }

    /// Deletes a chain, to which nothing leads any more.
    pub fn delete_chain(&mut self, name: &str) {
        const NAME: u16 = 3;
        self.about(DELETE_CHAIN, 0, |message| message.text(NAME, name));
    }

    /// Makes a set or a map.
    pub fn set(&mut self, name: &str, shape: SetShape) {
        const NAME: u16 = 2;
        const FLAGS: u16 = 3;
        const KEY_TYPE: u16 = 4;
        const KEY_LENGTH: u16 = 5;
        const DATA_TYPE: u16 = 6;
        const DATA_LENGTH: u16 = 7;
        const ID: u16 = 10;
        const FLAG_MAP: u32 = 0x8;
        self.next_set += 1;
        let id = self.next_set;
        self.about(NEW_SET, CREATE, |message| {
            message.text(NAME, name);
            message.number(FLAGS, if shape.data.is_some() { FLAG_MAP } else { 0 });
            message.number(KEY_TYPE, shape.key.0);
            message.number(KEY_LENGTH, shape.key.1);
            if let Some((kind, length)) = shape.data {
                message.number(DATA_TYPE, kind);
                message.number(DATA_LENGTH, length);
            }
            message.number(ID, id);
        });
    }

    /// Deletes a set that nothing reads any more.
    pub fn delete_set(&mut self, name: &str) {
        const NAME: u16 = 2;
        self.about(DELETE_SET, 0, |message| message.text(NAME, name));
    }

    /// Adds or deletes ([`NEW_ELEMENTS`], [`DELETE_ELEMENTS`]) elements of a set, in as few messages
    /// as their size allows; `fill` writes the attributes of one.
    pub fn elements<T>(
        &mut self,
        kind: u8,
        set: &str,
        elements: impl Iterator<Item = T>,
        fill: impl Fn(&mut Attributes<'_>, T),
    ) {
        const SET: u16 = 2;
        const ELEMENTS: u16 = 3;
        let flags = if kind == NEW_ELEMENTS { CREATE } else { 0 };
        let mut elements = elements.peekable();
        while elements.peek().is_some() {
            self.about(kind, flags, |message| {
                message.text(SET, set);
                message.nest(ELEMENTS, |list| {
                    let start = list.written();
                    while list.written() - start < NEST_LIMIT
                        && let Some(element) = elements.next()
                    {
                        list.nest(LIST_ITEM, |item| fill(item, element));
                    }
                });
            });
        }
    }

    /// The messages, to be sent.
    pub fn into_batch(self) -> Batch {
        self.batch
    }

    fn about(&mut self, kind: u8, flags: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let table = self.table;
        self.batch.message(kind, flags, |message| {
            message.text(IN_TABLE, table);
            fill(message);
        });
    }

    /// Appends a message of which only its sender knows what is in it, besides the table.
    pub fn message(&mut self, kind: u8, flags: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        self.about(kind, flags, fill);
    }
}
