//! How IPVS goes: at once, or when the last connection has ended.
//!
//! Another mode translates addresses before the kernel asks IPVS, and only for new connections. So
//! those that IPVS has keep the way they know for as long as it leads somewhere.

use std::collections::BTreeSet;

use roadstead_forwarding::iptables::diff::Kept;
use roadstead_forwarding::ipvs::model::{Server, SetName};
use roadstead_forwarding::ipvs::rules;
use roadstead_forwarding::service::IpFamily;

use super::link::Addresses;
use super::{DRAINING, Doing, IpvsError, IpvsPlane};

impl IpvsPlane {
    /// Deletes everything of ours, if there is anything; rules that are kept stay. Connections break.
    pub fn remove(&mut self, kept: &Kept) -> Result<(), IpvsError> {
        self.remove_rules_around(kept)?;
        self.let_go(false)?;
        Ok(())
    }

    /// The same, but for servers that have connections. Returns whether nothing is left; if not,
    /// [`has_left`](Self::has_left) is to be asked now and then.
    pub fn leave(&mut self, kept: &Kept) -> Result<bool, IpvsError> {
        self.remove_rules_around(kept)?;
        self.has_left()
    }

    /// Deletes servers whose last connection has ended; returns whether nothing is left.
    pub(crate) fn has_left(&mut self) -> Result<bool, IpvsError> {
        self.let_go(true)
    }

    /// Connections know their way without rules and sets.
    fn remove_rules_around(&mut self, kept: &Kept) -> Result<(), IpvsError> {
        self.layout = None;
        self.draining.clear();
        let restore = rules::removal(self.family, &self.programs.list()?, kept);
        if !restore.is_empty() {
            self.programs.restore(&restore.to_string())?;
        }
        for set in SetName::ALL {
            self.sets
                .remove(set)
                .doing(|| format!("delete the ipset {}", set.text(self.family)))?;
        }
        Ok(())
    }

    /// Deletes our servers, their addresses and the link; patiently, only those that nobody needs.
    fn let_go(&mut self, patient: bool) -> Result<bool, IpvsError> {
        let Some(link) = self.links.find().doing("find the link kube-ipvs0")? else {
            return Ok(true);
        };
        let addresses = self.links.addresses(self.family, link).doing("list addresses")?;
        let mut needed = BTreeSet::new();
        for server in self.own_servers(&addresses)? {
            if patient && self.serves_somebody(&server)? {
                needed.insert(server.address);
            } else {
                self.servers.delete(&server).doing(|| format!("delete {server:?}"))?;
            }
        }
        for address in addresses.ours.difference(&needed) {
            self.links.delete(link, *address).doing(|| format!("delete {address}"))?;
        }
        // The other family may still use the link.
        let other = if self.family == IpFamily::V4 { IpFamily::V6 } else { IpFamily::V4 };
        let rest = self.links.addresses(other, link).doing("list addresses")?;
        if rest.ours.is_empty() && needed.is_empty() {
            self.links.remove().doing("delete the link kube-ipvs0")?;
        }
        Ok(needed.is_empty())
    }

    fn own_servers(&mut self, addresses: &Addresses) -> Result<Vec<Server>, IpvsError> {
        let listed = self.servers.list(self.family).doing("list virtual servers")?;
        let on_node = |server: &Server| {
            addresses.ours.contains(&server.address) || addresses.others.contains(&server.address)
        };
        let servers = listed.into_iter().map(|(server, _)| server);
        Ok(servers.filter(|server| on_node(server) && !self.options.excludes(server)).collect())
    }

    /// Whether a server has connections. It gets no more.
    fn serves_somebody(&mut self, server: &Server) -> Result<bool, IpvsError> {
        let destinations = self.destinations(server)?;
        for destination in destinations.iter().filter(|known| known.weight != DRAINING) {
            let what = || format!("withdraw the destination {}", destination.target);
            self.servers.set_weight(server, destination.target, DRAINING).doing(what)?;
        }
        Ok(destinations.iter().any(|destination| destination.connections > 0))
    }
}
