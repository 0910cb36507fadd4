//! What others are told after a commit: health checks, announcements, figures, and how far the kernel
//! has come.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::table::ForwardingTable;
use tracing::info;

use super::{Agent, Programmed};
use crate::family::FamilyPlane;
use crate::news::announce;

impl Agent {
    /// Tells everybody else what the kernel has now.
    pub(super) fn tell(&mut self, told: &BTreeSet<ObjectKey>) {
        self.check_health(told);
        let behind = self.families.iter().filter(|half| half.is_behind(told));
        let behind: Vec<_> = behind.map(|half| half.table.family()).collect();
        announce(&self.announcements, &self.tracker, told, &behind);
        self.relay(told);
        self.complain(told);
        self.count(told);
        self.publish();
        self.take_the_place_of_others();
    }

    /// Says what Services cannot have.
    fn complain(&mut self, told: &BTreeSet<ObjectKey>) {
        for half in &mut self.families {
            self.complaints.note_disputes(&mut half.table);
        }
        self.complaints.note_ranges(&self.tracker, told);
    }

    /// Brings the figures about the changed Services up to date.
    fn count(&mut self, dirty: &BTreeSet<ObjectKey>) {
        for half in &self.families {
            for key in dirty {
                let ports = half.table.ports_of(key).map(|(_, port)| port);
                self.unserved.observe(half.table.family(), key, ports);
            }
        }
        self.unserved.publish(&self.metrics);
        self.triggers.written(Timestamp::now(), &self.metrics);
    }

    /// Brings the health checks of the changed Services up to date.
    fn check_health(&self, dirty: &BTreeSet<ObjectKey>) {
        let now = |key| self.tracker.health_check(key);
        self.health_checks.send_if_modified(|checks| {
            let known = &checks.by_service;
            if dirty.iter().all(|key| known.get(key).copied() == now(key)) {
                return false;
            }
            let known = &mut Arc::make_mut(checks).by_service;
            for key in dirty {
                match now(key) {
                    Some(check) => drop(known.insert(key.clone(), check)),
                    None => drop(known.remove(key)),
                }
            }
            true
        });
    }

    /// The newest revisions that all families carry. One that has never carried anything, and has
    /// nothing to carry, does not count.
    fn carried(&self) -> (u64, u64) {
        let counts = |half: &&FamilyPlane| half.proven || half.table.port_count() > 0;
        let carried = self.families.iter().filter(counts).map(|half| half.carried);
        carried.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1))).unwrap_or_default()
    }

    fn publish(&self) {
        let tables = || self.families.iter().map(|half| &half.table);
        let before = *self.programmed.borrow();
        let (of_services, of_slices) = self.carried();
        let now = Programmed {
            service_ports: tables().map(ForwardingTable::port_count).sum(),
            targets: tables().map(ForwardingTable::target_count).sum(),
            revision: of_services.max(of_slices),
            of_services,
            of_slices,
            commits: before.commits + 1,
        };
        if before.commits == 0 {
            let mode = self.mode;
            info!(%mode, service_ports = now.service_ports, targets = now.targets, "serving");
        }
        self.metrics.programmed_revision.set(now.revision);
        self.metrics.services_pending.set(0);
        self.metrics.endpoints_pending.set(0);
        self.programmed.send_replace(now);
    }
}
