//! Namespaces and links of the machines of `up --nodes`, all of them marked.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, bail};
use ipnet::{IpNet, Ipv4Net};
use nlink::netlink::addr::Ipv4Address;
use nlink::netlink::link::{BridgeLink, LinkCreateExt, VethLink};
use nlink::netlink::namespace;
use nlink::netlink::nftables::{BaseChain, Chain, Family, NatHook, Priority, Rule};
use nlink::netlink::route::Ipv4Route;
use nlink::netlink::{Connection, Nftables, Route};

/// The bridge between the machines, and the mark on it.
const BRIDGE: &str = "rs-nodes";
const MARK: &str = "the nodes of roadstead";
/// The link of a machine, seen from inside.
const UPLINK: &str = "eth0";
const TABLE: &str = "roadstead-nodes";

fn host() -> anyhow::Result<Connection<Route>> {
    Connection::<Route>::new().context("cannot open a netlink socket")
}

/// Makes the bridge and gives it this machine's address among the nodes.
pub(super) async fn make_bridge(own: IpAddr, length: u8) -> anyhow::Result<()> {
    let host = host()?;
    let present = host.get_link_by_name(BRIDGE).await;
    match present.context("cannot look for the bridge of the nodes")? {
        None => {
            let made = host.add_link(BridgeLink::new(BRIDGE).alias(MARK)).await;
            made.with_context(|| format!("cannot make the bridge {BRIDGE}"))?;
        }
        Some(link) if link.alias() == Some(MARK) => {}
        Some(_) => {
            bail!("there is a link {BRIDGE} that roadstead did not make: --nodes needs the name")
        }
    }
    host.set_link_up(BRIDGE).await.with_context(|| format!("cannot bring {BRIDGE} up"))?;
    give(&host, BRIDGE, (own, length)).await
}

async fn give(
    host: &Connection<Route>,
    link: &str,
    (address, length): (IpAddr, u8),
) -> anyhow::Result<()> {
    let IpAddr::V4(address) = address else { bail!("nodes of one machine have IPv4 addresses") };
    let given = host.replace_address(Ipv4Address::new(link, address, length)).await;
    given.with_context(|| format!("cannot give {link} the address {address}"))
}

/// Makes a network for a machine, joined to the bridge, unless it is there.
pub(super) async fn make_machine(
    (number, path): (u8, &Path),
    own: (IpAddr, u8),
    gateway: IpAddr,
) -> anyhow::Result<()> {
    if is_namespace(path) {
        return Ok(());
    }
    let link = format!("rs-node{number}");
    let host = host()?;
    // Left from before the machine was restarted.
    let _ = std::fs::remove_file(path);
    host.del_link_if_exists(link.as_str()).await.context("cannot remove an old link")?;
    let made = path.to_owned();
    let made = tokio::task::spawn_blocking(move || namespace::create_path(&made)).await?;
    made.with_context(|| format!("cannot make the network namespace {}", path.display()))?;
    let opened = namespace::open_path(path);
    let opened = opened.with_context(|| format!("cannot open {}", path.display()))?;
    let pair = VethLink::new(&link, UPLINK).peer_netns_fd(&opened).master(BRIDGE).up();
    host.add_link(pair).await.with_context(|| format!("cannot make the link {link}"))?;
    let inside = Connection::<Route>::new_in(path);
    let inside = inside.with_context(|| format!("cannot enter {}", path.display()))?;
    inside.set_link_up("lo").await.context("cannot bring lo up")?;
    inside.set_link_up(UPLINK).await.context("cannot bring the uplink up")?;
    give(&inside, UPLINK, own).await?;
    let IpAddr::V4(gateway) = gateway else { bail!("nodes of one machine have IPv4 addresses") };
    let default = Ipv4Route::default_route().gateway(gateway).dev(UPLINK);
    inside.add_route(default).await.context("cannot give the node a way out")
}

/// Whether there is a living network namespace at the path.
pub(super) fn is_namespace(path: &Path) -> bool {
    namespace::is_namespace_path(path)
}

/// Removes a namespace, and with it the links in it.
pub(super) fn remove_namespace(path: &Path) -> anyhow::Result<()> {
    match is_namespace(path) {
        true => namespace::delete_path(path)
            .with_context(|| format!("cannot remove the network namespace {}", path.display())),
        false => Ok(()),
    }
}

/// What nodes send to the world comes from this machine: nobody else knows their addresses.
pub(super) async fn masquerade(nodes: Ipv4Net, pods: &[IpNet]) -> anyhow::Result<()> {
    let kernel = nftables()?;
    let chain = Chain::new(TABLE, "postrouting").context("a name of a chain")?;
    let nat = BaseChain::nat(NatHook::Postrouting, Priority::SrcNat);
    let mut rule = Rule::new(TABLE, "postrouting").family(Family::Ip);
    rule = rule.match_saddr_v4(nodes.network(), nodes.prefix_len()).match_oif_not(BRIDGE);
    for range in pods {
        if let IpNet::V4(range) = range {
            rule = rule.match_daddr_v4_not(range.network(), range.prefix_len());
        }
    }
    let mut batch = kernel.transaction();
    if kernel.del_table_if_exists(TABLE, Family::Ip).await.context("cannot remove an old table")? {
        batch = kernel.transaction();
    }
    batch = batch.add_table_with_comment(TABLE, Family::Ip, 0, Some(MARK));
    batch = batch.add_chain(chain.family(Family::Ip).base(nat)).add_rule(rule.masquerade());
    batch.commit(&kernel).await.context("cannot write the rules for other nodes")
}

fn nftables() -> anyhow::Result<Connection<Nftables>> {
    Connection::<Nftables>::new().context("cannot open a netlink socket")
}

/// Removes the bridge, if it is ours, and the rules.
pub(super) async fn remove_bridge() -> anyhow::Result<()> {
    let removed = nftables()?.del_table_if_exists(TABLE, Family::Ip).await;
    removed.context("rules for other nodes are left behind")?;
    let host = host()?;
    let present = host.get_link_by_name(BRIDGE).await;
    let present = present.context("cannot look for the bridge of the nodes")?;
    if present.is_some_and(|link| link.alias() == Some(MARK)) {
        let removed = host.del_link_if_exists(BRIDGE).await;
        removed.with_context(|| format!("cannot remove the bridge {BRIDGE}"))?;
    }
    Ok(())
}
