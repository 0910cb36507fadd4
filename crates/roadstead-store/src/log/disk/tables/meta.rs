//! What the tables say of themselves: one row for each number, and a checksum of them all.

use std::io;

use redb::{ReadTransaction, StorageError, TableDefinition, TableError, WriteTransaction};

use super::FORMAT;
use crate::entry::Revision;
use crate::log::disk::sums;

/// Numbers by their names. This table stays as it is in all formats to come.
pub(super) const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

/// The numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    /// Chosen by chance when the file was made: which log belongs to it.
    pub(super) number: u64,
    /// The log of undone writes begins after this revision,
    pub(super) compacted: Revision,
    /// and ends with this one, the newest write.
    pub(super) revision: Revision,
    /// How many objects there are,
    pub(super) objects: u64,
    /// and the sum of their checksums, modulo 2⁶⁴.
    pub(super) sum: u64,
    /// The newest use of a file of the write-ahead log that they know of; 0: they have had none.
    pub(super) generation: u64,
}

/// What was read.
pub(super) struct Read {
    pub(super) format: u64,
    pub(super) meta: Meta,
    /// Whether it fits its checksum.
    pub(super) whole: bool,
}

impl Meta {
    /// An object is there now.
    pub(super) fn add(&mut self, sum: u64) {
        self.objects = self.objects.wrapping_add(1);
        self.sum = self.sum.wrapping_add(sum);
    }

    /// An object is there no more.
    pub(super) fn remove(&mut self, sum: u64) {
        self.objects = self.objects.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(sum);
    }

    /// What it says of all objects together.
    pub(super) fn tally(&self) -> (u64, u64) {
        (self.objects, self.sum)
    }

    fn rows(&self) -> [(&'static str, u64); 6] {
        [
            ("number", self.number),
            ("compacted", self.compacted.0),
            ("revision", self.revision.0),
            ("objects", self.objects),
            ("sum", self.sum),
            ("using", self.generation),
        ]
    }

    fn checksum(&self) -> u64 {
        sums::numbers("meta", &self.rows().map(|(_, number)| number))
    }

    pub(super) fn write(&self, transaction: &WriteTransaction) -> Result<(), redb::Error> {
        let mut table = transaction.open_table(META)?;
        for (name, number) in self.rows() {
            table.insert(name, number)?;
        }
        table.insert("format", FORMAT)?;
        table.insert("checksum", self.checksum())?;
        Ok(())
    }

    pub(super) fn read(transaction: &ReadTransaction) -> Result<Read, redb::Error> {
        let table = match transaction.open_table(META) {
            // A database of somebody else's.
            Err(TableError::TableDoesNotExist(_)) => {
                return Err(redb::Error::Corrupted("it holds something else".into()));
            }
            table => table?,
        };
        let number = |name| Ok::<_, StorageError>(table.get(name)?.map_or(0, |row| row.value()));
        let meta = Self {
            number: number("number")?,
            compacted: Revision(number("compacted")?),
            revision: Revision(number("revision")?),
            objects: number("objects")?,
            sum: number("sum")?,
            generation: number("using")?,
        };
        let whole = number("checksum")? == meta.checksum();
        Ok(Read { format: number("format")?, meta, whole })
    }
}

pub(super) fn some_number() -> Result<u64, redb::Error> {
    let mut bytes = [0; 8];
    let filled = aws_lc_rs::rand::fill(&mut bytes);
    filled.map_err(|_| redb::Error::Io(io::Error::other("no random numbers")))?;
    // Nought stands for none.
    Ok(u64::from_le_bytes(bytes).max(1))
}
