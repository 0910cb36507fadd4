//! One file of the write-ahead log: a header, and records one behind the other.
//!
//! A file is used again and again. Its blocks stay where they are, so that a sync has nothing to
//! write but the record; a new salt in the header makes old records void.

use std::io;

use bytes::{Buf, BufMut, Bytes};
use redb::StorageBackend;

use super::record::{self, STEP, SUM, Salt};
use crate::entry::Revision;
use crate::journal::Group;

/// The newest format that we know.
const FORMAT: u64 = 1;
const MAGIC: &[u8] = b"roadstead ahead\n";
/// Where records begin.
const START: usize = 4096;
/// A file grows by so much at least, written with zeros, so that few syncs have to note a new size.
const GROWTH: u64 = 256 << 10;

/// An open file, and where it goes on.
#[derive(Debug)]
pub(super) struct LogFile {
    backend: Box<dyn StorageBackend>,
    store: u64,
    salt: Salt,
    /// Whether the header has yet to be written, in one step with the first record.
    fresh: bool,
    end: u64,
    length: u64,
    /// The revision of the newest write in it.
    last: Revision,
}

impl LogFile {
    /// Reads a file of the store with this number. What belongs to another store, or to nobody, is
    /// as good as nothing.
    pub(super) fn open(
        backend: Box<dyn StorageBackend>,
        store: u64,
    ) -> io::Result<(Self, Vec<Group>)> {
        let length = backend.len()?;
        let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        backend.read(0, &mut bytes)?;
        let bytes = Bytes::from(bytes);
        let salt = read_header(&bytes, store)?;
        let (groups, end) = match &salt {
            Some(salt) => record::decode_all(&bytes.slice(START..), salt),
            None => (Vec::new(), 0),
        };
        let last = groups.last().map_or(Revision(0), Group::last);
        let (fresh, salt) = (salt.is_none(), salt.unwrap_or_default());
        let mut file =
            Self { backend, store, salt, fresh, end: (START + end) as u64, length, last };
        match fresh {
            true => file.begin()?,
            false => file.bury(bytes.get(START + end..START + end + STEP))?,
        }
        Ok((file, groups))
    }

    /// Makes sure that a record which is there in part, at the end, does not become whole when a
    /// later one is written over it in part: a sector may be the same in both.
    fn bury(&self, remains: Option<&[u8]>) -> io::Result<()> {
        match remains {
            Some(remains) if remains.iter().any(|byte| *byte != 0) => {
                self.backend.write(self.end, &[0; STEP])?;
                self.backend.sync_data()
            }
            _ => Ok(()),
        }
    }

    /// Forgets all that is in it.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        self.salt = Salt::new().map_err(|_| io::Error::other("no random numbers"))?;
        (self.fresh, self.end) = (true, START as u64);
        Ok(())
    }

    /// Returns when the group is durable.
    pub(super) fn append(&mut self, buffer: &mut Vec<u8>, group: &Group) -> io::Result<()> {
        buffer.clear();
        let mut at = self.end;
        if self.fresh {
            self.header(buffer);
            at = 0;
        }
        record::encode(buffer, &self.salt, group);
        let end = at + buffer.len() as u64;
        if end > self.length {
            let length = end.next_multiple_of(GROWTH);
            let zeros = vec![0; usize::try_from(length - self.length).map_err(io::Error::other)?];
            self.backend.write(self.length, &zeros)?;
            self.length = length;
        }
        self.backend.write(at, buffer)?;
        self.backend.sync_data()?;
        (self.fresh, self.end, self.last) = (false, end, group.last());
        Ok(())
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.backend.sync_data()
    }

    pub(super) fn last(&self) -> Revision {
        self.last
    }

    /// How much of the file is used.
    pub(super) fn size(&self) -> u64 {
        self.end
    }

    fn header(&self, out: &mut Vec<u8>) {
        out.put_slice(MAGIC);
        out.put_u64_le(FORMAT);
        out.put_u64_le(self.store);
        out.put_slice(&self.salt.0);
        let sum = self.salt.checksum(out);
        out.put_slice(&sum);
        out.resize(START, 0);
    }
}

fn read_header(file: &Bytes, store: u64) -> io::Result<Option<Salt>> {
    if file.len() < START || !file.starts_with(MAGIC) {
        return Ok(None);
    }
    let mut rest = file.slice(MAGIC.len()..);
    let format = rest.get_u64_le();
    let own = rest.get_u64_le() == store;
    let salt = Salt(rest.split_to(16)[..].try_into().expect("these are sixteen bytes"));
    let whole = salt.checksum(&file[..MAGIC.len() + 32])[..] == rest[..SUM];
    if own && whole && format > FORMAT {
        let why = format!("its write-ahead log has format {format}, we know up to {FORMAT}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok((own && whole).then_some(salt))
}
