//! What the kernel has of nftables right now.

use std::collections::{BTreeMap, HashMap};

use super::IN_TABLE;
use crate::attributes::{Attributes, attribute, attributes, text_of};
use crate::error::NetlinkError;
use crate::socket::{Request, Socket};
use crate::{DUMP, NFTABLES, netfilter};

const GET_CHAIN: u8 = 4;
const GET_RULE: u8 = 7;
const GET_SET: u8 = 10;
const GET_ELEMENTS: u8 = 13;
const GET_GENERATION: u8 = 16;

/// A table in the kernel, by its address family and its name.
#[derive(Clone, Copy, Debug)]
pub struct NamedTable {
    /// `AF_INET`, `AF_INET6`, or another that nftables has tables of.
    pub family: u8,
    /// As `nft list tables` has it.
    pub name: &'static str,
}

/// The number of the last change that anybody made to nftables.
pub fn generation(socket: &mut Socket) -> Result<u32, NetlinkError> {
    const ID: u16 = 1;
    let request = Request { kind: netfilter(NFTABLES, GET_GENERATION), flags: 0, header: &[0; 4] };
    let id = |bytes: &[u8]| attribute(bytes, ID)?.try_into().ok().map(u32::from_be_bytes);
    let answer = socket.ask(&request, |_| {}, |answer| id(answer.attributes))?;
    Ok(answer.first().copied().unwrap_or_default())
}

/// Every chain of a table with the notes of its rules.
pub fn chains(
    socket: &mut Socket,
    table: NamedTable,
) -> Result<BTreeMap<String, Vec<Vec<u8>>>, NetlinkError> {
    const NAME: u16 = 3;
    const CHAIN: u16 = 2;
    const USER_DATA: u16 = 7;
    let chains = dump(socket, (table, GET_CHAIN), &[], |chain| {
        Some((text_of(attribute(chain, NAME)?), Vec::new()))
    })?;
    let mut chains: BTreeMap<String, Vec<Vec<u8>>> = chains.into_iter().collect();
    if chains.is_empty() {
        return Ok(chains);
    }
    let rules = dump(socket, (table, GET_RULE), &[], |rule| {
        let note = attribute(rule, USER_DATA).unwrap_or_default();
        Some((text_of(attribute(rule, CHAIN)?), note.to_vec()))
    })?;
    for (chain, note) in rules {
        chains.entry(chain).or_default().push(note);
    }
    Ok(chains)
}

/// The names of the sets and maps of a table.
pub fn sets(socket: &mut Socket, table: NamedTable) -> Result<Vec<String>, NetlinkError> {
    const NAME: u16 = 2;
    dump(socket, (table, GET_SET), &[], |set| attribute(set, NAME).map(text_of))
}

/// What a set holds: keys, for ranges with their ends, and what is under each. Of a verdict, the name
/// of the chain.
pub fn elements(
    socket: &mut Socket,
    table: NamedTable,
    set: &str,
) -> Result<HashMap<Vec<u8>, Vec<u8>>, NetlinkError> {
    const SET: u16 = 2;
    const ELEMENTS: u16 = 3;
    const KEY: u16 = 1;
    const DATA: u16 = 2;
    const KEY_END: u16 = 10;
    const VALUE: u16 = 1;
    let mut found = HashMap::new();
    dump(socket, (table, GET_ELEMENTS), &[(SET, set)], |message| {
        for (_, item) in attribute(message, ELEMENTS).into_iter().flat_map(attributes) {
            let value = |kind| attribute(attribute(item, kind)?, VALUE);
            let mut key = value(KEY).unwrap_or_default().to_vec();
            key.extend(value(KEY_END).unwrap_or_default());
            let data = value(DATA).map(<[u8]>::to_vec);
            found.insert(key, data.or_else(|| verdict(item)).unwrap_or_default());
        }
        None::<()>
    })?;
    Ok(found)
}

/// The chain to which the verdict of an element leads.
fn verdict(item: &[u8]) -> Option<Vec<u8>> {
    const DATA: u16 = 2;
    const VERDICT: u16 = 2;
    const CHAIN: u16 = 2;
    let chain = attribute(attribute(attribute(item, DATA)?, VERDICT)?, CHAIN)?;
    Some(text_of(chain).into_bytes())
}

/// What `read` makes of the attributes of each object of a kind that is in the table.
fn dump<T>(
    socket: &mut Socket,
    (table, kind): (NamedTable, u8),
    within: &[(u16, &str)],
    mut read: impl FnMut(&[u8]) -> Option<T>,
) -> Result<Vec<T>, NetlinkError> {
    let header = [table.family, 0, 0, 0];
    let request = Request { kind: netfilter(NFTABLES, kind), flags: DUMP, header: &header };
    let fill = |message: &mut Attributes<'_>| {
        // Chains cannot be asked for by table.
        if kind != GET_CHAIN {
            message.text(IN_TABLE, table.name);
        }
        within.iter().for_each(|(attribute, name)| message.text(*attribute, name));
    };
    let in_table = |object: &[u8]| attribute(object, IN_TABLE).map(text_of);
    socket.ask(&request, fill, |answer| {
        let ours = in_table(answer.attributes).is_some_and(|name| name == table.name);
        ours.then(|| read(answer.attributes)).flatten()
    })
}
