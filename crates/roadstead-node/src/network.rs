//! The pod network: a bridge, and for each pod a network namespace joined to it by a veth pair.
//!
//! A pod's address is a /32 and its only neighbour is the bridge, so all its traffic is routed by
//! the node: Service addresses are translated on the way, replies come back the same way, and no
//! bridge netfilter is needed. Everything goes over netlink.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use ipnet::Ipv4Net;
use nlink::netlink::addr::Ipv4Address;
use nlink::netlink::link::{BridgeLink, LinkCreateExt, VethLink};
use nlink::netlink::messages::LinkMessage;
use nlink::netlink::namespace;
use nlink::netlink::route::Ipv4Route;
use nlink::netlink::types::route::RouteScope;
use nlink::netlink::{Connection, Route};
use tracing::warn;

use crate::config::{Config, NodeError};

/// The name of every pod's interface, seen from the pod.
const POD_LINK: &str = "eth0";
/// The alias of every bridge that we make. One without it is somebody else's.
const MARK: &str = "the pods of roadstead";
/// How the names of the pods' links begin, seen from the node.
const LINK_PREFIX: &str = "pod";

/// The node's side of the pod network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) bridge: String,
    gateway: Ipv4Addr,
    subnet: Ipv4Net,
    services: Ipv4Net,
}

impl Network {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            bridge: config.bridge.clone(),
            gateway: config.gateway(),
            subnet: config.pod_cidr,
            services: config.service_cidr,
        }
    }

    /// Makes the bridge, its address and the route for Services, or what is missing of them.
    pub(crate) async fn set_up(&self) -> Result<(), NodeError> {
        let bridge = &self.bridge;
        let host = Connection::<Route>::new().trying(|| "open a netlink socket".into())?;
        let present = host.get_link_by_name(bridge.as_str()).await;
        match present.trying(|| format!("look for the bridge {bridge}"))? {
            None => {
                // A fixed address: otherwise it would change with the pods, and with it what they
                // know as their gateway.
                let link = BridgeLink::new(bridge).address(hardware_address(self.gateway));
                let made = host.add_link(link.alias(MARK)).await;
                made.trying(|| format!("make the bridge {bridge}"))?;
            }
            Some(link) if !self.is_ours(&link) => {
                return Err(NodeError::ForeignBridge(bridge.clone()));
            }
            Some(_) => {
                let marked = host.set_link_alias(bridge.as_str(), MARK).await;
                marked.trying(|| format!("mark the bridge {bridge}"))?;
            }
        }
        host.set_link_up(bridge.as_str()).await.trying(|| format!("bring {bridge} up"))?;
        let address = Ipv4Address::new(bridge, self.gateway, self.subnet.prefix_len());
        host.replace_address(address).await.trying(|| format!("give {bridge} its address"))?;
        let services = self.services.trunc();
        let route = Ipv4Route::from_addr(services.addr(), services.prefix_len())
            .dev(bridge)
            .scope(RouteScope::Link)
            .prefsrc(self.gateway);
        host.replace_route(route).await.trying(|| format!("route {services} to {bridge}"))?;
        sysctl("net/ipv4/ip_forward", "1");
        sysctl("net/ipv4/conf/all/send_redirects", "0");
        sysctl(&format!("net/ipv4/conf/{bridge}/send_redirects"), "0");
        Ok(())
    }

    /// Whether we made this link: it has our mark, or, if an earlier version made it, the address
    /// that we give to bridges.
    fn is_ours(&self, link: &LinkMessage) -> bool {
        let by_address = link.address() == Some(&hardware_address(self.gateway)[..]);
        link.kind() == Some("bridge") && (link.alias() == Some(MARK) || by_address)
    }

    /// Removes the bridge, and with it the addresses, routes and pods' links on it. Whether there was
    /// one of ours: anybody else's stays, and so do links that others have put on ours.
    pub(crate) async fn tear_down(&self) -> Result<bool, NodeError> {
        let bridge = &self.bridge;
        let host = Connection::<Route>::new().trying(|| "open a netlink socket".into())?;
        let present = host.get_link_by_name(bridge.as_str()).await;
        let present = present.trying(|| format!("look for the bridge {bridge}"))?;
        let Some(link) = present.filter(|link| self.is_ours(link)) else {
            return Ok(false);
        };
        let links = host.get_links().await.trying(|| "list links".into())?;
        let on_it = links.iter().filter(|port| port.master() == Some(link.ifindex()));
        for port in on_it.filter(|port| port.name_or("").starts_with(LINK_PREFIX)) {
            let removed = host.del_link_if_exists(port.ifindex()).await;
            removed.trying(|| format!("remove the link {}", port.name_or("?")))?;
        }
        let removed = host.del_link_if_exists(bridge.as_str()).await;
        removed.trying(|| format!("remove the bridge {bridge}")).map(|_| true)
    }

    /// Makes a namespace at `path` with this address, joined to the bridge.
    pub(crate) async fn add_pod(
        &self,
        path: &Path,
        link: &str,
        address: Ipv4Addr,
    ) -> Result<(), NodeError> {
        // Left from an earlier life, perhaps before the machine was restarted.
        self.remove_pod(path, link).await?;
        let made = blocking(path, |path| namespace::create_path(path)).await;
        made.trying(|| format!("make the network namespace {}", path.display()))?;
        self.join_pod(path, link, address).await
    }

    /// Joins the namespace at `path` to the bridge, by a pair of links.
    pub(crate) async fn join_pod(
        &self,
        path: &Path,
        link: &str,
        address: Ipv4Addr,
    ) -> Result<(), NodeError> {
        let inside = Connection::<Route>::new_in(path)
            .trying(|| format!("enter the network namespace {}", path.display()))?;
        let namespace = namespace::open_path(path)
            .trying(|| format!("open the network namespace {}", path.display()))?;
        let host = Connection::<Route>::new().trying(|| "open a netlink socket".into())?;
        let pair = VethLink::new(link, POD_LINK)
            .peer_address(hardware_address(address))
            .peer_netns_fd(&namespace)
            .master(self.bridge.as_str())
            .up();
        host.add_link(pair).await.trying(|| format!("make the link {link}"))?;
        self.configure_pod(&inside, address).await.trying(|| format!("set up {address} in the pod"))
    }

    async fn configure_pod(
        &self,
        inside: &Connection<Route>,
        address: Ipv4Addr,
    ) -> Result<(), nlink::Error> {
        inside.set_link_up("lo").await?;
        inside.set_link_up(POD_LINK).await?;
        inside.add_address(Ipv4Address::new(POD_LINK, address, 32)).await?;
        let to_gateway =
            Ipv4Route::from_addr(self.gateway, 32).dev(POD_LINK).scope(RouteScope::Link);
        inside.add_route(to_gateway).await?;
        let default = Ipv4Route::default_route().gateway(self.gateway).dev(POD_LINK);
        inside.add_route(default.prefsrc(address)).await
    }

    /// Removes a pod's link and namespace, as far as they exist.
    pub(crate) async fn remove_pod(&self, path: &Path, link: &str) -> Result<(), NodeError> {
        let host = Connection::<Route>::new().trying(|| "open a netlink socket".into())?;
        let removed = host.del_link_if_exists(link).await;
        removed.trying(|| format!("remove the link {link}"))?;
        if path.exists() {
            let removed = blocking(path, |path| namespace::delete_path(path)).await;
            removed.trying(|| format!("remove the network namespace {}", path.display()))?;
        }
        Ok(())
    }
}

/// Whether there is a living network namespace at the path.
pub(crate) fn is_namespace(path: &Path) -> bool {
    namespace::is_namespace_path(path)
}

/// The name of a pod's link on the node: 15 characters are all that the kernel allows.
pub(crate) fn link_name(uid: &str) -> String {
    // FNV-1a, because the name must be the same after a restart.
    let hash = uid.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{LINK_PREFIX}{:012x}", hash >> 16)
}

/// A locally administered address that follows from the IP address, so that neighbours who
/// remember it are right even after the address has moved to another pod.
fn hardware_address(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x0a, 0x58, a, b, c, d]
}

async fn blocking(
    path: &Path,
    work: impl FnOnce(&Path) -> Result<(), nlink::Error> + Send + 'static,
) -> Result<(), nlink::Error> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || work(&path)).await.expect("the work does not panic")
}

fn sysctl(name: &str, value: &str) {
    let path = format!("/proc/sys/{name}");
    if fs::read_to_string(&path).is_ok_and(|present| present.trim() == value) {
        return;
    }
    if let Err(error) = fs::write(&path, value) {
        warn!(sysctl = name, value, %error, "cannot set a kernel parameter");
    }
}

pub(crate) trait Trying<T> {
    fn trying(self, action: impl FnOnce() -> String) -> Result<T, NodeError>;
}

impl<T> Trying<T> for Result<T, nlink::Error> {
    fn trying(self, action: impl FnOnce() -> String) -> Result<T, NodeError> {
        self.map_err(|source| NodeError::Network { action: action(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_names_fit_and_differ() {
        let [one, other] = ["6b1b6a0e-0000-0000-0000-000000000001", "x"].map(link_name);
        assert_eq!((one.len(), other.len()), (15, 15));
        assert_ne!(one, other);
    }
}
