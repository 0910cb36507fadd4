//! A pretended log elsewhere, as etcd is one: others write to it too, one revision stands for all
//! writes of a transaction, and a replica hears of everything, its own writes among them, from the
//! order of events that the server tells.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use bytes::Bytes;
use proptest::prelude::*;

use crate::entry::{Entry, Event, Key, Revision};
use crate::error::StoreError;
use crate::kv::{Options, Store};
use crate::log::{AnyLog, Group, Log};
use crate::replica::Replica;
use crate::retention::Limits;
use crate::state::State;
use crate::transaction::Transaction;

/// What the server at the other end holds.
#[derive(Debug, Default)]
struct Server {
    entries: BTreeMap<Key, (Revision, Bytes)>,
    /// The writes of each revision, from 1.
    revisions: Vec<Vec<(Key, Option<Bytes>)>>,
}

impl Server {
    fn decide(&mut self, transaction: Transaction) -> Result<Revision, StoreError> {
        for (key, expected) in transaction.guards {
            let found = self.entries.get(&key).map(|(revision, _)| *revision);
            if found != expected {
                return Err(StoreError::Conflict { key, expected, found });
            }
        }
        // The last write of a key counts; what is not there cannot be deleted.
        let mut writes: BTreeMap<_, _> = transaction.writes.into_iter().collect();
        writes.retain(|key, value| value.is_some() || self.entries.contains_key(key));
        if writes.is_empty() {
            return Ok(Revision(self.revisions.len() as u64));
        }
        let revision = Revision(self.revisions.len() as u64 + 1);
        for (key, value) in &writes {
            match value {
                Some(value) => self.entries.insert(key.clone(), (revision, value.clone())),
                None => self.entries.remove(key),
            };
        }
        self.revisions.push(writes.into_iter().collect());
        Ok(revision)
    }
}

/// The connection of one replica.
#[derive(Debug)]
pub(crate) struct RemoteLog {
    server: Arc<Mutex<Server>>,
    replica: Arc<Replica>,
}

impl RemoteLog {
    fn store(server: &Arc<Mutex<Server>>, options: Options) -> Arc<Store> {
        let replica = Replica::new(State::new(&options));
        let log = Self { server: server.clone(), replica: replica.clone() };
        Store::over(replica, AnyLog::Remote(log))
    }

    /// Takes in what the server tells, a revision at a time.
    fn catch_up(&self) {
        let server = self.server.lock().unwrap();
        let reached = self.replica.read().revision;
        for (number, writes) in (1..).zip(&server.revisions).skip(reached.0 as usize) {
            let group = {
                let state = self.replica.read();
                let events = writes.iter().map(|(key, value)| event(&state, number, key, value));
                let events: Vec<_> = events.collect();
                Group { compact: state.compactable(&events, 0), events, reached: Revision(number) }
            };
            self.replica.apply(group);
        }
    }
}

fn event(state: &State, revision: u64, key: &Key, value: &Option<Bytes>) -> Arc<Event> {
    let (key, revision) = (state.shared_key(key.clone()), Revision(revision));
    let before = state.get(&key).cloned();
    let after = value.clone().map(|value| Arc::new(Entry { key: key.clone(), value, revision }));
    Arc::new(Event { revision, key, before, after, at: 0, encoded: OnceLock::new() })
}

impl Log for RemoteLog {
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        let outcome = self.server.lock().unwrap().decide(transaction);
        self.catch_up();
        outcome
    }
}

/// Who writes, and what: which keys of which bucket; `None` deletes.
pub(super) type Wish = (bool, Vec<(bool, u8, Option<u8>)>);

pub(super) fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let write = (any::<bool>(), 0u8..6, proptest::option::weighted(0.7, any::<u8>()));
    let writes = proptest::collection::vec(write, 1..5);
    proptest::collection::vec((any::<bool>(), writes), 1..40)
}

pub(super) const BUCKETS: [&str; 2] = ["addresses", "services"];

pub(super) fn transaction(writes: &[(bool, u8, Option<u8>)]) -> Transaction {
    writes.iter().fold(Transaction::new(), |all, &(bucket, name, value)| {
        let key = Key::new(BUCKETS[usize::from(bucket)], format!("shop/k{name}"));
        match value {
            Some(value) => all.put(key, Bytes::copy_from_slice(&[value])),
            None => all.delete(key),
        }
    })
}

/// What a bucket holds: values and revisions by their paths.
pub(super) type Content = BTreeMap<Arc<str>, (Revision, Bytes)>;

pub(super) fn content(store: &Store, bucket: &str, at: Option<Revision>) -> Content {
    let entries = store.list(bucket, "", at).unwrap().entries;
    entries.iter().map(|e| (e.key.path.clone(), (e.revision, e.value.clone()))).collect()
}

/// Follows a bucket from the beginning in steps; returns the content after each revision.
pub(super) fn follow(
    store: &Store,
    bucket: &str,
    limit: usize,
) -> Result<BTreeMap<Revision, Content>, TestCaseError> {
    let (mut reached, mut model, mut seen) = (Revision(0), Content::new(), BTreeMap::new());
    // Where a log has been compacted, nothing was there before.
    if let Err(StoreError::Compacted { oldest, .. }) = store.events_after(bucket, reached, limit) {
        reached = oldest;
    }
    while reached < store.revision() {
        let batch = store.events_after(bucket, reached, limit).unwrap();
        for event in &batch.events {
            prop_assert!(event.revision > reached, "nothing is told twice");
            let before = event.before.as_ref().map(|e| (e.revision, e.value.clone()));
            prop_assert_eq!(model.get(&event.key.path).cloned(), before, "nothing is missing");
            match &event.after {
                Some(e) => model.insert(event.key.path.clone(), (e.revision, e.value.clone())),
                None => model.remove(&event.key.path),
            };
            seen.insert(event.revision, model.clone());
        }
        reached = batch.revision;
    }
    Ok(seen)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Two stores over one log that others write to as well, with several keys in a revision: both
    /// follow it to the same end, in whatever steps they read, and have the same past.
    #[test]
    fn a_shared_log_with_several_keys_in_a_revision(wishes in wishes(), limit in 1usize..5) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let server = Arc::new(Mutex::new(Server::default()));
        let stores = [RemoteLog::store(&server, Options::default()),
            RemoteLog::store(&server, Options::default())];
        for (who, writes) in &wishes {
            let store = &stores[usize::from(*who)];
            let revision = runtime.block_on(store.commit(transaction(writes))).unwrap();
            prop_assert!(store.revision() >= revision, "whoever wrote sees it");
        }
        for store in &stores {
            // What the other one wrote last arrives without a write of our own.
            runtime.block_on(store.commit(Transaction::new())).unwrap();
            prop_assert_eq!(store.revision().0 as usize, server.lock().unwrap().revisions.len());
            for bucket in BUCKETS {
                let seen = follow(store, bucket, limit)?;
                let last = seen.values().next_back().cloned().unwrap_or_default();
                prop_assert_eq!(&last, &content(store, bucket, None));
                for (revision, then) in seen {
                    prop_assert_eq!(then, content(store, bucket, Some(revision)));
                }
            }
        }
        let [one, other] = &stores;
        for bucket in BUCKETS {
            prop_assert_eq!(content(one, bucket, None), content(other, bucket, None));
        }
    }
}

#[tokio::test]
async fn who_comes_second_hears_what_the_other_has_written() {
    let server = Arc::new(Mutex::new(Server::default()));
    let options = Options::default();
    let [one, other] = [RemoteLog::store(&server, options), RemoteLog::store(&server, options)];
    let key = Key::new("services", "shop/web");
    let create = || Transaction::new().expect(key.clone(), None).put(key.clone(), Bytes::new());
    let mut feed = other.feed("services", Revision(0)).unwrap();
    let address = Key::new("addresses", "/10.0.0.1");
    let both = create().put(address, Bytes::new());
    assert_eq!(one.commit(both).await, Ok(Revision(1)));
    assert!(other.get(&key).is_none(), "nothing was told yet");
    let found = Some(Revision(1));
    let conflict = StoreError::Conflict { key: key.clone(), expected: None, found };
    assert_eq!(other.commit(create()).await, Err(conflict));
    assert_eq!(other.get(&key).map(|entry| entry.revision), found, "a retry sees why");
    let batch = feed.next().await.unwrap();
    assert_eq!(
        format!("{:?} upto {}", batch.events, batch.revision),
        "[services/shop/web created at 1] upto 1"
    );
}

#[tokio::test]
async fn a_revision_is_forgotten_as_a_whole() {
    let history = Limits { bytes: 3000, ..Limits::default() };
    let server = Arc::new(Mutex::new(Server::default()));
    let store = RemoteLog::store(&server, Options { history, ..Options::default() });
    for _ in 0..20 {
        let three = transaction(&[(true, 1, Some(1)), (true, 2, Some(2)), (true, 3, Some(3))]);
        store.commit(three).await.unwrap();
    }
    let Err(StoreError::Compacted { oldest, .. }) = store.feed("services", Revision(0)) else {
        panic!("there is no room for all of it");
    };
    let events = store.feed("services", oldest).unwrap().now().unwrap().events;
    assert_eq!(events.len() as u64, 3 * (20 - oldest.0));
}
