//! A server with very many watches is killed: all of them go on at another one at once, and nobody lists.
//! `ROADSTEAD_FAULT_WATCHERS=1000` says how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use roadstead_testkit::history::{Answer, Call, Event, History, Operation, Watched};
use roadstead_testkit::netns::is_left_out;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time;

use super::cluster::Cluster;
use crate::linearizable::map;
use crate::number;
use crate::record::state;

/// What is written before the server is killed, and after.
const WRITES: u64 = 10;

/// Where watches are, and where they go.
struct Place {
    clients: [Client; 2],
    is_killed: Notify,
    /// How many have told of so many events.
    level: AtomicU64,
}

#[tokio::test(flavor = "multi_thread")]
async fn very_many_watches_go_on_at_another_server() {
    if is_left_out("L5") {
        return;
    }
    let watchers = number("ROADSTEAD_FAULT_WATCHERS").unwrap_or(300);
    let Some(mut cluster) = Cluster::start(1, 2) else { return };
    let clients = [cluster.client(0).await, cluster.client(1).await];
    let maps: Api<ConfigMap> = Api::default_namespaced(clients[1].clone());
    let empty = maps.list(&ListParams::default()).await.unwrap();
    let empty_at: u64 = empty.metadata.resource_version.unwrap().parse().unwrap();
    let place = Arc::new(Place { clients, is_killed: Notify::new(), level: AtomicU64::new(0) });
    let mut tasks = JoinSet::new();
    for _ in 0..watchers {
        tasks.spawn(watch(place.clone(), empty_at));
    }
    let mut history = History { empty_at, ..History::default() };
    write(&maps, &mut history, 0).await;
    reach(&place, watchers).await;
    let lists = listed(&place.clients[1]).await;
    cluster.kill(0);
    let begin = Instant::now();
    place.is_killed.notify_waiters();
    // Others are there, too, and wait no longer than they should.
    let slowest = write(&maps, &mut history, WRITES).await;
    reach(&place, 2 * watchers).await;
    let took = begin.elapsed();
    let lists = listed(&place.clients[1]).await - lists;
    while let Some(watched) = tasks.join_next().await {
        history.watches.push(watched.unwrap());
    }
    let tally = history.tally().unwrap();
    eprintln!(
        "{watchers} watches went on at another server within {took:.1?}, with {lists} lists; slowest write \
         meanwhile {slowest:.0?}; {tally}"
    );
    assert_eq!(history.check_revisions(), Ok(()));
    assert_eq!((lists, tally.lost, tally.doubled), (0.0, 0, 0));
}

/// Watches at one server until it is gone, and then at the other.
async fn watch(place: Arc<Place>, empty_at: u64) -> Watched {
    let mut watched = Watched { after: empty_at, events: Vec::new(), complete_to: empty_at };
    for (round, client) in (1..).zip(&place.clients) {
        let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let end = round * WRITES as usize;
        let is_killed = place.is_killed.notified();
        tokio::pin!(is_killed);
        is_killed.as_mut().enable();
        let after = watched.complete_to.to_string();
        // So many at once a server does not take on; those that it turns away come again.
        let events = loop {
            match maps.watch(&WatchParams::default(), &after).await {
                Ok(events) => break events,
                Err(kube::Error::Api(refused)) => panic!("a watch after {after}: {refused}"),
                Err(_) => time::sleep(Duration::from_millis(20)).await,
            }
        };
        let mut events = events.boxed();
        while watched.events.len() < end {
            let event = match events.try_next().await {
                Ok(Some(WatchEvent::Added(map))) => map,
                other => panic!("after {}: {other:?}", watched.events.len()),
            };
            let (revision, value) = state(&event).expect("an event has a revision");
            watched.events.push(Event { revision, key: event.name_any(), value: Some(value) });
            watched.complete_to = revision;
        }
        place.level.fetch_add(1, Ordering::AcqRel);
        if round == 1 {
            is_killed.await;
        }
    }
    watched
}

/// Creates some objects; returns how long the slowest took.
async fn write(maps: &Api<ConfigMap>, history: &mut History, first: u64) -> Duration {
    let mut slowest = Duration::ZERO;
    for value in first..first + WRITES {
        let (key, begin) = (format!("many-{value}"), Instant::now());
        let made = maps.create(&PostParams::default(), &map(&key, value, None)).await.unwrap();
        slowest = slowest.max(begin.elapsed());
        let (call, answer) = (Call::Create(value), Answer::Written(Some(state(&made).unwrap().0)));
        let (invoked, answered) = (value * 2, value * 2 + 1);
        history.operations.push(Operation { key, invoked, answered, call, answer });
    }
    slowest
}

async fn reach(place: &Place, level: u64) {
    let begin = Instant::now();
    while place.level.load(Ordering::Acquire) < level {
        let now = place.level.load(Ordering::Acquire);
        assert!(begin.elapsed() < Duration::from_secs(60), "{now} of {level}");
        time::sleep(Duration::from_millis(20)).await;
    }
}

/// How many lists of ConfigMaps a server has answered.
async fn listed(client: &Client) -> f64 {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let text = client.request_text(request).await.unwrap();
    let lines = text.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains("verb=\"LIST\"")
            && line.contains("resource=\"configmaps\"")
    });
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}
