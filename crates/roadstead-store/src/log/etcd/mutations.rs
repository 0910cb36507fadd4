//! Two stores on one etcd, clients at both, and the judge of histories: what clients are told has one
//! order, and each way of breaking the store on purpose is found.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use roadstead_testkit::etcd::Etcd;
use roadstead_testkit::history::{
    Answer, Call, Event, History, Listing, Operation, Time, Value, Watched,
};
use tokio::task::LocalSet;

use super::tests::{key, store};
use super::*;
use crate::kv::Store;
use crate::mutation::choose;

const CLIENTS: u64 = 6;
const CALLS: u64 = 40;
const OBJECTS: u64 = 8;
/// How often somebody who was refused for a conflict looks again, and computes anew.
const ATTEMPTS: usize = 20;

/// How much later than etcd the replicas may be: longer than all of these attempts take if nobody waits.
const BEHIND: Duration = Duration::from_millis(20);

/// What everybody was told so far.
struct Told {
    begin: std::time::Instant,
    history: History,
    known: BTreeMap<String, Revision>,
    value: Value,
}

type Shared = Rc<RefCell<Told>>;

/// xorshift: everything but the machine's own timing follows from the seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

impl Told {
    fn now(&self) -> Time {
        self.begin.elapsed().as_nanos() as Time
    }

    fn fresh(&mut self) -> Value {
        self.value += 1;
        self.value
    }
}

fn bytes(value: Value) -> bytes::Bytes {
    value.to_string().into()
}

fn number(bytes: &[u8]) -> Value {
    str::from_utf8(bytes).unwrap().parse().unwrap()
}

/// One client, who does as the server does: an attempt from memory may only end in a commit, every
/// other end is confirmed after a barrier.
async fn ask(store: Arc<Store>, told: Shared, mut random: Random) {
    for _ in 0..CALLS {
        let name = format!("o{}", random.below(OBJECTS));
        let known = told.borrow().known.get(&name).copied();
        let value = told.borrow_mut().fresh();
        let call = match random.below(12) {
            0 | 1 => Call::Create(value),
            2 | 3 => Call::Update(value, known.map(|at| at.0)),
            4..=6 => Call::Update(value, None),
            7 => Call::Delete(None),
            8 => {
                list(&store, &told).await;
                continue;
            }
            9 => {
                both(&store, &told).await;
                continue;
            }
            _ => Call::Get,
        };
        let invoked = told.borrow().now();
        let answer = act(&store, &name, &call).await;
        let mut told = told.borrow_mut();
        if let Answer::Written(Some(at)) | Answer::Found(Some((_, at))) = answer {
            told.known.insert(name.clone(), Revision(at));
        }
        let answered = told.now();
        told.history.operations.push(Operation { key: name, invoked, answered, call, answer });
    }
}

async fn act(store: &Store, name: &str, call: &Call) -> Answer {
    let mut is_fresh = *call == Call::Get;
    if is_fresh {
        store.fresh().await.unwrap();
    }
    for _ in 0..ATTEMPTS {
        let found = store.get(&key(name)).map(|entry| (number(&entry.value), entry.revision));
        let at = found.map(|(_, at)| at);
        let expected = Transaction::new().expect(key(name), at);
        let wanted = match (call, at) {
            (Call::Get, _) => return Answer::Found(found.map(|(value, at)| (value, at.0))),
            (Call::Create(value), None) => Ok(expected.put(key(name), bytes(*value))),
            (Call::Create(_), Some(_)) => Err(Answer::Exists),
            (Call::Update(..) | Call::Delete(_), None) => Err(Answer::Missing),
            (Call::Update(_, Some(demanded)), Some(at)) if at.0 != *demanded => {
                Err(Answer::Conflict)
            }
            (Call::Update(value, _), Some(_)) => Ok(expected.put(key(name), bytes(*value))),
            (Call::Delete(_), Some(_)) => Ok(expected.delete(key(name))),
        };
        match wanted {
            Ok(transaction) => match store.commit(transaction).await {
                Ok(at) => return Answer::Written(call.value().map(|_| at.0)),
                Err(StoreError::Conflict { .. }) => {}
                Err(_) => return Answer::Unknown,
            },
            Err(answer) if is_fresh => return answer,
            Err(_) => {
                store.fresh().await.unwrap();
                is_fresh = true;
            }
        }
    }
    Answer::Conflict
}

/// Two objects in one transaction, new ones.
async fn both(store: &Store, told: &Shared) {
    let values = [(); 2].map(|()| told.borrow_mut().fresh());
    let names = values.map(|value| format!("both-{value}"));
    let mut transaction = Transaction::new();
    for (name, value) in names.iter().zip(values) {
        transaction = transaction.expect(key(name), None).put(key(name), bytes(value));
    }
    let invoked = told.borrow().now();
    let revision = store.commit(transaction).await.unwrap();
    let mut told = told.borrow_mut();
    let answered = told.now();
    for (key, value) in names.into_iter().zip(values) {
        let (call, answer) = (Call::Create(value), Answer::Written(Some(revision.0)));
        told.history.operations.push(Operation { key, invoked, answered, call, answer });
    }
    told.history.transactions.push(values.to_vec());
}

async fn list(store: &Store, told: &Shared) {
    let invoked = told.borrow().now();
    store.fresh().await.unwrap();
    let found = store.list("things", "", None).unwrap();
    let item = |entry: &Arc<crate::entry::Entry>| {
        (entry.key.path.to_string(), (number(&entry.value), entry.revision.0))
    };
    let (items, revision) = (found.entries.iter().map(item).collect(), found.revision.0);
    let mut told = told.borrow_mut();
    let answered = told.now();
    told.history.listings.push(Listing { invoked, answered, exact: false, revision, items });
}

/// Follows everything in small batches, by turns at both stores, to a revision.
fn follow(stores: &[Arc<Store>; 2], after: u64, end: Revision) -> Watched {
    let (mut at, mut events, mut turn) = (Revision(after), Vec::new(), 0);
    while at < end {
        let batch = stores[turn % 2].events_after("things", at, 1 + turn % 3).unwrap();
        events.extend(batch.events.iter().map(|event| Event {
            revision: event.revision.0,
            key: event.key.path.to_string(),
            value: event.after.as_ref().map(|entry| number(&entry.value)),
        }));
        (at, turn) = (batch.revision, turn + 1);
    }
    Watched { after, events, complete_to: end.0 }
}

/// What the clients of two stores are told that are broken in a way, or not, and always hear of what
/// others write a little later.
async fn run(etcd: &Etcd, seed: u64, mutation: Option<Mutation>) -> History {
    let prefix = format!("/{mutation:?}-{seed}/");
    let stores = [store(etcd, &prefix).await, store(etcd, &prefix).await];
    let empty_at = stores[0].revision().0;
    let history = History { empty_at, ..History::default() };
    let begin = std::time::Instant::now();
    let told = Rc::new(RefCell::new(Told { begin, history, known: BTreeMap::new(), value: 0 }));
    choose(mutation, BEHIND);
    let local = LocalSet::new();
    for number in 0..CLIENTS {
        let store = stores[number as usize % 2].clone();
        local.spawn_local(ask(store, told.clone(), Random(seed * CLIENTS + number + 1)));
    }
    local.await;
    let told = Rc::try_unwrap(told).ok().expect("all clients have ended");
    let mut told = told.into_inner();
    let (invoked, value) = (told.now(), told.fresh());
    let write = Transaction::new().put(key("last"), bytes(value));
    let end = stores[0].commit(write).await.unwrap();
    while stores[1].revision() < end {
        time::sleep(Duration::from_millis(5)).await;
    }
    let (answered, answer) = (told.now(), Answer::Written(Some(end.0)));
    let (key, call) = ("last".to_owned(), Call::Create(value));
    told.history.operations.push(Operation { key, invoked, answered, call, answer });
    told.history.watches.push(follow(&stores, empty_at, end));
    choose(None, Duration::ZERO);
    told.history
}

#[tokio::test]
async fn one_order_explains_two_stores() {
    let Some(etcd) = Etcd::start(1) else { return };
    for seed in 1..4 {
        let history = run(&etcd, seed, None).await;
        assert_eq!(history.check(), Ok(()), "seed {seed}");
        eprintln!("{}; {}", history.summary(), history.tally().unwrap());
    }
}

/// What the barrier, the wait after a conflict and the end of a batch are for, somebody is told wrongly
/// without them.
#[tokio::test]
async fn a_store_that_is_broken_on_purpose_is_found() {
    let Some(etcd) = Etcd::start(1) else { return };
    for (mutation, wants) in [
        (Mutation::NoBarrier, &["Stale", "OutOfTime", "NoOrder"][..]),
        (Mutation::NoWaitAfterConflict, &["NoOrder"]),
        (Mutation::BatchesByCount, &["Skipped"]),
    ] {
        let history = run(&etcd, 1, Some(mutation)).await;
        let found = history.check().expect_err(&format!("{mutation:?} is found"));
        eprintln!("{mutation:?}: {found}");
        let kind = format!("{found:?}");
        assert!(wants.iter().any(|want| kind.starts_with(want)), "{mutation:?}: {kind}");
    }
}
