//! Questions and orders to the kernel over netlink, one at a time.
//!
//! Unlike nftables, IPVS, ipset and links know no batches: every message takes effect at once and
//! is answered by itself.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netlink::{ACKNOWLEDGE, Attributes};

const HEADER_LENGTH: usize = 16;
const REQUEST: u16 = 0x1;
/// Refuse if the object is there.
pub(super) const EXCLUSIVE: u16 = 0x200;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// The kernel writes answers of up to this length.
const BUFFER: usize = 64 << 10;

/// A connection to one of the kernel's netlink services.
#[derive(Debug)]
pub(super) struct Conversation {
    descriptor: OwnedFd,
    sequence: u32,
}

/// What is said to the kernel.
pub(super) struct Request<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    /// What the service puts before the attributes.
    pub(super) prefix: &'a [u8],
}

impl Conversation {
    /// Connects in the network namespace of the calling thread; `None` is the service for links.
    pub(super) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let descriptor = net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        net::bind(&descriptor, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { descriptor, sequence: 0 })
    }

    /// Gives an order and waits until it is carried out.
    pub(super) fn order(
        &mut self,
        request: &Request<'_>,
        fill: impl FnOnce(&mut Attributes<'_>),
    ) -> io::Result<()> {
        self.send(request, ACKNOWLEDGE, fill)?;
        self.receive(|_| {})
    }

    /// Asks, and hands every answer, without its header, to `take`.
    pub(super) fn ask(
        &mut self,
        request: &Request<'_>,
        fill: impl FnOnce(&mut Attributes<'_>),
        take: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.send(request, ACKNOWLEDGE, fill)?;
        self.receive(take)
    }

    fn send(
        &mut self,
        request: &Request<'_>,
        flags: u16,
        fill: impl FnOnce(&mut Attributes<'_>),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(256);
        bytes.extend([0; 4]);
        bytes.extend(request.kind.to_ne_bytes());
        bytes.extend((REQUEST | flags | request.flags).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(request.prefix);
        fill(&mut Attributes::new(&mut bytes));
        let length = u32::try_from(bytes.len()).expect("messages are short");
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        net::send(&self.descriptor, &bytes, SendFlags::empty())?;
        Ok(())
    }

    /// Reads until the kernel says that it has said everything.
    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let received = match net::recv(&self.descriptor, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, received)) => received,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let mut rest = &buffer[..received];
            while let Some((message, after)) = Message::split(rest) {
                rest = after;
                if message.sequence != self.sequence {
                    continue;
                }
                match message.kind {
                    ERROR => return result(message.payload),
                    DONE => return Ok(()),
                    _ => take(message.payload),
                }
            }
        }
    }
}

fn result(payload: &[u8]) -> io::Result<()> {
    let code = payload.get(..4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match code {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    payload: &'a [u8],
}

impl<'a> Message<'a> {
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let sequence = u32::from_ne_bytes(bytes.get(8..12)?.try_into().ok()?);
        let payload = bytes.get(HEADER_LENGTH..length)?;
        let rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((Self { kind, sequence, payload }, rest))
    }
}
