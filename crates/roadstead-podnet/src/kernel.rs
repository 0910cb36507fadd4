//! The kernel's routes, neighbours and tunnel: read, compared with what is wanted, and changed where they
//! differ. Nothing is touched that does not carry our mark.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_netlink::attributes::{Attributes, address_of, attribute, attributes, text_of};
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::socket::{Answer, NetlinkFamily, Request, Socket};
use roadstead_netlink::{CREATE, DUMP};

use crate::plan::{HARDWARE, ROUTE_PRIORITY, Wanted, Way};

/// By this number of a protocol the kernel keeps apart whose routes are whose. It is nobody else's.
const PROTOCOL: u8 = 114;
/// The tunnel's link, and the mark on it.
const LINK: &str = "roadstead-vx";
const MARK: &str = "the pod network of roadstead";
/// flannel's parameters.
pub(crate) const VNI: u32 = 1;
const PORT: u16 = 8472;

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;
/// Takes the place of what is there.
const REPLACE: u16 = 0x100;

const INET: u8 = 2;
const INET6: u8 = 10;
const BRIDGE: u8 = 7;
const MAIN_TABLE: u8 = 254;
const UNICAST: u8 = 1;
const UNREACHABLE: u8 = 7;
const ON_LINK: u32 = 4;
const PERMANENT: u16 = 0x80;
const BY_ITSELF: u8 = 2;

/// Who has an address, or, of frames, to which address those for a machine are sent.
type Neighbour = (Option<IpAddr>, [u8; 6]);

/// A way to the kernel, and what is ours there.
pub(crate) struct Kernel {
    socket: Socket,
}

/// A link of this machine.
#[derive(Clone, Debug, Default)]
struct Link {
    index: u32,
    name: String,
    alias: String,
    kind: String,
    mtu: u32,
    hardware: Vec<u8>,
    is_up: bool,
}

impl Link {
    /// A link is marked once it is made: one that was only made, before a power cut, has our address.
    fn is_ours(&self) -> bool {
        self.kind == "vxlan" && (self.alias == MARK || self.hardware.starts_with(&HARDWARE))
    }
}

/// The tunnel as it should be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tunnel<'a> {
    /// From where packets are sent to other nodes.
    pub(crate) from: IpAddr,
    pub(crate) hardware: [u8; 6],
    /// Our addresses in it: the first of each block of pods.
    pub(crate) pods: &'a [IpNet],
}

/// Why the kernel is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// There is no way to the kernel.
    #[error("cannot open a netlink socket")]
    Open(#[source] std::io::Error),
    /// It did not do something.
    #[error("cannot {action}")]
    Refused {
        /// What was tried.
        action: String,
        /// Why not.
        source: NetlinkError,
    },
    /// Somebody else's link has the name.
    #[error(
        "there is a link {LINK} that roadstead did not make: remove it, or use --pod-network routes"
    )]
    ForeignLink,
}

fn trying<T>(
    outcome: Result<T, NetlinkError>,
    action: impl FnOnce() -> String,
) -> Result<T, KernelError> {
    outcome.map_err(|source| KernelError::Refused { action: action(), source })
}

impl Kernel {
    /// In the network namespace of the calling thread.
    pub(crate) fn open() -> Result<Self, KernelError> {
        Ok(Self { socket: Socket::open(NetlinkFamily::Route).map_err(KernelError::Open)? })
    }

    /// The networks that this machine is in, by the numbers of their links; not those of the tunnel, nor of
    /// the bridge of its pods.
    pub(crate) fn networks(&mut self, pods: &[IpNet]) -> Result<Vec<(u32, IpNet)>, KernelError> {
        let tunnel = self.tunnel_link()?.map(|link| link.index);
        let request = Request { kind: GET_ADDRESS, flags: DUMP, header: &[0; 8] };
        let found = self.socket.ask(&request, |_| {}, |answer| address(&answer));
        let mut found = trying(found, || "list addresses".into())?;
        found.retain(|(link, network)| {
            let is_host = network.prefix_len() == network.max_prefix_len();
            let is_pods = pods.iter().any(|block| block.contains(&network.addr()));
            let strange = network.addr().is_loopback() || is_link_local(network.addr());
            Some(*link) != tunnel && !is_host && !is_pods && !strange
        });
        Ok(found)
    }

    /// Makes everything as wanted; returns how much was changed.
    pub(crate) fn apply(
        &mut self,
        wanted: &Wanted,
        tunnel: &Tunnel<'_>,
    ) -> Result<usize, KernelError> {
        let mut changes = 0;
        let link = match wanted.tunnel {
            true => Some(self.make_tunnel(tunnel, &mut changes)?),
            false => {
                changes += usize::from(self.remove_tunnel()?);
                None
            }
        };
        if let Some(link) = link {
            changes += self.apply_neighbours(link, wanted)?;
            changes += self.apply_ends(link, wanted)?;
        }
        Ok(changes + self.apply_routes(link, wanted)?)
    }

    /// Removes everything of ours; returns how much there was.
    pub(crate) fn remove_all(&mut self) -> Result<usize, KernelError> {
        let routes = self.apply_routes(None, &Wanted::default())?;
        Ok(routes + usize::from(self.remove_tunnel()?))
    }

    fn links(&mut self) -> Result<Vec<Link>, KernelError> {
        let request = Request { kind: GET_LINK, flags: DUMP, header: &[0; 16] };
        let found = self.socket.ask(&request, |_| {}, |answer| Some(link(&answer)));
        trying(found, || "list links".into())
    }

    fn tunnel_link(&mut self) -> Result<Option<Link>, KernelError> {
        Ok(self.links()?.into_iter().find(|link| link.name == LINK))
    }

    fn make_tunnel(
        &mut self,
        tunnel: &Tunnel<'_>,
        changes: &mut usize,
    ) -> Result<u32, KernelError> {
        if let Some(link) = self.tunnel_link()? {
            if !link.is_ours() {
                return Err(KernelError::ForeignLink);
            }
            if link.hardware == tunnel.hardware && link.is_up {
                return Ok(link.index);
            }
            self.delete_link(link.index)?;
        }
        *changes += 1;
        let uplink = self.networks(tunnel.pods)?;
        let uplink = uplink.iter().find(|(_, network)| network.addr() == tunnel.from);
        let links = self.links()?;
        let uplink = uplink.and_then(|(index, _)| links.iter().find(|link| link.index == *index));
        let around = if tunnel.from.is_ipv4() { 50 } else { 70 };
        let mtu = uplink.map_or(1500, |link| link.mtu).saturating_sub(around).max(1280);
        let mut header = [0_u8; 16];
        // Up, from the start.
        header[8..12].copy_from_slice(&1_u32.to_ne_bytes());
        header[12..16].copy_from_slice(&1_u32.to_ne_bytes());
        let request = Request { kind: NEW_LINK, flags: CREATE | 0x200, header: &header };
        let made = self.socket.order(&request, |attributes| {
            attributes.text(3, LINK);
            attributes.put(1, &tunnel.hardware);
            attributes.put(4, &mtu.to_ne_bytes());
            attributes.nest(18, |info| {
                info.text(1, "vxlan");
                info.nest(2, |data| tunnel_parameters(data, tunnel.from));
            });
        });
        trying(made, || format!("make the link {LINK} (VXLAN)"))?;
        let Some(link) = self.tunnel_link()? else { return Err(KernelError::ForeignLink) };
        let header = link_header(link.index);
        let request = Request { kind: NEW_LINK, flags: 0, header: &header };
        let marked = self.socket.order(&request, |attributes| attributes.text(20, MARK));
        trying(marked, || format!("mark the link {LINK}"))?;
        for block in tunnel.pods {
            let own = block.trunc().addr();
            let (family, length) = family(own);
            let mut header = [family, length, 0, 0, 0, 0, 0, 0];
            header[4..8].copy_from_slice(&link.index.to_ne_bytes());
            let request = Request { kind: NEW_ADDRESS, flags: CREATE | REPLACE, header: &header };
            let given = self.socket.order(&request, |attributes| {
                attributes.put(1, &octets(own));
                attributes.put(2, &octets(own));
            });
            trying(given, || format!("give {LINK} the address {own}"))?;
        }
        Ok(link.index)
    }

    fn remove_tunnel(&mut self) -> Result<bool, KernelError> {
        match self.tunnel_link()?.filter(Link::is_ours) {
            Some(link) => self.delete_link(link.index).map(|()| true),
            None => Ok(false),
        }
    }

    fn delete_link(&mut self, index: u32) -> Result<(), KernelError> {
        let header = link_header(index);
        let request = Request { kind: DELETE_LINK, flags: 0, header: &header };
        trying(self.socket.order(&request, |_| {}), || format!("remove the link {LINK}"))
    }

    /// Neighbours of that family on the tunnel, each with what the kernel knows of it.
    fn neighbours(&mut self, family: u8, link: u32) -> Result<Vec<Neighbour>, KernelError> {
        let header = neighbour_header(family, 0, 0);
        let request = Request { kind: GET_NEIGHBOUR, flags: DUMP, header: &header };
        let found = self.socket.ask(
            &request,
            |_| {},
            |answer| {
                let index = u32::from_ne_bytes(answer.header.get(4..8)?.try_into().ok()?);
                let hardware = attribute(answer.attributes, 2)?.try_into().ok()?;
                let address = attribute(answer.attributes, 1).and_then(address_of);
                let state = u16::from_ne_bytes(answer.header.get(8..10)?.try_into().ok()?);
                (index == link && state & PERMANENT != 0).then_some((address, hardware))
            },
        );
        trying(found, || "list neighbours".into())
    }

    fn apply_neighbours(&mut self, link: u32, wanted: &Wanted) -> Result<usize, KernelError> {
        let mut present = BTreeMap::new();
        for family in [INET, INET6] {
            for (address, hardware) in self.neighbours(family, link)? {
                present.extend(address.map(|address| (address, hardware)));
            }
        }
        let mut changes = 0;
        for (address, hardware) in &wanted.neighbours {
            if present.get(address) != Some(hardware) {
                self.neighbour(
                    (NEW_NEIGHBOUR, family(*address).0, link),
                    *hardware,
                    Some(*address),
                )?;
                changes += 1;
            }
        }
        for (address, hardware) in present {
            if !wanted.neighbours.contains_key(&address) {
                self.neighbour(
                    (DELETE_NEIGHBOUR, family(address).0, link),
                    hardware,
                    Some(address),
                )?;
                changes += 1;
            }
        }
        Ok(changes)
    }

    fn apply_ends(&mut self, link: u32, wanted: &Wanted) -> Result<usize, KernelError> {
        let found = self.neighbours(BRIDGE, link)?;
        let present: BTreeSet<_> = found.iter().map(|(address, mac)| (*mac, *address)).collect();
        let wants = |mac: &[u8; 6], address: &Option<IpAddr>| {
            address.is_some() && wanted.ends.get(mac) == address.as_ref()
        };
        let mut changes = 0;
        // First the old: two ends for one would both be sent to.
        for (hardware, address) in present.iter().filter(|(mac, address)| !wants(mac, address)) {
            self.neighbour((DELETE_NEIGHBOUR, BRIDGE, link), *hardware, *address)?;
            changes += 1;
        }
        for (hardware, address) in &wanted.ends {
            if !present.contains(&(*hardware, Some(*address))) {
                self.neighbour((NEW_NEIGHBOUR, BRIDGE, link), *hardware, Some(*address))?;
                changes += 1;
            }
        }
        Ok(changes)
    }

    fn neighbour(
        &mut self,
        (kind, family, link): (u16, u8, u32),
        hardware: [u8; 6],
        address: Option<IpAddr>,
    ) -> Result<(), KernelError> {
        let itself = if family == BRIDGE { BY_ITSELF } else { 0 };
        let header = neighbour_header(family, link, itself);
        let flags = if kind == NEW_NEIGHBOUR { CREATE | REPLACE } else { 0 };
        let request = Request { kind, flags, header: &header };
        let done = self.socket.order(&request, |attributes| {
            attributes.extend_address(1, address);
            attributes.put(2, &hardware);
        });
        trying(done, || format!("change who is behind {LINK}: {address:?}"))
    }

    /// Our routes: where they lead.
    fn routes(&mut self) -> Result<BTreeMap<IpNet, Present>, KernelError> {
        let mut all = BTreeMap::new();
        for family in [INET, INET6] {
            let header = [family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let request = Request { kind: GET_ROUTE, flags: DUMP, header: &header };
            let found = self.socket.ask(&request, |_| {}, |answer| route(&answer));
            all.extend(trying(found, || "list routes".into())?);
        }
        Ok(all)
    }

    fn apply_routes(&mut self, link: Option<u32>, wanted: &Wanted) -> Result<usize, KernelError> {
        let present = self.routes()?;
        let mut changes = 0;
        for (network, way) in &wanted.routes {
            let way = match (way, link) {
                (Way::Neighbour(address, link), _) => Present::by(*address, *link),
                (Way::Tunnel(address), Some(link)) => Present::by(*address, link),
                _ => Present::Unreachable,
            };
            if present.get(network) != Some(&way) {
                self.set_route(network, &way)?;
                changes += 1;
            }
        }
        for network in present.keys().filter(|network| !wanted.routes.contains_key(network)) {
            self.delete_route(network, &present[network])?;
            changes += 1;
        }
        Ok(changes)
    }

    fn set_route(&mut self, network: &IpNet, way: &Present) -> Result<(), KernelError> {
        let header = route_header(network, way);
        let request = Request { kind: NEW_ROUTE, flags: CREATE | REPLACE, header: &header };
        let done = self.socket.order(&request, |attributes| describe(attributes, network, way));
        trying(done, || format!("route {network}"))
    }

    fn delete_route(&mut self, network: &IpNet, way: &Present) -> Result<(), KernelError> {
        let header = route_header(network, way);
        let request = Request { kind: DELETE_ROUTE, flags: 0, header: &header };
        let done = self.socket.order(&request, |attributes| describe(attributes, network, way));
        trying(done, || format!("remove the route to {network}"))
    }
}

/// Where a route of ours leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Present {
    By { gateway: IpAddr, link: u32 },
    Unreachable,
}

impl Present {
    fn by(gateway: IpAddr, link: u32) -> Self {
        Self::By { gateway, link }
    }
}

trait AddressAttribute {
    fn extend_address(&mut self, kind: u16, address: Option<IpAddr>);
}

impl AddressAttribute for Attributes<'_> {
    fn extend_address(&mut self, kind: u16, address: Option<IpAddr>) {
        if let Some(address) = address {
            self.put(kind, &octets(address));
        }
    }
}

fn tunnel_parameters(data: &mut Attributes<'_>, from: IpAddr) {
    data.put(1, &VNI.to_ne_bytes());
    data.put(if from.is_ipv4() { 4 } else { 17 }, &octets(from));
    // No learning: who is where is known.
    data.put(7, &[0]);
    data.put(15, &PORT.to_be_bytes());
}

fn link_header(index: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header
}

fn neighbour_header(family: u8, link: u32, flags: u8) -> [u8; 12] {
    let mut header = [0; 12];
    header[0] = family;
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[8..10].copy_from_slice(&PERMANENT.to_ne_bytes());
    header[10] = flags;
    header
}

fn route_header(network: &IpNet, way: &Present) -> [u8; 12] {
    let (kind, flags) = match way {
        Present::By { .. } => (UNICAST, ON_LINK),
        Present::Unreachable => (UNREACHABLE, 0),
    };
    let mut header = [0; 12];
    header[0] = family(network.addr()).0;
    header[1] = network.prefix_len();
    header[4] = MAIN_TABLE;
    header[5] = PROTOCOL;
    header[7] = kind;
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn describe(attributes: &mut Attributes<'_>, network: &IpNet, way: &Present) {
    attributes.put(1, &octets(network.addr()));
    attributes.put(6, &ROUTE_PRIORITY.to_ne_bytes());
    if let Present::By { gateway, link } = way {
        attributes.put(5, &octets(*gateway));
        attributes.put(4, &link.to_ne_bytes());
    }
}

/// A route, if it is one of ours.
fn route(answer: &Answer<'_>) -> Option<(IpNet, Present)> {
    let [family, length, _, _, table, protocol, _, kind] = *answer.header.first_chunk::<8>()?;
    if (table, protocol) != (MAIN_TABLE, PROTOCOL) {
        return None;
    }
    let everything: IpAddr = match family {
        INET => [0; 4].into(),
        _ => [0; 16].into(),
    };
    let to = attribute(answer.attributes, 1).and_then(address_of).unwrap_or(everything);
    let network = IpNet::new(to, length).ok()?;
    let gateway = attribute(answer.attributes, 5).and_then(address_of);
    let link = attribute(answer.attributes, 4).and_then(number);
    match (kind, gateway, link) {
        (UNICAST, Some(gateway), Some(link)) => Some((network, Present::by(gateway, link))),
        _ => Some((network, Present::Unreachable)),
    }
}

fn link(answer: &Answer<'_>) -> Link {
    let index = answer.header.get(4..8).and_then(number).unwrap_or(0);
    let flags = answer.header.get(8..12).and_then(number).unwrap_or(0);
    let mut link = Link { index, is_up: flags & 1 != 0, ..Link::default() };
    for (kind, value) in attributes(answer.attributes) {
        match kind {
            1 => link.hardware = value.to_vec(),
            3 => link.name = text_of(value),
            4 => link.mtu = number(value).unwrap_or(0),
            18 => link.kind = attribute(value, 1).map(text_of).unwrap_or_default(),
            20 => link.alias = text_of(value),
            _ => {}
        }
    }
    link
}

/// An address of this machine with its network.
fn address(answer: &Answer<'_>) -> Option<(u32, IpNet)> {
    let length = *answer.header.get(1)?;
    let index = answer.header.get(4..8).and_then(number)?;
    let own = attribute(answer.attributes, 2).or_else(|| attribute(answer.attributes, 1))?;
    Some((index, IpNet::new(address_of(own)?, length).ok()?))
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// The number of the family, and how long its addresses are.
fn family(address: IpAddr) -> (u8, u8) {
    if address.is_ipv4() { (INET, 32) } else { (INET6, 128) }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests;
