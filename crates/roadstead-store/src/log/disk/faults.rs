//! The store against a disk that fails: errors at any operation, syncs that tear, power cuts that
//! keep any part of what was not synced. What was acknowledged or seen must be there afterwards,
//! at its revision; what was not may be, whole.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use redb::{Builder, StorageBackend};
use tokio::task::JoinSet;

use crate::entry::{Event, Key, Revision};
use crate::error::StoreError;
use crate::feed::Feed;
use crate::kv::{Options, Store};
use crate::log::disk::DiskLog;
use crate::log::disk::committer::Journal;
use crate::log::disk::contents::Contents;
use crate::log::disk::tables::{Tables, fill};
use crate::log::disk::wal::{self, Files, Pace, WriteAheadLog};
use crate::log::{AnyLog, Group};
use crate::retention::Limits;
use crate::transaction::Transaction;

/// The tables, the two files of the log before them, and the mark.
const FILES: usize = 4;

/// A disk without battery: only what was synced is sure to be there after a power cut.
#[derive(Debug, Default)]
struct Device {
    files: [Content; FILES],
    /// How many operations succeed before one fails.
    fuse: Option<u32>,
    /// Whether all operations fail from then on, or only one.
    stays_broken: bool,
    random: u64,
}

/// What one file holds.
#[derive(Clone, Debug, Default)]
struct Content {
    /// What the file system shows.
    shown: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<Operation>,
}

#[derive(Clone, Debug)]
enum Operation {
    Resize(usize),
    Write(usize, Vec<u8>),
}

impl Operation {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::Resize(length) => content.resize(*length, 0),
            Self::Write(offset, data) => {
                let end = offset + data.len();
                content.resize(content.len().max(end), 0);
                content[*offset..end].copy_from_slice(data);
            }
        }
    }
}

impl Device {
    /// A small generator (xorshift): the test names its seed.
    fn chance(&mut self, of: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % of
    }

    fn burn(&mut self) -> io::Result<()> {
        match &mut self.fuse {
            Some(0) => {
                if !self.stays_broken {
                    self.fuse = None;
                }
                Err(io::Error::other("injected"))
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn change(&mut self, file: usize, operation: Operation) -> io::Result<()> {
        let outcome = self.burn();
        // A write that fails may have happened in part.
        let operation = match (&outcome, operation) {
            (Err(_), Operation::Write(offset, mut data)) => {
                let length = data.len() as u64 + 1;
                data.truncate(self.chance(length) as usize);
                Operation::Write(offset, data)
            }
            (Err(_), resize) if self.chance(2) == 0 => resize,
            (Err(_), _) => return outcome,
            (Ok(()), operation) => operation,
        };
        operation.apply(&mut self.files[file].shown);
        self.files[file].unsynced.push(operation);
        outcome
    }

    /// Any part of what was not synced may be on the disk, in any order of sectors.
    fn settle(&mut self, file: usize) {
        for operation in std::mem::take(&mut self.files[file].unsynced) {
            match operation {
                Operation::Write(offset, data) => {
                    for (index, sector) in data.chunks(512).enumerate() {
                        if self.chance(2) == 0 {
                            let write = Operation::Write(offset + index * 512, sector.to_vec());
                            write.apply(&mut self.files[file].synced);
                        }
                    }
                }
                resize => resize.apply(&mut self.files[file].synced),
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Backend(Arc<Mutex<Device>>, usize);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().files[self.1].shown.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let device = self.0.lock().unwrap();
        let shown = &device.files[self.1].shown;
        let bytes = shown.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.lock().unwrap().change(self.1, Operation::Resize(length as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut device = self.0.lock().unwrap();
        let outcome = device.burn();
        match outcome {
            Ok(()) => {
                let file = &mut device.files[self.1];
                file.unsynced.clear();
                file.synced = file.shown.clone();
            }
            // Linux forgets what it could not write, and shows it all the same.
            Err(_) => device.settle(self.1),
        }
        outcome
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let operation = Operation::Write(offset as usize, data.to_vec());
        self.0.lock().unwrap().change(self.1, operation)
    }
}

/// A store over a journal that holds these contents.
pub(super) fn over(
    journal: impl Journal + 'static,
    contents: Contents,
    options: Options,
) -> Arc<Store> {
    let (replica, log) = DiskLog::over(journal, contents, &options).unwrap();
    Store::over(replica, AnyLog::Disk(log))
}

/// The files of the log change places after every few writes.
const HASTE: Pace = Pace { pause: Duration::from_micros(200), changes: 3, rotate_at: 9000 };

fn open(device: Device, options: Options) -> (Arc<Store>, Arc<Mutex<Device>>) {
    let device = Arc::new(Mutex::new(device));
    let new = device.lock().unwrap().files[0].shown.is_empty();
    let database = Builder::new().create_with_backend(Backend(device.clone(), 0)).unwrap();
    if new {
        fill(&database, &Contents::default()).unwrap();
    }
    let (tables, found) = Tables::with(database, Path::new("device")).unwrap();
    let (tables, checkpointed, mut contents) = (Arc::new(tables), found.revision, found.contents);
    assert_eq!(found.damage, [], "a power cut damages nothing");
    let file =
        |file| -> Option<Box<dyn StorageBackend>> { Some(Box::new(Backend(device.clone(), file))) };
    let paths = wal::paths(Path::new("device"));
    let files = Files { paths, backends: [file(1), file(2), file(3)] };
    let wal = match found.generation {
        0 => WriteAheadLog::create(files, tables, checkpointed, HASTE).unwrap(),
        generation => {
            let log = wal::read(files, tables.number(), generation, checkpointed).unwrap();
            assert_eq!(log.damage, [], "a power cut damages nothing");
            contents.redo(&log.rest);
            WriteAheadLog::resume(log, tables, checkpointed, HASTE).unwrap()
        }
    };
    (over(wal, contents, options), device)
}

/// The power is cut; returns the disk as it is when the power comes back.
fn power_cut(device: &Mutex<Device>) -> Device {
    let off = Device { fuse: Some(0), stays_broken: true, random: 1, ..Device::default() };
    let mut device = std::mem::replace(&mut *device.lock().unwrap(), off);
    let files = std::array::from_fn(|file| {
        device.settle(file);
        let synced = device.files[file].synced.clone();
        Content { shown: synced.clone(), synced, unsynced: Vec::new() }
    });
    Device { files, random: device.random, ..Device::default() }
}

/// One transaction of a case: which keys it puts, and one that it deletes.
#[derive(Clone, Debug)]
struct Wish {
    puts: Vec<u8>,
    delete: Option<u8>,
    /// Whether it insists on what its author saw.
    guarded: bool,
}

fn wish() -> impl Strategy<Value = Wish> {
    let key = || 0u8..6;
    (proptest::collection::vec(key(), 0..3), proptest::option::weighted(0.3, key()), any::<bool>())
        .prop_map(|(puts, delete, guarded)| Wish { puts, delete, guarded })
}

/// Rounds of transactions that are sent at the same time.
fn rounds() -> impl Strategy<Value = Vec<Vec<Wish>>> {
    proptest::collection::vec(proptest::collection::vec(wish(), 1..6), 1..12)
}

fn key(number: u8) -> Key {
    Key::new("things", format!("k{number}"))
}

impl Wish {
    fn transaction(&self, store: &Store, id: u64) -> Transaction {
        let mut transaction = Transaction::new();
        for &number in self.puts.iter().chain(&self.delete) {
            if self.guarded {
                let seen = store.get(&key(number)).map(|entry| entry.revision);
                transaction = transaction.expect(key(number), seen);
            }
        }
        for &number in &self.puts {
            // Some fill pages of their own.
            let value = format!("{id} {}", "x".repeat((id % 7 * 900) as usize));
            transaction = transaction.put(key(number), Bytes::from(value));
        }
        match self.delete {
            Some(number) => transaction.delete(key(number)),
            None => transaction,
        }
    }
}

/// An event in words: all that a reader can tell of it.
fn words(event: &Event) -> String {
    let state = |entry: &Option<Arc<crate::entry::Entry>>| match entry {
        Some(entry) => format!("{}@{}", id(&entry.value), entry.revision),
        None => "-".into(),
    };
    format!("{} {}: {} to {}", event.revision, event.key, state(&event.before), state(&event.after))
}

fn id(value: &[u8]) -> String {
    String::from_utf8_lossy(value).split(' ').next().unwrap_or_default().to_owned()
}

/// What became of each transaction, by its number.
#[derive(Default)]
struct Story {
    next: u64,
    acknowledged: BTreeMap<u64, Revision>,
    doubtful: BTreeMap<u64, Wish>,
    /// Everything that a reader has ever been told.
    seen: Vec<String>,
}

impl Story {
    /// Sends some transactions at once; tells whether the store still writes.
    async fn round(&mut self, store: &Arc<Store>, feed: &mut Feed, wishes: &[Wish]) -> bool {
        let mut tasks = JoinSet::new();
        for wish in wishes {
            self.next += 1;
            let (store, wish, id) = (store.clone(), wish.clone(), self.next);
            let transaction = wish.transaction(&store, id);
            tasks.spawn(async move { (id, wish, store.commit(transaction).await) });
        }
        let mut writes = true;
        while let Some(done) = tasks.join_next().await {
            let (id, wish, outcome) = done.unwrap();
            match outcome {
                Ok(revision) if !wish.puts.is_empty() => {
                    self.acknowledged.insert(id, revision);
                }
                Ok(_) | Err(StoreError::Conflict { .. }) => {}
                Err(StoreError::ReadOnly { .. }) => {
                    writes = false;
                    self.doubtful.insert(id, wish);
                }
                Err(other) => panic!("{other}"),
            }
        }
        self.seen.extend(feed.now().unwrap().events.iter().map(|event| words(event)));
        writes
    }

    /// What must be true after the store was opened again.
    fn check(&mut self, store: &Arc<Store>) -> Feed {
        let oldest = match store.feed("things", Revision(0)) {
            Ok(_) => Revision(0),
            Err(StoreError::Compacted { oldest, .. }) => oldest,
            Err(other) => panic!("{other}"),
        };
        let mut feed = store.feed("things", oldest).unwrap();
        let events = feed.now().unwrap().events;
        let kept: Vec<_> = events.iter().map(|event| words(event)).collect();
        let gone = usize::try_from(oldest.0).unwrap();
        let expected = self.seen.get(gone..).unwrap_or_default();
        assert!(kept.starts_with(expected), "seen {expected:#?}, kept {kept:#?}");
        for (at, event) in (oldest.0 + 1..).zip(&events) {
            assert_eq!(event.revision, Revision(at), "no gaps: all buckets are this one");
        }
        let known = expected.len();
        self.check_doubtful(&events[known..]);
        for (number, revision) in &self.acknowledged {
            let told = |line: &String| line.contains(&format!("to {number}@"));
            assert!(self.seen.iter().any(told), "{number} was acknowledged at {revision}");
        }
        self.seen.extend_from_slice(&kept[known..]);
        self.check_present(store, &events);
        feed
    }

    /// What nobody had seen belongs to transactions without an answer, and all of each is there.
    fn check_doubtful(&mut self, unseen: &[Arc<Event>]) {
        let mut found: BTreeMap<u64, usize> = BTreeMap::new();
        for event in unseen {
            match &event.after {
                Some(entry) => *found.entry(id(&entry.value).parse().unwrap()).or_default() += 1,
                None => {
                    let mut wishes = self.doubtful.values();
                    let deletes = |wish: &Wish| wish.delete.is_some_and(|n| key(n) == event.key);
                    assert!(wishes.any(deletes), "{event:?} was nobody's wish");
                }
            }
        }
        for (number, count) in found {
            let wish = self.doubtful.remove(&number);
            let wish = wish.unwrap_or_else(|| panic!("{number} was answered, but not seen"));
            assert_eq!(count, wish.puts.len(), "{number} is there in part");
        }
        self.doubtful.clear();
    }

    fn check_present(&self, store: &Arc<Store>, events: &[Arc<Event>]) {
        let mut newest: BTreeMap<_, _> = BTreeMap::new();
        for event in events {
            newest.insert(event.key.clone(), event.after.as_ref().map(|e| e.value.clone()));
        }
        for (key, value) in newest {
            assert_eq!(store.get(&key).map(|e| e.value.clone()), value, "{key}");
        }
    }
}

async fn story(rounds: Vec<Vec<Wish>>, faults: Vec<(u32, bool)>, forgetful: bool, random: u64) {
    let history = match forgetful {
        true => Limits { age: Duration::from_millis(3), events: 6, bytes: 150_000 },
        false => Limits::default(),
    };
    let options = Options { history, ..Options::default() };
    let mut faults = faults.into_iter().cycle();
    let (mut store, mut device) = open(Device { random, ..Device::default() }, options);
    let mut story = Story::default();
    let mut feed = story.check(&store);
    let mut blow = |device: &Mutex<Device>| {
        let (fuse, stays_broken) = faults.next().unwrap();
        let mut device = device.lock().unwrap();
        (device.fuse, device.stays_broken) = (Some(fuse), stays_broken);
    };
    blow(&device);
    for wishes in rounds {
        tokio::time::advance(Duration::from_millis(1)).await;
        let writes = story.round(&store, &mut feed, &wishes).await;
        if !writes {
            // Reads go on, and no write is accepted even if the disk works again.
            let before = store.revision();
            let refused = store.commit(Transaction::new().put(key(0), Bytes::new())).await;
            assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
            assert_eq!(store.revision(), before);
            assert_eq!(before.0, story.seen.len() as u64, "nothing is seen that failed");
        } else if device.lock().unwrap().chance(4) > 0 {
            continue;
        }
        let after = power_cut(&device);
        drop((store, feed));
        (store, device) = open(after, options);
        feed = story.check(&store);
        blow(&device);
    }
}

proptest! {
    #[test]
    fn nothing_acknowledged_is_lost_on_a_bad_disk(
        rounds in rounds(),
        faults in proptest::collection::vec((0u32..120, any::<bool>()), 1..6),
        forgetful in any::<bool>(),
        random in 1u64..,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(story(rounds, faults, forgetful, random));
    }
}

/// A journal that the test holds up, and lets go on or fail.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<Option<bool>>, Condvar)>);

impl Gate {
    fn open(&self, succeed: bool) {
        *self.0.0.lock().unwrap() = Some(succeed);
        self.0.1.notify_all();
    }
}

impl Journal for Gate {
    fn write(&mut self, _: &Group) -> Result<(), Box<dyn Error + Send + Sync>> {
        let verdict = self.0.0.lock().unwrap();
        let verdict = self.0.1.wait_while(verdict, |verdict| verdict.is_none()).unwrap();
        if *verdict == Some(true) { Ok(()) } else { Err("no space left".into()) }
    }
}

#[tokio::test]
async fn nobody_hears_of_a_write_that_is_not_durable() {
    for succeed in [true, false] {
        let gate = Gate::default();
        let store = over(gate.clone(), Contents::default(), Options::default());
        let create = || Transaction::new().expect(key(1), None).put(key(1), Bytes::from("mine"));
        let writer = |store: &Arc<Store>| {
            let (store, create) = (store.clone(), create());
            tokio::spawn(async move { store.commit(create).await })
        };
        let (first, second) = (writer(&store), writer(&store));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!first.is_finished() && !second.is_finished(), "a conflict would be gossip");
        assert!(store.get(&key(1)).is_none() && store.revision() == Revision(0));
        gate.open(succeed);
        let outcomes = [first.await.unwrap(), second.await.unwrap()];
        if succeed {
            let conflict =
                StoreError::Conflict { key: key(1), expected: None, found: Some(Revision(1)) };
            assert_eq!(outcomes, [Ok(Revision(1)), Err(conflict)]);
            continue;
        }
        for outcome in outcomes {
            let error = outcome.unwrap_err().to_string();
            assert!(error.starts_with("the store is read-only since 2"), "{error}");
            assert!(error.ends_with("Z: no space left"), "{error}");
        }
        assert!(store.get(&key(1)).is_none() && store.revision() == Revision(0));
    }
}
