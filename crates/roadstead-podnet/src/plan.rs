//! What routes and tunnels there should be, for the nodes that there are: pure.
//!
//! Nodes say themselves where they are and what they have. None of them gets what another has, what this
//! machine has, or anything outside of the pods' range by saying so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use roadstead_plan::node_ranges::overlap;

use crate::peer::Peer;

/// The priority of our routes, which nobody else has: routes of others to the same place count first.
pub const ROUTE_PRIORITY: u32 = 8472;

/// How packets get to the pods of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodNetworkMode {
    /// By a route where a node is a neighbour, otherwise by VXLAN.
    #[default]
    Auto,
    /// By routes only.
    Routes,
    /// By VXLAN only: where the network between nodes drops what is not from a node.
    Vxlan,
    /// It is the business of others.
    None,
}

impl FromStr for PodNetworkMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "routes" => Ok(Self::Routes),
            "vxlan" => Ok(Self::Vxlan),
            "none" => Ok(Self::None),
            // Whoever asks for secrecy does not get something else.
            "wireguard" => {
                Err("this version cannot encrypt what pods of several nodes say to each other; \
                connect the machines by WireGuard yourself, and use routes"
                    .to_owned())
            }
            _ => Err("there are auto, routes, vxlan and none".to_owned()),
        }
    }
}

impl fmt::Display for PodNetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Routes => "routes",
            Self::Vxlan => "vxlan",
            Self::None => "none",
        })
    }
}

/// This machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Local {
    pub(crate) name: String,
    pub(crate) mode: PodNetworkMode,
    /// The ranges of all pods of the cluster; unknown if empty.
    pub(crate) cluster: Vec<IpNet>,
    /// The pods of this machine.
    pub(crate) pods: Vec<IpNet>,
    /// The networks that it is in, by the numbers of their links.
    pub(crate) networks: Vec<(u32, IpNet)>,
    /// Its own end of tunnels.
    pub(crate) hardware: [u8; 6],
}

/// The way to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// By a neighbour, on this link.
    Neighbour(IpAddr, u32),
    /// Through the tunnel, to whoever has this address in it.
    Tunnel(IpAddr),
    /// There is none.
    Unreachable,
}

/// What should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) routes: BTreeMap<IpNet, Way>,
    /// Who has which address in the tunnel.
    pub(crate) neighbours: BTreeMap<IpAddr, [u8; 6]>,
    /// To which machine frames for them are sent.
    pub(crate) ends: BTreeMap<[u8; 6], IpAddr>,
    /// Whether there is to be a tunnel, because somebody can only be reached by one.
    pub(crate) tunnel: bool,
    /// Why something that a node says is not believed, or cannot be done, by its name.
    pub(crate) notes: BTreeMap<String, String>,
}

/// What should be on this machine, for the others.
pub(crate) fn plan(local: &Local, peers: &[Peer]) -> Wanted {
    let mut wanted = Wanted { tunnel: local.mode == PodNetworkMode::Vxlan, ..Wanted::default() };
    if local.mode == PodNetworkMode::None {
        return wanted;
    }
    let own_addresses: Vec<_> = local.networks.iter().map(|(_, network)| network.addr()).collect();
    let mut peers: Vec<_> = peers.iter().filter(|peer| peer.name != local.name).collect();
    peers.sort_by_key(|peer| peer.age());
    let mut taken = local.pods.clone();
    let mut machines: BTreeSet<IpAddr> = own_addresses.into_iter().collect();
    for peer in peers {
        // It has only just been made, and will say more.
        if peer.pods.is_empty() || peer.addresses.is_empty() {
            continue;
        }
        let believed = check_pods(local, peer, &taken)
            .and_then(|()| check_addresses(local, peer, &machines))
            .and_then(|()| reach(local, peer, &mut wanted));
        match believed {
            Ok(()) => {
                taken.extend(&peer.pods);
                machines.extend(&peer.addresses);
            }
            Err(why) => drop(wanted.notes.insert(peer.name.clone(), why)),
        }
    }
    for range in &local.cluster {
        // A node that is gone must not make packets for its pods leave by the default route.
        if !local.pods.contains(range) {
            wanted.routes.entry(range.trunc()).or_insert(Way::Unreachable);
        }
    }
    wanted
}

fn check_pods(local: &Local, peer: &Peer, taken: &[IpNet]) -> Result<(), String> {
    for block in &peer.pods {
        if !local.cluster.is_empty() && !local.cluster.iter().any(|range| range.contains(block)) {
            return Err(format!("its pod addresses {block} are outside of the cluster's range"));
        }
        if block.prefix_len() == 0 {
            return Err("it says that it has all addresses".to_owned());
        }
        if let Some(other) = taken.iter().find(|other| overlap(other, block)) {
            return Err(format!("its pod addresses {block} overlap with {other} of another node"));
        }
    }
    Ok(())
}

fn check_addresses(local: &Local, peer: &Peer, machines: &BTreeSet<IpAddr>) -> Result<(), String> {
    let tunnel = peer.tunnel.map(|end| end.address);
    for address in peer.addresses.iter().chain(&tunnel) {
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return Err(format!("{address} is the address of no machine"));
        }
        if machines.contains(address) {
            return Err(format!("its address {address} is that of another node"));
        }
        if local.cluster.iter().chain(&local.pods).any(|range| range.contains(address)) {
            return Err(format!("its address {address} is one of a pod"));
        }
    }
    Ok(())
}

/// Adds what it takes to reach a node that is believed.
fn reach(local: &Local, peer: &Peer, wanted: &mut Wanted) -> Result<(), String> {
    let mut tunneled = Vec::new();
    let mut routes = Vec::new();
    for block in &peer.pods {
        match neighbour(local, peer, block.addr().is_ipv4()) {
            Some(way) if local.mode != PodNetworkMode::Vxlan => routes.push((block.trunc(), way)),
            _ if local.mode == PodNetworkMode::Routes => {
                return Err(format!(
                    "none of its addresses is in a network of this machine: routes cannot reach \
                     {block}, --pod-network vxlan can"
                ));
            }
            _ => tunneled.push(block.trunc()),
        }
    }
    if !tunneled.is_empty() {
        wanted.tunnel = true;
        let end = peer.tunnel.ok_or("it has not said yet where its end of the tunnel is")?;
        if end.hardware == local.hardware || wanted.ends.contains_key(&end.hardware) {
            return Err("its end of the tunnel has the hardware address of another".to_owned());
        }
        wanted.ends.insert(end.hardware, end.address);
        for block in tunneled {
            wanted.neighbours.insert(block.addr(), end.hardware);
            routes.push((block, Way::Tunnel(block.addr())));
        }
    }
    wanted.routes.extend(routes);
    Ok(())
}

/// The way to a node through a network that both are in.
fn neighbour(local: &Local, peer: &Peer, four: bool) -> Option<Way> {
    let addresses = peer.addresses.iter().filter(|address| address.is_ipv4() == four);
    let mut ways = addresses.filter_map(|address| {
        let mut networks = local.networks.iter();
        let (link, _) = networks.find(|(_, network)| network.contains(address))?;
        Some(Way::Neighbour(*address, *link))
    });
    ways.next()
}

/// How the hardware addresses of our tunnels begin.
pub(crate) const HARDWARE: [u8; 2] = [0x02, 0x52];

/// The hardware address of the end of a node's tunnels: another one for each block of addresses, and the same
/// after a restart.
pub(crate) fn hardware_address(pods: &[IpNet]) -> [u8; 6] {
    let bytes = match pods.first().map(IpNet::trunc) {
        Some(IpNet::V4(block)) => block.addr().octets(),
        Some(IpNet::V6(block)) => {
            let octets = block.addr().octets();
            [octets[4], octets[5], octets[6], octets[7]]
        }
        None => [0; 4],
    };
    let [a, b] = HARDWARE;
    [a, b, bytes[0], bytes[1], bytes[2], bytes[3]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::TunnelEnd;

    fn local(mode: PodNetworkMode) -> Local {
        Local {
            name: "n1".into(),
            mode,
            cluster: vec!["10.244.0.0/16".parse().unwrap()],
            pods: vec!["10.244.0.0/24".parse().unwrap()],
            networks: vec![(7, "192.0.2.1/24".parse().unwrap())],
            hardware: [2, 0x52, 10, 244, 0, 0],
        }
    }

    /// `name pods address [last byte of the hardware address]`, the oldest first.
    fn peers(text: &str) -> Vec<Peer> {
        let lines = text.split(';').map(str::trim).filter(|line| !line.is_empty()).enumerate();
        let peer = |(made, line): (usize, &str)| {
            let words: Vec<_> = line.split(' ').collect();
            let address = words[2].parse().unwrap();
            let tunnel = words.get(3).map(|last| TunnelEnd {
                hardware: [2, 0x52, 10, 244, 0, last.parse().unwrap()],
                address,
            });
            Peer {
                made: format!("2026-11-19T00:00:0{made}Z"),
                name: words[0].into(),
                pods: words[1].split(',').map(|one| one.parse().unwrap()).collect(),
                addresses: vec![address],
                tunnel,
            }
        };
        lines.map(peer).collect()
    }

    fn show(wanted: &Wanted) -> String {
        let mut words: Vec<String> = Vec::new();
        for (network, way) in &wanted.routes {
            words.push(match way {
                Way::Neighbour(address, link) => format!("{network} by {address} on {link}"),
                Way::Tunnel(address) => {
                    let hardware = wanted.neighbours[address];
                    format!("{network} in the tunnel to {}", wanted.ends[&hardware])
                }
                Way::Unreachable => format!("{network} nowhere"),
            });
        }
        words.extend(wanted.notes.iter().map(|(name, why)| format!("{name}: {why}")));
        words.join("; ")
    }

    #[test]
    fn ways() {
        let all = "10.244.0.0/16 nowhere";
        let cases = [
            ("alone", PodNetworkMode::Auto, "", all.to_owned()),
            ("itself", PodNetworkMode::Auto, "n1 10.244.0.0/24 192.0.2.1", all.into()),
            (
                "a neighbour",
                PodNetworkMode::Auto,
                "n2 10.244.1.0/24 192.0.2.2 9",
                format!("{all}; 10.244.1.0/24 by 192.0.2.2 on 7"),
            ),
            (
                "far away",
                PodNetworkMode::Auto,
                "n2 10.244.1.0/24 198.51.100.2 9",
                format!("{all}; 10.244.1.0/24 in the tunnel to 198.51.100.2"),
            ),
            (
                "always in the tunnel",
                PodNetworkMode::Vxlan,
                "n2 10.244.1.0/24 192.0.2.2 9",
                format!("{all}; 10.244.1.0/24 in the tunnel to 192.0.2.2"),
            ),
            (
                "the other end is not known",
                PodNetworkMode::Auto,
                "n2 10.244.1.0/24 198.51.100.2",
                format!("{all}; n2: it has not said yet where its end of the tunnel is"),
            ),
            ("others do it", PodNetworkMode::None, "n2 10.244.1.0/24 192.0.2.2", String::new()),
        ];
        for (name, mode, nodes, want) in cases {
            assert_eq!(show(&plan(&local(mode), &peers(nodes))), want, "{name}");
        }
        let far = plan(&local(PodNetworkMode::Routes), &peers("n2 10.244.1.0/24 198.51.100.2 9"));
        assert!(far.notes["n2"].contains("--pod-network vxlan can") && !far.tunnel, "{far:?}");
    }

    #[test]
    fn nodes_that_lie() {
        let good = "n2 10.244.1.0/24 192.0.2.2 2; ";
        let want = "10.244.0.0/16 nowhere; 10.244.1.0/24 by 192.0.2.2 on 7";
        for (name, liar, why) in [
            ("my pods", "10.244.0.0/24 192.0.2.3 3", "overlap with 10.244.0.0/24"),
            ("another's pods", "10.244.1.128/25 192.0.2.3 3", "overlap with 10.244.1.0/24"),
            ("all pods", "10.244.0.0/16 192.0.2.3 3", "overlap"),
            ("all addresses", "0.0.0.0/0 192.0.2.3 3", "outside of the cluster's range"),
            ("the world's", "8.8.8.0/24 192.0.2.3 3", "outside of the cluster's range"),
            ("some of the world's", "10.244.2.0/24,8.8.8.0/24 192.0.2.3 3", "outside"),
            ("my address", "10.244.2.0/24 192.0.2.1 3", "is that of another node"),
            ("another's address", "10.244.2.0/24 192.0.2.2 3", "is that of another node"),
            ("a pod's address", "10.244.2.0/24 10.244.1.7 3", "is one of a pod"),
            ("no machine's", "10.244.2.0/24 127.0.0.1 3", "of no machine"),
        ] {
            let got = plan(&local(PodNetworkMode::Auto), &peers(&format!("{good}liar {liar}")));
            assert_eq!(got.notes.len(), 1, "{name}");
            assert!(got.notes["liar"].contains(why), "{name}: {}", got.notes["liar"]);
            let routes = Wanted { notes: BTreeMap::new(), ..got };
            assert_eq!(show(&routes), want, "{name}");
        }
        // Frames for another, or for me.
        for last in ["0", "2"] {
            let liar = format!("{good}liar 10.244.2.0/24 192.0.2.3 {last}");
            let got = plan(&local(PodNetworkMode::Vxlan), &peers(&liar));
            assert!(got.notes["liar"].contains("hardware address of another"), "{last}: {got:?}");
            assert_eq!(got.ends.len(), 1);
        }
    }
}
