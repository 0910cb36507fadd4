//! Measures commits: alone and by 64 writers, among 1,000, 10,000 and 100,000 objects, in memory
//! and on disk.
//!
//! `cargo run --release -p roadstead-store --example commits [DIRECTORY]`; the directory says which
//! disk is measured.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use roadstead_store::entry::Key;
use roadstead_store::kv::{Options, Store};
use roadstead_store::transaction::Transaction;
use tokio::task::JoinSet;

/// An EndpointSlice with a dozen endpoints.
const SIZE: usize = 1600;
const WRITERS: usize = 64;
const LONE: usize = 2000;
const GROUP: Duration = Duration::from_secs(3);

fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    if let [journal, count, directory] = &arguments[..] {
        let count = count.parse().expect("a number of objects");
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        return runtime.block_on(measure(journal, count, Path::new(directory)));
    }
    let directory = arguments.first().map_or_else(env::temp_dir, PathBuf::from);
    eprintln!("journal  objects  lone p50  lone p99  64 writers  memory/10,000     file   reopen");
    for count in [1_000, 10_000, 100_000] {
        for journal in ["memory", "disk"] {
            // Each in a process of its own, so that memory can be told apart.
            let program = env::current_exe().expect("a program knows its path");
            let arguments = [journal.to_owned(), count.to_string()];
            let mut command = Command::new(program);
            let status = command.args(arguments).arg(&directory).status();
            assert!(status.is_ok_and(|status| status.success()), "{journal} {count} failed");
        }
    }
}

async fn measure(journal: &str, count: usize, directory: &Path) {
    let path = directory.join(format!("commits-{}.redb", std::process::id()));
    let open = || match journal {
        "memory" => Store::memory(),
        _ => Store::open(&path, Options::default()).expect("the store can be opened"),
    };
    let before = resident();
    let store = open();
    load(&store, count).await;
    let memory = (resident() - before) * 10_000 / count as u64;
    let (p50, p99) = lone(&store, count).await;
    let group = group(&store, count).await;
    drop(store);
    let file = std::fs::metadata(&path).map_or(0, |file| file.len() >> 20);
    let begin = Instant::now();
    let reopened = open();
    let reopen = if journal == "disk" { begin.elapsed() } else { Duration::ZERO };
    drop(reopened);
    for extension in ["redb", "ahead0", "ahead1", "mark"] {
        let _ = std::fs::remove_file(path.with_extension(extension));
    }
    eprintln!(
        "{journal:7} {count:8} {:>6} µs {:>6} µs {group:>8.0}/s {:>9.1} MB {file:>6} MB {:>5} ms",
        p50.as_micros(),
        p99.as_micros(),
        memory as f64 / 1024.0,
        reopen.as_millis()
    );
}

fn key(number: usize) -> Key {
    Key::new("endpointslices.discovery.k8s.io", format!("namespace-{}/web-{number}", number % 97))
}

fn value(seed: usize) -> Bytes {
    let byte = b'a' + u8::try_from(seed % 26).expect("a letter");
    Bytes::from(vec![byte; SIZE])
}

async fn load(store: &Store, count: usize) {
    for first in (0..count).step_by(100) {
        let numbers = first..(first + 100).min(count);
        let all =
            numbers.fold(Transaction::new(), |all, number| all.put(key(number), value(number)));
        store.commit(all).await.expect("a load cannot conflict");
    }
}

/// Changes one object on condition, as the API server does.
async fn change(store: &Store, number: usize, seed: usize) {
    let key = key(number);
    let revision = store.get(&key).map(|entry| entry.revision);
    let change = Transaction::new().expect(key.clone(), revision).put(key, value(seed));
    store.commit(change).await.expect("nobody else changes this object");
}

async fn lone(store: &Store, count: usize) -> (Duration, Duration) {
    let mut times = Vec::new();
    for round in 0..LONE {
        let begin = Instant::now();
        change(store, round * 7919 % count, round).await;
        times.push(begin.elapsed());
    }
    times.sort();
    (times[LONE / 2], times[LONE * 99 / 100])
}

/// Commits per second of many writers, each with objects of its own.
async fn group(store: &Arc<Store>, count: usize) -> f64 {
    let begin = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            let mut rounds = 0;
            while begin.elapsed() < GROUP {
                let number = (rounds * 7919 * WRITERS + writer) % (count / WRITERS * WRITERS);
                change(&store, number, rounds).await;
                rounds += 1;
            }
            rounds
        });
    }
    let rounds = writers.join_all().await.into_iter().sum::<usize>();
    rounds as f64 / begin.elapsed().as_secs_f64()
}

/// The memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.unwrap_or_default()
}
