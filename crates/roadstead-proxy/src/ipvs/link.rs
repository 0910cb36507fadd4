//! The link `kube-ipvs0`, which holds the virtual addresses so that the kernel takes their packets
//! in. It is down and answers no neighbour: nothing ever passes it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::attributes::{address_of, attribute};
use roadstead_netlink::socket::{Answer, NetlinkFamily, Request, Socket};
use roadstead_netlink::{CREATE, DUMP, EXCLUSIVE};
use rustix::io::Errno;

/// What the link is called; upstream's name, so that people find it.
pub(crate) const NAME: &str = "kube-ipvs0";

const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const LINK_KIND: u16 = 1;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
/// The link's own flag: it has no neighbours to ask.
const NO_ARP: u32 = 0x80;
/// A link-local address says nothing about the node.
const SCOPE_LINK: u8 = 253;
const HOST_SCOPE: u8 = 254;

/// The node's links and addresses.
#[derive(Debug)]
pub(super) struct Links {
    socket: Socket,
}

/// The addresses of a node, by the link they are on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    /// Those on our own link.
    pub(super) ours: BTreeSet<IpAddr>,
    /// All others that somebody outside could call.
    pub(super) others: BTreeSet<IpAddr>,
}

impl Links {
    /// Connects.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(NetlinkFamily::Route)? })
    }

    /// Makes our link if it is not there; returns its number.
    pub(super) fn ensure(&mut self) -> io::Result<u32> {
        if let Some(index) = self.find()? {
            return Ok(index);
        }
        let header = link_prefix(NO_ARP);
        let request = Request { kind: NEW_LINK, flags: CREATE | EXCLUSIVE, header: &header };
        self.socket.order(&request, |all| {
            all.text(LINK_NAME, NAME);
            all.nest(LINK_INFO, |info| info.text(LINK_KIND, "dummy"));
        })?;
        self.find()?.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Makes a link like ours and deletes it again, if ours is not there.
    pub(super) fn try_out(&mut self) -> io::Result<()> {
        if self.find()?.is_some() {
            return Ok(());
        }
        self.ensure()?;
        self.remove()
    }

    /// Deletes our link with all its addresses, if it is there.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        let header = link_prefix(0);
        let request = Request { kind: DELETE_LINK, flags: 0, header: &header };
        let outcome = self.socket.order(&request, |all| all.text(LINK_NAME, NAME));
        unless(Errno::NODEV, outcome.map_err(io::Error::from))
    }

    /// All addresses of a family.
    pub(super) fn addresses(&mut self, family: IpFamily, ours: u32) -> io::Result<Addresses> {
        let header = address_prefix(family.number(), 0, 0);
        let request = Request { kind: GET_ADDRESS, flags: DUMP, header: &header };
        let mut found: BTreeMap<IpAddr, bool> = BTreeMap::new();
        for (address, index, scope) in self.socket.ask(&request, |_| {}, read_address)? {
            let callable = scope != SCOPE_LINK && scope != HOST_SCOPE;
            if index == ours || callable {
                *found.entry(address).or_default() |= index == ours;
            }
        }
        let (ours, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|(_, ours)| *ours);
        let addresses = |of: Vec<(IpAddr, bool)>| of.into_iter().map(|(address, _)| address);
        Ok(Addresses { ours: addresses(ours).collect(), others: addresses(others).collect() })
    }

    /// Gives our link an address. One that it has is no error.
    pub(super) fn add(&mut self, link: u32, address: IpAddr) -> io::Result<()> {
        unless(Errno::EXIST, self.change(NEW_ADDRESS, CREATE | EXCLUSIVE, link, address))
    }

    /// Takes an address from our link. One that it has not is no error.
    pub(super) fn delete(&mut self, link: u32, address: IpAddr) -> io::Result<()> {
        unless(Errno::ADDRNOTAVAIL, self.change(DELETE_ADDRESS, 0, link, address))
    }

    fn change(&mut self, kind: u16, flags: u16, link: u32, address: IpAddr) -> io::Result<()> {
        let (bytes, length) = match address {
            IpAddr::V4(v4) => (v4.octets().to_vec(), 32),
            IpAddr::V6(v6) => (v6.octets().to_vec(), 128),
        };
        let header = address_prefix(IpFamily::of(address).number(), length, link);
        let request = Request { kind, flags, header: &header };
        Ok(self.socket.order(&request, |all| {
            all.put(LOCAL, &bytes);
            all.put(ADDRESS, &bytes);
        })?)
    }

    /// The number of our link, if it is there.
    pub(super) fn find(&mut self) -> io::Result<Option<u32>> {
        let header = link_prefix(0);
        let request = Request { kind: GET_LINK, flags: 0, header: &header };
        let index = |answer: Answer<'_>| {
            Some(u32::from_ne_bytes(answer.header.get(4..8)?.try_into().ok()?))
        };
        let found = self.socket.ask(&request, |all| all.text(LINK_NAME, NAME), index);
        let found = found.map_err(io::Error::from);
        match found {
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
            found => Ok(found?.first().copied()),
        }
    }
}

/// An error that says the wish is fulfilled already is none.
fn unless(expected: Errno, outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.raw_os_error() == Some(expected.raw_os_error()) => Ok(()),
        other => other,
    }
}

fn link_prefix(flags: u32) -> [u8; 16] {
    let mut prefix = [0; 16];
    prefix[8..12].copy_from_slice(&flags.to_ne_bytes());
    prefix[12..].copy_from_slice(&flags.to_ne_bytes());
    prefix
}

fn address_prefix(family: u8, length: u8, link: u32) -> [u8; 8] {
    let mut prefix = [family, length, 0, 0, 0, 0, 0, 0];
    prefix[4..].copy_from_slice(&link.to_ne_bytes());
    prefix
}

fn read_address(answer: Answer<'_>) -> Option<(IpAddr, u32, u8)> {
    let scope = *answer.header.get(3)?;
    let index = u32::from_ne_bytes(answer.header.get(4..8)?.try_into().ok()?);
    let own = attribute(answer.attributes, LOCAL);
    let value = own.or_else(|| attribute(answer.attributes, ADDRESS))?;
    Some((address_of(value)?, index, scope))
}
