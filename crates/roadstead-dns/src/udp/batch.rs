//! Many datagrams per system call. No safe crate offers `recvmmsg` and `sendmmsg`.
//!
//! Each slot has its own buffer for one query, an address, and the ancillary data that says to which
//! of our addresses the query came; the same data makes the reply leave from there. Replies are
//! written one behind the other, so that they touch few pages. All of it is allocated once.
//!
//! Replies to one client leave as one message that the kernel cuts up again (`UDP_SEGMENT`): most
//! resolvers ask for both families at once from one socket, and of all that a reply costs, the way
//! through the kernel is by far the most.
// Lengths have other types in other C libraries.
#![allow(unsafe_code, clippy::unnecessary_cast)]

use std::cmp::Reverse;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{ptr, thread};

use super::gather::{Gathering, PAUSE};

/// How many datagrams are taken at a time.
pub(crate) const SLOTS: usize = 128;
/// How many slots are offered at least.
const FEWEST: usize = 16;
/// Longer queries are cut off, and so malformed. Not a power of two, because then the buffers would
/// all compete for the same few lines of the processor's cache.
const QUERY: usize = 2048 + 64;
/// Longer replies are never sent over UDP.
pub const REPLY: usize = 4096;
/// Longer replies leave alone: they might not fit into a packet.
const SEGMENT: usize = 1232;
/// How many replies leave together at most: no kernel that can do it takes fewer.
const MOST_SEGMENTS: usize = 64;
/// How long a message may be.
const MESSAGE: usize = 65_000;
/// A slow link must not hold up those who ask over another one.
const NOW: libc::c_int = libc::MSG_DONTWAIT;
/// Room for the address of either family, and for the length of segments.
const CONTROL: usize = 64;

/// Where a query came from, and by which of our addresses.
#[derive(Clone)]
pub struct QueryOrigin {
    peer: libc::sockaddr_storage,
    peer_length: libc::socklen_t,
    control: [u64; CONTROL / 8],
    control_length: usize,
}

impl QueryOrigin {
    fn new() -> Self {
        // SAFETY: a socket address of zeros is valid: it is of no family.
        let peer = unsafe { zeroed() };
        Self { peer, peer_length: 0, control: [0; CONTROL / 8], control_length: 0 }
    }

    /// Who asked.
    pub fn peer(&self) -> Option<SocketAddr> {
        let at: *const libc::sockaddr_storage = &raw const self.peer;
        match i32::from(self.peer.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says that this is what the kernel wrote there.
                let v4 = unsafe { &*at.cast::<libc::sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some((ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that this is what the kernel wrote there.
                let v6 = unsafe { &*at.cast::<libc::sockaddr_in6>() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
                Some((ip, u16::from_be(v6.sin6_port)).into())
            }
            _ => None,
        }
    }

    /// Whether replies to both take the same way.
    fn is_same(&self, other: &Self) -> bool {
        // What is behind the address may be left over from before.
        fn control(one: &QueryOrigin) -> &[u64] {
            &one.control[..(one.control_length / 8).min(CONTROL / 8)]
        }
        let whole = |one: &Self| (one.peer(), one.scope());
        whole(self) == whole(other) && control(self) == control(other)
    }

    /// The interface of an address that means something else on every interface.
    fn scope(&self) -> u32 {
        if i32::from(self.peer.ss_family) != libc::AF_INET6 {
            return 0;
        }
        let at: *const libc::sockaddr_storage = &raw const self.peer;
        // SAFETY: the family says that this is what the kernel wrote there.
        unsafe { (*at.cast::<libc::sockaddr_in6>()).sin6_scope_id }
    }

    /// Adds to the ancillary data how long each segment is; returns how long it is then.
    fn add_segment(&mut self, length: usize) -> Option<usize> {
        let at = self.control_length.next_multiple_of(8);
        let whole = size_of::<libc::cmsghdr>() + size_of::<u16>();
        let end = at + whole.next_multiple_of(8);
        let segment = u16::try_from(length).ok().filter(|_| end <= CONTROL)?;
        // SAFETY: between `at` and `end` there is room for the header and the number behind it,
        // and both places are aligned.
        unsafe {
            let place = self.control.as_mut_ptr().cast::<u8>().add(at);
            let header = &mut *place.cast::<libc::cmsghdr>();
            header.cmsg_level = libc::SOL_UDP;
            header.cmsg_type = libc::UDP_SEGMENT;
            header.cmsg_len = whole as _;
            *place.add(size_of::<libc::cmsghdr>()).cast::<u16>() = segment;
        }
        Some(end)
    }

    /// The reply may leave through any interface, as long as it leaves from the same address.
    fn forget_interface(&mut self) {
        let header = size_of::<libc::cmsghdr>();
        let control: *mut u8 = self.control.as_mut_ptr().cast();
        // SAFETY: the buffer is aligned for a header and holds at least one, zeroed at first.
        let message = unsafe { &*control.cast::<libc::cmsghdr>() };
        let (level, kind) = (message.cmsg_level, message.cmsg_type);
        let at = match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => header,
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => header + 16,
            _ => return,
        };
        if self.control_length >= at + 4 {
            // SAFETY: the buffer is longer than a header and the whole structure.
            unsafe { ptr::write_bytes(control.add(at), 0, 4) };
        }
    }
}

/// A reply that waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadyReply {
    /// Equal for equal clients.
    client: u64,
    slot: usize,
    start: usize,
    length: usize,
}

/// Buffers for many queries and replies.
pub struct DatagramBatch {
    queries: Box<[[u8; QUERY]]>,
    /// How long the query in each slot is.
    received: [usize; SLOTS],
    origins: Box<[QueryOrigin]>,
    replies: Box<[u8]>,
    /// Where the next reply goes.
    written: usize,
    ready: Vec<ReadyReply>,
    gathering: Gathering,
    /// Whether the kernel cuts messages into segments.
    segments: bool,
    messages: Messages,
}

/// What the kernel reads about many messages. It is kept, because it takes time to clear; whoever
/// uses an element writes all of it first.
struct Messages {
    headers: Box<[libc::mmsghdr]>,
    vectors: Box<[libc::iovec]>,
}

impl Default for Messages {
    fn default() -> Self {
        // SAFETY: null pointers and zero lengths are valid in both structures.
        let (header, vector) = unsafe { (zeroed(), zeroed()) };
        Self { headers: vec![header; SLOTS].into(), vectors: vec![vector; SLOTS].into() }
    }
}

impl Default for DatagramBatch {
    fn default() -> Self {
        Self {
            queries: vec![[0; QUERY]; SLOTS].into(),
            received: [0; SLOTS],
            origins: (0..SLOTS).map(|_| QueryOrigin::new()).collect(),
            replies: vec![0; SLOTS * REPLY].into(),
            written: 0,
            ready: Vec::with_capacity(SLOTS),
            gathering: Gathering::default(),
            segments: true,
            messages: Messages::default(),
        }
    }
}

impl DatagramBatch {
    /// Waits for at least one datagram, and takes as many as there are; returns their number.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.ready.clear();
        self.written = 0;
        if self.gathering.waits() {
            thread::sleep(PAUSE);
        }
        // Few slots while little comes, because each has its cost.
        let width = (self.gathering.last() * 2).clamp(FEWEST, SLOTS);
        self.gathering.received(0);
        let Messages { headers: messages, vectors } = &mut self.messages;
        for (slot, origin) in self.origins.iter_mut().enumerate().take(width) {
            vectors[slot].iov_base = self.queries[slot].as_mut_ptr().cast();
            vectors[slot].iov_len = QUERY;
            let header = &mut messages[slot].msg_hdr;
            header.msg_name = (&raw mut origin.peer).cast();
            header.msg_namelen = u32::try_from(size_of::<libc::sockaddr_storage>()).unwrap_or(0);
            header.msg_iov = &raw mut vectors[slot];
            header.msg_iovlen = 1;
            header.msg_control = origin.control.as_mut_ptr().cast();
            header.msg_controllen = CONTROL as _;
        }
        let flags = libc::MSG_WAITFORONE;
        let count = libc::c_uint::try_from(width).unwrap_or(1);
        // SAFETY: every pointer in the headers leads to a buffer of the length beside it, and all
        // of them outlive the call.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                count,
                flags as _,
                ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (slot, message) in messages.iter().enumerate().take(received) {
            let origin = &mut self.origins[slot];
            origin.peer_length = message.msg_hdr.msg_namelen;
            origin.control_length = message.msg_hdr.msg_controllen as usize;
            origin.forget_interface();
            self.received[slot] = usize::try_from(message.msg_len).unwrap_or(0).min(QUERY);
        }
        self.gathering.received(received);
        Ok(received)
    }

    /// A query, who asked, and room for the reply.
    pub fn slot(&mut self, slot: usize) -> (&[u8], &QueryOrigin, &mut [u8]) {
        let query = &self.queries[slot][..self.received[slot]];
        (query, &self.origins[slot], &mut self.replies[self.written..][..REPLY])
    }

    /// Notes that there is a reply of that length. Every slot has one at most.
    pub fn reply(&mut self, slot: usize, length: usize) {
        let client = self.origins[slot].peer().map_or(0, client);
        let (start, length) = (self.written, length.min(REPLY));
        self.written += length.next_multiple_of(8);
        self.ready.push(ReadyReply { client, slot, start, length });
    }

    /// Sends all replies, and never waits: what the kernel does not take is lost, as datagrams are.
    /// Returns how many replies that is.
    pub fn send(&mut self, socket: BorrowedFd<'_>) -> usize {
        if self.segments {
            self.ready.sort_unstable_by_key(|ready| (ready.client, Reverse(ready.length)));
        }
        let count = self.pack();
        self.gathering.sent(count, self.ready.len());
        let (mut from, mut lost) = (0, 0);
        while from < count {
            let rest = &mut self.messages.headers[from..count];
            let length = libc::c_uint::try_from(rest.len()).unwrap_or(0);
            let first = rest.as_mut_ptr();
            // SAFETY: `length` headers follow `first`, and their pointers lead to live buffers.
            let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), first, length, NOW as _) };
            from += usize::try_from(sent).unwrap_or(0);
            if sent < 1 && is_full(&io::Error::last_os_error()) {
                // There is no room for the others either.
                let replies = |message: &libc::mmsghdr| message.msg_hdr.msg_iovlen as usize;
                return lost + rest.iter().map(replies).sum::<usize>();
            }
            if sent < 1 {
                // The first one could not be sent: go on behind it.
                let refused = rest[0].msg_hdr;
                lost += self.send_apart(socket, &refused);
                from += 1;
            }
        }
        lost
    }

    /// Puts the replies into as few messages as possible; returns how many there are.
    fn pack(&mut self) -> usize {
        let (mut count, mut at, mut rest) = (0, 0, self.ready.as_slice());
        while !rest.is_empty() {
            let (mut same, others) = rest.split_at(self.to_the_same(rest));
            while let Some((first, together)) = take_together(&mut same, self.segments) {
                let vectors = &mut self.messages.vectors[at..at + together.clone().count()];
                at += vectors.len();
                for (vector, ready) in vectors.iter_mut().zip(together) {
                    vector.iov_base = self.replies[ready.start..].as_ptr().cast_mut().cast();
                    vector.iov_len = ready.length;
                }
                let header = &mut self.messages.headers[count].msg_hdr;
                fill(header, &mut self.origins[first.slot], vectors, first.length);
                count += 1;
            }
            rest = others;
        }
        count
    }

    /// How many of the first replies go to the same client.
    fn to_the_same(&self, rest: &[ReadyReply]) -> usize {
        let first = &rest[0];
        let same = |other: &&ReadyReply| {
            let origin = |ready: &ReadyReply| &self.origins[ready.slot];
            other.client == first.client && origin(other).is_same(origin(first))
        };
        1 + rest[1..].iter().take_while(same).count()
    }

    /// Sends the replies of a message one by one, because the kernel did not want it as a whole:
    /// not every interface can. Returns how many of them are lost.
    fn send_apart(&mut self, socket: BorrowedFd<'_>, message: &libc::msghdr) -> usize {
        let refused = io::Error::last_os_error().raw_os_error();
        if message.msg_iovlen as usize == 1 {
            return 1;
        }
        if matches!(refused, Some(libc::EIO | libc::EINVAL | libc::ENOPROTOOPT)) {
            self.segments = false;
        }
        let mut header = *message;
        let origin =
            self.origins.iter().find(|one| ptr::addr_eq(&raw const one.peer, message.msg_name));
        header.msg_controllen = origin.map_or(0, |origin| origin.control_length) as _;
        header.msg_iovlen = 1;
        let is_lost = |at: &usize| {
            // SAFETY: so many vectors are there, and they and all else lead to live buffers.
            unsafe {
                header.msg_iov = message.msg_iov.add(*at);
                libc::sendmsg(socket.as_raw_fd(), &raw const header, NOW) < 0
            }
        };
        (0..message.msg_iovlen as usize).filter(is_lost).count()
    }
}

/// Whether the kernel has no room at the moment.
fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS))
}

/// Takes from replies to one client, the longest first, those that can leave as one message: all
/// that are as long as the first one, and one that is shorter. That is the shortest, so that it
/// needs no message of its own. Returns the first one, and all of them.
fn take_together<'a>(
    rest: &mut &'a [ReadyReply],
    segments: bool,
) -> Option<(&'a ReadyReply, impl Iterator<Item = &'a ReadyReply> + Clone + use<'a>)> {
    let all = *rest;
    let first = all.first()?;
    let most = match segments && first.length <= SEGMENT {
        true => MOST_SEGMENTS.min(MESSAGE / first.length.max(1)),
        false => 1,
    };
    let equal = all.iter().take(most).take_while(|other| other.length == first.length).count();
    let (equal, mut left) = all.split_at(equal);
    let last = left.last().filter(|last| equal.len() < most && last.length < first.length);
    if last.is_some() {
        left = &left[..left.len() - 1];
    }
    *rest = left;
    Some((first, equal.iter().chain(last)))
}

/// A number for a client that hardly any other has.
fn client(peer: SocketAddr) -> u64 {
    let port = u64::from(peer.port());
    match peer.ip() {
        IpAddr::V4(address) => u64::from(u32::from(address)) << 16 | port,
        IpAddr::V6(address) => {
            let [first, second] = [0, 8].map(|at| {
                let half = address.octets()[at..].first_chunk().copied();
                u64::from_be_bytes(half.unwrap_or_default())
            });
            (first ^ second).rotate_left(16) ^ port
        }
    }
}

/// Makes a message of one or more replies, of which the longest has that length.
fn fill(
    header: &mut libc::msghdr,
    origin: &mut QueryOrigin,
    vectors: &mut [libc::iovec],
    longest: usize,
) {
    header.msg_name = (&raw mut origin.peer).cast();
    header.msg_namelen = origin.peer_length;
    header.msg_iov = vectors.as_mut_ptr();
    header.msg_iovlen = vectors.len() as _;
    let control = match vectors.len() {
        1 => origin.control_length,
        _ => origin.add_segment(longest).expect("there is room for an address and a length"),
    };
    header.msg_control = match control {
        0 => ptr::null_mut(),
        _ => origin.control.as_mut_ptr().cast(),
    };
    header.msg_controllen = control as _;
    header.msg_flags = 0;
}

/// Sends one late reply to where its query came from.
pub(crate) fn send_one(
    socket: BorrowedFd<'_>,
    origin: &QueryOrigin,
    reply: &[u8],
) -> io::Result<()> {
    let mut origin = origin.clone();
    let (iov_base, iov_len) = (reply.as_ptr().cast_mut().cast(), reply.len());
    // SAFETY: null pointers and zero lengths are valid.
    let mut header: libc::msghdr = unsafe { zeroed() };
    let mut vectors = [libc::iovec { iov_base, iov_len }];
    fill(&mut header, &mut origin, &mut vectors, iov_len);
    // SAFETY: the pointers in the header lead to live buffers, which the kernel only reads.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, NOW) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks the kernel to say by which of our addresses each datagram came.
pub(crate) fn learn_addresses(socket: BorrowedFd<'_>, is_v4: bool) -> io::Result<()> {
    let (level, option) = match is_v4 {
        true => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    let on: libc::c_int = 1;
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(0);
    // SAFETY: the option takes an integer, and that is what the pointer leads to.
    let done = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const on).cast(), length)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    /// All addresses, one for clients, and two for them to ask.
    type Family = (&'static str, &'static str, [&'static str; 2]);
    const V4: Family = ("0.0.0.0:0", "127.0.0.1:0", ["127.0.0.2", "127.0.0.3"]);
    const V6: Family = ("[::]:0", "[::1]:0", ["::1", "::1"]);

    /// Sends one query of each length, filled with its number.
    fn ask(own: &str, server: (&str, u16), lengths: &[usize]) -> UdpSocket {
        let socket = UdpSocket::bind(own).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // What comes from elsewhere is not received.
        socket.connect(server).unwrap();
        for (at, length) in lengths.iter().enumerate() {
            socket.send(&vec![u8::try_from(at).unwrap(); *length]).unwrap();
        }
        socket
    }

    /// Takes so many queries and sends them back.
    fn echo(batch: &mut DatagramBatch, server: &UdpSocket, mut left: usize) {
        while left > 0 {
            let count = batch.receive(server.as_fd()).unwrap();
            for slot in 0..count {
                let (query, _, reply) = batch.slot(slot);
                let length = query.len();
                reply[..length].copy_from_slice(query);
                batch.reply(slot, length);
            }
            assert_eq!(batch.send(server.as_fd()), 0, "nothing is lost");
            left -= count;
        }
    }

    /// The lengths of so many replies, by their number.
    fn replies(socket: &UdpSocket, count: usize) -> Vec<usize> {
        let mut lengths = vec![0; count];
        for _ in 0..count {
            let mut buffer = [0; REPLY];
            let length = socket.recv(&mut buffer).unwrap();
            assert!(buffer[..length].iter().all(|byte| *byte == buffer[0]));
            lengths[usize::from(buffer[0])] = length;
        }
        lengths
    }

    #[test]
    fn few_messages() {
        type Case<'a> = (&'a str, bool, &'a [usize], &'a [&'a [usize]]);
        let cases: [Case<'_>; 8] = [
            ("none", true, &[], &[]),
            ("a pair", true, &[60, 40], &[&[60, 40]]),
            ("the shortest goes with the longest", true, &[60, 50, 40], &[&[60, 40], &[50]]),
            ("two of each", true, &[9, 9, 8, 8, 7, 7, 6, 6], &[&[9, 9, 6], &[8, 8, 6], &[7, 7]]),
            ("apart", false, &[60, 60, 40], &[&[60], &[60], &[40]]),
            ("too long", true, &[1300, 1300, 40], &[&[1300], &[1300], &[40]]),
            ("too many", true, &[5; 65], &[&[5; 64], &[5]]),
            ("too much", true, &[1232; 53], &[&[1232; 52], &[1232]]),
        ];
        for (name, segments, lengths, want) in cases {
            let ready =
                |length: &usize| ReadyReply { client: 1, slot: 0, start: 0, length: *length };
            let all: Vec<ReadyReply> = lengths.iter().map(ready).collect();
            let mut rest = all.as_slice();
            let mut got = Vec::new();
            while let Some((_, together)) = take_together(&mut rest, segments) {
                got.push(together.map(|ready| ready.length).collect::<Vec<_>>());
            }
            assert_eq!(got, want, "{name}");
        }
    }

    /// Each of two clients gets its own back, from the address that it asked.
    #[test]
    fn replies_find_their_way() {
        let cases: [(&str, &[usize], &[usize]); 7] = [
            ("one", &[40], &[]),
            ("a pair for each", &[40, 52], &[52, 40]),
            ("all the same", &[60; 20], &[60; 12]),
            ("all different", &[12, 700, 13, 300, 1232], &[40]),
            ("some too long to leave with others", &[1500, 1500, 90, 90], &[2000, 1232]),
            ("as many as fit", &[33; 40], &[34; 24]),
            ("more than fit into a message", &[1232; 60], &[41; 67]),
        ];
        for (segments, family) in [(true, V4), (false, V4), (true, V6), (false, V6)] {
            for (name, first, second) in cases {
                let (everywhere, own, [one, two]) = family;
                let server = UdpSocket::bind(everywhere).unwrap();
                learn_addresses(server.as_fd(), family == V4).unwrap();
                server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                let port = server.local_addr().unwrap().port();
                let clients = [ask(own, (one, port), first), ask(own, (two, port), second)];
                let mut batch = DatagramBatch { segments, ..DatagramBatch::default() };
                batch.gathering.received(SLOTS);
                echo(&mut batch, &server, first.len() + second.len());
                assert_eq!(replies(&clients[0], first.len()), first, "{name}");
                assert_eq!(replies(&clients[1], second.len()), second, "{name}");
                assert_eq!(batch.segments, segments, "{name}: loopback takes segments");
            }
        }
    }

    /// A socket within the machine stands for a link that is slower than we are: it has no room when
    /// nobody reads.
    #[test]
    fn a_full_socket_holds_nobody_up() {
        let (server, client) = UnixDatagram::pair().unwrap();
        assert!((0..4).all(|_| client.send(&[7; 40]).is_ok()));
        let mut batch = DatagramBatch { segments: false, ..DatagramBatch::default() };
        assert_eq!(batch.receive(server.as_fd()).unwrap(), 4);
        (0..4).for_each(|slot| batch.reply(slot, 40));
        assert_eq!(batch.send(server.as_fd()), 0);
        // The same replies, over and over.
        let lost: usize = (0..10_000).map(|_| batch.send(server.as_fd())).sum();
        assert!(lost > 0, "and what does not fit is counted");
    }
}
