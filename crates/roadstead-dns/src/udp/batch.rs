//! Many datagrams per system call. No safe crate offers `recvmmsg` and `sendmmsg`.
//!
//! Each slot has its own buffers for one query and one reply, an address, and the ancillary data
//! that says to which of our addresses the query came; the same data makes the reply leave from
//! there. All of it is allocated once.
// Lengths have other types in other C libraries.
#![allow(unsafe_code, clippy::unnecessary_cast)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// How many datagrams are taken at a time.
pub const SLOTS: usize = 32;
/// How many slots are offered at least.
const FEWEST: usize = 4;
/// Longer queries are cut off, and so malformed.
const QUERY: usize = 2048;
/// Longer replies are never sent over UDP.
pub const REPLY: usize = 4096;
const CONTROL: usize = 64;

/// Where a query came from, and by which of our addresses.
#[derive(Clone)]
pub struct Origin {
    peer: libc::sockaddr_storage,
    peer_length: libc::socklen_t,
    control: [u64; CONTROL / 8],
    control_length: usize,
}

impl Origin {
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

/// Buffers for many queries and replies.
pub struct Batch {
    queries: Box<[[u8; QUERY]; SLOTS]>,
    replies: Box<[[u8; REPLY]; SLOTS]>,
    origins: Box<[Origin]>,
    /// How long the query in each slot is.
    received: [usize; SLOTS],
    /// Which slots have a reply, and how long it is.
    ready: Vec<(usize, usize)>,
    /// How many slots are offered: few while little comes, because each has its cost.
    width: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            queries: Box::new([[0; QUERY]; SLOTS]),
            replies: Box::new([[0; REPLY]; SLOTS]),
            origins: (0..SLOTS).map(|_| Origin::new()).collect(),
            received: [0; SLOTS],
            ready: Vec::with_capacity(SLOTS),
            width: FEWEST,
        }
    }
}

impl Batch {
    /// Waits for at least one datagram, and takes as many as there are; returns their number.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.ready.clear();
        // SAFETY: null pointers and zero lengths are valid in both structures.
        let mut vectors: [libc::iovec; SLOTS] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; SLOTS] = unsafe { zeroed() };
        for (slot, origin) in self.origins.iter_mut().enumerate().take(self.width) {
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
        let count = self.width as libc::c_uint;
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
        self.width = match received == self.width {
            true => (self.width * 2).min(SLOTS),
            false => (self.width / 2).max(FEWEST),
        };
        Ok(received)
    }

    /// A query, who asked, and room for the reply.
    pub fn slot(&mut self, slot: usize) -> (&[u8], &Origin, &mut [u8]) {
        let query = &self.queries[slot][..self.received[slot]];
        (query, &self.origins[slot], &mut self.replies[slot])
    }

    /// Notes that there is a reply of that length.
    pub fn reply(&mut self, slot: usize, length: usize) {
        self.ready.push((slot, length.min(REPLY)));
    }

    /// Sends all replies. What the kernel does not take is lost, as datagrams are.
    pub fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: null pointers and zero lengths are valid in both structures.
        let mut vectors: [libc::iovec; SLOTS] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; SLOTS] = unsafe { zeroed() };
        for (at, (slot, length)) in self.ready.iter().enumerate() {
            vectors[at].iov_base = self.replies[*slot].as_mut_ptr().cast();
            vectors[at].iov_len = *length;
            fill(&mut messages[at].msg_hdr, &mut self.origins[*slot], &mut vectors[at]);
        }
        let mut from = 0;
        while from < self.ready.len() {
            let count = libc::c_uint::try_from(self.ready.len() - from).unwrap_or(0);
            let first = messages[from..].as_mut_ptr();
            // SAFETY: `count` headers follow `first`, and their pointers lead to live buffers.
            let sent = unsafe { libc::sendmmsg(socket.as_raw_fd(), first, count, 0) };
            // The first one could not be sent: go on behind it.
            from += usize::try_from(sent).unwrap_or(0).max(1);
        }
        Ok(())
    }
}

fn fill(header: &mut libc::msghdr, origin: &mut Origin, vector: &mut libc::iovec) {
    header.msg_name = (&raw mut origin.peer).cast();
    header.msg_namelen = origin.peer_length;
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    if origin.control_length > 0 {
        header.msg_control = origin.control.as_mut_ptr().cast();
        header.msg_controllen = origin.control_length as _;
    }
}

/// Sends one late reply to where its query came from.
pub fn send_one(socket: BorrowedFd<'_>, origin: &Origin, reply: &[u8]) -> io::Result<()> {
    let mut origin = origin.clone();
    let mut vector =
        libc::iovec { iov_base: reply.as_ptr().cast_mut().cast(), iov_len: reply.len() };
    // SAFETY: null pointers and zero lengths are valid.
    let mut header: libc::msghdr = unsafe { zeroed() };
    fill(&mut header, &mut origin, &mut vector);
    // SAFETY: the pointers in the header lead to live buffers, which the kernel only reads.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks the kernel to say by which of our addresses each datagram came.
pub fn learn_addresses(socket: BorrowedFd<'_>, is_v4: bool) -> io::Result<()> {
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
