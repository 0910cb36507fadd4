//! Reads all tables, and checks everything that is in them.

use std::path::Path;

use bytes::Bytes;
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError,
    WriteTransaction,
};

use super::meta::{Meta, some_number};
use super::{FORMAT, Found, LOG, OBJECTS};
use crate::damage::Damage;
use crate::entry::{Entry, Key, Revision};
use crate::log::disk::contents::{Contents, Undo};
use crate::log::disk::scrub::Page;
use crate::log::disk::sums;

/// The tables of formats 1 and 2, without checksums.
const OLD_OBJECTS: TableDefinition<(&str, &str), (u64, &[u8])> = TableDefinition::new("objects");
const OLD_LOG: TableDefinition<u64, (u64, &str, &str, u64, &[u8])> = TableDefinition::new("log");

/// The format is one that we do not know.
pub(super) struct Newer(pub(super) u64);

/// Reads everything. What redb itself cannot read is an error.
pub(super) fn read(
    database: &Database,
    path: &Path,
) -> Result<Result<(Meta, Found), Newer>, redb::Error> {
    let transaction = database.begin_read()?;
    let read = Meta::read(&transaction)?;
    let mut meta = read.meta;
    if read.format > FORMAT {
        return Ok(Err(Newer(read.format)));
    }
    if read.format < FORMAT {
        let contents = read_old(&transaction, meta.compacted)?;
        // Format 1 had no log before it, and no number.
        meta.number = if meta.number == 0 { some_number()? } else { meta.number };
        let (revision, damage) = (contents.revision(), Vec::new());
        let found = Found { contents, revision, generation: 0, old: true, damage };
        return Ok(Ok((meta, found)));
    }
    let mut reader = Reader { path, meta, contents: Contents::default(), damage: Vec::new() };
    if !read.whole {
        reader.damaged("table meta", "its numbers do not fit their checksum");
    }
    reader.contents.compacted = meta.compacted;
    reader.objects(&transaction)?;
    reader.log(&transaction)?;
    let Reader { contents, damage, .. } = reader;
    let (revision, generation) = (meta.revision, meta.generation);
    Ok(Ok((meta, Found { contents, revision, generation, old: false, damage })))
}

/// Checks some objects that come after a key, or the first ones.
pub(super) fn check_page(
    transaction: &ReadTransaction,
    after: Option<&Key>,
    limit: usize,
    path: &Path,
) -> Result<Page, redb::Error> {
    let begin = after.map_or(("", ""), |key| (&*key.bucket, &*key.path));
    let mut page = Page::default();
    let objects = transaction.open_table(OBJECTS)?;
    // The first of a range that goes on is the last that was seen.
    let again = usize::from(after.is_some());
    for row in objects.range(begin..)?.take(limit + again) {
        let (key, value) = row?;
        let ((bucket, name), (revision, sum, value)) = (key.value(), value.value());
        let (key, revision) = (Key::new(bucket, name), Revision(revision));
        if after == Some(&key) {
            continue;
        }
        if sums::object(&key, revision, value) != sum {
            let place = format!("{key} at revision {revision}");
            page.damage.push(Damage::new(path, place, UNFIT));
        }
        page.rows += 1;
        page.last = Some(key);
    }
    page.last = page.last.filter(|_| page.rows >= limit);
    Ok(page)
}

const UNFIT: &str = "the object does not fit its checksum";

struct Reader<'a> {
    path: &'a Path,
    meta: Meta,
    contents: Contents,
    damage: Vec<Damage>,
}

impl Reader<'_> {
    fn damaged(&mut self, place: impl Into<String>, what: impl Into<String>) {
        self.damage.push(Damage::new(self.path, place, what));
    }

    fn objects(&mut self, transaction: &ReadTransaction) -> Result<(), redb::Error> {
        let mut tally = Meta::default();
        for row in transaction.open_table(OBJECTS)?.iter()? {
            let (key, value) = row?;
            let ((bucket, path), (revision, sum, value)) = (key.value(), value.value());
            let (key, revision) = (Key::new(bucket, path), Revision(revision));
            tally.add(sum);
            if sums::object(&key, revision, value) != sum {
                self.damaged(format!("{key} at revision {revision}"), UNFIT);
                continue;
            }
            let value = Bytes::copy_from_slice(value);
            self.contents.entries.push(Entry { key, value, revision });
        }
        let ((found, sum), (expected, expected_sum)) = (tally.tally(), self.meta.tally());
        if found != expected {
            let what = format!("there are {found} objects, there should be {expected}");
            self.damaged("table objects", what);
        } else if sum != expected_sum && self.damage.is_empty() {
            self.damaged("table objects", "objects are not those that were written last");
        }
        Ok(())
    }

    fn log(&mut self, transaction: &ReadTransaction) -> Result<(), redb::Error> {
        let mut next = self.contents.compacted.0;
        for row in transaction.open_table(LOG)?.iter()? {
            let (revision, row) = row?;
            let revision = Revision(revision.value());
            let (at, bucket, path, sum, before, value) = row.value();
            let key = Key::new(bucket, path);
            let before = (before > 0).then(|| (Revision(before), Bytes::copy_from_slice(value)));
            let known = before.as_ref().map(|(r, value)| sums::object(&key, *r, value));
            next = next.wrapping_add(1);
            if revision.0 != next {
                self.damaged("table log", format!("the history lacks revision {next}"));
                next = revision.0;
            }
            if sums::undo(revision, at, &key, known) != sum {
                let what = "the history of this write does not fit its checksum";
                self.damaged(format!("{key}, written at revision {revision}"), what);
            }
            self.contents.log.push(Undo { revision, at, key, before });
        }
        if next != self.meta.revision.0 {
            let what =
                format!("the history ends at revision {next}, the last was {}", self.meta.revision);
            self.damaged("table log", what);
        }
        Ok(())
    }
}

fn read_old(transaction: &ReadTransaction, compacted: Revision) -> Result<Contents, redb::Error> {
    match transaction.open_table(OBJECTS) {
        Err(TableError::TableDoesNotExist(_)) => {}
        _ => return Err(redb::Error::Corrupted("table meta names an older format".into())),
    }
    let mut contents = Contents { compacted, ..Contents::default() };
    for row in transaction.open_table(OLD_OBJECTS)?.iter()? {
        let (key, value) = row?;
        let ((bucket, path), (revision, value)) = (key.value(), value.value());
        let (key, value) = (Key::new(bucket, path), Bytes::copy_from_slice(value));
        contents.entries.push(Entry { key, value, revision: Revision(revision) });
    }
    for row in transaction.open_table(OLD_LOG)?.iter()? {
        let (revision, row) = row?;
        let (at, bucket, path, before, value) = row.value();
        let before = (before > 0).then(|| (Revision(before), Bytes::copy_from_slice(value)));
        let (revision, key) = (Revision(revision.value()), Key::new(bucket, path));
        contents.log.push(Undo { revision, at, key, before });
    }
    Ok(contents)
}

/// Removes the tables of earlier formats.
pub(super) fn remove_old(transaction: &WriteTransaction) -> Result<(), redb::Error> {
    transaction.delete_table(OLD_OBJECTS)?;
    transaction.delete_table(OLD_LOG)?;
    Ok(())
}

/// Makes tables of format 2 that hold these contents.
#[cfg(test)]
pub(super) fn write_old(
    transaction: &WriteTransaction,
    contents: &Contents,
) -> Result<(), redb::Error> {
    let mut objects = transaction.open_table(OLD_OBJECTS)?;
    for entry in &contents.entries {
        let row = (&*entry.key.bucket, &*entry.key.path);
        objects.insert(row, (entry.revision.0, &*entry.value))?;
    }
    let mut log = transaction.open_table(OLD_LOG)?;
    for undo in &contents.log {
        let (revision, value) = undo.before.as_ref().map_or((0, &[][..]), |(r, v)| (r.0, &**v));
        let row = (undo.at, &*undo.key.bucket, &*undo.key.path, revision, value);
        log.insert(undo.revision.0, row)?;
    }
    Ok(())
}
