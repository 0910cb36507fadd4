//! A socket that sees the questions asked on one Ethernet, and can put frames onto it.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, eth};
use socket2::{SockFilter, SockRef};
use tokio::io::unix::AsyncFd;

use crate::frames::{Question, question};

/// What is asked on a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asking {
    /// For IPv4 addresses.
    Arp,
    /// For IPv6 addresses.
    Ndp,
}

/// Such a socket.
#[derive(Debug)]
pub(crate) struct LinkSocket(AsyncFd<OwnedFd>);

impl LinkSocket {
    /// Opens one on the interface with this number. Needs CAP_NET_RAW.
    pub(crate) fn open(interface: u32, asking: Asking) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // It hears nothing until it is bound.
        let socket = net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        if asking == Asking::Ndp {
            SockRef::from(&socket).attach_filter(&SOLICITATIONS_ONLY)?;
        }
        let protocol = if asking == Asking::Arp { eth::ARP } else { eth::IPV6 };
        // The constant is in network order already.
        let protocol = u16::try_from(protocol.as_raw().get()).expect("it has two bytes");
        net::bind(&socket, &LinkAddress::new(interface, protocol))?;
        // SAFETY: the descriptor is owned, and nobody replaces or closes it before it is dropped.
        Ok(Self(unsafe { AsyncFd::register(socket) }?))
    }

    /// Waits for the next question.
    pub(crate) async fn next(&self) -> io::Result<Question> {
        let mut frame = [0; 256];
        loop {
            let mut ready = self.0.readable().await?;
            match net::recv(self.0.get_ref(), &mut frame[..], RecvFlags::empty()) {
                Ok((_, length)) => {
                    if let Some(question) = question(&frame[..length.min(256)]) {
                        return Ok(question);
                    }
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a frame; a network that is busy loses it, as networks do.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        net::send(self.0.get_ref(), frame, SendFlags::empty())?;
        Ok(())
    }
}

/// Passes neighbour solicitations and nothing else, so that the traffic of a busy node does not
/// wake us.
static SOLICITATIONS_ONLY: [SockFilter; 6] = {
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    [
        // The next header is ICMPv6.
        SockFilter::new(LOAD_BYTE, 0, 0, 14 + 6),
        SockFilter::new(JUMP_IF_EQUAL, 0, 3, 58),
        // Its type is a neighbour solicitation.
        SockFilter::new(LOAD_BYTE, 0, 0, 14 + 40),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, 135),
        SockFilter::new(RETURN, 0, 0, 256),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
};

/// The kernel's `struct sockaddr_ll`.
#[repr(C)]
struct LinkAddress {
    family: u16,
    protocol: u16,
    interface: i32,
    hardware_type: u16,
    packet_type: u8,
    length: u8,
    hardware: [u8; 8],
}

impl LinkAddress {
    fn new(interface: u32, protocol: u16) -> Self {
        Self {
            family: AddressFamily::PACKET.as_raw(),
            protocol,
            interface: i32::try_from(interface).unwrap_or_default(),
            hardware_type: 0,
            packet_type: 0,
            length: 0,
            hardware: [0; 8],
        }
    }
}

// SAFETY: the pointer is to a whole `sockaddr_ll`, of which every byte is initialised (it has no
// padding), and the length is its length.
unsafe impl SocketAddrArg for LinkAddress {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R,
    ) -> R {
        let length = SocketAddrLen::try_from(size_of::<Self>()).expect("it is short");
        f(std::ptr::from_ref(self).cast(), length)
    }
}
