//! One address family of the proxy: its table, and the data plane that carries it.
//!
//! When to commit is the [`Pacer`]'s business, which flows went stale the [`FlowTracker`]'s.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::conntrack::FlowTracker;
use roadstead_forwarding::service::{IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::tracker::Tracker;
use tokio::time;
use tracing::{debug, warn};

use crate::agent::config::Revisions;
use crate::conntrack::StaleFlows;
use crate::data_plane::{CommitError, DataPlane, PlaneContext, PlaneKind};
use crate::metrics::Metrics;
use crate::pacer::Pacer;

/// One family's table, and the data plane that carries it.
#[derive(Debug)]
pub(crate) struct FamilyPlane {
    pub(crate) table: ForwardingTable,
    kind: &'static PlaneKind,
    pub(crate) plane: Box<dyn DataPlane>,
    pub(crate) pacer: Pacer,
    /// Service ports that differ from what was last written.
    changed: BTreeSet<Arc<ServicePortName>>,
    flows: FlowTracker,
    /// What the kernel carries; `None` until a commit has succeeded.
    carried: Option<Revisions>,
    /// Services whose changes this family has not written yet, so that nothing has been published.
    pub(crate) unpublished: BTreeSet<ObjectKey>,
}

impl FamilyPlane {
    /// Opens the way to the kernel, and knows nothing yet.
    pub(crate) fn open(
        table: ForwardingTable,
        kind: &'static PlaneKind,
        context: &PlaneContext,
        pacer: Pacer,
    ) -> Result<Self, CommitError> {
        let plane = (kind.open)(context, table.family())?;
        Ok(Self {
            table,
            kind,
            plane,
            pacer,
            changed: BTreeSet::new(),
            flows: FlowTracker::default(),
            carried: None,
            unpublished: BTreeSet::new(),
        })
    }

    pub(crate) fn ip_family(&self) -> IpFamily {
        self.table.family()
    }

    /// Whether a commit has ever succeeded.
    pub(crate) fn is_proven(&self) -> bool {
        self.carried.is_some()
    }

    /// What the kernel carries. A family that has never carried anything, and has nothing to carry,
    /// does not count.
    pub(crate) fn carried(&self) -> Option<Revisions> {
        self.carried.or((self.table.port_count() > 0).then(Revisions::default))
    }

    /// Whether it has yet to write the changes of one of these Services.
    pub(crate) fn is_behind(&self, services: &BTreeSet<ObjectKey>) -> bool {
        !self.unpublished.is_disjoint(services)
    }

    /// Opens the way to the kernel again, so that the next commit looks at everything.
    pub(crate) fn reopen(&mut self, context: &PlaneContext) {
        match (self.kind.open)(context, self.ip_family()) {
            Ok(plane) => self.plane = plane,
            Err(error) => warn!(%error, "cannot open the way to the kernel again"),
        }
    }

    /// Takes in the changed Services, and remembers the flows that may go stale.
    pub(crate) fn take_in(&mut self, tracker: &Tracker, dirty: &BTreeSet<ObjectKey>) {
        let family = self.ip_family();
        for key in dirty {
            self.flows.note_change(&self.table, key);
            // Not `append`, which would walk all that is there already for each Service.
            self.changed.extend(self.table.replace(key, tracker.service_ports(key, family)));
        }
    }

    /// Writes the changed service ports into the kernel, and counts how it went.
    pub(crate) fn commit(&mut self, metrics: &Metrics) -> Result<(), CommitError> {
        let family = self.ip_family();
        let started = Instant::now();
        let whole = self.plane.needs_everything();
        let outcome = self.plane.commit(&self.table, mem::take(&mut self.changed));
        let took = started.elapsed();
        let wrote = !matches!(&outcome, Ok(committed) if committed.operations == 0);
        let pause = if wrote { self.plane.pause(took) } else { Duration::ZERO };
        self.pacer.pause(time::Instant::from_std(started), pause);
        match &outcome {
            Ok(committed) => {
                let (whole, operations) = (committed.whole, committed.operations);
                debug!(?family, whole, operations, ?took, "rules written");
                metrics.note_commit(family, whole, took);
                let counts = self.plane.rule_counts();
                counts.into_iter().for_each(|count| metrics.set_rules(family, count));
            }
            Err(_) => (self.kind.metrics)(metrics).note_failure(family, whole),
        }
        outcome.map(drop)
    }

    /// The kernel carries the newest Service and slice, and forgets the flows that lead nowhere any
    /// more.
    pub(crate) fn note_written(&mut self, newest: Revisions) {
        let family = self.ip_family();
        self.pacer.note_success(family);
        self.carried = Some(newest);
        let filters = self.flows.stale_conntrack_flows(&self.table);
        if !filters.is_empty() {
            let node_addresses = self.table.node_network().node_addresses.clone();
            self.plane.forget(StaleFlows { family, filters, node_addresses });
        }
    }
}
