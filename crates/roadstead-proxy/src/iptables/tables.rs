//! The tables that iptables makes in nftables, and leaves there when their last rule has gone.
//!
//! An empty one does nothing, but whoever lists the rules of the machine finds it and wonders. Those
//! that were not there before us go with us, unless somebody else has begun to use them.

use std::collections::BTreeSet;

use roadstead_netlink::attributes::{attribute, text_of};
use roadstead_netlink::batch::Batch;
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::socket::{NetlinkFamily, Request, Socket};
use roadstead_netlink::{DUMP, NFTABLES, netfilter};

const NAMES: [&str; 5] = ["raw", "mangle", "nat", "filter", "security"];
/// By the kernel's number and the name that `nft` has for it.
const FAMILIES: [(u8, &str); 2] = [(2, "ip"), (10, "ip6")];

const GET_TABLE: u8 = 1;
const DELETE_TABLE: u8 = 2;
const GET_CHAIN: u8 = 4;
const GET_RULE: u8 = 7;
const GET_SET: u8 = 10;
/// The attribute that names the table, in messages about whatever.
const TABLE: u16 = 1;
const HOOK: u16 = 4;
const POLICY: u16 = 5;
const ACCEPT: [u8; 4] = 1_u32.to_be_bytes();

/// The tables of iptables that there are, such as `ip filter`.
pub fn present() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let Ok(mut socket) = Socket::open(NetlinkFamily::Netfilter) else { return found };
    for (number, family) in FAMILIES {
        let tables = dump(&mut socket, GET_TABLE, number, table_of).unwrap_or_default();
        let names = tables.into_iter().filter(|name| NAMES.contains(&name.as_str()));
        found.extend(names.map(|name| format!("{family} {name}")));
    }
    found
}

/// Deletes the empty ones that were not there before; returns their names.
pub fn remove_empty(before: &BTreeSet<String>) -> Result<Vec<String>, NetlinkError> {
    let mut socket = Socket::open(NetlinkFamily::Netfilter).map_err(NetlinkError::Socket)?;
    let mut removed = Vec::new();
    for (number, family) in FAMILIES {
        let name = |table: &str| format!("{family} {table}");
        for table in NAMES.into_iter().filter(|table| !before.contains(&name(table))) {
            if !is_empty(&mut socket, number, table)? {
                continue;
            }
            let mut batch = Batch::new(number);
            batch.message(DELETE_TABLE, 0, |attributes| attributes.text(TABLE, table));
            socket.commit(batch)?;
            removed.push(name(table));
        }
    }
    Ok(removed)
}

/// Whether there is such a table, with nothing in it but chains that let everything pass.
fn is_empty(socket: &mut Socket, family: u8, table: &str) -> Result<bool, NetlinkError> {
    // Whether each of the parts of a kind is harmless.
    let mut parts = |kind| {
        dump(socket, kind, family, |part| {
            let is_open =
                attribute(part, HOOK).is_some() && attribute(part, POLICY) == Some(&ACCEPT);
            (table_of(part)? == table).then_some(is_open)
        })
    };
    Ok(!parts(GET_TABLE)?.is_empty()
        && parts(GET_RULE)?.is_empty()
        && parts(GET_SET)?.is_empty()
        && parts(GET_CHAIN)?.into_iter().all(|is_open| is_open))
}

/// What `read` makes of the attributes of each part of nftables of a kind.
fn dump<T>(
    socket: &mut Socket,
    kind: u8,
    family: u8,
    mut read: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Vec<T>, NetlinkError> {
    let kind = netfilter(NFTABLES, kind);
    let request = Request { kind, flags: DUMP, header: &[family, 0, 0, 0] };
    match socket.ask(&request, |_| {}, |part| read(part.attributes)) {
        // Without nf_tables, or this family of it, there are none.
        Err(NetlinkError::Declined(_)) => Ok(Vec::new()),
        answer => answer,
    }
}

fn table_of(part: &[u8]) -> Option<String> {
    attribute(part, TABLE).map(text_of)
}
