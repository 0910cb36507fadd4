//! A run: filling the cluster, measuring while pods come and go, and comparing in the end.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::ensure;
use http::Method;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{self, Instant};

use crate::connection::{Call, Server};
use crate::latencies::{Row, Scope};
use crate::mirror::Mirror;
use crate::objects::{self, Place};
use crate::options::Simulation;
use crate::processes::{Spent, spent};
use crate::proxy::{self, Knowledge, PATHS, SENT};
use crate::report::{Process, Report};
use crate::schedule::arrivals;
use crate::watch::{follow, list};
use crate::world::{World, lock};
use crate::{node, yardsticks};

/// How many are on their way at once while the cluster is filled.
const AT_ONCE: u32 = 64;
/// How long filling may take, and how long everything to become still in the end.
const PATIENCE: Duration = Duration::from_secs(900);
const STILLNESS: Duration = Duration::from_secs(60);
/// What is looked at beside the churn, so many times a second.
const GETS: f64 = 10.0;
const LISTS: f64 = 1.0;
const LISTS_OF_ALL: f64 = 1.0 / 30.0;
const SERVICE_CHANGES: f64 = 2.0;

/// Everything, from an empty cluster to what is to be said of it.
pub async fn run(options: Simulation) -> anyhow::Result<Report> {
    let server = Server::of(&options.kubeconfig).await?;
    let world = World::new(options, server);
    let (mut tasks, begin) = (JoinSet::new(), Instant::now());
    let knowledge = fill(&world, &mut tasks).await?;
    let filled = begin.elapsed();
    // What came with the filling is not measured.
    time::sleep(Duration::from_secs(2)).await;
    let before = processes(&world.options);
    let begin = Instant::now();
    world.measure();
    load(&world);
    time::sleep(Duration::from_secs(world.options.seconds)).await;
    let (after, took) = (processes(&world.options), begin.elapsed());
    world.is_over.store(true, Ordering::Relaxed);
    let objects = compare(&world, &knowledge).await;
    let events = knowledge.iter().flatten().map(|mirror| lock(mirror).events).sum();
    tasks.shutdown().await;
    let mut meters = lock(&world.meters).clone();
    let objects = objects.unwrap_or_else(|why| {
        meters.faults.push(why.to_string());
        [0; PATHS.len()]
    });
    let processes = differences(&before, &after, took);
    let busy = processes.first().map_or(0.0, |own| own.busy);
    let start = meters.pod_start.percentile(99);
    let verdict = yardsticks::judge(&meters.latencies, start, busy);
    let (options, connections) = (world.options.clone(), world.connections());
    Ok(Report { options, connections, filled, took, meters, processes, objects, events, verdict })
}

/// Makes everything, and waits until all pods run.
async fn fill(world: &Arc<World>, tasks: &mut JoinSet<()>) -> anyhow::Result<Vec<Knowledge>> {
    let options = &world.options;
    many(options.namespaces(), |number| {
        let world = world.clone();
        async move {
            let name = objects::namespace_name(number);
            let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            let call = Call::new(Method::POST, "/api/v1/namespaces").with(body.to_string());
            world.control(number).must(&call).await.map(drop)
        }
    })
    .await?;
    many(options.nodes, |number| {
        let world = world.clone();
        async move { node::register(&world, number).await }
    })
    .await?;
    (0..options.nodes).for_each(|number| node::beat(world, number));
    let pods = "/api/v1/pods";
    let (version, _) = list(&world.control(0), &format!("{pods}?limit=1")).await?;
    for number in 0..options.nodes {
        let name = objects::node_name(number);
        let path = format!("{pods}?fieldSelector=spec.nodeName%3D{name}");
        let watcher = node::Pods { world: world.clone(), node: number, version };
        tasks.spawn(follow(world.of_node(number), path, watcher));
    }
    let mut knowledge = Vec::new();
    for number in 0..options.watchers {
        knowledge.push(proxy::start(world, number, tasks).await?);
    }
    many(options.services(), |number| {
        let world = world.clone();
        async move {
            let namespace = objects::service_namespace(number, &world.options);
            let path = format!("/api/v1/namespaces/{namespace}/services");
            let call = Call::new(Method::POST, path).with(objects::service(number).to_string());
            world.control(number).must(&call).await.map(drop)
        }
    })
    .await?;
    eprintln!("{} nodes and {} Services are there", options.nodes, options.services());
    many(options.pods(), |number| {
        let world = world.clone();
        async move {
            world.create(Place(number), Instant::now(), true).await;
            Ok(())
        }
    })
    .await?;
    all_run(world, options.pods() as usize).await?;
    Ok(knowledge)
}

/// Does something for each number, some at once; the first error ends it.
async fn many<F: Future<Output = anyhow::Result<()>> + Send + 'static>(
    count: u32,
    each: impl Fn(u32) -> F,
) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for number in 0..count {
        if number >= AT_ONCE
            && let Some(done) = tasks.join_next().await
        {
            done??;
        }
        tasks.spawn(each(number));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Waits until so many pods have been heard of as running.
async fn all_run(world: &World, wanted: usize) -> anyhow::Result<()> {
    let begin = Instant::now();
    loop {
        let running = world.running();
        if running >= wanted {
            eprintln!("{running} pods run");
            return Ok(());
        }
        let failures = lock(&world.meters).latencies.failures.clone();
        ensure!(begin.elapsed() < PATIENCE, "{running} of {wanted} pods run: {failures:?}");
        ensure!(failures.len() < 100, "{running} of {wanted} pods run: {failures:?}");
        time::sleep(Duration::from_millis(50)).await;
    }
}

/// Hands in everything that is due while it is measured.
fn load(world: &Arc<World>) {
    let options = world.options.clone();
    let seed = options.seed;
    let places = options.pods().max(1);
    each(world, options.churn, seed, move |world, number, due| async move {
        world.replace(Place(scattered(number, places)), due).await;
    });
    each(world, GETS, seed + 1, move |world, number, due| async move {
        let path = world.path_of(Place(scattered(number, places)));
        let row = Row { verb: "GET", resource: "pods", scope: Scope::Object };
        // It may be gone at this very moment.
        let call = Call::new(Method::GET, path);
        let connection = world.control(number);
        if let Ok((status, _)) = connection.ask(&call).await
            && status.is_success()
        {
            lock(&world.meters).latencies.add(row, due.elapsed());
        }
    });
    each(world, LISTS, seed + 2, |world, number, due| async move {
        let namespace = objects::namespace_name(number % world.options.namespaces());
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let row = Row { verb: "LIST", resource: "pods", scope: Scope::Namespace };
        world.call(row, due, &world.control(number), Call::new(Method::GET, path)).await;
    });
    each(world, LISTS_OF_ALL, seed + 3, |world, number, due| async move {
        let row = Row { verb: "LIST", resource: "pods", scope: Scope::Cluster };
        let call = Call::new(Method::GET, "/api/v1/pods");
        world.call(row, due, &world.control(number), call).await;
    });
    each(world, SERVICE_CHANGES, seed + 4, |world, number, due| async move {
        let service = number % world.options.services();
        let namespace = objects::service_namespace(service, &world.options);
        let path = format!("/api/v1/namespaces/{namespace}/services/service-{service}");
        let sent = world.micros().to_string();
        let body = json!({"metadata": {"annotations": {SENT: sent}}}).to_string();
        let row = Row { verb: "PATCH", resource: "services", scope: Scope::Object };
        let call = Call::new(Method::PATCH, path).with(body);
        world.call(row, due, &world.control(number), call).await;
    });
}

/// Hands in work at a rate, for as long as it is measured.
fn each<F: Future<Output = ()> + Send + 'static>(
    world: &Arc<World>,
    rate: f64,
    seed: u64,
    work: impl Fn(Arc<World>, u32, Instant) -> F,
) {
    let (begin, until) = (Instant::now(), Duration::from_secs(world.options.seconds));
    for (number, at) in (0..).zip(arrivals(rate, seed).take_while(|at| *at < until)) {
        world.timeline.at(begin + at, |due| work(world.clone(), number, due));
    }
}

/// A place that is not beside the one before.
fn scattered(number: u32, places: u32) -> u32 {
    (u64::from(number) * 7_919 % u64::from(places)) as u32
}

/// Waits until nothing moves any more, and compares what each proxy knows with a list; returns how many
/// objects of each kind there are.
async fn compare(world: &World, knowledge: &[Knowledge]) -> anyhow::Result<[usize; PATHS.len()]> {
    let begin = Instant::now();
    loop {
        let (mut counts, mut found) = ([0; PATHS.len()], Vec::new());
        for (kind, path) in PATHS.iter().enumerate() {
            let (version, items) = list(&world.control(0), path).await?;
            let list = Mirror::list(version, items);
            counts[kind] = list.len();
            for proxy in knowledge {
                found.extend(lock(&proxy[kind]).differences(&list));
            }
        }
        if found.is_empty() {
            return Ok(counts);
        }
        let first = &found[..found.len().min(3)];
        ensure!(begin.elapsed() < STILLNESS, "{} differences, {first:?}", found.len());
        time::sleep(Duration::from_millis(500)).await;
    }
}

/// This process first.
fn processes(options: &Simulation) -> Vec<Option<Spent>> {
    let all = [std::process::id()].into_iter().chain(options.pids.iter().copied());
    all.map(spent).collect()
}

fn differences(before: &[Option<Spent>], after: &[Option<Spent>], took: Duration) -> Vec<Process> {
    let both = before.iter().zip(after).filter_map(|(before, after)| {
        let (before, after) = (before.as_ref()?, after.as_ref()?);
        let busy = (after.seconds - before.seconds) / took.as_secs_f64();
        Some(Process { name: after.name.clone(), busy, resident_mib: after.resident_mib })
    });
    both.collect()
}
