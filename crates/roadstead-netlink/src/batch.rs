//! Messages of nftables that take effect together.
//!
//! The kernel takes a batch as a whole or not at all, provided it arrives in a single send. So a
//! batch is one growing buffer.

use crate::attributes::Attributes;
use crate::{ACKNOWLEDGE, NFTABLES, REQUEST, netfilter};

const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const FLAGS_OFFSET: usize = 6;

/// Messages that take effect together.
#[derive(Debug)]
pub struct Batch {
    pub(crate) bytes: Vec<u8>,
    family: u8,
    sequence: u32,
    last: usize,
}

impl Batch {
    /// Starts a batch for tables of an address family (`AF_INET` or `AF_INET6`).
    pub fn new(family: u8) -> Self {
        let mut batch = Self { bytes: Vec::with_capacity(4096), family, sequence: 0, last: 0 };
        batch.control(BATCH_BEGIN);
        batch
    }

    /// Appends an nftables message; `fill` writes its attributes.
    pub fn message(&mut self, kind: u8, flags: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let family = self.family;
        self.begin(netfilter(NFTABLES, kind), flags, [family, 0, 0, 0]);
        fill(&mut Attributes::new(&mut self.bytes));
        self.end();
    }

    /// Completes the batch. Only its last message asks for an answer: one per message would
    /// overflow our receive buffer. Refusals are answered in any case.
    pub(crate) fn finish(&mut self) {
        let flags = &mut self.bytes[self.last + FLAGS_OFFSET..][..2];
        let asked = u16::from_ne_bytes([flags[0], flags[1]]) | ACKNOWLEDGE;
        flags.copy_from_slice(&asked.to_ne_bytes());
        self.control(BATCH_END);
    }

    fn control(&mut self, kind: u16) {
        let last = self.last;
        self.begin(kind, 0, [0, 0, 0, NFTABLES]);
        self.end();
        self.last = last;
    }

    fn begin(&mut self, kind: u16, flags: u16, header: [u8; 4]) {
        self.last = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((REQUEST | flags).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend(header);
        self.sequence += 1;
    }

    fn end(&mut self) {
        let length = u32::try_from(self.bytes.len() - self.last).expect("messages are cut in time");
        self.bytes[self.last..self.last + 4].copy_from_slice(&length.to_ne_bytes());
    }
}
