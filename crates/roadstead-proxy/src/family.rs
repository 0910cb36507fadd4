//! One address family of the proxy: what is wanted, and the way to the kernel.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::conntrack::{FlowFilter, Flows, misled, note, stale};
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::tracker::Tracker;
use tokio::time;
use tracing::debug;

use crate::metrics::Metrics;
use crate::plane::{CommitError, Committed, Plane};
use crate::retry::{Rest, Retry};

/// One family's table, and its kernel half.
#[derive(Debug)]
pub(crate) struct FamilyPlane {
    pub(crate) table: ForwardingTable,
    pub(crate) plane: Plane,
    /// Whether a commit has ever succeeded.
    pub(crate) proven: bool,
    /// When to try again what the kernel refused.
    pub(crate) retry: Retry,
    /// When to write again at the earliest, and whether something waits for that.
    rest: Rest,
    /// The shortest time between two writes that the operator wants.
    pub(crate) shortest_pause: Duration,
    /// Service ports that differ from what was last written.
    changed: BTreeSet<Arc<ServicePortName>>,
    /// The newest Service and the newest slice that the kernel carries.
    pub(crate) carried: (u64, u64),
    /// Services whose changes this family has not written yet, so that nobody has been told.
    pub(crate) untold: BTreeSet<ObjectKey>,
    /// Whether flows have ever been looked at.
    settled: bool,
    /// Where the flows of the Services that changed since the last good commit may go until the
    /// next one.
    before: Flows,
    /// Those Services.
    unsettled: BTreeSet<ObjectKey>,
}

impl FamilyPlane {
    /// Knows nothing yet.
    pub(crate) fn new(table: ForwardingTable, plane: Plane) -> Self {
        Self {
            table,
            plane,
            proven: false,
            retry: Retry::default(),
            rest: Rest::default(),
            shortest_pause: Duration::ZERO,
            changed: BTreeSet::new(),
            carried: (0, 0),
            untold: BTreeSet::new(),
            settled: false,
            before: Flows::new(),
            unsettled: BTreeSet::new(),
        }
    }

    /// Whether it may write now.
    pub(crate) fn is_due(&self) -> bool {
        !self.retry.too_early() && !self.rest.is_on()
    }

    /// When to write what waits, if anything does.
    pub(crate) fn next_time(&self) -> Option<time::Instant> {
        self.retry.at().or(self.rest.end())
    }

    /// What changed has to wait.
    pub(crate) fn put_off(&mut self, changed: BTreeSet<Arc<ServicePortName>>) {
        self.changed.extend(changed);
        self.rest.note_waiting();
    }

    /// Whether it has yet to write the changes of one of these Services.
    pub(crate) fn is_behind(&self, services: &BTreeSet<ObjectKey>) -> bool {
        !self.untold.is_disjoint(services)
    }

    /// The kernel carries the newest Service and slice.
    pub(crate) fn note_written(&mut self, newest: (u64, u64)) {
        self.retry.note_success(self.table.family());
        self.carried = newest;
    }

    /// Takes in the changed Services; returns what differs now, and remembers the flows that may
    /// go stale.
    pub(crate) fn take_in(
        &mut self,
        tracker: &Tracker,
        dirty: &BTreeSet<ObjectKey>,
    ) -> BTreeSet<Arc<ServicePortName>> {
        let family = self.table.family();
        let mut changed = BTreeSet::new();
        for key in dirty {
            // What the kernel has refused so far changes nothing about where its flows go.
            if self.proven && self.unsettled.insert(key.clone()) {
                let ports = self.table.ports_of(key);
                ports.for_each(|(name, _)| note(&mut self.before, &self.table, &name));
            }
            // Not `append`, which would walk all that is there already for each Service.
            changed.extend(self.table.replace(key, tracker.service_ports(key, family)));
        }
        changed
    }

    /// The flows that went stale by the commit that has just succeeded, and by all that the kernel
    /// refused before it. After the first one, those that lead where nothing should.
    pub(crate) fn settle(&mut self) -> Vec<FlowFilter> {
        if !std::mem::replace(&mut self.settled, true) {
            let mut flows = Flows::new();
            self.table.iter().for_each(|(name, _)| note(&mut flows, &self.table, name));
            return misled(flows);
        }
        let mut after = Flows::new();
        for key in mem::take(&mut self.unsettled) {
            self.table.ports_of(&key).for_each(|(name, _)| note(&mut after, &self.table, &name));
        }
        stale(&mem::take(&mut self.before), &after)
    }

    /// Writes the changed service ports into the kernel, and counts how it went.
    pub(crate) fn commit(
        &mut self,
        mut changed: BTreeSet<Arc<ServicePortName>>,
        metrics: &Metrics,
    ) -> (IpFamily, Result<(), CommitError>) {
        let family = self.table.family();
        changed.append(&mut self.changed);
        let started = Instant::now();
        let partial = !self.plane.needs_everything();
        let outcome = self.plane.commit(&self.table, changed);
        self.proven |= outcome.is_ok();
        let wrote = !matches!(outcome, Ok(Committed { operations: 0, .. }));
        let pause = if wrote { self.plane.pause(started.elapsed()) } else { Duration::ZERO };
        self.rest.begin(time::Instant::from_std(started), pause.max(self.shortest_pause));
        match &outcome {
            Ok(Committed { whole, operations }) => {
                let took = started.elapsed();
                debug!(?family, whole, operations, ?took, "rules written");
                let scope = if *whole { &metrics.full_sync } else { &metrics.partial_sync };
                for histogram in [&metrics.sync, scope] {
                    histogram.get_or_create(&family.into()).observe(took.as_secs_f64());
                }
                metrics.last_sync.get_or_create(&family.into()).set(seconds_now());
                if let Plane::Iptables(plane) = &self.plane {
                    plane.rule_counts().for_each(|count| metrics.set_rules(family, count));
                }
            }
            Err(CommitError::Nftables(_)) => {
                metrics.nftables_failures.get_or_create(&family.into()).inc();
            }
            Err(_) => {
                metrics.iptables_failures.get_or_create(&family.into()).inc();
                if partial {
                    metrics.iptables_partial_failures.get_or_create(&family.into()).inc();
                }
            }
        }
        (family, outcome.map(drop))
    }
}

/// The time of the day, as metrics show it.
pub(crate) fn seconds_now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map(|since| since.as_secs_f64()).unwrap_or_default()
}
