//! The real binary, killed at random moments while many write: every acknowledged write is there
//! afterwards at its revision, no revision is used twice, and a watch that resumes from its last
//! revision sees every later event exactly once. No address or port is leaked or given out twice.
//! A disk that is full. Many clients at the same objects: one order explains every answer. And several
//! servers in front of one etcd, to which and to whom everything happens that happens to machines.
//!
//! `ROADSTEAD_CRASHES=200 cargo test --test crash` kills it that often; without it, a dozen times.
//! `ROADSTEAD_SEED` repeats the moments of an earlier run, as far as the machine allows.

mod allocation;
mod faults;
mod full_disk;
mod linearizable;
mod record;
mod server;
mod writer;

use std::env;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use record::Record;
use roadstead_testkit::netns::is_left_out;
use server::Server;
use tokio::task::JoinSet;
use tokio::time;
use writer::{WRITERS, watch, write};

/// A small generator (xorshift): the moments of the kills follow from its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

/// What the moments of the kills follow from.
fn seed() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    number("ROADSTEAD_SEED").unwrap_or(now).max(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost() {
    if is_left_out("L5") {
        return;
    }
    let crashes = number("ROADSTEAD_CRASHES").unwrap_or(12);
    let seed = seed();
    eprintln!("{crashes} crashes with ROADSTEAD_SEED={seed}");
    let (mut random, begin) = (Random(seed), Instant::now());
    let directory = tempfile::tempdir().unwrap();
    let record = Arc::new(Mutex::new(Record::default()));
    let mut early = 0;
    for _ in 0..crashes {
        // Some die while they are still reading what the last one left.
        if random.below(4) == 0 {
            early += 1;
            let server = Server::launch(directory.path());
            time::sleep(Duration::from_micros(random.below(120_000))).await;
            server.kill();
            continue;
        }
        let lifetime = Duration::from_micros(random.below(300_000));
        live(Server::start(directory.path()), &record, Some(lifetime)).await;
    }
    live(Server::start(directory.path()), &record, None).await;
    let record = record.lock().unwrap();
    record.check_all();
    eprintln!(
        "{crashes} crashes in {:.0?}, {early} of them before it was ready: {}",
        begin.elapsed(),
        record.summary()
    );
}

/// One life of the server, from a check of what it remembers to a kill in the middle of writes; the
/// last life ends after the check.
async fn live(server: Server, record: &Arc<Mutex<Record>>, lifetime: Option<Duration>) {
    let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    let listed = maps.list(&Default::default()).await.expect("a server that is ready lists");
    record.lock().unwrap().check_list(&listed);
    let mut tasks = JoinSet::new();
    tasks.spawn(watch(maps.clone(), record.clone()));
    let Some(lifetime) = lifetime else {
        let caught_up = async {
            while !record.lock().unwrap().watch_has_caught_up() {
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        time::timeout(Duration::from_secs(20), caught_up).await.expect("the watch catches up");
        return;
    };
    for number in 0..WRITERS {
        tasks.spawn(write(number, maps.clone(), record.clone()));
    }
    time::sleep(lifetime).await;
    server.kill();
    // They end when they notice.
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}
