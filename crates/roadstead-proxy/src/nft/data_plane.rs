//! nftables as the agent sees it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use roadstead_forwarding::iptables::diff::Kept;
use roadstead_forwarding::service::ServicePortName;
use roadstead_forwarding::table::ForwardingTable;
use roadstead_netlink::error::NetlinkError;

use super::{NftError, NftPlane};
use crate::conntrack::StaleFlows;
use crate::data_plane::{
    CommitError, Committed, DataPlane, Loopback, Needs, PERMISSION, PlaneKind, ProxyMode, Refusal,
    is_forbidden,
};
use crate::metrics::Metrics;

/// nftables in the table of planes.
pub(crate) const KIND: PlaneKind = PlaneKind {
    mode: ProxyMode::Nftables,
    name: "nftables",
    needs: Needs {
        all_nodes: false,
        service_networks: true,
        named_counters: false,
        loopback: Loopback::Relays,
        node_port_addresses: &["primary"],
    },
    open: |context, family| {
        let plane =
            NftPlane::open(family).map_err(|error| NftError::from(NetlinkError::Socket(error)))?;
        let own_commits = context.own_commits.clone();
        Ok(Box::new(NftPlane { own_commits, conntrack: context.conntrack.clone(), ..plane }))
    },
    iptables_rules: Kept::nothing,
    fallback: None,
    metrics: Metrics::of_nftables,
};

impl DataPlane for NftPlane {
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
        Ok(self.check().map_err(NftError::from)?)
    }

    fn check_period(&self) -> Duration {
        Duration::from_millis(250)
    }

    fn remove(&mut self, _kept: &Kept) -> Result<(), CommitError> {
        Ok(self.remove()?)
    }
}

impl Refusal for NftError {
    /// A refusal alone may pass, whatever it says: each part has been tried out by now.
    fn is_missing_feature(&self) -> bool {
        matches!(self, NftError::Lacking { .. })
    }

    fn remedy(&self) -> Option<&'static str> {
        const MODULES: &str = "load these modules of the kernel, or use --proxy-mode iptables \
            (mode: iptables in the configuration)";
        const TOGETHER: &str = "stop whoever owns the table kube-proxy, unless CAP_NET_ADMIN is \
            for another network namespace";
        match self {
            NftError::Lacking { .. } => Some(MODULES),
            NftError::Netlink(error) => {
                let forbidden = error.refusal().is_some_and(is_forbidden);
                forbidden.then(|| if is_net_admin() { TOGETHER } else { PERMISSION })
            }
        }
    }
}

/// Whether this process has CAP_NET_ADMIN at all.
fn is_net_admin() -> bool {
    const NET_ADMIN: u64 = 1 << 12;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|set| set & NET_ADMIN != 0)
}
