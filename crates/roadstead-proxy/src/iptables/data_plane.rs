//! iptables as the agent sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use roadstead_forwarding::iptables::diff::Kept;
use roadstead_forwarding::iptables::model::TableName;
use roadstead_forwarding::service::ServicePortName;
use roadstead_forwarding::table::ForwardingTable;

use super::{IptablesPlane, LEISURELY, QUICK, RuleCount};
use crate::conntrack::StaleFlows;
use crate::data_plane::{CommitError, Committed, DataPlane, Loopback, Needs, PlaneKind, ProxyMode};
use crate::metrics::Metrics;

/// iptables in the table of planes.
pub(crate) const KIND: PlaneKind = PlaneKind {
    mode: ProxyMode::Iptables,
    name: "iptables",
    needs: Needs {
        all_nodes: false,
        service_networks: false,
        named_counters: true,
        loopback: Loopback::Rules,
        node_port_addresses: &[],
    },
    open: |context, family| {
        let conntrack = context.conntrack.clone();
        let plane = IptablesPlane::open_beside(family, &context.own_commits);
        Ok(Box::new(IptablesPlane { conntrack, ..plane }))
    },
    iptables_rules: Kept::ours,
    fallback: None,
    metrics: Metrics::of_iptables,
};

impl DataPlane for IptablesPlane {
    fn commit(
        &mut self,
        table: &ForwardingTable,
        changed: BTreeSet<Arc<ServicePortName>>,
    ) -> Result<Committed, CommitError> {
        Ok(self.commit(table, changed)?)
    }

    fn needs_everything(&self) -> bool {
        self.layout.is_none()
    }

    /// It waits for another process, and perhaps for a lock.
    fn takes_long(&self) -> bool {
        true
    }

    /// Others need the lock, too, and it is free for most of the time then.
    fn pause(&self, took: Duration) -> Duration {
        /// Longer would be felt; it is upstream's `minSyncPeriod`.
        const MOST: Duration = Duration::from_secs(1);
        (took * 3).min(MOST)
    }

    fn forget(&mut self, flows: StaleFlows) {
        self.conntrack.forget(flows);
    }

    fn check(&mut self) -> Result<bool, CommitError> {
        Ok(self.check()?)
    }

    /// A check costs a system call as long as nobody else changes anything, where iptables writes
    /// to nftables; and four processes otherwise.
    fn check_period(&self) -> Duration {
        if self.generation.is_some() { QUICK } else { LEISURELY }
    }

    fn remove(&mut self, kept: &Kept) -> Result<(), CommitError> {
        Ok(self.remove(kept)?)
    }

    fn rule_counts(&self) -> Vec<RuleCount> {
        let total = |table| self.layout.as_ref().map_or(0, |layout| layout.rules(table));
        let count =
            |&(table, last): &(TableName, usize)| RuleCount { table, total: total(table), last };
        self.written.iter().map(count).collect()
    }
}
