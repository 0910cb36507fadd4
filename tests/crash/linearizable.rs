//! Many clients at the same few objects while the server is killed: one order of all operations
//! explains every answer that anybody got, lists and watches too. `roadstead_testkit::history` judges.
//!
//! `ROADSTEAD_HISTORY_SECONDS=600` goes on for that long; without it, for some seconds.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    DeleteParams, ListParams, PostParams, Preconditions, VersionMatch, WatchEvent, WatchParams,
};
use kube::{Api, ResourceExt};
use roadstead_testkit::etcd::Etcd;
use roadstead_testkit::history::{
    Answer, Call, Event, History, Listing, Operation, Revision, Time, Watched,
};
use roadstead_testkit::netns::is_left_out;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time;

use crate::record::state;
use crate::server::Server;
use crate::{Random, number, seed};

const CLIENTS: u64 = 8;
const WATCHES: usize = 2;
const OBJECTS: u64 = 5;

/// What everybody was told so far.
pub(crate) struct Told {
    begin: Instant,
    pub(crate) history: Mutex<History>,
    /// For each object, revisions that somebody was told: what a write demands is one of them.
    pub(crate) known: Mutex<BTreeMap<String, Revision>>,
    last_value: Mutex<u64>,
}

impl Told {
    /// Nothing yet; there is no object at this revision.
    pub(crate) fn since(empty_at: Revision) -> Arc<Self> {
        let watched = Watched { after: empty_at, events: Vec::new(), complete_to: empty_at };
        let history = History { empty_at, watches: vec![watched; WATCHES], ..History::default() };
        Arc::new(Self {
            begin: Instant::now(),
            history: Mutex::new(history),
            known: Mutex::default(),
            last_value: Mutex::default(),
        })
    }

    pub(crate) fn now(&self) -> Time {
        self.begin.elapsed().as_nanos() as Time
    }

    pub(crate) fn fresh(&self) -> u64 {
        let mut last = self.last_value.lock().unwrap();
        *last += 1;
        *last
    }

    /// Somebody was told something.
    pub(crate) fn note(&self, mut operation: Operation) {
        if operation.answer == Answer::Unknown {
            // Until the server is known to be dead, it may still happen.
            operation.answered = Time::MAX;
        }
        if let Answer::Written(Some(at)) | Answer::Found(Some((_, at))) = operation.answer {
            self.known.lock().unwrap().insert(operation.key.clone(), at);
        }
        self.history.lock().unwrap().operations.push(operation);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_order_explains_every_answer() {
    if is_left_out("L5") {
        return;
    }
    let lasting = Duration::from_secs(number("ROADSTEAD_HISTORY_SECONDS").unwrap_or(8));
    let seed = seed();
    eprintln!("{lasting:?} of histories with ROADSTEAD_SEED={seed}");
    let (mut random, directory) = (Random(seed), tempfile::tempdir().unwrap());
    let (mut crashes, mut rounds, mut operations) = (0, 0, 0);
    let begin = Instant::now();
    // What was told so far is judged now and then: a search does not like to be long.
    while begin.elapsed() < lasting {
        let told = first(Server::start(directory.path())).await;
        for _ in 0..4 {
            let lifetime = Duration::from_millis(50 + random.below(700));
            live(Server::start(directory.path()), &told, &mut random, lifetime).await;
            crashes += 1;
        }
        last(Server::start(directory.path()), &told).await;
        let mut history = told.history.lock().unwrap();
        eprintln!("{}", history.summary());
        if let Err(fault) = history.check() {
            panic!("seed {seed}: {fault}");
        }
        (rounds, operations) = (rounds + 1, operations + history.operations.len());
        // The judges can say no: what one watch told, without its first event.
        history.watches[0].events.remove(0);
        assert!(history.check().is_err(), "seed {seed}: an event is missing");
    }
    eprintln!(
        "{crashes} crashes in {:.0?}: {rounds} records, {} histories, {operations} operations",
        begin.elapsed(),
        rounds * (OBJECTS + 1),
    );
}

/// Two servers in front of one etcd, each with half of the clients. One is killed in the middle of
/// everything, and begins anew; a watch goes on at whichever server it comes to.
#[tokio::test(flavor = "multi_thread")]
async fn one_order_explains_what_two_servers_say() {
    if is_left_out("L5") {
        return;
    }
    let Some(etcd) = Etcd::start(1) else { return };
    let lasting = Duration::from_secs(number("ROADSTEAD_HISTORY_SECONDS").unwrap_or(8));
    let seed = seed();
    eprintln!("{lasting:?} of histories of two servers with ROADSTEAD_SEED={seed}");
    let (mut random, directory) = (Random(seed), tempfile::tempdir().unwrap());
    let flags = ["--etcd-servers".to_owned(), etcd.urls().join(",")];
    let (own, other) = (directory.path().join("one"), directory.path().join("other"));
    for directory in [&own, &other] {
        std::fs::create_dir_all(directory.join("data")).unwrap();
    }
    let start = |directory: &Path| Server::start_with(directory, &flags);
    drop(start(&own));
    std::fs::create_dir(other.join("data/pki")).unwrap();
    for file in std::fs::read_dir(own.join("data/pki")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), other.join("data/pki").join(file.file_name())).unwrap();
    }
    let begin = Instant::now();
    let (mut crashes, mut operations) = (0, 0);
    while begin.elapsed() < lasting {
        let told = first(start(&own)).await;
        for round in 0..4 {
            let servers = [start(&own), start(&other)];
            let (now, later) = (50 + random.below(700), 50 + random.below(400));
            live_apart(servers, &told, &mut random, (round % 2, now, later)).await;
            crashes += 2;
        }
        last(start(&other), &told).await;
        let mut history = told.history.lock().unwrap();
        eprintln!("{}", history.summary());
        if let Err(fault) = history.check() {
            panic!("seed {seed}: {fault}");
        }
        operations += history.operations.len();
        history.watches[0].events.remove(0);
        assert!(history.check().is_err(), "seed {seed}: an event is missing");
    }
    eprintln!(
        "{crashes} crashes of two servers in {:.0?}: {operations} operations",
        begin.elapsed()
    );
}

/// One life of two servers: after some milliseconds one is killed, after some more the other.
async fn live_apart(
    servers: [Server; 2],
    told: &Arc<Told>,
    random: &mut Random,
    (victim, now, later): (usize, u64, u64),
) {
    let mut tasks = JoinSet::new();
    for watch in 0..WATCHES {
        let maps = Api::default_namespaced(servers[(watch + victim) % 2].client().await);
        tasks.spawn(follow(maps, told.clone(), watch));
    }
    for client in 0..CLIENTS {
        let maps = Api::default_namespaced(servers[client as usize % 2].client().await);
        let random = Random(random.below(u64::MAX - 1) + 1);
        tasks.spawn(ask(maps, told.clone(), random));
    }
    let before = told.now();
    let [one, other] = servers;
    let (first, second) = if victim == 0 { (one, other) } else { (other, one) };
    time::sleep(Duration::from_millis(now)).await;
    first.kill();
    time::sleep(Duration::from_millis(later)).await;
    second.kill();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    // What was on its way to etcd may have arrived a little after the server died.
    time::sleep(Duration::from_millis(300)).await;
    settle(told, before);
}

/// What nobody answered happened by now, or not at all.
pub(crate) fn settle(told: &Told, since: Time) {
    let now = told.now();
    for operation in &mut told.history.lock().unwrap().operations {
        if operation.answer == Answer::Unknown && operation.invoked >= since {
            operation.answered = operation.answered.min(now).max(operation.invoked);
        }
    }
}

/// A record that begins with no object.
async fn first(server: Server) -> Arc<Told> {
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    maps.delete_collection(&DeleteParams::default(), &ListParams::default()).await.unwrap();
    let empty = maps.list(&ListParams::default()).await.unwrap();
    assert_eq!(empty.items.len(), 0);
    let empty_at = empty.metadata.resource_version.unwrap().parse().unwrap();
    server.kill();
    Told::since(empty_at)
}

/// One life of the server, which ends in the middle of everything.
async fn live(server: Server, told: &Arc<Told>, random: &mut Random, lifetime: Duration) {
    let mut tasks = JoinSet::new();
    for watch in 0..WATCHES {
        let maps = Api::default_namespaced(server.client().await);
        tasks.spawn(follow(maps, told.clone(), watch));
    }
    for _ in 0..CLIENTS {
        let maps = Api::default_namespaced(server.client().await);
        let random = Random(random.below(u64::MAX - 1) + 1);
        tasks.spawn(ask(maps, told.clone(), random));
    }
    let before = told.now();
    time::sleep(lifetime).await;
    server.kill();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    settle(told, before);
}

/// The last life: what is there, and watches that have told all of it.
async fn last(server: Server, told: &Arc<Told>) {
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    list(&maps, told, None).await.expect("a server that is ready lists");
    // What is written last is what the watches wait for.
    let (invoked, value) = (told.now(), told.fresh());
    let answer = maps.create(&PostParams::default(), &map("last", value, None)).await;
    let end = state(&answer.unwrap()).unwrap().0;
    let (key, answered, call) = ("last".to_owned(), told.now(), Call::Create(value));
    let answer = Answer::Written(Some(end));
    let operation = Operation { key, invoked, answered, call, answer };
    told.history.lock().unwrap().operations.push(operation);
    let mut tasks = JoinSet::new();
    for watch in 0..WATCHES {
        tasks.spawn(follow(maps.clone(), told.clone(), watch));
    }
    let is_told = || {
        let mut history = told.history.lock().unwrap();
        for watched in &mut history.watches {
            watched.complete_to = watched.events.last().map_or(watched.after, |last| last.revision);
        }
        history.watches.iter().all(|watched| watched.complete_to >= end)
    };
    let wait = async {
        while !is_told() {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(Duration::from_secs(20), wait).await.expect("the watches catch up");
    tasks.shutdown().await;
    server.kill();
}

pub(crate) fn map(name: &str, value: u64, demanded: Option<Revision>) -> ConfigMap {
    let mut map = json!({"metadata": {"name": name}, "data": {"number": value.to_string()}});
    if let Some(demanded) = demanded {
        map["metadata"]["resourceVersion"] = demanded.to_string().into();
    }
    serde_json::from_value(map).unwrap()
}

/// Asks and asks, until nobody answers.
async fn ask(maps: Api<ConfigMap>, told: Arc<Told>, mut random: Random) {
    loop {
        let (key, call) = match question(&told, &mut random) {
            Ok(question) => question,
            Err(at) => match list(&maps, &told, at).await {
                Ok(()) => continue,
                Err(why) => return assert_eq!(why, "", "a list at {at:?}"),
            },
        };
        let invoked = told.now();
        let answer = act(&maps, &key, &call).await.unwrap_or_else(|refused| panic!("{refused}"));
        let is_over = answer == Answer::Unknown;
        told.note(Operation { key, invoked, answered: told.now(), call, answer });
        if is_over {
            return;
        }
    }
}

/// What to ask next about a single object; an error: for a list, at a revision or the newest.
pub(crate) fn question(
    told: &Told,
    random: &mut Random,
) -> Result<(String, Call), Option<Revision>> {
    let key = format!("map-{}", random.below(OBJECTS));
    // Most know what is there; some what was there.
    let known = told.known.lock().unwrap().get(&key).copied();
    let call = match random.below(12) {
        0..=2 => Call::Create(told.fresh()),
        3..=5 => Call::Update(told.fresh(), known),
        6 => Call::Update(told.fresh(), None),
        7 => Call::Delete(known),
        8 => Call::Delete(None),
        9 => return Err(known.filter(|_| random.below(2) == 0)),
        _ => Call::Get,
    };
    Ok((key, call))
}

/// Asks once. An error: it was refused for a reason that is no answer, and nothing happened.
pub(crate) async fn act(maps: &Api<ConfigMap>, key: &str, call: &Call) -> Result<Answer, String> {
    let outcome = match call {
        Call::Create(value) => maps.create(&PostParams::default(), &map(key, *value, None)).await,
        Call::Update(value, demanded) => {
            maps.replace(key, &PostParams::default(), &map(key, *value, *demanded)).await
        }
        Call::Delete(demanded) => {
            let resource_version = demanded.map(|demanded| demanded.to_string());
            let preconditions = Some(Preconditions { resource_version, uid: None });
            let parameters = DeleteParams { preconditions, ..DeleteParams::default() };
            match maps.delete(key, &parameters).await {
                Ok(_) => return Ok(Answer::Written(None)),
                Err(error) => Err(error),
            }
        }
        Call::Get => maps.get(key).await,
    };
    let answer = match (outcome, call) {
        (Ok(map), Call::Get) => {
            Answer::Found(state(&map).map(|(revision, value)| (value, revision)))
        }
        (Ok(map), _) => {
            let (revision, value) = state(&map).expect("an answer has a revision");
            assert_eq!(Some(value), call.value(), "the answer to a write is what was written");
            Answer::Written(Some(revision))
        }
        (Err(kube::Error::Api(refused)), _) => match &*refused.reason {
            "AlreadyExists" => Answer::Exists,
            "NotFound" => Answer::Missing,
            "Conflict" => Answer::Conflict,
            // The server has asked etcd, and was not answered.
            "Timeout" => Answer::Unknown,
            _ => return Err(format!("{key} {call:?}: {refused}")),
        },
        (Err(_), _) => Answer::Unknown,
    };
    Ok(answer)
}

/// A list of everything, now or at a revision. An error says why it was refused; nothing, if nobody answered.
pub(crate) async fn list(
    maps: &Api<ConfigMap>,
    told: &Told,
    at: Option<Revision>,
) -> Result<(), String> {
    let mut parameters = ListParams::default();
    if let Some(at) = at {
        parameters = parameters.at(&at.to_string()).matching(VersionMatch::Exact);
    }
    let invoked = told.now();
    let found = match maps.list(&parameters).await {
        Ok(found) => found,
        Err(kube::Error::Api(refused)) => return Err(refused.to_string()),
        Err(_) => return Err(String::new()),
    };
    let answered = told.now();
    let revision = found.metadata.resource_version.unwrap().parse().unwrap();
    assert!(at.is_none_or(|at| at == revision), "asked for {at:?}, told of {revision}");
    let items = found.items.iter().map(|map| {
        let (revision, value) = state(map).expect("an item has a revision");
        (map.name_any(), (value, revision))
    });
    let items = items.collect();
    let exact = at.is_some();
    told.history.lock().unwrap().listings.push(Listing {
        invoked,
        answered,
        exact,
        revision,
        items,
    });
    Ok(())
}

/// Watches from where this watch ended before, until the server is gone.
async fn follow(maps: Api<ConfigMap>, told: Arc<Told>, watch: usize) {
    let resume = {
        let history = told.history.lock().unwrap();
        let watched = &history.watches[watch];
        watched.events.last().map_or(watched.after, |event| event.revision)
    };
    let events = maps.watch(&WatchParams::default(), &resume.to_string()).await;
    let Ok(events) = events else { return };
    let mut events = events.boxed();
    while let Ok(Some(event)) = events.try_next().await {
        let (map, is_there) = match event {
            WatchEvent::Added(map) | WatchEvent::Modified(map) => (map, true),
            WatchEvent::Deleted(map) => (map, false),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(error) => panic!("the watch cannot resume from {resume}: {error}"),
        };
        let (revision, value) = state(&map).expect("an event has a revision");
        let (key, value) = (map.name_any(), is_there.then_some(value));
        told.history.lock().unwrap().watches[watch].events.push(Event { revision, key, value });
    }
}
