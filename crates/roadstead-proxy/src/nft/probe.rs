//! What a kernel can do of nftables.
//!
//! Most of it comes in modules that somebody may have left out. A refused batch only says which of
//! its messages was refused, so each part is tried out alone: as a batch that is never finished,
//! which the kernel looks at as a whole and then forgets.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use roadstead_forwarding::nft::model::{Base, Chain, ChainKind, Hook, Statement};
use roadstead_forwarding::nft::names::ChainName;
use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::nftables::TableBatch;
use roadstead_netlink::socket::{NetlinkFamily, Socket};
use rustix::io::Errno;

use super::encode;

const CHAIN: ChainName = ChainName::Fixed("probe");

/// The parts that the proxy uses of nftables, by the names of the modules that hold them, which
/// the kernel lacks or has not loaded.
pub(super) fn lacking(socket: &mut Socket, family: IpFamily) -> Vec<&'static str> {
    match socket.try_out(encode::removal(family).into_batch()) {
        // The very beginning was refused: there is nobody who would understand it.
        Err(NetlinkError::Refused { position: 0, .. }) => return vec!["nf_tables"],
        Err(error) if is_lack(&error) => {
            return vec![match family {
                IpFamily::V4 => "nf_tables_ipv4",
                IpFamily::V6 => "nf_tables_ipv6",
            }];
        }
        _ => {}
    }
    let mut lacking = Vec::new();
    for (name, kind, hook, statement) in parts(family) {
        let rules = statement.map(|statement| vec![statement]).into_iter().collect();
        let chain = Chain { base: Some(Base { kind, hook, priority: 0 }), rules };
        if lacks(socket, encode::trial(family, &CHAIN, &chain)) {
            lacking.push(name);
        }
    }
    lacking
}

/// Whether addresses can be translated by nftables, which iptables' nft variant needs, too.
pub(crate) fn translates(family: IpFamily) -> bool {
    let Ok(mut socket) = Socket::open(NetlinkFamily::Netfilter) else { return false };
    let base = Base { kind: ChainKind::Nat, hook: Hook::Postrouting, priority: 0 };
    let chain = Chain { base: Some(base), rules: Vec::new() };
    !lacks(&mut socket, encode::trial(family, &CHAIN, &chain))
}

/// A chain and perhaps a statement for each part, at a place where the kernel allows it.
fn parts(family: IpFamily) -> [(&'static str, ChainKind, Hook, Option<Statement>); 7] {
    let address = match family {
        IpFamily::V4 => Ipv4Addr::new(198, 51, 100, 1).into(),
        IpFamily::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let (filter, nat) = (ChainKind::Filter, ChainKind::Nat);
    let target = Statement::DestinationTo(SocketAddr::new(address, 1));
    [
        ("nft_ct", filter, Hook::Input, Some(Statement::IsNew)),
        ("nft_numgen", filter, Hook::Input, Some(Statement::OnceIn(2))),
        ("nft_fib", filter, Hook::Input, Some(Statement::SourceIsOurs)),
        ("nft_reject", filter, Hook::Input, Some(Statement::Reject)),
        ("nft_chain_nat", nat, Hook::Prerouting, None),
        ("nft_nat", nat, Hook::Prerouting, Some(target)),
        ("nft_masq", nat, Hook::Postrouting, Some(Statement::Masquerade)),
    ]
}

fn lacks(socket: &mut Socket, batch: TableBatch) -> bool {
    socket.try_out(batch.into_batch()).is_err_and(|error| is_lack(&error))
}

/// Whether the kernel says that it has no such thing. Anything else it may object to, such as
/// missing permission, it can say of what it has.
fn is_lack(error: &NetlinkError) -> bool {
    let lack = [Errno::NOENT, Errno::OPNOTSUPP, Errno::AFNOSUPPORT, Errno::PROTONOSUPPORT];
    match error {
        NetlinkError::Refused { source, .. } => {
            lack.iter().any(|errno| source.raw_os_error() == Some(errno.raw_os_error()))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use roadstead_testkit::netns::{laboratory, run};

    use super::*;

    /// Whoever runs these tests has a kernel that can do everything. What it cannot do is tested
    /// in user-mode-linux (`tests/other_kernels.rs`).
    #[test]
    fn trying_changes_nothing() {
        laboratory(|| {
            let mut socket = Socket::open(NetlinkFamily::Netfilter).unwrap();
            for family in [IpFamily::V4, IpFamily::V6] {
                assert_eq!(lacking(&mut socket, family), Vec::<&str>::new(), "{family:?}");
                assert!(translates(family), "{family:?}");
            }
            assert_eq!(run("nft list ruleset"), "");
        });
    }
}
