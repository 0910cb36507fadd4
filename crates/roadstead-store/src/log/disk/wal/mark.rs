//! How far writes were acknowledged, and which file of the log is in use: kept apart from the log,
//! so that the loss of a part of the log can be told from a write that never was complete.
//!
//! The mark is written after each record has been synced, and is not synced itself: it is in the
//! hands of the kernel, which outlives us. A power cut may take the newest marks, never add one. So
//! what it says was acknowledged, was. It has two places, used in turn: one that is written while
//! the power goes leaves the other.

use std::io;

use bytes::{Buf, BufMut};
use redb::StorageBackend;

use crate::entry::Revision;
use crate::log::disk::sums;

const MAGIC: &[u8] = b"roadstead mark \n";
/// The newest format that we know.
const FORMAT: u64 = 1;
/// Where the second place begins.
const PLACE: u64 = 4096;
const LENGTH: usize = 16 + 7 * 8;

/// What is known of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The number of the use of a file that is written to; the file follows from it.
    pub(super) generation: u64,
    /// Whether that file is only just being made ready: nothing has been acknowledged from it.
    pub(super) rotating: bool,
    /// Everything up to and including this revision.
    pub(super) acknowledged: Revision,
}

/// The file of the mark.
#[derive(Debug)]
pub(super) struct MarkFile {
    backend: Box<dyn StorageBackend>,
    store: u64,
    sequence: u64,
    pub(super) mark: Mark,
}

impl MarkFile {
    /// Reads the mark of the store with this number; in words why there is none.
    pub(super) fn read(
        backend: Box<dyn StorageBackend>,
        store: u64,
    ) -> io::Result<Result<Self, &'static str>> {
        let length = backend.len()?;
        let mut found = Err("it is shorter than a mark");
        let mut newest = 0;
        for start in [0, PLACE] {
            if length < start + LENGTH as u64 {
                continue;
            }
            let mut bytes = [0; LENGTH];
            backend.read(start, &mut bytes)?;
            match decode(&bytes, store) {
                Ok((sequence, mark)) if sequence >= newest => {
                    (newest, found) = (sequence, Ok(mark));
                }
                Err(why) if found.is_err() => found = Err(why),
                _ => {}
            }
        }
        Ok(found.map(|mark| Self { backend, store, sequence: newest, mark }))
    }

    /// Makes the file anew, with both places synced.
    pub(super) fn create(
        backend: Box<dyn StorageBackend>,
        store: u64,
        mark: Mark,
    ) -> io::Result<Self> {
        let mut file = Self { backend, store, sequence: 0, mark };
        file.backend.write(0, &[0; 2 * PLACE as usize])?;
        file.note(mark)?;
        file.note(mark)?;
        file.sync()?;
        Ok(file)
    }

    /// Writes a mark beside the one before.
    pub(super) fn note(&mut self, mark: Mark) -> io::Result<()> {
        (self.sequence, self.mark) = (self.sequence + 1, mark);
        let bytes = self.encode();
        self.backend.write(self.sequence % 2 * PLACE, &bytes)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.backend.sync_data()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LENGTH);
        out.put_slice(MAGIC);
        let Mark { generation, rotating, acknowledged } = self.mark;
        for number in
            [FORMAT, self.store, self.sequence, generation, u64::from(rotating), acknowledged.0]
        {
            out.put_u64_le(number);
        }
        let sum = sums::short(&[&out]);
        out.put_u64_le(sum);
        out
    }
}

fn decode(bytes: &[u8; LENGTH], store: u64) -> Result<(u64, Mark), &'static str> {
    let mut rest = &bytes[MAGIC.len()..];
    let mut number = || rest.get_u64_le();
    let [format, owner, sequence, generation, rotating, acknowledged, sum] =
        [(); 7].map(|()| number());
    if !bytes.starts_with(MAGIC) || sums::short(&[&bytes[..LENGTH - 8]]) != sum {
        return Err("it does not fit its checksum");
    }
    if format > FORMAT {
        return Err("a later version of roadstead has written it");
    }
    if owner != store {
        return Err("it belongs to another store");
    }
    let acknowledged = Revision(acknowledged);
    Ok((sequence, Mark { generation, rotating: rotating != 0, acknowledged }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The same mark, but with another use.
    pub(in crate::log::disk::wal) fn another(bytes: &[u8], generation: u64) -> Vec<u8> {
        let store = u64::from_le_bytes(bytes[24..32].try_into().unwrap());
        let place = |at: usize| bytes[at..at + LENGTH].try_into().unwrap();
        let (sequence, mark) = decode(&place(0), store).unwrap();
        let backend = Box::new(redb::backends::InMemoryBackend::new());
        let file =
            MarkFile { backend, store, sequence: sequence + 5, mark: Mark { generation, ..mark } };
        [file.encode(), bytes[LENGTH..].to_vec()].concat()
    }
}
