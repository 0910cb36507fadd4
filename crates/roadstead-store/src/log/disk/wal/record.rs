//! A group of writes as one record of the write-ahead log. Pure. The format is described in
//! docs/store-format.md.

use aws_lc_rs::digest::{Context, SHA256};
use bytes::{Buf, BufMut, Bytes};

use crate::entry::{Key, Revision};
use crate::log::disk::contents::{Change, Redo};

/// Records begin at multiples of this, so that what comes after a damaged one can be found.
pub(super) const STEP: usize = 8;
/// Marker, length and checksum.
const HEAD: usize = 8 + 8 + SUM;
pub(super) const SUM: usize = 16;
/// Stands for the length of a value that was deleted.
const DELETED: u64 = u64::MAX;

/// What makes the records of one use of a file different from all others. Nobody who writes objects
/// knows it, so nobody can write an object that is taken for a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Salt(pub(super) [u8; 16]);

impl Salt {
    pub(super) fn new() -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut salt = [0; 16];
        aws_lc_rs::rand::fill(&mut salt)?;
        Ok(Self(salt))
    }

    /// How a record begins.
    fn marker(&self) -> &[u8] {
        &self.0[..8]
    }

    pub(super) fn checksum(&self, bytes: &[u8]) -> [u8; SUM] {
        let mut context = Context::new(&SHA256);
        context.update(&self.0);
        context.update(bytes);
        context.finish().as_ref()[..SUM].try_into().expect("a digest is longer")
    }
}

/// Appends a record.
pub(super) fn encode(out: &mut Vec<u8>, salt: &Salt, group: &Redo) {
    let start = out.len();
    out.put_bytes(0, HEAD);
    let first = group.changes.first().map_or(Revision(0), |change| change.revision);
    let compact = group.compact.unwrap_or(Revision(0));
    for number in [first.0, compact.0, group.changes.len() as u64] {
        out.put_u64_le(number);
    }
    for change in &group.changes {
        let (bucket, path) = (change.key.bucket.as_bytes(), change.key.path.as_bytes());
        let length = change.value.as_ref().map_or(DELETED, |value| value.len() as u64);
        for number in [change.at, bucket.len() as u64, path.len() as u64, length] {
            out.put_u64_le(number);
        }
        out.put_slice(bucket);
        out.put_slice(path);
        out.put_slice(change.value.as_deref().unwrap_or_default());
    }
    let length = out.len() - start - HEAD;
    let sum = salt.checksum(&out[start + HEAD..]);
    let mut head = &mut out[start..];
    head.put_slice(salt.marker());
    head.put_u64_le(length as u64);
    head.put_slice(&sum);
    out.resize(out.len().next_multiple_of(STEP), 0);
}

/// A whole record, and where it is.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) group: Redo,
    pub(super) end: usize,
}

/// What a file holds from where records begin.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// All that are whole, wherever they are.
    pub(super) records: Vec<Record>,
    /// Where one begins after the last of them that is not whole.
    pub(super) remains: Option<usize>,
}

impl Scan {
    /// Where the last whole record ends.
    pub(super) fn end(&self) -> usize {
        self.records.last().map_or(0, |record| record.end)
    }
}

/// Reads all records.
pub(super) fn scan(file: &Bytes, salt: &Salt) -> Scan {
    let (mut scan, mut at) = (Scan::default(), 0);
    while at < file.len() {
        // Most of a file that was used before is not ours: a look at the marker must be cheap.
        let begins = file[at..].starts_with(salt.marker());
        match begins.then(|| decode(file.slice(at..), salt)).flatten() {
            Some((group, length)) => {
                at += length;
                scan.records.push(Record { group, end: at });
                scan.remains = None;
            }
            None => {
                scan.remains = scan.remains.or(begins.then_some(at));
                at += STEP;
            }
        }
    }
    scan
}

/// The record that begins with a marker, and its length.
fn decode(bytes: Bytes, salt: &Salt) -> Option<(Redo, usize)> {
    if bytes.len() < HEAD {
        return None;
    }
    let mut rest = bytes.slice(8..);
    let length = usize::try_from(rest.get_u64_le()).ok()?;
    let sum = rest.split_to(SUM);
    if length > rest.len() {
        return None;
    }
    rest.truncate(length);
    if salt.checksum(&rest)[..] != sum[..] {
        return None;
    }
    Some((payload(rest)?, (HEAD + length).next_multiple_of(STEP)))
}

fn payload(mut rest: Bytes) -> Option<Redo> {
    let (first, compact, count) =
        (rest.try_get_u64_le().ok()?, rest.try_get_u64_le().ok()?, rest.try_get_u64_le().ok()?);
    if first.checked_add(count).is_none_or(|end| end > Revision::LARGEST.0) {
        return None;
    }
    let mut changes = Vec::new();
    for number in 0..count {
        let mut number_of = || rest.try_get_u64_le().ok();
        let (at, bucket, path, length) = (number_of()?, number_of()?, number_of()?, number_of()?);
        let (bucket, path) = (text(&mut rest, bucket)?, text(&mut rest, path)?);
        let value = match length {
            DELETED => None,
            // A copy: the others in the file need not stay in memory because of it.
            length => Some(Bytes::copy_from_slice(&take(&mut rest, length)?)),
        };
        let revision = Revision(first + number);
        changes.push(Change { revision, at, key: Key::new(bucket, path), value });
    }
    let compact = (compact > 0).then_some(Revision(compact));
    rest.is_empty().then_some(Redo { changes, compact })
}

fn take(rest: &mut Bytes, length: u64) -> Option<Bytes> {
    let length = usize::try_from(length).ok().filter(|length| *length <= rest.len())?;
    Some(rest.split_to(length))
}

fn text(rest: &mut Bytes, length: u64) -> Option<String> {
    String::from_utf8(take(rest, length)?.into()).ok()
}
