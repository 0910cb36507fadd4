//! The proxy's data planes: cold start, one change, memory, and the first packet.
//!
//! `cargo bench -p roadstead-proxy -- [SERVICES,…]` runs itself again in a network namespace of its
//! own (as root of a user namespace if need be), so it never touches the machine's rules. Sizes
//! default to 1000,5000,10000,20000. Each cluster is IPv4 with two endpoints per Service; one more
//! has 5,000 Services with 50 endpoints each. Objects go through the agent as a watch would deliver
//! them, so the figures include deciding and committing.
//!
//! With `ROADSTEAD` set to the path of our program, it follows an API server in a process of its
//! own, from its start until the kernel has the last Service. With `KUBE_PROXY` set to that of
//! kube-proxy, it does the same beside us, and its first packet is measured beside ours. `PARTS` says
//! which are wanted of `rows`, `packets` and `peer`.

#![allow(clippy::print_stdout, reason = "a benchmark reports on standard output")]

mod cluster;
mod packets;
mod peer;

use std::env;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use roadstead_testkit::netns::run;

use crate::cluster::{agent, service, slice};

/// What the binary uses, too.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const INSIDE: &str = "ROADSTEAD_BENCH_INSIDE";
const CHANGES: u32 = 1_000;
const PAGE: usize = 500;

fn main() {
    let sizes = env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let sizes = sizes.unwrap_or_else(|| "1000,5000,10000,20000".into());
    match env::var(INSIDE).as_deref() {
        Err(_) => return reenter(&sizes),
        Ok("row") => return measure_row(&sizes),
        Ok("packets") => return packets::measure(),
        Ok("peer") => return peer::measure(&sizes),
        Ok(_) => {}
    }
    run("mount -t tmpfs tmpfs /run && mkdir -p /run/netns && ip link set lo up");
    let parts = env::var("PARTS").unwrap_or_else(|_| "rows,packets,peer".into());
    if parts.contains("rows") {
        measure_rows(&sizes);
    }
    // On one core, so that no figure depends on where the scheduler puts client and server.
    if parts.contains("packets") {
        let packets =
            Command::new("taskset").args(["-c", "0"]).arg(own()).env(INSIDE, "packets").status();
        assert!(packets.is_ok_and(|status| status.success()), "packets failed");
    }
    if parts.contains("peer") && env::var_os(peer::ROADSTEAD).is_some() {
        alone("peer", &sizes);
    }
}

fn measure_rows(sizes: &str) {
    println!(
        "{:>9} {:>9} {:>12} {:>10} {:>12} {:>12} {:>9}",
        "services", "endpoints", "cold", "its CPU", "change p50", "change p99", "RSS"
    );
    for services in sizes.split(',') {
        alone("row", &format!("{services}x2"));
    }
    alone("row", "5000x50");
}

/// A process and a namespace of its own, so that neither memory nor rules of one run reach another.
fn reenter(sizes: &str) {
    let privileged = Command::new("unshare").args(["-nm", "true"]).status();
    let flags: &[&str] = match privileged.is_ok_and(|status| status.success()) {
        true => &["--net", "--mount", "--pid", "--fork", "--mount-proc"],
        false => {
            &["--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--mount-proc"]
        }
    };
    let status =
        Command::new("unshare").args(flags).arg(own()).arg(sizes).env(INSIDE, "1").status();
    assert!(status.is_ok_and(|status| status.success()), "the benchmark failed in its namespace");
}

/// One part, measured in a child so that its memory is its own.
fn alone(part: &str, argument: &str) {
    let status = Command::new(own()).arg(argument).env(INSIDE, part).status();
    assert!(status.is_ok_and(|status| status.success()), "{part} {argument} failed");
}

fn measure_row(row: &str) {
    let (services, endpoints) = row.split_once('x').expect("written that way");
    measure(services.parse().expect("a number"), endpoints.parse().expect("a number"));
}

fn measure(services: u32, endpoints: u32) {
    let mut agent = agent(&[]);
    let own = |n: u32| (0..endpoints).map(move |slot| n * endpoints + slot);
    // Objects come and go in pages, as they do in a list; making them is not our work.
    let (mut cold, mut busy) = (Duration::ZERO, Duration::ZERO);
    let mut timed = |work: &mut dyn FnMut()| {
        let before = cpu();
        let started = Instant::now();
        work();
        cold += started.elapsed();
        busy += cpu() - before;
    };
    for first in (0..services).step_by(PAGE) {
        let page = (first..services).take(PAGE);
        let page: Vec<_> = page.map(|n| (service(n), slice(n, own(n)))).collect();
        timed(&mut || {
            for (service, slice) in &page {
                agent.observe_service(service);
                agent.observe_slice(slice);
            }
        });
    }
    timed(&mut || agent.commit().expect("the kernel takes it"));
    let resident = resident("self");
    let fresh = services * endpoints;
    let mut times: Vec<Duration> = (0..CHANGES)
        .map(|i| {
            let n = i.wrapping_mul(7919) % services;
            let change = slice(n, own(n).skip(1).chain([fresh + i]));
            let started = Instant::now();
            agent.observe_slice(&change);
            agent.commit().expect("the kernel takes it");
            started.elapsed()
        })
        .collect();
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{services:>9} {:>9} {cold:>12.1?} {busy:>10.1?} {:>12.1?} {:>12.1?} {:>6} MB",
        services * endpoints,
        at(50),
        at(99),
        resident >> 10,
    );
    cluster::cleanup();
}

/// The time that this process has spent on a processor, in user and kernel mode.
fn cpu() -> Duration {
    let spent = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanoseconds = spent.split(' ').next().and_then(|text| text.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or(0))
}

/// The memory of a process, in KiB.
fn resident(process: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}

fn own() -> std::path::PathBuf {
    env::current_exe().expect("a benchmark knows its path")
}
