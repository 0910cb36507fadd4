//! The tables that iptables makes in nftables, and leaves there when their last rule has gone.
//!
//! An empty one does nothing, but whoever lists the rules of the machine finds it and wonders. Those
//! that were not there before us go with us, unless somebody else has begun to use them.

use std::collections::BTreeSet;

use crate::netlink::{
    Batch, DUMP, Message, NetlinkError, SUBSYSTEM_NFTABLES, Socket, attribute, request, text_of,
};

const NAMES: [&str; 5] = ["raw", "mangle", "nat", "filter", "security"];
/// By the kernel's number and the name that `nft` has for it.
const FAMILIES: [(u8, &str); 2] = [(2, "ip"), (10, "ip6")];

const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const GET_CHAIN: u16 = 4;
const GET_RULE: u16 = 7;
const GET_SET: u16 = 10;
/// The attribute that names the table, in messages about whatever.
const TABLE: u16 = 1;
const HOOK: u16 = 4;
const POLICY: u16 = 5;
const ACCEPT: [u8; 4] = 1_u32.to_be_bytes();

/// The tables of iptables that there are, such as `ip filter`.
pub fn present() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let Ok(mut socket) = Socket::open() else { return found };
    for (number, family) in FAMILIES {
        let tables = dump(&mut socket, GET_TABLE, number).unwrap_or_default();
        let names = tables.iter().map(table_of).filter(|name| NAMES.contains(&name.as_str()));
        found.extend(names.map(|name| format!("{family} {name}")));
    }
    found
}

/// Deletes the empty ones that were not there before; returns their names.
pub fn remove_empty(before: &BTreeSet<String>) -> Result<Vec<String>, NetlinkError> {
    let mut socket = Socket::open().map_err(NetlinkError::Socket)?;
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
    let mut parts = |kind| -> Result<Vec<Message>, NetlinkError> {
        let all = dump(socket, kind, family)?;
        Ok(all.into_iter().filter(|part| table_of(part) == table).collect())
    };
    let harmless = |chain: &Message| {
        attribute(&chain.body, HOOK).is_some() && attribute(&chain.body, POLICY) == Some(&ACCEPT)
    };
    Ok(!parts(GET_TABLE)?.is_empty()
        && parts(GET_RULE)?.is_empty()
        && parts(GET_SET)?.is_empty()
        && parts(GET_CHAIN)?.iter().all(harmless))
}

fn dump(socket: &mut Socket, kind: u16, family: u8) -> Result<Vec<Message>, NetlinkError> {
    match socket.ask(&request(SUBSYSTEM_NFTABLES, kind, DUMP, family, |_| {})) {
        // Without nf_tables, or this family of it, there are none.
        Err(NetlinkError::Refused { .. }) => Ok(Vec::new()),
        answer => answer,
    }
}

fn table_of(part: &Message) -> String {
    attribute(&part.body, TABLE).map(text_of).unwrap_or_default()
}
