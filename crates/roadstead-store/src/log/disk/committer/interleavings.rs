//! The committer, its clients and followers in thousands of orders: nobody sees what is not durable,
//! nobody misses or repeats an event, nobody is forgotten who waits.
//!
//! `ROADSTEAD_SEED` begins with another order, `ROADSTEAD_INTERLEAVINGS` says how many are tried.

use std::env;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::{Committer, Journal, Status, WAITING, Work};
use crate::clock::Clock;
use crate::entry::{Key, Revision};
use crate::error::StoreError;
use crate::kv::{Options, Store};
use crate::log::disk::DiskLog;
use crate::log::{AnyLog, Group};
use crate::replica::Replica;
use crate::state::State;
use crate::transaction::Transaction;
use crate::turns::{point, run, wait_for};

const CLIENTS: u64 = 3;
const WRITES: u64 = 3;
const FOLLOWERS: usize = 2;

/// Durable after a while, in which others may do anything; from a write on it fails.
struct Slow {
    durable: Arc<AtomicU64>,
    left: usize,
}

impl Journal for Slow {
    fn write(&mut self, group: &Group) -> Result<(), Box<dyn Error + Send + Sync>> {
        point();
        if self.left == 0 {
            return Err("the disk is gone".into());
        }
        self.left -= 1;
        let last = group.events.last().map_or(0, |event| event.revision.0);
        self.durable.fetch_max(last, Ordering::SeqCst);
        point();
        Ok(())
    }
}

/// What all threads of one run have.
struct World {
    durable: Arc<AtomicU64>,
    /// What each follower was told.
    told: Mutex<Vec<Vec<u64>>>,
    /// Revisions that clients were told.
    acknowledged: Mutex<Vec<u64>>,
}

/// A committer that is driven by a thread of the test.
fn store(journal: Slow) -> (Arc<Store>, impl FnOnce() + Send) {
    let replica = Replica::new(State::new(&Options::default()));
    let (send, mut queue) = mpsc::channel(WAITING);
    let status = Arc::new(Status::default());
    let mut work = Work { replica: replica.clone(), status: status.clone(), journal };
    let committer = Committer { status, queue: Some(send), thread: None };
    let log = DiskLog { clock: Clock::new(0), linked: None, scrubber: None, committer };
    let drive = move || {
        let mut requests = Vec::new();
        while wait_for(queue.recv_many(&mut requests, WAITING)) > 0 {
            work.round(&mut requests);
        }
    };
    (Store::over(replica, AnyLog::Disk(log)), drive)
}

/// Writes to a key that all clients share, each time only if it is as it was seen before.
fn client(store: &Arc<Store>, world: &World, number: u64) -> Result<(), StoreError> {
    let key = Key::new("things", "shared");
    for _ in 0..WRITES {
        loop {
            let seen = store.get(&key).map(|entry| entry.revision);
            let value = Bytes::from(number.to_string());
            let change = Transaction::new().expect(key.clone(), seen).put(key.clone(), value);
            match wait_for(store.commit(change)) {
                Ok(revision) => {
                    assert!(revision.0 <= world.durable.load(Ordering::SeqCst), "told too early");
                    let shown = store.get(&key).map(|entry| entry.revision);
                    assert!(shown >= Some(revision), "{shown:?} after {revision}");
                    world.acknowledged.lock().unwrap().push(revision.0);
                    break;
                }
                // Whoever is refused sees why.
                Err(StoreError::Conflict { .. }) => {
                    let shown = store.get(&key).map(|entry| entry.revision);
                    assert!(shown > seen, "refused for nothing: {shown:?}");
                }
                Err(other) => return Err(other),
            }
        }
    }
    Ok(())
}

/// Follows until it was told as many events.
fn follow(store: &Arc<Store>, world: &World, (number, count): (usize, usize)) {
    let mut feed = store.feed("things", Revision(0)).unwrap();
    let mut told = 0;
    while told < count {
        let batch = wait_for(feed.next()).unwrap();
        told += batch.events.len();
        let revisions = batch.events.iter().map(|event| event.revision.0);
        let revisions: Vec<_> = revisions.collect();
        let durable = world.durable.load(Ordering::SeqCst);
        assert!(revisions.iter().all(|one| *one <= durable), "{revisions:?} before {durable}");
        world.told.lock().unwrap()[number].extend(revisions);
    }
}

/// One order; returns how often the turn changed.
fn try_order(seed: u64, fails_after: Option<usize>) -> usize {
    let durable = Arc::new(AtomicU64::new(0));
    let journal = Slow { durable: durable.clone(), left: fails_after.unwrap_or(usize::MAX) };
    let (store, drive) = store(journal);
    let told = Mutex::new(vec![Vec::new(); FOLLOWERS]);
    let world = Arc::new(World { durable, told, acknowledged: Mutex::default() });
    let mut work: Vec<Box<dyn FnOnce() + Send>> = vec![Box::new(drive)];
    for number in 0..CLIENTS {
        let (store, world) = (store.clone(), world.clone());
        work.push(Box::new(move || {
            let ended = client(&store, &world, number);
            let is_refused = matches!(ended, Err(StoreError::ReadOnly { .. }));
            assert!(ended.is_ok() || (is_refused && fails_after.is_some()), "{ended:?}");
        }));
    }
    for number in 0..FOLLOWERS {
        let (store, world) = (store.clone(), world.clone());
        // Each group has one write: the others of it meet a conflict.
        let count = fails_after.unwrap_or((CLIENTS * WRITES) as usize);
        work.push(Box::new(move || follow(&store, &world, (number, count))));
    }
    drop(store);
    let switches = run(seed, work);
    let count = fails_after.map_or(CLIENTS * WRITES, |count| count as u64);
    let all: Vec<_> = (1..=count).collect();
    for told in &*world.told.lock().unwrap() {
        assert_eq!(*told, all, "seed {seed}: each once, in order");
    }
    let mut acknowledged = world.acknowledged.lock().unwrap().clone();
    acknowledged.sort_unstable();
    assert_eq!(acknowledged, all, "seed {seed}: what is durable was acknowledged once");
    switches
}

#[test]
fn every_order_of_committer_clients_and_followers() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("ROADSTEAD_SEED").unwrap_or(1);
    let (most, begin) = (number("ROADSTEAD_INTERLEAVINGS"), Instant::now());
    let (mut orders, mut switches) = (0, 0);
    while orders < most.unwrap_or(2_000) {
        if most.is_none() && begin.elapsed() > Duration::from_secs(5) {
            break;
        }
        let seed = first + orders;
        let fails_after = (seed % 3 == 0).then_some((seed % 7) as usize);
        switches += try_order(seed, fails_after);
        orders += 1;
    }
    eprintln!("{orders} orders with {switches} changes of turn in {:?}", begin.elapsed());
    assert!(orders >= 50, "only {orders} orders: too slow to find anything");
}

/// The test can fail: who waits for what nobody will say is noticed.
#[test]
fn who_is_forgotten_is_noticed() {
    let found = std::panic::catch_unwind(|| {
        let (send, receive) = tokio::sync::oneshot::channel::<()>();
        run(
            1,
            vec![
                Box::new(move || drop(wait_for(receive))),
                Box::new(move || {
                    point();
                    std::mem::forget(send);
                }),
            ],
        )
    });
    assert!(found.is_err());
}
