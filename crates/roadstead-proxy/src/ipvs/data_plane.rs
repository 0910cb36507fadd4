//! IPVS as the agent sees it.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use roadstead_forwarding::iptables::diff::Kept;
use roadstead_forwarding::ipvs::rules;
use roadstead_forwarding::service::ServicePortName;
use roadstead_forwarding::table::ForwardingTable;
use rustix::io::Errno;

use super::{IpvsError, IpvsPlane};
use crate::conntrack::StaleFlows;
use crate::data_plane::{
    CommitError, Committed, DataPlane, Loopback, Needs, PERMISSION, PlaneKind, ProxyMode, Refusal,
    is_forbidden,
};
use crate::metrics::Metrics;

/// IPVS in the table of planes.
pub(crate) const KIND: PlaneKind = PlaneKind {
    mode: ProxyMode::Ipvs,
    name: "ipvs",
    needs: Needs {
        all_nodes: true,
        service_networks: false,
        named_counters: false,
        loopback: Loopback::Relays,
        node_port_addresses: &[],
    },
    open: |context, family| {
        let plane = IpvsPlane::open(family, context.ipvs.clone())?;
        Ok(Box::new(IpvsPlane { conntrack: context.conntrack.clone(), ..plane }))
    },
    iptables_rules: rules::kept,
    fallback: Some(ProxyMode::Iptables),
    metrics: Metrics::of_iptables,
};

impl DataPlane for IpvsPlane {
    fn try_out(&mut self) -> Result<(), CommitError> {
        Ok(self.try_out()?)
    }

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

    fn forget(&mut self, flows: StaleFlows) {
        self.conntrack.forget(flows);
    }

    fn check(&mut self) -> Result<bool, CommitError> {
        Ok(self.check()?)
    }

    fn check_period(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn remove(&mut self, kept: &Kept) -> Result<(), CommitError> {
        Ok(self.remove(kept)?)
    }

    fn leave(&mut self, kept: &Kept) -> Result<bool, CommitError> {
        Ok(self.leave(kept)?)
    }

    fn has_left(&mut self) -> Result<bool, CommitError> {
        Ok(self.has_left()?)
    }
}

impl Refusal for IpvsError {
    fn is_missing_feature(&self) -> bool {
        match self {
            IpvsError::Missing(_) | IpvsError::Lacks { .. } => true,
            IpvsError::Refused { source, .. } => is_not_built_in(source),
            IpvsError::Rules(error) => error.is_missing_feature(),
        }
    }

    fn remedy(&self) -> Option<&'static str> {
        match self {
            IpvsError::Refused { source, .. } => is_forbidden(source).then_some(PERMISSION),
            IpvsError::Rules(error) => error.remedy(),
            IpvsError::Missing(_) | IpvsError::Lacks { .. } => None,
        }
    }
}

/// Whether the kernel says that it has no such thing.
fn is_not_built_in(error: &io::Error) -> bool {
    let missing = [Errno::AFNOSUPPORT, Errno::OPNOTSUPP, Errno::NOENT, Errno::PROTONOSUPPORT];
    missing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
