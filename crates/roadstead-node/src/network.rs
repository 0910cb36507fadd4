//! The pod network: a bridge, and for each pod a network namespace joined to it by a veth pair.
//!
//! A pod's address has no neighbours but the bridge, so all its traffic is routed by the node: Service
//! addresses are translated on the way, replies come back the same way, and no bridge netfilter is
//! needed. Everything goes over netlink. What is particular to IPv6: `docs/adr/0105-pods-of-two-families.md`.

use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::{fmt, fs};

use ipnet::IpNet;
use nlink::netlink::addr::{Ipv4Address, Ipv6Address};
use nlink::netlink::link::{BridgeLink, BridgePortConfig, LinkCreateExt, VethLink};
use nlink::netlink::messages::LinkMessage;
use nlink::netlink::namespace;
use nlink::netlink::route::{Ipv4Route, Ipv6Route};
use nlink::netlink::types::route::RouteScope;
use nlink::netlink::{Connection, Route};
use roadstead_pod::addresses::Addresses;
use tracing::{debug, warn};

use crate::addresses::gateway;
use crate::config::{Config, NodeError};
use crate::link_guard;

/// The name of every pod's interface, seen from the pod.
const POD_LINK: &str = "eth0";
/// The alias of every bridge that we make. One without it is somebody else's.
const MARK: &str = "the pods of roadstead";
/// How the names of the pods' links begin, seen from the node.
const LINK_PREFIX: &str = "pod";
/// From this address the bridge asks who has a pod's: the one that the kernel would make is of no use
/// before it has asked around for a second whether somebody else has it.
const BRIDGE_LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// What holds for the links of a pod before there are any. Its addresses are its own, so nobody is asked
/// whether they are; and no other pod tells it where to send its packets.
const POD_SYSCTLS: [(&str, &str); 4] = [
    ("net.ipv6.conf.default.disable_ipv6", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.accept_redirects", "0"),
];

/// The node's side of the pod network.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) bridge: String,
    pub(crate) subnets: Vec<Subnet>,
}

/// The part of one family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subnet {
    pub(crate) gateway: IpAddr,
    /// The pods of this node.
    pub(crate) pods: IpNet,
    /// The Services of the cluster.
    pub(crate) services: Option<IpNet>,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pods = self.subnets.iter().map(|subnet| subnet.pods.to_string());
        f.write_str(&pods.collect::<Vec<_>>().join(" and "))
    }
}

impl Network {
    pub(crate) fn of(config: &Config) -> Self {
        let subnet = |pods: &IpNet| {
            let mut services = config.service_cidrs.iter();
            let services = services.find(|one| one.addr().is_ipv4() == pods.addr().is_ipv4());
            Subnet { gateway: gateway(pods), pods: *pods, services: services.copied() }
        };
        let subnets = config.pod_cidrs.iter().map(subnet).collect();
        Self { bridge: config.bridge.clone(), subnets }
    }

    /// Whether there are addresses of IPv6 to look after.
    pub(crate) fn has_six(&self) -> bool {
        self.subnets.iter().any(|subnet| subnet.gateway.is_ipv6())
    }

    /// The addresses of the bridge.
    pub(crate) fn own_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let local = self.has_six().then_some(BRIDGE_LINK_LOCAL.into());
        self.subnets.iter().map(|subnet| subnet.gateway).chain(local)
    }

    /// Makes the bridge, its addresses and the routes for Services, or what is missing of them.
    pub(crate) async fn set_up(&self) -> Result<(), NodeError> {
        let bridge = &self.bridge;
        let host = Connection::<Route>::new().trying(|| "open a netlink socket".into())?;
        let present = host.get_link_by_name(bridge.as_str()).await;
        match present.trying(|| format!("look for the bridge {bridge}"))? {
            None => {
                // A fixed address: otherwise it would change with the pods, and with it what they
                // know as their gateway.
                let mut link = BridgeLink::new(bridge);
                if let Some(address) = self.hardware_address() {
                    link = link.address(address);
                }
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
        if self.has_six() {
            self.allow_six();
        }
        host.set_link_up(bridge.as_str()).await.trying(|| format!("bring {bridge} up"))?;
        for subnet in &self.subnets {
            let Subnet { gateway, pods, .. } = subnet;
            let given = self.give_address(&host, *gateway, pods.prefix_len()).await;
            given.trying(|| format!("give {bridge} the address {gateway}"))?;
            if let Some(services) = subnet.services.map(|services| services.trunc()) {
                let routed = self.route_services(&host, *gateway, services).await;
                routed.trying(|| format!("route {services} to {bridge}"))?;
            }
        }
        if self.has_six() {
            let given = self.give_address(&host, BRIDGE_LINK_LOCAL.into(), 64).await;
            given.trying(|| format!("give {bridge} the address {BRIDGE_LINK_LOCAL}"))?;
        }
        sysctl("net/ipv4/ip_forward", "1");
        sysctl("net/ipv4/conf/all/send_redirects", "0");
        sysctl(&format!("net/ipv4/conf/{bridge}/send_redirects"), "0");
        Ok(())
    }

    /// Lets IPv6 through this machine, and keeps pods from telling it where to send packets.
    fn allow_six(&self) {
        let bridge = &self.bridge;
        sysctl(&format!("net/ipv6/conf/{bridge}/disable_ipv6"), "0");
        sysctl(&format!("net/ipv6/conf/{bridge}/accept_ra"), "0");
        sysctl(&format!("net/ipv6/conf/{bridge}/accept_redirects"), "0");
        if read_sysctl("net/ipv6/conf/all/forwarding").as_deref() != Some("1") {
            keep_router_advertisements();
            sysctl("net/ipv6/conf/all/forwarding", "1");
        }
    }

    async fn give_address(
        &self,
        host: &Connection<Route>,
        address: IpAddr,
        length: u8,
    ) -> Result<(), nlink::Error> {
        let bridge = &self.bridge;
        match address {
            IpAddr::V4(own) => host.replace_address(Ipv4Address::new(bridge, own, length)).await,
            IpAddr::V6(own) => {
                host.replace_address(Ipv6Address::new(bridge, own, length).nodad()).await
            }
        }
    }

    async fn route_services(
        &self,
        host: &Connection<Route>,
        gateway: IpAddr,
        services: IpNet,
    ) -> Result<(), nlink::Error> {
        let length = services.prefix_len();
        match (services.addr(), gateway) {
            (IpAddr::V4(services), IpAddr::V4(gateway)) => {
                let route = Ipv4Route::from_addr(services, length).dev(&self.bridge);
                host.replace_route(route.scope(RouteScope::Link).prefsrc(gateway)).await
            }
            (IpAddr::V6(services), IpAddr::V6(gateway)) => {
                let route = Ipv6Route::from_addr(services, length).dev(&self.bridge);
                host.replace_route(route.prefsrc(gateway)).await
            }
            _ => Ok(()),
        }
    }

    fn hardware_address(&self) -> Option<[u8; 6]> {
        self.subnets.first().map(|subnet| hardware_address(subnet.gateway))
    }

    /// The hardware address that the bridge has, to which pods send everything.
    pub(crate) async fn bridge_address(&self) -> Option<[u8; 6]> {
        let host = Connection::<Route>::new().ok()?;
        let link = host.get_link_by_name(self.bridge.as_str()).await.ok()??;
        link.address()?.try_into().ok()
    }

    /// Whether we made this link: it has our mark, or, if an earlier version made it, the address
    /// that we give to bridges.
    fn is_ours(&self, link: &LinkMessage) -> bool {
        let own = self.hardware_address();
        let by_address = own.is_some_and(|own| link.address() == Some(&own[..]));
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
        if let Err(error) = link_guard::remove() {
            debug!(%error, "there is no guard of links");
        }
        let removed = host.del_link_if_exists(bridge.as_str()).await;
        removed.trying(|| format!("remove the bridge {bridge}")).map(|_| true)
    }

    /// Makes a namespace at `path` with these addresses, joined to the bridge.
    pub(crate) async fn add_pod(
        &self,
        path: &Path,
        link: &str,
        addresses: Addresses,
    ) -> Result<(), NodeError> {
        // Left from an earlier life, perhaps before the machine was restarted.
        self.remove_pod(path, link).await?;
        let made = blocking(path, |path| {
            namespace::create_path(path)?;
            set_parameters(path);
            Ok(())
        });
        let made = made.await;
        made.trying(|| format!("make the network namespace {}", path.display()))?;
        self.join_pod(path, link, addresses).await
    }

    /// The same for a namespace that others have made, which can then be found at `path`, too.
    #[cfg(feature = "cri")]
    pub(crate) async fn adopt_pod(
        &self,
        made: &Path,
        (path, link): (&Path, &str),
        addresses: Addresses,
    ) -> Result<(), NodeError> {
        self.remove_pod(path, link).await?;
        let bound = fs::File::create(path)
            .and_then(|_| rustix::mount::mount_bind(made, path).map_err(std::io::Error::from));
        bound.map_err(|source| NodeError::State { path: path.to_owned(), source })?;
        let set = blocking(path, |path| {
            set_parameters(path);
            Ok(())
        });
        let _ = set.await;
        self.join_pod(path, link, addresses).await
    }

    /// Joins the namespace at `path` to the bridge, by a pair of links.
    pub(crate) async fn join_pod(
        &self,
        path: &Path,
        link: &str,
        addresses: Addresses,
    ) -> Result<(), NodeError> {
        let inside = Connection::<Route>::new_in(path)
            .trying(|| format!("enter the network namespace {}", path.display()))?;
        let namespace = namespace::open_path(path)
            .trying(|| format!("open the network namespace {}", path.display()))?;
        let host = Connection::<Route>::new().trying(|| "open a netlink socket".into())?;
        let pair = VethLink::new(link, POD_LINK)
            .peer_address(hardware_address(addresses.first))
            .peer_netns_fd(&namespace)
            .master(self.bridge.as_str())
            .up();
        host.add_link(pair).await.trying(|| format!("make the link {link}"))?;
        return_by_same_link(&host, link).await?;
        let configured = self.configure_pod(&inside, addresses).await;
        configured.trying(|| format!("set up {addresses} in the pod"))
    }

    async fn configure_pod(
        &self,
        inside: &Connection<Route>,
        addresses: Addresses,
    ) -> Result<(), nlink::Error> {
        inside.set_link_up("lo").await?;
        inside.set_link_up(POD_LINK).await?;
        for address in addresses.iter() {
            let mut gateways = self.subnets.iter().map(|subnet| subnet.gateway);
            let gateway = gateways.find(|gateway| gateway.is_ipv4() == address.is_ipv4());
            match (address, gateway) {
                (IpAddr::V4(own), Some(IpAddr::V4(gateway))) => {
                    inside.add_address(Ipv4Address::new(POD_LINK, own, 32)).await?;
                    let to_gateway = Ipv4Route::from_addr(gateway, 32).dev(POD_LINK);
                    inside.add_route(to_gateway.scope(RouteScope::Link)).await?;
                    let default = Ipv4Route::default_route().gateway(gateway).dev(POD_LINK);
                    inside.add_route(default.prefsrc(own)).await?;
                }
                (IpAddr::V6(own), Some(IpAddr::V6(gateway))) => {
                    inside.add_address(Ipv6Address::new(POD_LINK, own, 128).nodad()).await?;
                    inside.add_route(Ipv6Route::from_addr(gateway, 128).dev(POD_LINK)).await?;
                    let default = Ipv6Route::default_route().gateway(gateway).dev(POD_LINK);
                    inside.add_route(default.prefsrc(own)).await?;
                }
                // A family that the node had once, and has no more.
                _ => {}
            }
        }
        Ok(())
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

/// A router hears nobody else's advertisements by default. A machine that has its own address by them would
/// lose it when it becomes the router of its pods.
fn keep_router_advertisements() {
    let links = fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten();
    let names = links.map(|link| link.file_name().to_string_lossy().into_owned());
    for link in names.filter(|name| !["all", "default", "lo"].contains(&name.as_str())) {
        let name = format!("net/ipv6/conf/{link}/accept_ra");
        if read_sysctl(&name).as_deref() == Some("1") {
            sysctl(&name, "2");
        }
    }
}

/// Where br_netfilter is active, who calls itself by a Service or a host port comes back out of the link it
/// went in by. A bridge does not allow that by itself.
pub(crate) async fn return_by_same_link(
    host: &Connection<Route>,
    link: &str,
) -> Result<(), NodeError> {
    let hairpin = BridgePortConfig::new().hairpin(true);
    host.set_bridge_port(link, hairpin).await.trying(|| format!("set up the link {link}"))
}

/// Sets the kernel parameters of a pod's network. A kernel without IPv6 has nothing to set.
fn set_parameters(path: &Path) {
    if let Err(error) = namespace::set_sysctls_path(path, &POD_SYSCTLS) {
        debug!(%error, "cannot set the parameters of a pod's network");
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
pub(crate) fn hardware_address(address: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            [a, b, c, d]
        }
    };
    [0x0a, 0x58, a, b, c, d]
}

async fn blocking(
    path: &Path,
    work: impl FnOnce(&Path) -> Result<(), nlink::Error> + Send + 'static,
) -> Result<(), nlink::Error> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || work(&path)).await.expect("the work does not panic")
}

fn read_sysctl(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok().map(|text| text.trim().to_owned())
}

/// Sets a kernel parameter, if it has another value.
pub(crate) fn sysctl(name: &str, value: &str) {
    if read_sysctl(name).as_deref() == Some(value) {
        return;
    }
    if let Err(error) = fs::write(format!("/proc/sys/{name}"), value) {
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
