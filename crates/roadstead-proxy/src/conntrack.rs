//! Makes the kernel forget flows that lead nowhere any more.
//!
//! The kernel itself looks for the flows of one frontend, so a busy table costs little.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use roadstead_forwarding::conntrack::FlowFilter;
use roadstead_forwarding::service::{Host, IpFamily};

use crate::netlink::{
    ACKNOWLEDGE, Attributes, DUMP, Message, NetlinkError, Socket, attribute, request,
};

const SUBSYSTEM: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;

const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const TUPLE_ADDRESSES: u16 = 1;
const TUPLE_TRANSPORT: u16 = 2;
const FILTER: u16 = 25;

/// The kernel's table of flows.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Opens the way to the kernel.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open()? })
    }

    /// Deletes the flows that the filter names; returns how many. Node ports are those on
    /// `node_addresses` only, so that nobody else's flows are touched.
    pub fn forget(
        &mut self,
        filter: &FlowFilter,
        family: IpFamily,
        node_addresses: &BTreeSet<IpAddr>,
    ) -> Result<usize, NetlinkError> {
        let number = if family == IpFamily::V4 { 2 } else { 10 };
        let address = match filter.frontend.host {
            Host::Address(address) => Some(address),
            Host::Node => None,
        };
        let protocol = filter.frontend.protocol.number();
        let port = filter.frontend.port;
        let flows = self.socket.ask(&request(SUBSYSTEM, GET, DUMP, number, |message| {
            message.nest(ORIGINAL, |tuple| {
                tuple.nest(TUPLE_ADDRESSES, |addresses| {
                    if let Some(address) = address {
                        put_destination(addresses, address);
                    }
                });
                tuple.nest(TUPLE_TRANSPORT, |transport| {
                    transport.put(1, &[protocol]);
                    transport.put(3, &port.to_be_bytes());
                });
            });
            message.nest(FILTER, |filter| {
                const WANTED: u16 = 1;
                const DESTINATION: u32 = 1 << 1;
                const PROTOCOL: u32 = 1 << 3;
                const PORT: u32 = 1 << 5;
                let by_address = if address.is_some() { DESTINATION } else { 0 };
                filter.put(WANTED, &(by_address | PROTOCOL | PORT).to_ne_bytes());
                filter.put(2, &0u32.to_ne_bytes());
            });
        }))?;
        let mut forgotten = 0;
        for flow in &flows {
            let Some((dialled, answerer)) = ends(flow) else { continue };
            let ours = address.map_or_else(
                || node_addresses.contains(&dialled.ip()),
                |address| dialled.ip() == address,
            );
            if ours && dialled.port() == port && !filter.keep.contains(&answerer) {
                forgotten += usize::from(self.delete(number, flow)?);
            }
        }
        Ok(forgotten)
    }

    /// Deletes one flow; it may have ended meanwhile.
    fn delete(&mut self, family: u8, flow: &Message) -> Result<bool, NetlinkError> {
        let Some(tuple) = attribute(&flow.body, ORIGINAL) else { return Ok(false) };
        let message = request(SUBSYSTEM, DELETE, ACKNOWLEDGE, family, |message| {
            message.nest(ORIGINAL, |nest| nest.raw(tuple));
        });
        match self.socket.ask(&message) {
            Ok(_) => Ok(true),
            Err(NetlinkError::Refused { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

fn put_destination(addresses: &mut Attributes<'_>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => addresses.put(2, &address.octets()),
        IpAddr::V6(address) => addresses.put(4, &address.octets()),
    }
}

/// Whom the client dialled, and who answers.
fn ends(flow: &Message) -> Option<(SocketAddr, SocketAddr)> {
    let tuple = |kind, v4, v6, port| {
        let tuple = attribute(&flow.body, kind)?;
        let addresses = attribute(tuple, TUPLE_ADDRESSES)?;
        let transport = attribute(tuple, TUPLE_TRANSPORT)?;
        let address: IpAddr = match attribute(addresses, v4) {
            Some(octets) => <[u8; 4]>::try_from(octets).ok()?.into(),
            None => Ipv6Addr::from(<[u8; 16]>::try_from(attribute(addresses, v6)?).ok()?).into(),
        };
        let port = u16::from_be_bytes(attribute(transport, port)?.try_into().ok()?);
        Some(SocketAddr::new(address, port))
    };
    // The destination of the original, the source of the reply.
    Some((tuple(ORIGINAL, 2, 4, 3)?, tuple(REPLY, 1, 3, 2)?))
}
