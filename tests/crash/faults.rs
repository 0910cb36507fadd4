//! Several servers in front of one etcd, clients and watches at all of them, and what happens to machines
//! happens: a process is killed, or stands still, a link is cut, etcd forgets. Nothing is lost, nothing
//! is told twice, no answer is old, no address is given out twice; `roadstead_testkit::history` judges.
//!
//! Each story takes seconds. `ROADSTEAD_FAULT_SECONDS=600` tells them again and again for that long.

mod allocations;
mod cluster;
mod load;
mod many;

use std::time::{Duration, Instant};

use roadstead_testkit::netns::is_left_out;
use tokio::time;

use crate::{Random, number, seed};
use cluster::Cluster;
use load::Load;

/// One fault under load: `fault` does it, and undoes it.
async fn story(
    name: &str,
    cluster: &mut Cluster,
    random: &mut Random,
    fault: impl AsyncFnOnce(&mut Cluster, &mut Random),
) {
    let load = Load::start(cluster, random).await;
    time::sleep(Duration::from_millis(300 + random.below(400))).await;
    fault(cluster, random).await;
    time::sleep(Duration::from_millis(500)).await;
    eprintln!("{name}: {}", load.end(cluster, name).await);
}

/// Tells stories at least once, and for as long as whoever runs them wants.
fn goes_on(begin: Instant, round: u32) -> bool {
    let lasting = Duration::from_secs(number("ROADSTEAD_FAULT_SECONDS").unwrap_or(0));
    round == 0 || begin.elapsed() < lasting
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_killed_stand_still_or_are_cut_off() {
    if is_left_out("L5") {
        return;
    }
    let Some(mut cluster) = Cluster::start(1, 3) else { return };
    let (seed, begin) = (seed(), Instant::now());
    eprintln!("with ROADSTEAD_SEED={seed}");
    let (mut random, mut round) = (Random(seed), 0);
    while goes_on(begin, round) {
        let at = random.below(3) as usize;
        story("a server is killed", &mut cluster, &mut random, async |cluster, random| {
            cluster.kill(at);
            time::sleep(Duration::from_millis(random.below(500))).await;
            cluster.restart(at);
        })
        .await;
        story("a server stands still", &mut cluster, &mut random, async |cluster, random| {
            cluster.server(at).pause(true);
            time::sleep(Duration::from_millis(1_000 + random.below(1_000))).await;
            cluster.server(at).pause(false);
        })
        .await;
        story("a server is cut from etcd", &mut cluster, &mut random, async |cluster, random| {
            // In one direction or in both: what it asks may arrive, and the answer not.
            let (there, back) =
                [(true, true), (true, false), (false, true)][random.below(3) as usize];
            cluster.links[at].cut(there, back);
            is_ready(cluster, at, false).await;
            cluster.links[at].cut(false, false);
            is_ready(cluster, at, true).await;
        })
        .await;
        round += 1;
    }
}

/// Waits until a server says that it is ready, or that it is not.
async fn is_ready(cluster: &Cluster, at: usize, wanted: bool) {
    let begin = Instant::now();
    loop {
        let client = cluster.client(at).await;
        let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
        let answer = time::timeout(Duration::from_secs(2), client.request_text(request)).await;
        if matches!(answer, Ok(Ok(_))) == wanted {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "ready: {} for long", !wanted);
        time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_forgets_what_a_server_has_not_heard_of() {
    if is_left_out("L5") {
        return;
    }
    let Some(mut cluster) = Cluster::start(1, 2) else { return };
    let (seed, begin) = (seed(), Instant::now());
    eprintln!("with ROADSTEAD_SEED={seed}");
    let (mut random, mut round) = (Random(seed), 0);
    while goes_on(begin, round) {
        story("etcd forgets", &mut cluster, &mut random, async |cluster, _| {
            cluster.server(1).pause(true);
            // More than fits into what is on its way to it.
            cluster.etcd.clutter(3_000, 12_000);
            cluster.etcd.compact(cluster.etcd.revision() - 10);
            cluster.server(1).pause(false);
            is_ready(cluster, 1, true).await;
        })
        .await;
        let said = cluster.server(1).log();
        assert!(said.contains("etcd has forgotten what was to come next"), "{said}");
        round += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leaders_of_etcd_are_killed() {
    if is_left_out("L5") {
        return;
    }
    let Some(mut cluster) = Cluster::start(3, 2) else { return };
    let (seed, begin) = (seed(), Instant::now());
    eprintln!("with ROADSTEAD_SEED={seed}");
    let (mut random, mut round) = (Random(seed), 0);
    while goes_on(begin, round) {
        story("the leader of etcd is killed", &mut cluster, &mut random, async |cluster, _| {
            let leader = cluster.etcd.leader().expect("one of them leads");
            cluster.etcd.kill(leader);
            // Until there is another one.
            while cluster.etcd.leader().is_none_or(|other| other == leader) {
                time::sleep(Duration::from_millis(20)).await;
            }
            is_ready(cluster, 0, true).await;
            cluster.etcd.restart(leader);
        })
        .await;
        round += 1;
    }
}
