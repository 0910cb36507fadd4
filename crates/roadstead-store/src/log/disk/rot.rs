//! Corruption at rest: every class of byte of every file of a store is flipped, zeroed, cut off,
//! exchanged, replaced by an older one or deleted, up to the whole store. Whoever opens the store
//! afterwards is told what to do about it, or has everything that was acknowledged, unchanged, and
//! can go on.
//!
//! `ROADSTEAD_ROT` says how many places of each file are tried with each sort of damage,
//! `ROADSTEAD_ROT_SEED` which.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;

use crate::entry::{Key, Revision};
use crate::error::OpenError;
use crate::kv::{Options, Store};
use crate::log::disk::contents::Contents;
use crate::log::disk::faults::over;
use crate::log::disk::tables::Tables;
use crate::log::disk::wal::{Files, Pace, WriteAheadLog};
use crate::transaction::Transaction;

/// Few places for every day; thousands by hand.
const PLACES: usize = 2;
const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// What the files of a store are, by their names.
type Image = BTreeMap<&'static str, Vec<u8>>;
/// Everything that was acknowledged: the value and revision of each key.
type State = (BTreeMap<Key, (Revision, Bytes)>, Revision);

const NAMES: [&str; 4] = ["store.redb", "store.ahead0", "store.ahead1", "store.mark"];

fn image(directory: &Path) -> Image {
    NAMES.into_iter().map(|name| (name, fs::read(directory.join(name)).unwrap())).collect()
}

fn lay_out(directory: &Path, image: &Image) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let _ = fs::remove_file(entry.path());
    }
    for (name, bytes) in image {
        fs::write(directory.join(name), bytes).unwrap();
    }
}

fn state(store: &Store) -> State {
    let all = store.all();
    let entries = all.entries.iter();
    let entries = entries.map(|e| (e.key.clone(), (e.revision, e.value.clone())));
    (entries.collect(), all.revision)
}

/// Memory has no sync to wait for.
fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.exists() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// A store as it is on tables.
struct Subject {
    name: &'static str,
    image: Image,
    /// The same store some time ago.
    older: Image,
    state: State,
}

/// A store that is written to, the tables of which follow only when there is much to take over.
async fn write(store: &Store, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let key =
            Key::new(["configmaps", "services"][number % 2], format!("default/w{}", number % 29));
        let value =
            format!("{{\"number\":{number},\"text\":\"{}\"}}", "x".repeat(number % 5 * 180));
        let change = match number % 11 {
            10 => Transaction::new().delete(key),
            _ => Transaction::new().put(key, Bytes::from(value)),
        };
        store.commit(change).await.unwrap();
    }
}

async fn subjects() -> [Subject; 2] {
    let place = directory();
    let path = place.path().join(NAMES[0]);
    let pace = Pace { pause: Duration::from_secs(600), changes: 60, rotate_at: 24_000 };
    Tables::create(&path, &Contents::default()).unwrap();
    let (tables, _) = Tables::open(&path).unwrap();
    let files = Files::open(&path).unwrap();
    let wal = WriteAheadLog::create(files, Arc::new(tables), Revision(0), pace).unwrap();
    let store = over(wal, Contents::default(), Options::default());
    write(&store, 0..130).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let older = image(place.path());
    write(&store, 130..290).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    write(&store, 290..311).await;
    // The tables are at rest, and lack the last writes.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let killed = Subject {
        name: "killed",
        image: image(place.path()),
        older: older.clone(),
        state: state(&store),
    };
    drop(store);
    // Opened and closed again as usual.
    let store = Store::open(&path, Options::default()).unwrap();
    write(&store, 311..330).await;
    let state = state(&store);
    drop(store);
    [killed, Subject { name: "stopped", image: image(place.path()), older, state }]
}

/// A small generator (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, of: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 8).unwrap() % of.max(1)
    }
}

/// Places in a file that hold something: its beginning byte by byte, its end, and others by chance.
fn places(bytes: &[u8], chance: &mut Chance, count: usize) -> Vec<usize> {
    let blocks: Vec<_> = (0..bytes.len())
        .step_by(64)
        .filter(|&at| bytes[at..bytes.len().min(at + 64)].iter().any(|byte| *byte != 0))
        .collect();
    let mut all: Vec<_> = (0..count.min(96)).map(|_| chance.below(96.min(bytes.len()))).collect();
    for _ in 0..count {
        all.push(blocks[chance.below(blocks.len())] + chance.below(64));
        // What was written last is at the end of a log.
        let last = blocks[blocks.len() - 1 - chance.below(blocks.len().min(8))];
        all.push(last + chance.below(64));
    }
    all.retain(|at| *at < bytes.len());
    all
}

type Harm = fn(&mut Vec<u8>, usize, usize);

/// Ways to harm bytes at a place.
const HARMS: [(&str, Harm); 9] = [
    ("a bit is flipped", |bytes, at, by| bytes[at] ^= 1 << (by % 8)),
    ("a byte is another", |bytes, at, by| bytes[at] = bytes[at].wrapping_add(1 + (by % 255) as u8)),
    ("eight bytes are zero", |bytes, at, _| fill(bytes, at / 8 * 8, 8, 0)),
    ("a sector is zero", |bytes, at, _| fill(bytes, at / SECTOR * SECTOR, SECTOR, 0)),
    ("a page is zero", |bytes, at, _| fill(bytes, at / PAGE * PAGE, PAGE, 0)),
    ("a sector is noise", |bytes, at, by| {
        fill(bytes, at / SECTOR * SECTOR, SECTOR, (by % 255) as u8 + 1)
    }),
    ("it is cut off", |bytes, at, _| bytes.truncate(at)),
    ("two sectors are exchanged", |bytes, at, by| exchange(bytes, at, by, SECTOR)),
    ("two pages are exchanged", |bytes, at, by| exchange(bytes, at, by, PAGE)),
];

fn fill(bytes: &mut [u8], from: usize, length: usize, byte: u8) {
    let until = bytes.len().min(from + length);
    bytes[from..until].fill(byte);
}

fn exchange(bytes: &mut [u8], at: usize, other: usize, size: usize) {
    let count = bytes.len() / size;
    let (one, other) = ((at / size).min(count.saturating_sub(1)), other % count.max(1));
    for offset in 0..if count > 1 { size } else { 0 } {
        bytes.swap(one * size + offset, other * size + offset);
    }
}

#[derive(Default)]
struct Tally {
    cases: usize,
    refused: usize,
    harmless: usize,
    lost: Vec<String>,
}

impl Tally {
    /// Opens what is there, which must be refused with a remedy, or hold everything.
    async fn open(&mut self, directory: &Path, subject: &Subject, what: String) {
        self.cases += 1;
        let path = directory.join(NAMES[0]);
        let before = self.lost.len();
        match Store::open(&path, Options { expected: true, ..Options::default() }) {
            Ok(store) => {
                if state(&store) != subject.state {
                    self.lost.push(format!("{what}: something else is there"));
                }
                self.harmless += 1;
                self.resume(store, &path, subject, &what).await;
            }
            Err(
                error @ (OpenError::Corrupt { .. }
                | OpenError::Damaged { .. }
                | OpenError::Newer { .. }
                | OpenError::Vanished { .. }),
            ) => {
                self.refused += 1;
                let text = error.to_string();
                if !text.contains("roadstead snapshot restore FILE") {
                    self.lost.push(format!("{what}: no remedy in {text}"));
                }
            }
            Err(other) => {
                self.lost.push(format!("{what}: {other}: {:?}", std::error::Error::source(&other)))
            }
        }
        if self.lost.len() > before {
            eprintln!("{}", self.lost.last().unwrap());
        }
    }

    /// What looks harmless must not do harm later.
    async fn resume(&mut self, store: Arc<Store>, path: &Path, subject: &Subject, what: &str) {
        write(&store, 400..440).await;
        let state = state(&store);
        if state.1 <= subject.state.1 {
            self.lost.push(format!("{what}: a revision is used twice"));
        }
        drop(store);
        match Store::open(path, Options::default()) {
            Ok(store) if self::state(&store) == state => {}
            Ok(_) => self.lost.push(format!("{what}: something was lost later")),
            Err(error) => self.lost.push(format!("{what}: refused later: {error}")),
        }
    }
}

/// Whole files deleted, emptied, older, or in each other's place.
fn whole_files(subject: &Subject) -> Vec<(String, Image)> {
    let mut cases = Vec::new();
    for name in NAMES {
        let with = |bytes: Option<Vec<u8>>| {
            let mut image = subject.image.clone();
            match bytes {
                Some(bytes) => image.insert(name, bytes),
                None => image.remove(name),
            };
            image
        };
        cases.push((format!("{name} is deleted"), with(None)));
        cases.push((format!("{name} is empty"), with(Some(Vec::new()))));
        cases.push((
            format!("{name} is of an earlier time"),
            with(Some(subject.older[name].clone())),
        ));
        let longer = [subject.image[name].clone(), vec![7; 5000]].concat();
        cases.push((format!("{name} has noise behind it"), with(Some(longer))));
        for other in NAMES.into_iter().filter(|other| *other != name) {
            let what = format!("{name} is a copy of {other}");
            cases.push((what, with(Some(subject.image[other].clone()))));
            let mut image = with(None);
            image.remove(other);
            // Without any file it is no store.
            cases.push((format!("{name} and {other} are deleted"), image));
        }
    }
    let mut image = subject.image.clone();
    image.retain(|name, _| *name == NAMES[0]);
    cases.push(("the whole log is deleted".into(), image));
    cases.push(("a vanished store".into(), Image::new()));
    cases
}

#[tokio::test]
async fn whatever_rots_is_found_or_does_no_harm() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let count = number("ROADSTEAD_ROT").unwrap_or(PLACES);
    let seed = number("ROADSTEAD_ROT_SEED").unwrap_or(0) as u64;
    let mut chance = Chance(0x2545_F491_4F6C_DD1D ^ seed << 20);
    let mut tally = Tally::default();
    let place = directory();
    for subject in subjects().await {
        lay_out(place.path(), &subject.image);
        tally.open(place.path(), &subject, format!("{}: nothing", subject.name)).await;
        assert_eq!((tally.lost.len(), tally.refused), (0, 0), "a store that is well is opened");
        tally.harmless = 0;
        tally.cases = 0;
        for (what, image) in whole_files(&subject) {
            lay_out(place.path(), &image);
            tally.open(place.path(), &subject, format!("{}: {what}", subject.name)).await;
        }
        for (name, bytes) in &subject.image {
            for (harm, change) in HARMS {
                for at in places(bytes, &mut chance, count) {
                    let (mut image, by) = (subject.image.clone(), chance.below(1 << 20));
                    let bytes = image.get_mut(name).unwrap();
                    change(bytes, at, by);
                    lay_out(place.path(), &image);
                    let what = format!("{}: {name}: {harm} at {at} ({by})", subject.name);
                    tally.open(place.path(), &subject, what).await;
                }
            }
        }
        let Tally { cases, refused, harmless, lost } = std::mem::take(&mut tally);
        eprintln!(
            "corruption at rest, {}: {cases} cases, {refused} refused, {harmless} harmless, {} silent losses",
            subject.name,
            lost.len()
        );
        assert!(lost.is_empty(), "{lost:#?}");
        assert!(refused > cases / 10, "only {refused} of {cases} were noticed");
    }
}
