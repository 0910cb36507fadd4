//! The name servers of this node that a pod can reach.

use std::fs;
use std::net::IpAddr;

use roadstead_api::resolv::ResolvConf;

/// The node's own name servers.
const NODE_RESOLV_CONF: &str = "/etc/resolv.conf";
/// Those behind systemd-resolved, which itself answers on the node's own loopback only.
const REAL_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";

/// Reads them.
pub(crate) fn read() -> ResolvConf {
    let read = |path| ResolvConf::parse(&fs::read_to_string(path).unwrap_or_default());
    reachable(read(NODE_RESOLV_CONF), || read(REAL_RESOLV_CONF))
}

/// Replaces the node's name servers by the real ones if a pod could reach none of them. The rest stays,
/// because the DNS server knows it, too.
fn reachable(node: ResolvConf, real: impl FnOnce() -> ResolvConf) -> ResolvConf {
    let is_loopback = |server: &String| {
        server.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
    };
    if !node.nameservers.iter().all(is_loopback) {
        return node;
    }
    match real().nameservers {
        none if none.is_empty() => node,
        nameservers => ResolvConf { nameservers, ..node },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_that_pods_can_reach() {
        let conf = |servers: &str| ResolvConf {
            nameservers: servers.split_whitespace().map(str::to_owned).collect(),
            ..ResolvConf::parse("search lan\n")
        };
        for (name, node, real, want) in [
            ("plain", "192.0.2.1", "192.0.2.2", "192.0.2.1"),
            ("systemd-resolved", "127.0.0.53", "192.0.2.2 fd00::53", "192.0.2.2 fd00::53"),
            ("one can be reached", "127.0.0.1 192.0.2.1", "192.0.2.2", "127.0.0.1 192.0.2.1"),
            ("nothing better", "127.0.0.53", "", "127.0.0.53"),
            ("the newer family", "::1", "192.0.2.2", "192.0.2.2"),
            ("none", "", "192.0.2.2", "192.0.2.2"),
        ] {
            let got = reachable(conf(node), || conf(real));
            assert_eq!(got.nameservers.join(" "), want, "{name}");
            assert_eq!(got.searches, ["lan"], "{name}");
        }
    }
}
