//! Clients that ask and ask, some at one server and some at whichever answers, and watches that go on
//! wherever they can: what they are told while something happens to the servers, and what is judged of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use roadstead_testkit::history::{Answer, Call, Event, Fault, Operation, Watched};
use tokio::task::JoinSet;
use tokio::time;

use super::allocations;
use super::cluster::{Cluster, Directories};
use crate::Random;
use crate::linearizable::{Told, act, list, question, settle};
use crate::record::state;
use crate::server;

/// Half of them stay with a server, the others go on to the next when nobody answers.
const CLIENTS: usize = 6;
const WATCHES: usize = 2;
/// Longer than a server waits for etcd: what it does not know, it says by then.
const PATIENCE: Duration = Duration::from_secs(8);
/// Before a client asks again who was not answered.
const PAUSE: Duration = Duration::from_millis(20);

/// What all of them share.
pub(super) struct Shared {
    pub(super) told: Arc<Told>,
    pub(super) directories: Directories,
    pub(super) is_over: AtomicBool,
    /// Requests that were refused because etcd was not there.
    refused: AtomicUsize,
    /// Lists that a watch needed because its place was forgotten.
    relists: AtomicUsize,
    /// Which record each watch is writing: after such a list it begins another one.
    records: [AtomicUsize; WATCHES],
}

/// Clients and watches at work.
pub(super) struct Load {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
    watches: JoinSet<()>,
    allocations: allocations::Watches,
}

impl Load {
    /// Begins with no object.
    pub(super) async fn start(cluster: &Cluster, random: &mut Random) -> Self {
        let client = cluster.client(0).await;
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        maps.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
        let empty = maps.list(&ListParams::default()).await.unwrap();
        assert_eq!(empty.items.len(), 0);
        let empty_at = empty.metadata.resource_version.unwrap().parse().unwrap();
        let shared = Arc::new(Shared {
            told: Told::since(empty_at),
            directories: cluster.directories.clone(),
            is_over: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            relists: AtomicUsize::new(0),
            records: std::array::from_fn(AtomicUsize::new),
        });
        let (mut clients, mut watches) = (JoinSet::new(), JoinSet::new());
        let servers = cluster.directories.len();
        for watch in 0..WATCHES {
            watches.spawn(follow(shared.clone(), watch, (watch + 1) % servers));
        }
        for number in 0..CLIENTS {
            let random = Random(random.below(u64::MAX - 1) + 1);
            clients.spawn(ask(shared.clone(), number % servers, number >= CLIENTS / 2, random));
        }
        let allocations = allocations::Watches::start(&shared, &client, &mut watches).await;
        for number in 0..2 {
            let random = Random(random.below(u64::MAX - 1) + 1);
            clients.spawn(allocations::write(shared.clone(), number, random));
        }
        Self { shared, clients, watches, allocations }
    }

    /// Ends it when everything works again, and judges; returns what there was.
    pub(super) async fn end(mut self, cluster: &Cluster, name: &str) -> String {
        let Shared { told, is_over, .. } = &*self.shared;
        is_over.store(true, Ordering::Release);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        // What was on its way to etcd may have arrived a little after its server died.
        time::sleep(Duration::from_millis(500)).await;
        settle(told, 0);
        self.allocations.mark(cluster).await;
        let end = last(cluster, told).await;
        self.wait(end).await;
        self.watches.shutdown().await;
        self.judge(name)
    }

    /// Waits until the watches have told everything up to a revision.
    async fn wait(&self, end: u64) {
        let is_told = || {
            let mut history = self.shared.told.history.lock().unwrap();
            for watched in &mut history.watches {
                watched.complete_to = watched.events.last().map_or(watched.after, |e| e.revision);
            }
            let record = |at: &AtomicUsize| &history.watches[at.load(Ordering::Acquire)];
            self.shared.records.iter().all(|at| record(at).complete_to >= end)
        };
        let begin = Instant::now();
        while !is_told() || !self.allocations.are_told() {
            assert!(begin.elapsed() < Duration::from_secs(40), "the watches do not catch up");
            time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn judge(&self, name: &str) -> String {
        let history = self.shared.told.history.lock().unwrap();
        let tally = history.tally().unwrap_or_else(|fault| panic!("{name}: {fault}"));
        // The search may be too long; what revisions tell is always judged.
        let searched = match history.check() {
            Ok(()) => "",
            Err(Fault::Undecided(_)) => match history.check_revisions() {
                Ok(()) => ", not searched",
                Err(fault) => panic!("{name}: {fault}; {tally}"),
            },
            Err(fault) => panic!("{name}: {fault}; {tally}"),
        };
        let allocated = self.allocations.judge().unwrap_or_else(|fault| panic!("{name}: {fault}"));
        let mut written: Vec<_> = history.operations.iter().filter_map(answered).collect();
        written.sort_unstable();
        let gap = written.windows(2).map(|two| two[1] - two[0]).max().unwrap_or(0);
        format!(
            "{tally}; {} lists; {} refused; {} relists; {allocated} revisions of addresses and ports; \
             longest time without a write {:.1?}{searched}",
            history.listings.len(),
            self.shared.refused.load(Ordering::Relaxed),
            self.shared.relists.load(Ordering::Relaxed),
            Duration::from_nanos(gap),
        )
    }
}

fn answered(operation: &Operation) -> Option<u64> {
    matches!(operation.answer, Answer::Written(_)).then_some(operation.answered)
}

/// What is written last is what the watches wait for.
async fn last(cluster: &Cluster, told: &Told) -> u64 {
    let maps: Api<ConfigMap> = Api::default_namespaced(cluster.client(0).await);
    let (invoked, value) = (told.now(), told.fresh());
    let (key, call) = ("last".to_owned(), Call::Create(value));
    let answer = act(&maps, &key, &call).await.unwrap();
    let Answer::Written(Some(end)) = answer else { panic!("the last write: {answer:?}") };
    let answered = told.now();
    told.note(Operation { key, invoked, answered, call, answer });
    end
}

/// Asks and asks, until it is over.
async fn ask(shared: Arc<Shared>, home: usize, balances: bool, mut random: Random) {
    let Shared { told, directories, is_over, .. } = &*shared;
    let mut at = home;
    let mut maps: Api<ConfigMap> = Api::default_namespaced(server::client(&directories[at]).await);
    while !is_over.load(Ordering::Acquire) {
        let is_answered = match question(told, &mut random) {
            Ok((key, call)) => {
                let invoked = told.now();
                match time::timeout(PATIENCE, act(&maps, &key, &call)).await {
                    Ok(Ok(answer)) => {
                        let is_answered = answer != Answer::Unknown;
                        let answered = told.now();
                        told.note(Operation { key, invoked, answered, call, answer });
                        is_answered
                    }
                    // It says that nothing has happened. If it did, a value was written by nobody.
                    Ok(Err(_)) => {
                        shared.refused.fetch_add(1, Ordering::Relaxed);
                        false
                    }
                    Err(_) => {
                        let answer = Answer::Unknown;
                        told.note(Operation { key, invoked, answered: 0, call, answer });
                        false
                    }
                }
            }
            Err(revision) => {
                matches!(time::timeout(PATIENCE, list(&maps, told, revision)).await, Ok(Ok(())))
            }
        };
        if !is_answered {
            time::sleep(PAUSE).await;
            at = if balances { (at + 1) % directories.len() } else { at };
            maps = Api::default_namespaced(server::client(&directories[at]).await);
        }
    }
}

/// Watches, goes on where it was at the next server when one is gone, and lists only if it is told that
/// its place is forgotten.
async fn follow(shared: Arc<Shared>, watch: usize, mut at: usize) {
    let Shared { told, directories, relists, records, .. } = &*shared;
    loop {
        let record = records[watch].load(Ordering::Acquire);
        let maps: Api<ConfigMap> = Api::default_namespaced(server::client(&directories[at]).await);
        let resume = {
            let history = told.history.lock().unwrap();
            let watched = &history.watches[record];
            watched.events.last().map_or(watched.after, |event| event.revision)
        };
        let parameters = WatchParams::default().timeout(5);
        let events = maps.watch(&parameters, &resume.to_string()).await;
        let mut is_forgotten =
            matches!(&events, Err(kube::Error::Api(refused)) if refused.code == 410);
        if let Ok(events) = events {
            let mut events = events.boxed();
            while let Ok(Some(event)) = events.try_next().await {
                let (map, is_there) = match event {
                    WatchEvent::Added(map) | WatchEvent::Modified(map) => (map, true),
                    WatchEvent::Deleted(map) => (map, false),
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(error) => {
                        is_forgotten = error.code == 410;
                        break;
                    }
                };
                let (revision, value) = state(&map).expect("an event has a revision");
                let (key, value) = (map.name_any(), is_there.then_some(value));
                let event = Event { revision, key, value };
                told.history.lock().unwrap().watches[record].events.push(event);
            }
        }
        if is_forgotten && let Ok(found) = maps.list(&ListParams::default()).await {
            relists.fetch_add(1, Ordering::Relaxed);
            let after = found.metadata.resource_version.unwrap().parse().unwrap();
            let mut history = told.history.lock().unwrap();
            history.watches.push(Watched { after, events: Vec::new(), complete_to: after });
            records[watch].store(history.watches.len() - 1, Ordering::Release);
        }
        at = (at + 1) % directories.len();
        time::sleep(PAUSE).await;
    }
}
