//! What is published after a commit: health checks, announcements, figures, and how far the kernel
//! has come.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::table::ForwardingTable;
use tracing::info;

use super::Agent;
use super::announcements::announce;
use super::config::{Programmed, Revisions};
use crate::family::FamilyPlane;
use crate::metrics::Metrics;
use crate::triggers::Triggers;
use crate::unserved::Unserved;

/// What the metrics show of Services and endpoints.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) triggers: Triggers,
    unserved: Unserved,
}

impl Figures {
    /// What happened before `started` was the business of our predecessor.
    pub(super) fn since(started: Timestamp) -> Self {
        Self { triggers: Triggers::since(started), unserved: Unserved::default() }
    }

    /// Brings the figures about the written Services up to date.
    fn count(&mut self, families: &[FamilyPlane], dirty: &BTreeSet<ObjectKey>, metrics: &Metrics) {
        for family in families {
            for key in dirty {
                let ports = family.table.ports_of(key).map(|(_, port)| port);
                self.unserved.observe(family.ip_family(), key, ports);
            }
        }
        self.unserved.publish(metrics);
        self.triggers.written(Timestamp::now(), metrics);
    }
}

impl Agent {
    /// Publishes what the kernel has now of the Services that changed.
    pub(super) fn publish(&mut self, written: &BTreeSet<ObjectKey>) {
        self.publish_health_checks(written);
        let behind = self.families.iter().filter(|family| family.is_behind(written));
        let behind: Vec<_> = behind.map(FamilyPlane::ip_family).collect();
        announce(&self.outputs.announcements, &self.tracker, written, &behind);
        self.relay(written);
        self.record_events(written);
        self.figures.count(&self.families, written, &self.outputs.metrics);
        self.publish_programmed();
        self.remove_other_modes();
    }

    /// Says what Services cannot have.
    fn record_events(&mut self, written: &BTreeSet<ObjectKey>) {
        for family in &mut self.families {
            self.service_events.note_disputes(&mut family.table);
        }
        self.service_events.note_ranges(&self.tracker, written);
    }

    /// Brings the health checks of the changed Services up to date.
    fn publish_health_checks(&self, written: &BTreeSet<ObjectKey>) {
        let now = |key| self.tracker.health_check(key);
        self.outputs.health_checks.send_if_modified(|checks| {
            let known = &checks.by_service;
            if written.iter().all(|key| known.get(key).copied() == now(key)) {
                return false;
            }
            let known = &mut Arc::make_mut(checks).by_service;
            for key in written {
                match now(key) {
                    Some(check) => drop(known.insert(key.clone(), check)),
                    None => drop(known.remove(key)),
                }
            }
            true
        });
    }

    fn publish_programmed(&self) {
        let tables = || self.families.iter().map(|family| &family.table);
        let before = *self.outputs.programmed.borrow();
        // What all families carry.
        let carried = self.families.iter().filter_map(FamilyPlane::carried);
        let revisions = carried.reduce(Revisions::min).unwrap_or_default();
        let now = Programmed {
            service_ports: tables().map(ForwardingTable::port_count).sum(),
            targets: tables().map(ForwardingTable::target_count).sum(),
            revision: revisions.newest(),
            revisions,
            commits: before.commits + 1,
        };
        if before.commits == 0 {
            let mode = self.mode;
            info!(%mode, service_ports = now.service_ports, targets = now.targets, "serving");
        }
        self.outputs.metrics.note_programmed(now.revision);
        self.outputs.programmed.send_replace(now);
    }
}
