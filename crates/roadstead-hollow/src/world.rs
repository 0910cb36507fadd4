//! What all simulated machines share: connections, the clock of the run, and what was measured.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use http::Method;
use tokio::time::Instant;

use crate::connection::{Call, Connection, Server};
use crate::latencies::{Latencies, Row, Scope, Times};
use crate::objects::{self, Place};
use crate::options::{NODES_PER_CONNECTION, Simulation};
use crate::timeline::Timeline;

/// Connections for whoever makes, deletes and looks.
const CONTROL_CONNECTIONS: u32 = 4;

pub(crate) struct World {
    pub(crate) options: Simulation,
    pub(crate) server: Server,
    pub(crate) timeline: Timeline,
    nodes: Vec<Arc<Connection>>,
    control: Vec<Arc<Connection>>,
    begin: Instant,
    /// What was due before is not measured.
    measured: OnceLock<Instant>,
    pub(crate) meters: Mutex<Meters>,
    pods: Pods,
    /// Addresses of pods that are ready since then, and not in any slice yet.
    pub(crate) awaited: Mutex<HashMap<String, Instant>>,
    pub(crate) is_over: AtomicBool,
}

/// All pods.
struct Pods {
    /// Those that do not run yet by name, and when they should have been created.
    due: Mutex<HashMap<String, Instant>>,
    /// Which pod is in each place.
    current: Vec<AtomicU32>,
    next: AtomicU32,
    /// How many were known to run.
    running: AtomicUsize,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters {
    pub(crate) latencies: Latencies,
    /// From when a pod should have been created until its node hears that it runs.
    pub(crate) pod_start: Times,
    /// The same without the time that nodes pretend to need.
    pub(crate) pod_start_alone: Times,
    /// From when a pod's status was sent until its node hears of it.
    pub(crate) own_event: Times,
    /// From when a Service was changed until each proxy hears of it.
    pub(crate) service_event: Times,
    /// From when a pod's readiness was sent until a slice has it.
    pub(crate) slice_event: Times,
    /// What cannot be.
    pub(crate) faults: Vec<String>,
    /// Watches that had to be begun again.
    pub(crate) resumed: usize,
}

/// For mutexes that nobody holds while anything can fail.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A moment as Kubernetes writes it.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The same to the microsecond.
pub(crate) fn now_exactly() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

impl World {
    pub(crate) fn new(options: Simulation, server: Server) -> Arc<Self> {
        let connections = |count: u32| (0..count).map(|_| Connection::new(&server)).collect();
        Arc::new(Self {
            nodes: connections(options.nodes.div_ceil(NODES_PER_CONNECTION)),
            control: connections(CONTROL_CONNECTIONS),
            pods: Pods {
                due: Mutex::default(),
                current: (0..options.pods()).map(AtomicU32::new).collect(),
                next: AtomicU32::new(options.pods()),
                running: AtomicUsize::new(0),
            },
            options,
            server,
            timeline: Timeline::start(),
            begin: Instant::now(),
            measured: OnceLock::new(),
            meters: Mutex::default(),
            awaited: Mutex::default(),
            is_over: AtomicBool::new(false),
        })
    }

    /// The connection of a node, which others share.
    pub(crate) fn of_node(&self, node: u32) -> Arc<Connection> {
        self.nodes[(node / NODES_PER_CONNECTION) as usize].clone()
    }

    /// One of those that no node uses.
    pub(crate) fn control(&self, number: u32) -> Arc<Connection> {
        self.control[(number % CONTROL_CONNECTIONS) as usize].clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.nodes.len() + self.control.len()
    }

    /// From now on what is due is measured.
    pub(crate) fn measure(&self) {
        let _ = self.measured.set(Instant::now());
    }

    pub(crate) fn is_measured(&self, due: Instant) -> bool {
        self.measured.get().is_some_and(|since| due >= *since)
    }

    /// Microseconds since the run began.
    pub(crate) fn micros(&self) -> u128 {
        self.begin.elapsed().as_micros()
    }

    /// Asks; its time counts from when it was due. `None`: it failed, which is counted.
    pub(crate) async fn call(
        &self,
        row: Row,
        due: Instant,
        connection: &Connection,
        call: Call,
    ) -> Option<Bytes> {
        let answer = connection.ask(&call).await;
        let took = due.elapsed();
        let is_measured = self.is_measured(due);
        let mut meters = lock(&self.meters);
        match answer {
            Ok((status, body)) if status.is_success() => {
                if is_measured {
                    meters.latencies.add(row, took);
                }
                return Some(body);
            }
            Ok((status, _)) => meters.latencies.fail(row, status.to_string()),
            Err(error) => meters.latencies.fail(row, format!("{error:#}")),
        }
        None
    }

    /// Creates the first pod of a place, or the next.
    pub(crate) async fn create(&self, place: Place, due: Instant, is_first: bool) {
        let number = match is_first {
            true => place.0,
            false => self.pods.next.fetch_add(1, Ordering::Relaxed),
        };
        self.pods.current[place.0 as usize].store(number, Ordering::Relaxed);
        let name = pod_name(place, number);
        lock(&self.pods.due).insert(name.clone(), due);
        let namespace = place.namespace(&self.options);
        let body = objects::pod(&name, place, &self.options).to_string();
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let row = Row { verb: "POST", resource: "pods", scope: Scope::Object };
        let call = Call::new(Method::POST, path).with(body);
        self.call(row, due, &self.control(place.0), call).await;
    }

    /// Replaces the pod of a place: the old one's node then says that it is gone.
    pub(crate) async fn replace(&self, place: Place, due: Instant) {
        let old = Call::new(Method::DELETE, self.path_of(place));
        let row = Row { verb: "DELETE", resource: "pods", scope: Scope::Object };
        let connection = self.control(place.0);
        // Both are due at once: neither waits for the other.
        tokio::join!(self.call(row, due, &connection, old), self.create(place, due, false));
    }

    /// Where the pod of a place is.
    pub(crate) fn path_of(&self, place: Place) -> String {
        let number = self.pods.current[place.0 as usize].load(Ordering::Relaxed);
        objects::pod_path(&place.namespace(&self.options), &pod_name(place, number))
    }

    /// A pod runs, as its node has heard; returns when it should have been created, the first time.
    pub(crate) fn runs(&self, name: &str) -> Option<Instant> {
        let since = lock(&self.pods.due).remove(name)?;
        self.pods.running.fetch_add(1, Ordering::Relaxed);
        Some(since)
    }

    /// How many pods have been heard of as running.
    pub(crate) fn running(&self) -> usize {
        self.pods.running.load(Ordering::Relaxed)
    }
}

fn pod_name(place: Place, number: u32) -> String {
    format!("pod-{}-{number}", place.0)
}

/// The number of the pod with this name.
pub(crate) fn pod_number(name: &str) -> Option<u32> {
    name.rsplit('-').next()?.parse().ok()
}
