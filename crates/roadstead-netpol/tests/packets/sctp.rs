//! SCTP by the packet: the first of an association, made by hand, since many kernels that follow SCTP have
//! no sockets for it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use roadstead_testkit::netns::inside;
use socket2::{Domain, Protocol, Socket, Type};

const SCTP: i32 = 132;

/// Who was heard by whom: client, its port, server and port.
static HEARD: Mutex<BTreeSet<(IpAddr, u16, IpAddr, u16)>> = Mutex::new(BTreeSet::new());

/// Whether the kernel follows associations; without that no policy can speak of their ports.
pub(crate) fn is_followed() -> bool {
    Path::new("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established").exists()
}

/// Hears all SCTP that comes to a pod with these addresses.
pub(crate) fn listen(namespace: &str, addresses: [IpAddr; 2]) {
    for own in addresses {
        let socket = inside(namespace, || raw(own));
        thread::spawn(move || {
            let mut buffer = [0; 256];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                // Of IPv4 a raw socket shows the header, too.
                let header = if own.is_ipv4() { usize::from(buffer[0] & 15) * 4 } else { 0 };
                let Some([a, b, c, d]) = buffer[..length].get(header..header + 4) else { continue };
                let (source, port) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
                heard().insert((from.ip(), source, own, port));
            }
        });
    }
}

fn heard() -> std::sync::MutexGuard<'static, BTreeSet<(IpAddr, u16, IpAddr, u16)>> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket for all SCTP of a family.
fn raw(family: IpAddr) -> UdpSocket {
    let domain = if family.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    Socket::new(domain, Type::RAW, Some(Protocol::from(SCTP))).unwrap().into()
}

/// Somebody who begins an association, over and over.
pub(crate) struct Association {
    socket: UdpSocket,
    from: IpAddr,
    source: u16,
    to: SocketAddr,
}

impl Association {
    /// In the namespace of the caller, with an address of it.
    pub(crate) fn begin(from: IpAddr, to: SocketAddr) -> Self {
        static NEXT: AtomicU16 = AtomicU16::new(20_000);
        let source = NEXT.fetch_add(1, Ordering::Relaxed).max(1024);
        Self { socket: raw(from), from, source, to }
    }

    pub(crate) fn has_arrived(&self) -> bool {
        self.socket.send_to(&init(self.source, self.to.port()), (self.to.ip(), 0)).ok();
        heard().contains(&(self.from, self.source, self.to.ip(), self.to.port()))
    }
}

/// The chunk INIT, alone in its packet.
fn init(source: u16, port: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    packet.extend(source.to_be_bytes());
    packet.extend(port.to_be_bytes());
    // No tag yet; the checksum comes last.
    packet.extend([0; 8]);
    packet.extend([1, 0, 0, 20, 0, 0, 0, 7, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 7]);
    let sum = crc32c(&packet);
    packet[8..12].copy_from_slice(&sum.to_le_bytes());
    packet
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}
