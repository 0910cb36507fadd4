//! Whether policies know a pod: before that, none of its containers starts.
//!
//! Who enforces NetworkPolicies may be a part of this process, another process of this machine or nobody.
//! Whoever it is says in the kernel which pods of the node it knows: in a map from their addresses to
//! their marks (`docs/adr/0195-pods-start-when-policies-know-them.md`).

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use roadstead_netlink::nftables::readback::{self, NamedTable};
use roadstead_netlink::socket::{NetlinkFamily, Socket};
use roadstead_pod::addresses::Addresses;
use roadstead_policy::program::{KNOWN, TABLE};

/// Between two looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// Looks at what the kernel was told about policies.
#[derive(Debug)]
pub(crate) struct PolicyGate {
    /// Whether policies are enforced even if there is no trace of it yet.
    expected: bool,
    /// `None` where nobody may look.
    socket: Mutex<Option<Socket>>,
}

/// What the tables of policies say of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// There is no such table.
    NoTable,
    /// Not that pod.
    Stranger,
    Known,
}

impl PolicyGate {
    pub(crate) fn new(expected: bool) -> Self {
        Self { expected, socket: Mutex::new(Socket::open(NetlinkFamily::Netfilter).ok()) }
    }

    /// Whether the pod with that mark may begin to talk from these addresses.
    pub(crate) fn is_open(&self, addresses: Addresses, mark: u32) -> bool {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(socket) = socket.as_mut() else { return true };
        let sights: Vec<_> = addresses.iter().map(|address| look(socket, address, mark)).collect();
        opens(self.expected, &sights)
    }
}

fn opens(expected: bool, sights: &[Sight]) -> bool {
    let nobody = sights.iter().all(|sight| *sight == Sight::NoTable);
    let known = sights.iter().all(|sight| *sight == Sight::Known);
    known || nobody && !expected
}

fn look(socket: &mut Socket, address: IpAddr, mark: u32) -> Sight {
    let (family, key) = match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let table = NamedTable { family: family as u8, name: TABLE };
    match readback::elements(socket, table, KNOWN) {
        Ok(known) if known.get(&key).is_some_and(|found| found[..] == mark.to_ne_bytes()) => {
            Sight::Known
        }
        Ok(_) => Sight::Stranger,
        Err(_) => Sight::NoTable,
    }
}

#[test]
fn when_pods_may_start() {
    use Sight::{Known, NoTable, Stranger};
    let cases: [(&str, bool, &[Sight], bool); 7] = [
        ("nobody enforces policies", false, &[NoTable], true),
        ("somebody will", true, &[NoTable], false),
        ("somebody does, and does not know the pod", false, &[Stranger], false),
        ("the pod is known", false, &[Known], true),
        ("in one family only", true, &[Known, Stranger], false),
        ("the other family has no table yet", false, &[Known, NoTable], false),
        ("in both", true, &[Known, Known], true),
    ];
    for (name, expected, sights, want) in cases {
        assert_eq!(opens(expected, sights), want, "{name}");
    }
}
