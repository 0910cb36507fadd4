//! Netlink messages and the socket they go through, as far as netfilter needs them.
//!
//! The kernel takes a batch as a whole or not at all, provided it arrives in a single send. So a
//! batch is one growing buffer, and the socket's send buffer is raised as far as we are allowed.
//! What goes into the messages is up to the caller.

use std::io;
use std::os::fd::OwnedFd;

use roadstead_forwarding::service::IpFamily;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// netfilter's message types are this subsystem's number and a number within it.
pub const SUBSYSTEM_NFTABLES: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const NETWORK_ORDER: u16 = 0x4000;

const REQUEST: u16 = 0x1;
/// Asks the kernel to say that it is done.
pub const ACKNOWLEDGE: u16 = 0x4;
/// Asks for all objects instead of one.
pub const DUMP: u16 = 0x300;
/// Create the object if it is not there.
pub const CREATE: u16 = 0x400;
/// Add at the end of the list.
pub const APPEND: u16 = 0x800;

const HEADER_LENGTH: usize = 16;
const FLAGS_OFFSET: usize = 6;
/// Enough for 250,000 endpoints.
const SEND_BUFFER: usize = 64 << 20;

/// Why the kernel did not do as told. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket failed.
    #[error("netlink socket")]
    Socket(#[source] io::Error),
    /// The whole batch must fit into the send buffer.
    #[error(
        "a batch of {length} bytes exceeds the send buffer: CAP_NET_ADMIN is missing in the \
             first user namespace, or net.core.wmem_max is too small"
    )]
    TooLong {
        /// How long the batch was.
        length: usize,
    },
    /// The kernel refused a message.
    #[error("the kernel refused nftables message {kind} ({position} of the batch)")]
    Refused {
        /// The number within nftables, as in `linux/netfilter/nf_tables.h`.
        kind: u16,
        /// The number of the message in its batch.
        position: u32,
        /// The reason.
        source: io::Error,
    },
    /// The kernel refused something because it lacks a part of nftables.
    #[error("the kernel has not what nftables needs for {family:?}, or has not loaded it: {parts}")]
    Lacking {
        /// For which address family.
        family: IpFamily,
        /// The names of the modules.
        parts: String,
        /// What was refused.
        source: Box<NetlinkError>,
    },
    /// The batch was sent, but the kernel did not say that it is done.
    #[error("the kernel did not acknowledge the batch")]
    Unacknowledged,
}

/// Messages that take effect together.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    family: u8,
    sequence: u32,
    last: usize,
}

impl Batch {
    /// Starts a batch for tables of an address family (`AF_INET` or `AF_INET6`).
    pub fn new(family: u8) -> Self {
        let mut batch = Self { bytes: Vec::with_capacity(4096), family, sequence: 0, last: 0 };
        batch.control(BATCH_BEGIN);
        batch
    }

    /// Appends an nftables message; `fill` writes its attributes.
    pub fn message(&mut self, kind: u16, flags: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let family = self.family;
        self.begin((SUBSYSTEM_NFTABLES << 8) | kind, flags, [family, 0, 0, 0]);
        fill(&mut Attributes { bytes: &mut self.bytes });
        self.end();
    }

    /// Completes the batch. Only its last message asks for an answer: one per message would
    /// overflow our receive buffer. Refusals are answered in any case.
    fn finish(&mut self) {
        let flags = &mut self.bytes[self.last + FLAGS_OFFSET..][..2];
        let asked = u16::from_ne_bytes([flags[0], flags[1]]) | ACKNOWLEDGE;
        flags.copy_from_slice(&asked.to_ne_bytes());
        self.control(BATCH_END);
    }

    fn control(&mut self, kind: u16) {
        let [high, low] = SUBSYSTEM_NFTABLES.to_be_bytes();
        let last = self.last;
        self.begin(kind, 0, [0, 0, high, low]);
        self.end();
        self.last = last;
    }

    fn begin(&mut self, kind: u16, flags: u16, netfilter: [u8; 4]) {
        self.last = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((REQUEST | flags).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend(netfilter);
        self.sequence += 1;
    }

    fn end(&mut self) {
        let length = u32::try_from(self.bytes.len() - self.last).expect("messages are cut in time");
        self.bytes[self.last..self.last + 4].copy_from_slice(&length.to_ne_bytes());
    }
}

/// The attributes of a message, or of a nest within one.
#[derive(Debug)]
pub struct Attributes<'a> {
    bytes: &'a mut Vec<u8>,
}

/// Marks an attribute that consists of attributes.
const NESTED: u16 = 0x8000;

impl<'a> Attributes<'a> {
    /// Appends to a message that somebody else has begun.
    pub(crate) fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Appends raw bytes.
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(4 + value.len()).expect("attributes are short");
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.pad();
    }

    /// Appends attributes that are encoded already.
    pub fn raw(&mut self, attributes: &[u8]) {
        self.bytes.extend(attributes);
        self.pad();
    }

    /// Appends a number, in network order as all of netfilter.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    /// Appends a text with its closing zero.
    pub fn text(&mut self, kind: u16, value: &str) {
        self.bytes.extend(u16::try_from(5 + value.len()).expect("names are short").to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Appends a nest; `fill` writes what is inside.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend((NESTED | kind).to_ne_bytes());
        fill(&mut Attributes { bytes: self.bytes });
        let length = u16::try_from(self.bytes.len() - start).expect("nests are cut in time");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// How many bytes have been written, to measure a nest.
    pub fn written(&self) -> usize {
        self.bytes.len()
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// A connection to the kernel's netfilter.
#[derive(Debug)]
pub struct Socket {
    descriptor: OwnedFd,
}

impl Socket {
    /// Opens a socket in the network namespace of the calling thread.
    pub fn open() -> io::Result<Self> {
        Self::of(Some(net::netlink::NETFILTER))
    }

    /// The same for links and addresses.
    pub fn open_route() -> io::Result<Self> {
        Self::of(None)
    }

    fn of(protocol: Option<net::Protocol>) -> io::Result<Self> {
        let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
        let descriptor = net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol)?;
        // Only root of the first user namespace may exceed the limit; others get up to it.
        net::sockopt::set_socket_send_buffer_size_force(&descriptor, SEND_BUFFER)
            .or_else(|_| net::sockopt::set_socket_send_buffer_size(&descriptor, SEND_BUFFER))?;
        net::bind(&descriptor, &net::netlink::SocketAddrNetlink::new(0, 0))?;
        Ok(Self { descriptor })
    }

    /// Sends a batch and reads the answer. The kernel works within the send, so when that returns
    /// all answers are there.
    pub fn commit(&mut self, mut batch: Batch) -> Result<(), NetlinkError> {
        batch.finish();
        if self.send(&batch)? { Ok(()) } else { Err(NetlinkError::Unacknowledged) }
    }

    /// Sends a batch without its end, so that the kernel looks at it and changes nothing.
    pub fn try_out(&mut self, batch: Batch) -> Result<(), NetlinkError> {
        self.send(&batch).map(drop)
    }

    /// Returns whether the kernel says that all is done.
    fn send(&mut self, batch: &Batch) -> Result<bool, NetlinkError> {
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
                Ok((_, received)) => acknowledged |= read_answers(&buffer[..received])?,
                Err(Errno::AGAIN) => return Ok(acknowledged),
                Err(Errno::INTR) => {}
                Err(other) => return Err(NetlinkError::Socket(other.into())),
            }
        }
    }

    /// Sends a request and returns all messages of the answer.
    pub fn ask(&mut self, request: &[u8]) -> Result<Vec<Message>, NetlinkError> {
        self.discard_answers();
        let socket = |error: Errno| NetlinkError::Socket(error.into());
        net::send(&self.descriptor, request, SendFlags::empty()).map_err(socket)?;
        let is_dump = request.get(6..8).is_some_and(|f| f[1] & 0x3 != 0);
        let mut messages = Vec::new();
        let mut buffer = vec![0; 128 << 10];
        loop {
            let received = match net::recv(&self.descriptor, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, received)) => received,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(socket(error)),
            };
            if read_messages(&buffer[..received], &mut messages)? || !is_dump {
                return Ok(messages);
            }
        }
    }

    /// Whatever an earlier, failed batch left behind is not an answer to the next one.
    fn discard_answers(&mut self) {
        let mut buffer = [0; 4096];
        while net::recv(&self.descriptor, &mut buffer[..], RecvFlags::DONTWAIT).is_ok() {}
    }
}

/// One message that the kernel sent.
#[derive(Clone, Debug)]
pub struct Message {
    /// The number within the subsystem.
    pub kind: u16,
    /// The first four bytes: the header of netfilter, or the beginning of another.
    pub head: [u8; 4],
    /// Its attributes, after the header of netfilter.
    pub body: Vec<u8>,
}

/// The attributes in a message or a nest: their numbers and what they hold.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & !NESTED & !NETWORK_ORDER;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attribute of that number, if it is there.
pub fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// A text, without its closing zero.
pub fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.strip_suffix(&[0]).unwrap_or(bytes)).into_owned()
}

/// A single request, to be asked with [`Socket::ask`].
pub fn request(
    subsystem: u16,
    kind: u16,
    flags: u16,
    family: u8,
    fill: impl FnOnce(&mut Attributes<'_>),
) -> Vec<u8> {
    let mut batch = Batch { bytes: Vec::new(), family, sequence: 1, last: 0 };
    batch.begin((subsystem << 8) | kind, flags, [family, 0, 0, 0]);
    fill(&mut Attributes { bytes: &mut batch.bytes });
    batch.end();
    batch.bytes
}

/// Reads a datagram of answers; returns whether one of them says that all is done.
fn read_answers(mut bytes: &[u8]) -> Result<bool, NetlinkError> {
    let mut acknowledged = false;
    while let Some(answer) = Answer::read(bytes) {
        if answer.kind == ERROR {
            if answer.code != 0 {
                return Err(NetlinkError::Refused {
                    kind: answer.about_kind & 0xff,
                    position: answer.about_sequence,
                    source: io::Error::from_raw_os_error(-answer.code),
                });
            }
            acknowledged = true;
        }
        bytes = bytes.get(answer.length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(acknowledged)
}

/// Collects the messages of a datagram; returns whether it was the last.
fn read_messages(mut bytes: &[u8], messages: &mut Vec<Message>) -> Result<bool, NetlinkError> {
    const NETFILTER_LENGTH: usize = 4;
    while let Some(answer) = Header::read(bytes) {
        let body = bytes.get(HEADER_LENGTH..answer.length).unwrap_or_default();
        match answer.kind {
            DONE => return Ok(true),
            ERROR => return read_answers(bytes).map(|_| true),
            kind => messages.push(Message {
                kind: kind & 0xff,
                head: body.first_chunk().copied().unwrap_or_default(),
                body: body.get(NETFILTER_LENGTH..).unwrap_or_default().to_vec(),
            }),
        }
        bytes = bytes.get(answer.length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

/// How long a message is, and of which kind.
struct Header {
    length: usize,
    kind: u16,
}

impl Header {
    fn read(bytes: &[u8]) -> Option<Self> {
        let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?);
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        Some(Self { length: usize::try_from(length).ok()?.max(HEADER_LENGTH), kind })
    }
}

/// The parts of an answer that matter: its code, and which message it is about.
struct Answer {
    length: usize,
    kind: u16,
    code: i32,
    about_kind: u16,
    about_sequence: u32,
}

impl Answer {
    fn read(bytes: &[u8]) -> Option<Self> {
        let four = |at: usize| bytes.get(at..at + 4)?.try_into().ok();
        let two = |at: usize| bytes.get(at..at + 2)?.try_into().ok();
        let length = usize::try_from(u32::from_ne_bytes(four(0)?)).ok()?;
        let about = HEADER_LENGTH + 4;
        Some(Self {
            length: length.max(HEADER_LENGTH),
            kind: u16::from_ne_bytes(two(4)?),
            code: i32::from_ne_bytes(four(HEADER_LENGTH)?),
            about_kind: u16::from_ne_bytes(two(about + 4)?),
            about_sequence: u32::from_ne_bytes(four(about + 8)?),
        })
    }
}
