//! Checksums of what is in the tables. Pure. The formats are described in docs/store-format.md.
//!
//! Each row has one of its own, which tells where damage is. The sum of those of all objects tells
//! that none is missing: it is kept up to date by adding and subtracting.

use aws_lc_rs::digest::{Context, SHA256};

use crate::entry::{Key, Revision};

/// A checksum of some parts, in which none can take from its neighbour.
fn checksum(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_le_bytes());
        context.update(part);
    }
    context.finish().as_ref().try_into().expect("a digest of this sort has 32 bytes")
}

/// The first eight bytes of a checksum.
pub(crate) fn short(parts: &[&[u8]]) -> u64 {
    let [first, ..] = *checksum(parts).as_chunks::<8>().0 else {
        unreachable!("32 bytes are four times eight");
    };
    u64::from_le_bytes(first)
}

/// Of an object.
pub(crate) fn object(key: &Key, revision: Revision, value: &[u8]) -> u64 {
    short(&[key.bucket.as_bytes(), key.path.as_bytes(), &revision.0.to_le_bytes(), value])
}

/// Of a row that undoes a write: of its key, and what was there before.
pub(crate) fn undo(revision: Revision, at: u64, key: &Key, before: Option<u64>) -> u64 {
    let numbers = [revision.0, at, u64::from(before.is_some()), before.unwrap_or(0)];
    let numbers = numbers.map(u64::to_le_bytes);
    short(&[b"undo", key.bucket.as_bytes(), key.path.as_bytes(), numbers.as_flattened()])
}

/// Of some numbers under a name.
pub(crate) fn numbers(name: &str, numbers: &[u64]) -> u64 {
    let bytes: Vec<_> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    short(&[name.as_bytes(), &bytes])
}
