//! Virtual servers and their destinations, over the kernel's generic netlink family `IPVS`.

use std::io;
use std::net::{IpAddr, SocketAddr};

use roadstead_forwarding::ipvs::model::{Scheduler, Server, Settings, Timeouts};
use roadstead_forwarding::service::{IpFamily, Protocol};
use roadstead_netlink::DUMP;
use roadstead_netlink::attributes::{Attributes, address_of, attribute};
use roadstead_netlink::socket::{Answer, NetlinkFamily, Request, Socket};

const CONTROL_FAMILY: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// The commands and attributes of `linux/ip_vs.h`.
mod command {
    pub(super) const NEW_SERVICE: u8 = 1;
    pub(super) const SET_SERVICE: u8 = 2;
    pub(super) const DELETE_SERVICE: u8 = 3;
    pub(super) const GET_SERVICE: u8 = 4;
    pub(super) const NEW_DESTINATION: u8 = 5;
    pub(super) const SET_DESTINATION: u8 = 6;
    pub(super) const DELETE_DESTINATION: u8 = 7;
    pub(super) const GET_DESTINATION: u8 = 8;
    pub(super) const SET_CONFIG: u8 = 12;
}
mod top {
    pub(super) const SERVICE: u16 = 1;
    pub(super) const DESTINATION: u16 = 2;
    pub(super) const TIMEOUT_TCP: u16 = 4;
    pub(super) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(super) const TIMEOUT_UDP: u16 = 6;
}
mod service {
    pub(super) const FAMILY: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const ADDRESS: u16 = 3;
    pub(super) const PORT: u16 = 4;
    pub(super) const SCHEDULER: u16 = 6;
    pub(super) const FLAGS: u16 = 7;
    pub(super) const TIMEOUT: u16 = 8;
    pub(super) const NETMASK: u16 = 9;
}
mod destination {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const PORT: u16 = 2;
    pub(super) const METHOD: u16 = 3;
    pub(super) const WEIGHT: u16 = 4;
    pub(super) const UPPER: u16 = 5;
    pub(super) const LOWER: u16 = 6;
    pub(super) const ACTIVE: u16 = 7;
    pub(super) const INACTIVE: u16 = 8;
    pub(super) const FAMILY: u16 = 11;
}
const VERSION: u8 = 1;
const PERSISTENT: u32 = 0x1;
/// Maglev looks at the source port, too.
const SOURCE_HASH: u32 = 0x10;
const FLAG_MASK: u32 = u32::MAX;
const MASQUERADE: u32 = 0;

/// A destination as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub(super) target: SocketAddr,
    pub(super) weight: u32,
    /// Connections that it still has, whatever their state.
    pub(super) connections: u32,
}

/// The kernel's IPVS.
#[derive(Debug)]
pub(super) struct Servers {
    socket: Socket,
    family_id: u16,
}

impl Servers {
    /// Connects; fails with `NotFound` if the kernel has no IPVS.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::open(NetlinkFamily::Generic)?;
        let request = Request { kind: CONTROL_FAMILY, flags: 0, header: &[GET_FAMILY, 1, 0, 0] };
        let ids = socket.ask(
            &request,
            |attributes| attributes.text(FAMILY_NAME, "IPVS"),
            |answer| number16(answer.attributes, FAMILY_ID),
        )?;
        let family_id = *ids.first().ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { socket, family_id })
    }

    /// All virtual servers of an address family.
    pub(super) fn list(&mut self, family: IpFamily) -> io::Result<Vec<(Server, Settings)>> {
        let read = |answer: Answer<'_>| read_server(attribute(answer.attributes, top::SERVICE)?);
        let mut found = self.dump(command::GET_SERVICE, |_| {}, read)?;
        found.retain(|(server, _)| IpFamily::of(server.address) == family);
        Ok(found)
    }

    /// All destinations of a virtual server.
    pub(super) fn destinations(&mut self, server: &Server) -> io::Result<Vec<Destination>> {
        let family = IpFamily::of(server.address);
        let read = |answer: Answer<'_>| {
            read_destination(attribute(answer.attributes, top::DESTINATION)?, family)
        };
        self.dump(command::GET_DESTINATION, |all| key(all, server), read)
    }

    /// Adds a virtual server.
    pub(super) fn add(&mut self, server: &Server, settings: &Settings) -> io::Result<()> {
        self.order(command::NEW_SERVICE, |all| full(all, server, settings))
    }

    /// Changes the settings of a virtual server.
    pub(super) fn set(&mut self, server: &Server, settings: &Settings) -> io::Result<()> {
        self.order(command::SET_SERVICE, |all| full(all, server, settings))
    }

    /// Deletes a virtual server with all its destinations.
    pub(super) fn delete(&mut self, server: &Server) -> io::Result<()> {
        self.order(command::DELETE_SERVICE, |all| key(all, server))
    }

    /// Adds a destination.
    pub(super) fn add_destination(
        &mut self,
        server: &Server,
        target: SocketAddr,
        weight: u32,
    ) -> io::Result<()> {
        self.order(command::NEW_DESTINATION, |all| weighted(all, server, target, weight))
    }

    /// Changes the weight of a destination; none get new connections with weight 0.
    pub(super) fn set_weight(
        &mut self,
        server: &Server,
        target: SocketAddr,
        weight: u32,
    ) -> io::Result<()> {
        self.order(command::SET_DESTINATION, |all| weighted(all, server, target, weight))
    }

    /// Deletes a destination; its connections break.
    pub(super) fn delete_destination(
        &mut self,
        server: &Server,
        target: SocketAddr,
    ) -> io::Result<()> {
        self.order(command::DELETE_DESTINATION, |all| {
            key(all, server);
            all.nest(top::DESTINATION, |nest| target_key(nest, target));
        })
    }

    /// Sets how long idle connections are kept; zero leaves a timeout as it is.
    pub(super) fn set_timeouts(&mut self, timeouts: &Timeouts) -> io::Result<()> {
        let seconds = |duration: std::time::Duration| {
            u32::try_from(duration.as_secs()).unwrap_or(u32::MAX).to_ne_bytes()
        };
        self.order(command::SET_CONFIG, |all| {
            all.put(top::TIMEOUT_TCP, &seconds(timeouts.tcp));
            all.put(top::TIMEOUT_TCP_FIN, &seconds(timeouts.tcp_fin));
            all.put(top::TIMEOUT_UDP, &seconds(timeouts.udp));
        })
    }

    fn order(&mut self, command: u8, fill: impl FnOnce(&mut Attributes<'_>)) -> io::Result<()> {
        let header = [command, VERSION, 0, 0];
        let request = Request { kind: self.family_id, flags: 0, header: &header };
        Ok(self.socket.order(&request, fill)?)
    }

    fn dump<T>(
        &mut self,
        command: u8,
        fill: impl FnOnce(&mut Attributes<'_>),
        read: impl FnMut(Answer<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let header = [command, VERSION, 0, 0];
        let request = Request { kind: self.family_id, flags: DUMP, header: &header };
        Ok(self.socket.ask(&request, fill, read)?)
    }
}

fn key(all: &mut Attributes<'_>, server: &Server) {
    all.nest(top::SERVICE, |nest| server_key(nest, server));
}

fn full(all: &mut Attributes<'_>, server: &Server, settings: &Settings) {
    all.nest(top::SERVICE, |nest| {
        server_key(nest, server);
        nest.text(service::SCHEDULER, settings.scheduler.name());
        let persistent = if settings.persistence.is_some() { PERSISTENT } else { 0 };
        let hash = if settings.scheduler == Scheduler::Maglev { SOURCE_HASH } else { 0 };
        let flags = [(persistent | hash).to_ne_bytes(), FLAG_MASK.to_ne_bytes()].concat();
        nest.put(service::FLAGS, &flags);
        nest.put(service::TIMEOUT, &settings.persistence.unwrap_or(0).to_ne_bytes());
        // Persistence is per client, not per network of clients.
        let mask = match server.address {
            IpAddr::V4(_) => u32::MAX,
            IpAddr::V6(_) => 128,
        };
        nest.put(service::NETMASK, &mask.to_ne_bytes());
    });
}

fn server_key(nest: &mut Attributes<'_>, server: &Server) {
    nest.put(service::FAMILY, &family_number(server.address));
    nest.put(service::PROTOCOL, &u16::from(server.protocol.number()).to_ne_bytes());
    nest.put(service::ADDRESS, &address_bytes(server.address));
    nest.put(service::PORT, &server.port.to_be_bytes());
}

fn weighted(all: &mut Attributes<'_>, server: &Server, target: SocketAddr, weight: u32) {
    key(all, server);
    all.nest(top::DESTINATION, |nest| {
        target_key(nest, target);
        nest.put(destination::METHOD, &MASQUERADE.to_ne_bytes());
        nest.put(destination::WEIGHT, &weight.to_ne_bytes());
        nest.put(destination::UPPER, &0u32.to_ne_bytes());
        nest.put(destination::LOWER, &0u32.to_ne_bytes());
    });
}

fn target_key(nest: &mut Attributes<'_>, target: SocketAddr) {
    nest.put(destination::FAMILY, &family_number(target.ip()));
    nest.put(destination::ADDRESS, &address_bytes(target.ip()));
    nest.put(destination::PORT, &target.port().to_be_bytes());
}

fn family_number(address: IpAddr) -> [u8; 2] {
    u16::from(IpFamily::of(address).number()).to_ne_bytes()
}

/// The kernel's union of both kinds of addresses.
fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn read_server(body: &[u8]) -> Option<(Server, Settings)> {
    let number = number16(body, service::FAMILY)?;
    let families = [IpFamily::V4, IpFamily::V6];
    let family = families.into_iter().find(|family| u16::from(family.number()) == number)?;
    let number = number16(body, service::PROTOCOL)?;
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    let protocol = protocols.into_iter().find(|p| u16::from(p.number()) == number)?;
    let address = read_address(attribute(body, service::ADDRESS)?, family)?;
    let port = u16::from_be_bytes(attribute(body, service::PORT)?.get(..2)?.try_into().ok()?);
    let flags = attribute(body, service::FLAGS).and_then(first32).unwrap_or(0);
    let timeout = attribute(body, service::TIMEOUT).and_then(first32);
    let name = attribute(body, service::SCHEDULER)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let settings = Settings {
        scheduler: Scheduler::parse(std::str::from_utf8(name).ok()?)?,
        persistence: timeout.filter(|_| flags & PERSISTENT != 0),
    };
    Some((Server { address, protocol, port }, settings))
}

fn read_destination(body: &[u8], family: IpFamily) -> Option<Destination> {
    let address = read_address(attribute(body, destination::ADDRESS)?, family)?;
    let port = u16::from_be_bytes(attribute(body, destination::PORT)?.get(..2)?.try_into().ok()?);
    let number = |kind| attribute(body, kind).and_then(first32).unwrap_or(0);
    Some(Destination {
        target: SocketAddr::new(address, port),
        weight: number(destination::WEIGHT),
        connections: number(destination::ACTIVE).saturating_add(number(destination::INACTIVE)),
    })
}

/// From the kernel's union.
fn read_address(bytes: &[u8], family: IpFamily) -> Option<IpAddr> {
    let length = if family == IpFamily::V4 { 4 } else { 16 };
    address_of(bytes.get(..length)?)
}

fn number16(bytes: &[u8], kind: u16) -> Option<u16> {
    let value = attribute(bytes, kind)?;
    Some(u16::from_ne_bytes(value.get(..2)?.try_into().ok()?))
}

fn first32(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?))
}
