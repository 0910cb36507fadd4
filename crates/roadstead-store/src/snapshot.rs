//! The whole present in a file of its own, to be kept elsewhere and restored from. The format is
//! described in docs/store-format.md.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256, SHA256_OUTPUT_LEN, digest};
use bytes::{BufMut, Bytes, BytesMut};
use jiff::Timestamp;

use crate::entry::{Entry, Key, Revision};
use crate::error::{OpenError, SnapshotError};
use crate::kv::Store;
use crate::log::disk::contents::Contents;
use crate::log::disk::open;
use crate::log::disk::tables::Tables;
use crate::log::disk::wal;

const MAGIC: &[u8] = b"roadstead snapshot\n";
/// The newest format that we know.
const FORMAT: u64 = 1;
/// How far ahead of the snapshot a restored store begins: further than anybody can have written
/// since, so that no revision that a client may have seen is used for something else.
pub(crate) const LEAP: u64 = 1_000_000_000;
const CHUNK: usize = 64 << 10;

/// What a snapshot holds.
#[derive(Debug)]
pub struct Saved {
    /// The revision at which all objects were true.
    pub revision: Revision,
    /// When it was made.
    pub taken: Timestamp,
    entries: Vec<Entry>,
}

impl Saved {
    /// How many objects it holds.
    pub fn objects(&self) -> usize {
        self.entries.len()
    }
}

/// A snapshot of the store, piece by piece. Writers do not wait for it.
pub fn write(store: &Store) -> impl Iterator<Item = Bytes> + Send + use<> {
    let snapshot = store.all();
    let mut header = BytesMut::from(MAGIC);
    let taken = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or_default();
    let count = snapshot.entries.len() as u64;
    for number in [FORMAT, snapshot.revision.0, taken, count] {
        header.put_u64_le(number);
    }
    let entries = snapshot.entries.into_iter();
    Writer { next: header, entries, checksum: Some(Context::new(&SHA256)) }
}

struct Writer {
    next: BytesMut,
    entries: std::vec::IntoIter<Arc<Entry>>,
    /// `None` when it has been written.
    checksum: Option<Context>,
}

impl Iterator for Writer {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let checksum = self.checksum.as_mut()?;
        while self.next.len() < CHUNK {
            let Some(entry) = self.entries.next() else {
                checksum.update(&self.next);
                let sum = self.checksum.take()?.finish();
                self.next.put_slice(sum.as_ref());
                return Some(self.next.split().freeze());
            };
            self.next.put_u64_le(entry.revision.0);
            for part in [entry.key.bucket.as_bytes(), entry.key.path.as_bytes(), &entry.value] {
                self.next.put_u64_le(part.len() as u64);
                self.next.put_slice(part);
            }
        }
        checksum.update(&self.next);
        Some(self.next.split().freeze())
    }
}

/// Reads a snapshot and checks everything about it.
pub fn read(file: &Bytes) -> Result<Saved, SnapshotError> {
    if !file.starts_with(MAGIC) {
        return Err(SnapshotError::Foreign);
    }
    let mut rest = Reader(file.slice(MAGIC.len()..));
    let found = rest.number()?;
    if found > FORMAT {
        return Err(SnapshotError::Newer { found, known: FORMAT });
    }
    let end = rest.0.len().checked_sub(SHA256_OUTPUT_LEN).ok_or(SnapshotError::Damaged)?;
    let sum = rest.0.split_off(end);
    if digest(&SHA256, &file[..file.len() - SHA256_OUTPUT_LEN]).as_ref() != sum {
        return Err(SnapshotError::Damaged);
    }
    let (revision, taken, count) = (Revision(rest.number()?), rest.number()?, rest.number()?);
    let taken = i64::try_from(taken).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    let taken = taken.ok_or(SnapshotError::Damaged)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let revision = Revision(rest.number()?);
        let key = Key::new(rest.text()?, rest.text()?);
        entries.push(Entry { key, value: rest.bytes()?, revision });
    }
    // Nobody counts so far: it is written by somebody who wants us to count beyond the end.
    let fits = revision <= Revision::LARGEST && entries.iter().all(|e| e.revision <= revision);
    let ordered = entries.is_sorted_by(|one, two| one.key < two.key);
    match fits && ordered && rest.0.is_empty() {
        true => Ok(Saved { revision, taken, entries }),
        false => Err(SnapshotError::Damaged),
    }
}

struct Reader(Bytes);

impl Reader {
    fn number(&mut self) -> Result<u64, SnapshotError> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes[..].try_into().expect("these are eight bytes")))
    }

    fn bytes(&mut self) -> Result<Bytes, SnapshotError> {
        let length = self.number()?;
        self.take(usize::try_from(length).map_err(|_| SnapshotError::Damaged)?)
    }

    fn text(&mut self) -> Result<String, SnapshotError> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| SnapshotError::Damaged)
    }

    fn take(&mut self, length: usize) -> Result<Bytes, SnapshotError> {
        if length > self.0.len() {
            return Err(SnapshotError::Damaged);
        }
        Ok(self.0.split_to(length))
    }
}

/// Whether there is anything of a store at `path`.
pub fn is_store(path: &Path) -> bool {
    path.exists() || wal::paths(path).iter().any(|file| file.exists())
}

/// Moves all files of the store at `path`, which nobody may have open, into a directory beside them.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    open::set_aside(path)
}

/// Makes a store of a snapshot, in place of whatever is at `path`. Returns its revision.
///
/// It begins far ahead of the snapshot and without history: whoever remembers a revision from
/// before must read everything again, whether that was before or after the snapshot was made.
pub fn restore(saved: Saved, path: &Path) -> Result<Revision, OpenError> {
    let compacted = Revision(saved.revision.0 + LEAP);
    let contents = Contents { entries: saved.entries, compacted, log: Vec::new() };
    Tables::create(path, &contents)?;
    Ok(compacted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StoreError;
    use crate::kv::Options;
    use crate::transaction::Transaction;

    async fn store() -> Arc<Store> {
        let store = Store::memory();
        for number in 0..300 {
            let key = Key::new(["pods", "services"][number % 2], format!("default/{number}"));
            let value = Bytes::from(vec![b'x'; number * 10]);
            store.commit(Transaction::new().put(key, value)).await.unwrap();
        }
        store
    }

    fn text(store: &Store) -> Vec<String> {
        let entries = store.all().entries;
        let line = |e: &Arc<Entry>| format!("{}@{} {}", e.key, e.revision, e.value.len());
        entries.iter().map(line).collect()
    }

    #[tokio::test]
    async fn a_restored_store_holds_the_same_and_repeats_no_revision() {
        let store = store().await;
        let pieces: Vec<_> = write(&store).collect();
        assert!(pieces.len() > 3, "large snapshots come in pieces");
        let saved = read(&pieces.concat().into()).unwrap();
        assert_eq!((saved.revision, saved.objects()), (Revision(300), 300));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store/file.redb");
        let revision = restore(saved, &path).unwrap();
        let restored = Store::open(&path, Options::default()).unwrap();
        assert_eq!(text(&restored), text(&store));
        assert_eq!(restored.revision(), revision);
        for remembered in [300, 1000] {
            let resumed = restored.feed("pods", Revision(remembered));
            assert!(matches!(resumed, Err(StoreError::Compacted { .. })), "{remembered}");
        }
        let change = Transaction::new().put(Key::new("pods", "default/new"), Bytes::new());
        assert_eq!(restored.commit(change).await, Ok(Revision(revision.0 + 1)));
    }

    #[tokio::test]
    async fn a_damaged_snapshot_is_refused() {
        let store = store().await;
        let whole: Vec<u8> = write(&store).collect::<Vec<_>>().concat();
        let change = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            bytes
        };
        // Somebody who knows how to sum wants us to count beyond the end.
        let far = {
            let mut bytes = whole[..whole.len() - SHA256_OUTPUT_LEN].to_vec();
            bytes[MAGIC.len() + 8..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
            let sum = digest(&SHA256, &bytes);
            [&bytes[..], sum.as_ref()].concat()
        };
        let cases = [
            ("too far", far, "is damaged"),
            ("something else", b"hello".to_vec(), "this is not a snapshot"),
            ("a later format", change(MAGIC.len(), 9), "format 9, this version of roadstead"),
            ("one byte changed", change(whole.len() / 2, b'y'), "is damaged"),
            ("the end is missing", whole[..whole.len() - 1].to_vec(), "is damaged"),
            ("only the beginning", whole[..MAGIC.len() + 12].to_vec(), "is damaged"),
            ("too long", [&whole[..], &[0]].concat(), "is damaged"),
        ];
        for (name, bytes, want) in cases {
            let error = read(&bytes.into()).unwrap_err().to_string();
            assert!(error.contains(want), "{name}: {error}");
        }
    }
}
