//! The socket that messages go through, one conversation at a time.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use crate::attributes::Attributes;
use crate::batch::Batch;
use crate::error::NetlinkError;
use crate::{ACKNOWLEDGE, DONE, ERROR, HEADER_LENGTH, REQUEST};

/// Enough for a batch with 250,000 endpoints.
const SEND_BUFFER: usize = 64 << 20;
/// Requests are numbered from here on, so that no refusal of a batch, whose messages are numbered from
/// 0, is taken for an answer to one of them.
const FIRST_REQUEST: u32 = 1 << 31;
/// The kernel writes answers of up to this length.
const RECEIVE_BUFFER: usize = 64 << 10;

/// The services of the kernel that we speak to (netlink families).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetlinkFamily {
    /// nftables, conntrack, ipset and their kin.
    Netfilter,
    /// Links and addresses.
    Route,
    /// Whatever has a name instead of a number, such as IPVS.
    Generic,
}

/// A single request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The type of the message.
    pub kind: u16,
    /// Such as [`crate::DUMP`].
    pub flags: u16,
    /// What the service puts before the attributes. Answers have as many bytes there.
    pub header: &'a [u8],
}

/// One message of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// What the service puts before the attributes.
    pub header: &'a [u8],
    /// To be read by [`crate::attributes::attribute`].
    pub attributes: &'a [u8],
}

/// A connection to one of the services.
#[derive(Debug)]
pub struct Socket {
    descriptor: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Connects in the network namespace of the calling thread.
    pub fn open(family: NetlinkFamily) -> io::Result<Self> {
        let protocol = match family {
            NetlinkFamily::Netfilter => Some(netlink::NETFILTER),
            NetlinkFamily::Route => None,
            NetlinkFamily::Generic => Some(netlink::GENERIC),
        };
        let (domain, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let descriptor = net::socket_with(domain, kind, SocketFlags::CLOEXEC, protocol)?;
        if family == NetlinkFamily::Netfilter {
            // Only root of the first user namespace may exceed the limit; others get up to it.
            net::sockopt::set_socket_send_buffer_size_force(&descriptor, SEND_BUFFER)
                .or_else(|_| net::sockopt::set_socket_send_buffer_size(&descriptor, SEND_BUFFER))?;
        }
        net::bind(&descriptor, &netlink::SocketAddrNetlink::new(0, 0))?;
        Ok(Self { descriptor, sequence: FIRST_REQUEST })
    }

    /// Sends a batch and reads the answer. The kernel works within the send, so when that returns
    /// all answers are there.
    pub fn commit(&mut self, mut batch: Batch) -> Result<(), NetlinkError> {
        batch.finish();
        if self.send_batch(&batch)? { Ok(()) } else { Err(NetlinkError::Unacknowledged) }
    }

    /// Sends a batch without its end, so that the kernel looks at it and changes nothing.
    pub fn try_out(&mut self, batch: Batch) -> Result<(), NetlinkError> {
        self.send_batch(&batch).map(drop)
    }

    /// Gives an order and waits until it is carried out.
    pub fn order(
        &mut self,
        request: &Request<'_>,
        fill: impl FnOnce(&mut Attributes<'_>),
    ) -> Result<(), NetlinkError> {
        self.ask(request, fill, |_| None::<()>).map(drop)
    }

    /// Asks, and returns what `read` makes of each message of the answer.
    pub fn ask<T>(
        &mut self,
        request: &Request<'_>,
        fill: impl FnOnce(&mut Attributes<'_>),
        mut read: impl FnMut(Answer<'_>) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        self.send(request, fill)?;
        let mut found = Vec::new();
        let mut buffer = vec![0; RECEIVE_BUFFER];
        loop {
            let received = match net::recv(&self.descriptor, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, received)) => received,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(NetlinkError::Socket(error.into())),
            };
            for message in Messages(&buffer[..received]) {
                // What an earlier, failed request left behind is not an answer to this one.
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    ERROR => return message.outcome().map(|()| found),
                    DONE => return Ok(found),
                    _ => {
                        let split = message.payload.split_at_checked(request.header.len());
                        let (header, attributes) = split.unwrap_or((message.payload, &[]));
                        found.extend(read(Answer { header, attributes }));
                    }
                }
            }
        }
    }

    fn send(
        &mut self,
        request: &Request<'_>,
        fill: impl FnOnce(&mut Attributes<'_>),
    ) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1) | FIRST_REQUEST;
        let mut bytes = Vec::with_capacity(256);
        bytes.extend([0; 4]);
        bytes.extend(request.kind.to_ne_bytes());
        bytes.extend((REQUEST | ACKNOWLEDGE | request.flags).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(request.header);
        fill(&mut Attributes::new(&mut bytes));
        let length = u32::try_from(bytes.len()).expect("messages are short");
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        let sent = net::send(&self.descriptor, &bytes, SendFlags::empty());
        sent.map(drop).map_err(|error| NetlinkError::Socket(error.into()))
    }

    /// Returns whether the kernel says that all is done.
    fn send_batch(&mut self, batch: &Batch) -> Result<bool, NetlinkError> {
        let length = batch.bytes.len();
        self.discard_answers();
        net::send(&self.descriptor, &batch.bytes, SendFlags::empty()).map_err(
            |error| match error {
                Errno::MSGSIZE => NetlinkError::TooLong { length },
                other => NetlinkError::Socket(other.into()),
            },
        )?;
        let mut acknowledged = false;
        let mut buffer = vec![0; 32 << 10];
        loop {
            match net::recv(&self.descriptor, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, received)) => acknowledged |= read_outcomes(&buffer[..received])?,
                Err(Errno::AGAIN) => return Ok(acknowledged),
                Err(Errno::INTR) => {}
                Err(other) => return Err(NetlinkError::Socket(other.into())),
            }
        }
    }

    /// Whatever an earlier, failed batch left behind is not an answer to the next one.
    fn discard_answers(&mut self) {
        let mut buffer = [0; 4096];
        while net::recv(&self.descriptor, &mut buffer[..], RecvFlags::DONTWAIT).is_ok() {}
    }
}

/// Reads a datagram of answers to a batch; returns whether one of them says that all is done.
pub fn read_outcomes(bytes: &[u8]) -> Result<bool, NetlinkError> {
    let mut acknowledged = false;
    for message in Messages(bytes).filter(|message| message.kind == ERROR) {
        if let Err(NetlinkError::Declined(source)) = message.outcome() {
            let (kind, position) = message.about().unwrap_or_default();
            return Err(NetlinkError::Refused { kind: kind & 0xff, position, source });
        }
        acknowledged = true;
    }
    Ok(acknowledged)
}

/// The messages of a datagram.
struct Messages<'a>(&'a [u8]);

struct Message<'a> {
    kind: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;
    fn next(&mut self) -> Option<Message<'a>> {
        let bytes = self.0;
        let length = usize::try_from(number32(bytes, 0)?).ok()?;
        let message = Message {
            kind: number16(bytes, 4)?,
            sequence: number32(bytes, 8)?,
            payload: bytes.get(HEADER_LENGTH..length)?,
        };
        self.0 = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }
}

impl Message<'_> {
    /// What an answer of the type `ERROR` says: 0 stands for success.
    fn outcome(&self) -> Result<(), NetlinkError> {
        let code = number32(self.payload, 0).map(u32::cast_signed);
        match code {
            Some(0) => Ok(()),
            Some(code) => {
                Err(NetlinkError::Declined(io::Error::from_raw_os_error(code.saturating_neg())))
            }
            None => Err(NetlinkError::Socket(io::ErrorKind::InvalidData.into())),
        }
    }

    /// The type and the number of the message that such an answer is about.
    fn about(&self) -> Option<(u16, u32)> {
        let header = self.payload.get(4..)?;
        Some((number16(header, 4)?, number32(header, 8)?))
    }
}

fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
