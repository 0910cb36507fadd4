//! Watches under load: many watchers with selectors and broken connections, many writes. Each watcher
//! must be told exactly what its selector makes of the writes, each once and in order, and end with
//! what the store holds.

mod hollow;
mod record;
mod slow;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use http::Request;
use http_body_util::{BodyExt, BodyStream, Full};
use roadstead_server::api::Api;
use roadstead_server::bootstrap;
use roadstead_server::config::Config;
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::identity::user::User;
use roadstead_server::request::chain::handle;
use roadstead_store::kv::Store;
use serde_json::{Value, json};

use crate::record::{Selection, Told};

const WATCHERS: u64 = 200;
const WRITES: u64 = 20_000;
const OBJECTS: u64 = 300;
const PATH: &str = "/api/v1/namespaces/default/configmaps";

/// SplitMix64: numbers that only depend on a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

async fn send(api: &Arc<Api>, method: &str, path: &str, body: Value) -> (u16, Value) {
    let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(Full::new(bytes))
        .unwrap();
    let response = handle(api.clone(), User::component(), request).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Name to content, as a watcher or a list sees it.
type Seen = BTreeMap<String, (u64, String)>;

fn note(seen: &mut Seen, object: &Value) {
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    seen.insert(name, (version(object), object["data"]["value"].to_string()));
}

async fn list(api: &Arc<Api>, query: &str) -> (u64, Seen) {
    let (code, list) = send(api, "GET", &format!("{PATH}?{query}"), Value::Null).await;
    assert_eq!(code, 200);
    let mut seen = Seen::new();
    list["items"].as_array().unwrap().iter().for_each(|object| note(&mut seen, object));
    (version(&list), seen)
}

/// What became of a watcher.
struct Followed {
    selection: Selection,
    seen: Seen,
    /// What it was told since it last listed everything, at this version.
    since: u64,
    told: Vec<Told>,
}

/// Follows the kind until the writers are done and everything has arrived.
async fn watcher(
    api: Arc<Api>,
    number: u64,
    done: Arc<AtomicU64>,
    relists: Arc<AtomicU64>,
) -> Followed {
    let mut random = Random(number);
    let selection = match random.below(4) {
        0 => Selection::All,
        1 => Selection::Groups(vec![random.below(5)]),
        2 => Selection::Groups(vec![random.below(5), random.below(5)]),
        _ => Selection::Name(format!("m{}", random.below(OBJECTS))),
    };
    let query = selection.query();
    let (mut last, mut seen) = list(&api, &query).await;
    let (mut since, mut told) = (last, Vec::new());
    loop {
        let path =
            format!("{PATH}?watch=true&allowWatchBookmarks=true&resourceVersion={last}&{query}");
        let request = Request::builder().uri(path).body(Full::new(Bytes::new())).unwrap();
        let response = handle(api.clone(), User::component(), request).await;
        let mut lines = BodyStream::new(response.into_body());
        let mut patience = random.below(400);
        loop {
            let end = done.load(Ordering::Acquire);
            let next = tokio::time::timeout(quiet(end), lines.next()).await;
            let Ok(next) = next else {
                if end > 0 {
                    return Followed { selection, seen, since, told };
                }
                continue;
            };
            let Some(Ok(frame)) = next else { break };
            let event: Value = serde_json::from_slice(&frame.into_data().unwrap()).unwrap();
            let object = &event["object"];
            if event["type"] == "ERROR" {
                assert_eq!(object["code"], 410, "{event}");
                relists.fetch_add(1, Ordering::Relaxed);
                (last, seen) = list(&api, &query).await;
                (since, told) = (last, Vec::new());
                break;
            }
            let now = version(object);
            if event["type"] != "BOOKMARK" {
                assert!(
                    now > last,
                    "watcher {number}: {now} after {last}: out of order or doubled"
                );
            }
            last = now;
            let name = object["metadata"]["name"].as_str().unwrap_or("").to_owned();
            let kind = event["type"].as_str().unwrap();
            if kind != "BOOKMARK" {
                told.push((now, kind.to_owned(), name.clone()));
            }
            match kind {
                "ADDED" => {
                    assert!(!seen.contains_key(&name), "watcher {number}: {name} added twice");
                    note(&mut seen, object);
                }
                "MODIFIED" => {
                    assert!(
                        seen.contains_key(&name),
                        "watcher {number}: {name} changed but never added"
                    );
                    note(&mut seen, object);
                }
                "DELETED" => {
                    assert!(seen.remove(&name).is_some(), "watcher {number}: {name} lost twice")
                }
                _ => {}
            }
            if patience == 0 && end == 0 {
                // The connection breaks; resume where we were.
                break;
            }
            patience = patience.saturating_sub(1);
        }
    }
}

/// How long nothing must come until all has come: on a busy machine that is long.
fn quiet(end: u64) -> Duration {
    Duration::from_millis(if end > 0 { 3_000 } else { 300 })
}

async fn writer(api: Arc<Api>, number: u64, writes: u64) {
    let mut random = Random(1_000 + number);
    for count in 0..writes {
        let name = format!("m{}", random.below(OBJECTS));
        let labels = json!({"group": format!("g{}", random.below(5))});
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "labels": labels},
            "data": {"value": format!("{number}-{count}")}});
        let path = format!("{PATH}/{name}");
        if random.below(5) == 0 {
            send(&api, "DELETE", &path, Value::Null).await;
        } else if send(&api, "PUT", &path, object.clone()).await.0 == 404 {
            send(&api, "POST", PATH, object).await;
        }
    }
}

#[test]
fn every_watcher_is_told_of_every_write() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let range = "10.96.0.0/24".parse().unwrap();
        let config = Config { service_range: range, advertise: None, audit: None };
        let store = Store::memory();
        let api = Api::new(store.clone(), config, Tokens::ephemeral().unwrap());
        bootstrap::run(&api).await.unwrap();
        let (start, _) = list(&api, "").await;
        let (done, relists) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let watchers: Vec<_> = (0..WATCHERS)
            .map(|number| tokio::spawn(watcher(api.clone(), number, done.clone(), relists.clone())))
            .collect();
        let record = tokio::spawn(record::keep(api.clone(), store, done.clone(), start));
        let begin = Instant::now();
        let writers = 8;
        let writing: Vec<_> = (0..writers)
            .map(|number| tokio::spawn(writer(api.clone(), number, WRITES / writers)))
            .collect();
        for task in writing {
            task.await.unwrap();
        }
        let took = begin.elapsed();
        done.store(1, Ordering::Release);
        let record = record.await.unwrap();
        let mut events = 0;
        for task in watchers {
            let Followed { selection, seen, since, told } = task.await.unwrap();
            let (_, want) = list(&api, &selection.query()).await;
            assert_eq!(seen, want, "a watcher of {selection:?}");
            assert_eq!(told, selection.events(&record, since), "a watcher of {selection:?}");
            events += told.len();
        }
        assert!(events > 1_000, "only {events} events were compared");
        let relists = relists.load(Ordering::Relaxed);
        eprintln!("{WRITES} writes beside {WATCHERS} watchers in {took:?}, {relists} relists");
    });
}
