//! ipsets, over the kernel's netfilter netlink.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use roadstead_forwarding::ipvs::model::{Entry, SetKind, SetName};
use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::attributes::{Attributes, NETWORK_ORDER};
use roadstead_netlink::socket::{NetlinkFamily, Request, Socket};
use roadstead_netlink::{CREATE, EXCLUSIVE, netfilter};
use rustix::io::Errno;

const SUBSYSTEM: u8 = 6;
const COMMAND_CREATE: u8 = 2;
const COMMAND_DESTROY: u8 = 3;
const COMMAND_SWAP: u8 = 6;
const COMMAND_ADD: u8 = 9;
const COMMAND_DELETE: u8 = 10;
/// The oldest protocol that the kernels of the last ten years speak.
const PROTOCOL_VERSION: u8 = 6;
/// Revision 1 of every kind knows SCTP; nothing newer is needed.
const REVISION: u8 = 1;
/// As many elements as upstream allows; the kernel's own default is the same.
const MOST_ELEMENTS: u32 = 65_536;
const NESTED_ADDRESS: [u16; 2] = [1, 2];
/// Our own errno of ipset: the element is, or is not, there already.
const ELEMENT_EXISTS: i32 = 4103;

mod attribute {
    pub(super) const PROTOCOL: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const TYPE: u16 = 3;
    pub(super) const OTHER_NAME: u16 = 3;
    pub(super) const REVISION: u16 = 4;
    pub(super) const FAMILY: u16 = 5;
    pub(super) const DATA: u16 = 7;
}
mod data {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const PORT: u16 = 4;
    pub(super) const LAST_PORT: u16 = 5;
    pub(super) const PROTOCOL: u16 = 7;
    pub(super) const MOST: u16 = 19;
    pub(super) const SECOND_ADDRESS: u16 = 20;
    pub(super) const SECOND_LENGTH: u16 = 21;
}

/// The kernel's sets of one address family.
#[derive(Debug)]
pub(super) struct Sets {
    socket: Socket,
    family: IpFamily,
}

impl Sets {
    /// Connects.
    pub(super) fn open(family: IpFamily) -> io::Result<Self> {
        Ok(Self { socket: Socket::open(NetlinkFamily::Netfilter)?, family })
    }

    /// Gives a set exactly these elements, in one step for every packet.
    ///
    /// A new set is filled and takes the place of the old one.
    pub(super) fn replace(&mut self, set: SetName, entries: &BTreeSet<Entry>) -> io::Result<()> {
        let name = set.text(self.family);
        let fresh = format!("{}-NEW", name.get(..27).unwrap_or(&name));
        self.create(&name, set.kind())?;
        self.destroy(&fresh)?;
        self.create(&fresh, set.kind())?;
        for entry in entries {
            self.element(COMMAND_ADD, EXCLUSIVE, &fresh, entry)?;
        }
        self.order(COMMAND_SWAP, 0, |all| {
            all.text(attribute::NAME, &fresh);
            all.text(attribute::OTHER_NAME, &name);
        })?;
        self.destroy(&fresh)
    }

    /// Adds an element. One that is there is no error.
    pub(super) fn add(&mut self, set: SetName, entry: &Entry) -> io::Result<()> {
        let name = set.text(self.family);
        tolerate(ELEMENT_EXISTS, self.element(COMMAND_ADD, 0, &name, entry))
    }

    /// Deletes an element. One that is not there is no error.
    pub(super) fn delete(&mut self, set: SetName, entry: &Entry) -> io::Result<()> {
        let name = set.text(self.family);
        tolerate(ELEMENT_EXISTS, self.element(COMMAND_DELETE, 0, &name, entry))
    }

    /// Deletes a set, if it is there. No rule may use it any more.
    pub(super) fn remove(&mut self, set: SetName) -> io::Result<()> {
        self.destroy(&set.text(self.family))
    }

    /// Makes a set of the same kind and deletes it again.
    pub(super) fn try_out(&mut self, set: SetName) -> io::Result<()> {
        const TRIAL: &str = "ROADSTEAD-TRIAL";
        self.destroy(TRIAL)?;
        self.create(TRIAL, set.kind())?;
        self.destroy(TRIAL)
    }

    fn create(&mut self, name: &str, kind: SetKind) -> io::Result<()> {
        let family = self.family.number();
        self.order(COMMAND_CREATE, CREATE, |all| {
            all.text(attribute::NAME, name);
            all.text(attribute::TYPE, kind.text());
            all.put(attribute::REVISION, &[REVISION]);
            // A set of ports has no family.
            all.put(attribute::FAMILY, &[if kind == SetKind::Port { 0 } else { family }]);
            all.nest(attribute::DATA, |nest| match kind {
                SetKind::Port => {
                    nest.put(NETWORK_ORDER | data::PORT, &0u16.to_be_bytes());
                    nest.put(NETWORK_ORDER | data::LAST_PORT, &u16::MAX.to_be_bytes());
                }
                _ => nest.put(NETWORK_ORDER | data::MOST, &MOST_ELEMENTS.to_be_bytes()),
            });
        })
    }

    fn destroy(&mut self, name: &str) -> io::Result<()> {
        let outcome = self.order(COMMAND_DESTROY, 0, |all| all.text(attribute::NAME, name));
        tolerate(Errno::NOENT.raw_os_error(), outcome)
    }

    fn element(&mut self, command: u8, flags: u16, name: &str, entry: &Entry) -> io::Result<()> {
        self.order(command, flags, |all| {
            all.text(attribute::NAME, name);
            all.nest(attribute::DATA, |nest| write_entry(nest, entry));
        })
    }

    fn order(
        &mut self,
        command: u8,
        flags: u16,
        fill: impl FnOnce(&mut Attributes<'_>),
    ) -> io::Result<()> {
        let header = [self.family.number(), 0, 0, 0];
        let request = Request { kind: netfilter(SUBSYSTEM, command), flags, header: &header };
        Ok(self.socket.order(&request, |all| {
            all.put(attribute::PROTOCOL, &[PROTOCOL_VERSION]);
            fill(all);
        })?)
    }
}

fn tolerate(code: i32, outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.raw_os_error() == Some(code) => Ok(()),
        other => other,
    }
}

fn write_entry(nest: &mut Attributes<'_>, entry: &Entry) {
    let port = |nest: &mut Attributes<'_>, port: u16| {
        nest.put(NETWORK_ORDER | data::PORT, &port.to_be_bytes());
    };
    match entry {
        Entry::Port(number) => port(nest, *number),
        Entry::Address(address) => write_address(nest, data::ADDRESS, *address),
        Entry::AddressPort(address, protocol, number) => {
            write_address(nest, data::ADDRESS, *address);
            port(nest, *number);
            nest.put(data::PROTOCOL, &[protocol.number()]);
        }
        Entry::AddressPortNetwork(address, protocol, number, network) => {
            write_address(nest, data::ADDRESS, *address);
            port(nest, *number);
            nest.put(data::PROTOCOL, &[protocol.number()]);
            write_address(nest, data::SECOND_ADDRESS, network.network());
            nest.put(data::SECOND_LENGTH, &[network.prefix_len()]);
        }
        Entry::AddressPortAddress(address, protocol, number, other) => {
            write_address(nest, data::ADDRESS, *address);
            port(nest, *number);
            nest.put(data::PROTOCOL, &[protocol.number()]);
            write_address(nest, data::SECOND_ADDRESS, *other);
        }
    }
}

fn write_address(nest: &mut Attributes<'_>, kind: u16, address: IpAddr) {
    let [v4, v6] = NESTED_ADDRESS;
    nest.nest(kind, |inner| match address {
        IpAddr::V4(address) => inner.put(NETWORK_ORDER | v4, &address.octets()),
        IpAddr::V6(address) => inner.put(NETWORK_ORDER | v6, &address.octets()),
    });
}
