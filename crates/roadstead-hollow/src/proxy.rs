//! A hollow proxy: watches of Services, EndpointSlices and Nodes, and what it knows from them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::mirror::{Mirror, Seen};
use crate::watch::{Line, Watcher, follow, list};
use crate::world::{World, lock};

/// What proxies watch.
pub(crate) const PATHS: [&str; 3] =
    ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/nodes"];
/// The annotation that says when a Service was changed.
pub(crate) const SENT: &str = "hollow/sent";

/// What one proxy knows, of each kind.
pub(crate) type Knowledge = [Arc<Mutex<Mirror>>; PATHS.len()];

/// Starts a proxy. The first one also looks into the slices.
pub(crate) async fn start(
    world: &Arc<World>,
    number: u32,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Knowledge> {
    let connection = Connection::new(&world.server);
    let mut knowledge = Knowledge::default();
    for (kind, path) in PATHS.into_iter().enumerate() {
        let (version, items) = list(&connection, path).await?;
        let mirror = Arc::new(Mutex::new(Mirror::list(version, items)));
        knowledge[kind] = mirror.clone();
        let looks = number == 0 && kind == 1;
        let watcher = Proxy { world: world.clone(), mirror, path, looks };
        tasks.spawn(follow(connection.clone(), path.to_owned(), watcher));
    }
    Ok(knowledge)
}

struct Proxy {
    world: Arc<World>,
    mirror: Arc<Mutex<Mirror>>,
    path: &'static str,
    /// Whether it looks for the addresses of pods.
    looks: bool,
}

impl Watcher for Proxy {
    fn tell(&mut self, line: &Line<'_>) {
        let object = line.object.get();
        if line.kind == "BOOKMARK" {
            if let Some(version) = bookmarked(line.object) {
                lock(&self.mirror).bookmark(version);
            }
            return;
        }
        self.time(object);
        let told = match Seen::read(object) {
            Some(seen) => lock(&self.mirror).tell(line.kind, seen),
            None => Err(object.to_owned()),
        };
        if let Err(why) = told {
            lock(&self.world.meters).faults.push(format!("{}: {why}", self.path));
        }
    }

    fn version(&self) -> u64 {
        lock(&self.mirror).version
    }

    fn lost(&mut self, why: &str) {
        let mut meters = lock(&self.world.meters);
        meters.resumed += 1;
        if why.contains("410") || why.contains("Expired") {
            meters.faults.push(format!("a watch of {} cannot go on: {why}", self.path));
        }
    }
}

impl Proxy {
    /// Notes how long ago what it hears of happened.
    fn time(&self, object: &str) {
        if let Some(sent) = sent(object) {
            let micros = self.world.micros().saturating_sub(sent);
            let time = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
            lock(&self.world.meters).service_event.add(time);
        }
        if !self.looks || lock(&self.world.awaited).is_empty() {
            return;
        }
        for address in ready_addresses(object) {
            if let Some(since) = lock(&self.world.awaited).remove(&address) {
                lock(&self.world.meters).slice_event.add(since.elapsed());
            }
        }
    }
}

/// When a Service was changed, if that is what has happened to it.
fn sent(object: &str) -> Option<u128> {
    let rest = object.split_once(SENT)?.1.strip_prefix("\":\"")?;
    rest.split_once('"')?.0.parse().ok()
}

fn bookmarked(object: &RawValue) -> Option<u64> {
    #[derive(Deserialize)]
    struct Bookmark<'a> {
        #[serde(borrow)]
        metadata: Metadata<'a>,
    }
    #[derive(Deserialize)]
    struct Metadata<'a> {
        #[serde(rename = "resourceVersion")]
        version: &'a str,
    }
    serde_json::from_str::<Bookmark<'_>>(object.get()).ok()?.metadata.version.parse().ok()
}

fn ready_addresses(slice: &str) -> Vec<String> {
    #[derive(Deserialize)]
    struct Slice {
        #[serde(default)]
        endpoints: Vec<Endpoint>,
    }
    #[derive(Deserialize)]
    struct Endpoint {
        addresses: Vec<String>,
        #[serde(default)]
        conditions: Conditions,
    }
    #[derive(Default, Deserialize)]
    struct Conditions {
        ready: Option<bool>,
    }
    let endpoints = serde_json::from_str::<Slice>(slice).map_or(Vec::new(), |it| it.endpoints);
    let ready = endpoints.into_iter().filter(|it| it.conditions.ready != Some(false));
    ready.flat_map(|it| it.addresses).collect()
}

#[test]
fn what_is_looked_at() {
    assert_eq!(sent(r#"{"annotations":{"hollow/sent":"12"}}"#), Some(12));
    assert_eq!(sent(r#"{"annotations":{"hollow/other":"12"}}"#), None);
    let slice = r#"{"endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true}},
        {"addresses":["10.0.0.2"],"conditions":{"ready":false}},{"addresses":["10.0.0.3"]}]}"#;
    assert_eq!(ready_addresses(slice), ["10.0.0.1", "10.0.0.3"]);
    let bookmark = r#"{"kind":"Service","metadata":{"resourceVersion":"7"}}"#.to_owned();
    assert_eq!(bookmarked(&RawValue::from_string(bookmark).unwrap()), Some(7));
}
