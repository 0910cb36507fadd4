//! What this machine is and what it allows.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::PathBuf;

/// Where the name servers of this machine are written.
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";
/// CAP_NET_ADMIN and CAP_SYS_ADMIN: links and rules, namespaces and mounts.
const NEEDED: u64 = 1 << 12 | 1 << 21;

/// Whether we may change links and rules and make namespaces.
pub(crate) fn is_privileged() -> bool {
    has_capabilities(NEEDED)
}

/// Whether we may change rules.
pub(crate) fn may_write_rules() -> bool {
    has_capabilities(1 << 12)
}

fn has_capabilities(needed: u64) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    effective.is_some_and(|set| set & needed == needed)
}

/// Where state is kept unless the user says otherwise.
pub(crate) fn data_dir() -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    match home {
        Some(home) if !is_privileged() => home.join(".local/state/roadstead"),
        _ => "/var/lib/roadstead".into(),
    }
}

/// A directory as it is called from everywhere: pods go on where they are, whoever started them.
pub(crate) fn directory(text: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(text)
}

/// The host name, in the form that node names have.
pub(crate) fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim().to_lowercase();
    if name.is_empty() || name.starts_with('(') { "localhost".into() } else { name }
}

/// Every address of this machine, as a listener of that family.
pub(crate) fn every_address(family: IpAddr) -> IpAddr {
    match family {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        // Clients with IPv4 addresses come to it as well.
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The address of a family from which this machine would talk to the world. Nothing is sent.
pub(crate) fn own_address(four: bool) -> Option<IpAddr> {
    let every: IpAddr =
        if four { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((every, 0)).ok()?;
    // TEST-NET-2 and the network of documents: places that are nowhere.
    socket.connect(if four { "198.51.100.1:9" } else { "[2001:db8::1]:9" }).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// How many bytes of memory there are.
pub(crate) fn memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::{apiserver, node, up};

    #[test]
    fn data_directories_are_absolute() {
        let here = std::env::current_dir().unwrap();
        let words = ["roadstead", "--data-dir", "data/of/mine"];
        let shown = [
            format!("{:?}", up::Args::try_parse_from(words).unwrap()),
            format!("{:?}", node::Args::try_parse_from(words).unwrap()),
            format!("{:?}", apiserver::Args::try_parse_from(words).unwrap()),
        ];
        for args in shown {
            assert!(args.contains(&format!("data_dir: {:?}", here.join("data/of/mine"))), "{args}");
        }
    }
}
