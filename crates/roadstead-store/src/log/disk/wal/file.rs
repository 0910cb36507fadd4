//! One file of the write-ahead log: a header, and records one behind the other.
//!
//! A file is used again and again. Its blocks stay where they are, so that a sync has nothing to
//! write but the record; a new salt in the header makes old records void. The header is synced
//! before the first record is written.

use std::io;

use bytes::{Buf, BufMut, Bytes};
use redb::StorageBackend;

use super::record::{self, STEP, SUM, Salt, Scan};
use crate::entry::Revision;
use crate::log::disk::contents::Redo;

/// The newest format that we know.
const FORMAT: u64 = 2;
const MAGIC: &[u8] = b"roadstead ahead\n";
/// Where records begin.
pub(super) const START: usize = 4096;
/// A file grows by so much at least, written with zeros, so that few syncs have to note a new size.
const GROWTH: u64 = 256 << 10;

/// How a file begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header {
    /// The number of the store that it belongs to.
    store: u64,
    salt: Salt,
    /// Uses of both files are counted together: the larger one is the later one.
    pub(super) generation: u64,
    /// All writes up to and including this revision are in the tables or the other file.
    pub(super) since: Revision,
}

/// An open file, and where it goes on.
#[derive(Debug)]
pub(super) struct LogFile {
    backend: Box<dyn StorageBackend>,
    header: Header,
    end: u64,
    length: u64,
    /// The revision of the newest write in it.
    last: Revision,
}

/// What a file holds.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) backend: Box<dyn StorageBackend>,
    /// The header; in words why it is none of ours.
    pub(super) header: Result<Header, &'static str>,
    pub(super) scan: Scan,
    length: u64,
}

impl Reading {
    /// Reads a file of the store with this number.
    pub(super) fn new(backend: Box<dyn StorageBackend>, store: u64) -> io::Result<Self> {
        let length = backend.len()?;
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        backend.read(0, &mut bytes)?;
        let bytes = Bytes::from(bytes);
        let header = read_header(&bytes, store);
        let scan = match &header {
            Ok(header) => record::scan(&bytes.slice(START..), &header.salt),
            Err(_) => Scan::default(),
        };
        Ok(Self { backend, header, scan, length })
    }

    /// Whether it has been written by a version that knew neither marks nor uses.
    pub(super) fn is_old(&self) -> bool {
        self.header.as_ref().is_ok_and(|header| header.generation == 0)
    }

    /// Takes a file into use whose header may be anything: it will be written anew first.
    pub(super) fn unused(self, store: u64) -> LogFile {
        let header = Header { store, ..Header::default() };
        let (backend, length) = (self.backend, self.length);
        LogFile { backend, header, end: START as u64, length, last: Revision(0) }
    }

    /// Goes on behind the last whole record.
    pub(super) fn resume(self, header: Header) -> io::Result<LogFile> {
        let (backend, length) = (self.backend, self.length);
        let end = (START + self.scan.end()) as u64;
        let last = self.scan.records.last();
        let last = last.map_or(header.since, |record| record.group.last());
        let file = LogFile { backend, header, end, length, last };
        if let Some(remains) = self.scan.remains {
            file.bury((START + remains) as u64)?;
        }
        Ok(file)
    }
}

impl LogFile {
    /// Makes sure that a record which is there in part, at the end, does not become whole when a
    /// later one is written over it in part: a sector may be the same in both.
    fn bury(&self, remains: u64) -> io::Result<()> {
        self.backend.write(remains, &[0; STEP])?;
        self.backend.sync_data()
    }

    /// Forgets all that is in it. Returns when the new header is durable.
    pub(super) fn begin(&mut self, generation: u64, since: Revision) -> io::Result<()> {
        let salt = Salt::new().map_err(|_| io::Error::other("no random numbers"))?;
        self.header = Header { store: self.header.store, salt, generation, since };
        self.backend.write(0, &self.header.encode())?;
        self.backend.sync_data()?;
        (self.end, self.length) = (START as u64, self.length.max(START as u64));
        self.last = since;
        Ok(())
    }

    /// Returns when the group is durable.
    pub(super) fn append(&mut self, buffer: &mut Vec<u8>, group: &Redo) -> io::Result<()> {
        buffer.clear();
        record::encode(buffer, &self.header.salt, group);
        let end = self.end + buffer.len() as u64;
        if end > self.length {
            let length = end.next_multiple_of(GROWTH);
            let zeros = vec![0; usize::try_from(length - self.length).map_err(io::Error::other)?];
            self.backend.write(self.length, &zeros)?;
            self.length = length;
        }
        self.backend.write(self.end, buffer)?;
        self.backend.sync_data()?;
        (self.end, self.last) = (end, group.last());
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.backend.sync_data()
    }

    pub(super) fn last(&self) -> Revision {
        self.last
    }

    pub(super) fn generation(&self) -> u64 {
        self.header.generation
    }

    /// How much of the file is used.
    pub(super) fn size(&self) -> u64 {
        self.end
    }
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(START);
        out.put_slice(MAGIC);
        out.put_u64_le(FORMAT);
        out.put_u64_le(self.store);
        out.put_slice(&self.salt.0);
        out.put_u64_le(self.generation);
        out.put_u64_le(self.since.0);
        let sum = self.salt.checksum(&out);
        out.put_slice(&sum);
        out.resize(START, 0);
        out
    }
}

fn read_header(file: &Bytes, store: u64) -> Result<Header, &'static str> {
    if file.is_empty() {
        return Err("it is empty");
    }
    if file.len() < START || !file.starts_with(MAGIC) {
        return Err("it does not begin like a log");
    }
    let mut rest = file.slice(MAGIC.len()..);
    let format = rest.get_u64_le();
    let owner = rest.get_u64_le();
    let salt = Salt(rest.split_to(16)[..].try_into().expect("these are sixteen bytes"));
    let (generation, since) = match format {
        // It had neither.
        1 => (0, 0),
        _ => (rest.get_u64_le(), rest.get_u64_le()),
    };
    let sum = file.len() - rest.len();
    if salt.checksum(&file[..sum])[..] != rest[..SUM] {
        return Err("its header does not fit its checksum");
    }
    if format > FORMAT {
        return Err("a later version of roadstead has written it");
    }
    if owner != store {
        return Err("it belongs to another store");
    }
    Ok(Header { store, salt, generation, since: Revision(since) })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A log as earlier versions wrote it.
    pub(in crate::log::disk::wal) fn old_log(store: u64, groups: &[Redo]) -> Vec<u8> {
        let salt = Salt([3; 16]);
        let mut out = MAGIC.to_vec();
        out.put_u64_le(1);
        out.put_u64_le(store);
        out.put_slice(&salt.0);
        let sum = salt.checksum(&out);
        out.put_slice(&sum);
        out.resize(START, 0);
        groups.iter().for_each(|group| record::encode(&mut out, &salt, group));
        out.resize(out.len() + 5000, 0);
        out
    }
}
