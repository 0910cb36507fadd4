//! What the kernel's table holds right now.
//!
//! A restarted proxy takes over what it finds, and one that is told of a foreign change looks what
//! is left. Elements are compared as bytes; rules by the signature that we gave them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use roadstead_forwarding::nft::model::{Class, Key, Program, TABLE, Transaction, Value, Way};
use roadstead_forwarding::nft::names::SetName;
use roadstead_forwarding::service::IpFamily;
use roadstead_netlink::error::NetlinkError;
use roadstead_netlink::nftables::readback::{self, NamedTable};
use roadstead_netlink::socket::Socket;

use super::encode::{data_bytes, key_bytes, signature};

/// A table as it was found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Every chain with the signatures of its rules.
    chains: BTreeMap<String, Vec<Vec<u8>>>,
    sets: BTreeSet<String>,
    /// By set and key.
    elements: HashMap<(SetName, Vec<u8>), Vec<u8>>,
}

/// Reads our table; `None` if there is none.
pub(super) fn read(socket: &mut Socket, family: IpFamily) -> Result<Option<Found>, NetlinkError> {
    let table = NamedTable { family: family.number(), name: TABLE };
    let chains = readback::chains(socket, table)?;
    if chains.is_empty() {
        return Ok(None);
    }
    let sets: BTreeSet<_> = readback::sets(socket, table)?.into_iter().collect();
    let mut elements = HashMap::new();
    for set in SetName::ALL.into_iter().filter(|set| sets.contains(set.name())) {
        let found = readback::elements(socket, table, set.name())?;
        elements.extend(found.into_iter().map(|(key, data)| ((set, key), data)));
    }
    Ok(Some(Found { chains, sets, elements }))
}

impl Found {
    /// The classes that have chains.
    pub(super) fn classes(&self) -> impl Iterator<Item = Class> + '_ {
        let picks = [SetName::Picks, SetName::LocalPicks];
        let keys = self.elements.keys().filter(move |(set, _)| picks.contains(set));
        keys.filter_map(|(_, key)| class(u32::from_ne_bytes(key.get(..4)?.try_into().ok()?)))
    }

    /// The targets that it has in the slots of a program.
    pub(super) fn slots(&self, program: &Program) -> BTreeMap<Key, Value> {
        let slots = program.elements.iter().filter(|(_, v)| matches!(v, Value::Target(_)));
        let found = slots.filter_map(|(key, _)| {
            let data = self.elements.get(&(key.set(), bytes_of(key)))?;
            Some((*key, Value::Target(target(data, program.family)?)))
        });
        found.collect()
    }

    /// Whether it has the chains and sets of a program, whatever the elements.
    pub(super) fn has_structure(&self, program: &Program) -> bool {
        let chains = program.chains.iter().map(|(name, chain)| {
            let rules = chain.rules.iter();
            (name.to_string(), rules.map(|rule| signature(program.family, rule).to_vec()).collect())
        });
        let fixed = SetName::ALL.iter().map(|set| set.name().to_owned());
        let sets = fixed.chain(program.affinity.iter().map(ToString::to_string));
        self.chains == chains.collect() && self.sets == sets.collect()
    }

    /// The chains and sets of a program that it lacks; `None` if it has any that the program does not
    /// know like this, or lacks what packets come in by.
    pub(super) fn lacks(&self, program: &Program) -> Option<Transaction> {
        let (mut add_chains, mut known) = (Vec::new(), 0);
        for (name, chain) in &program.chains {
            let rules = chain.rules.iter().map(|rule| signature(program.family, rule).to_vec());
            match self.chains.get(&name.to_string()) {
                Some(found) if rules.eq(found.iter().cloned()) => known += 1,
                None if chain.base.is_none() => add_chains.push((name.clone(), chain.clone())),
                _ => return None,
            }
        }
        let (there, add_sets): (Vec<_>, Vec<_>) =
            program.affinity.iter().cloned().partition(|set| self.sets.contains(&set.to_string()));
        let fixed = SetName::ALL.iter().all(|set| self.sets.contains(set.name()));
        let all_known = known == self.chains.len()
            && fixed
            && there.len() + SetName::ALL.len() == self.sets.len();
        all_known.then(|| Transaction { add_chains, add_sets, ..Transaction::default() })
    }

    /// What must be done to have the elements of a program, and which keys to delete of those
    /// that it does not know.
    pub(super) fn missing(&self, program: &Program) -> (Transaction, Vec<(SetName, Vec<u8>)>) {
        let mut transaction = Transaction::default();
        let mut known: HashMap<(SetName, Vec<u8>), ()> = HashMap::new();
        for (key, value) in &program.elements {
            let place = (key.set(), bytes_of(key));
            match self.elements.get(&place) {
                Some(data) if *data == data_bytes(value) => {}
                Some(_) => {
                    transaction.delete.push(*key);
                    transaction.add.push((*key, value.clone()));
                }
                None => transaction.add.push((*key, value.clone())),
            }
            known.insert(place, ());
        }
        let foreign = self.elements.keys().filter(|place| !known.contains_key(*place));
        (transaction, foreign.cloned().collect())
    }
}

/// A key with the end of its range, as we keep them here.
fn bytes_of(key: &Key) -> Vec<u8> {
    let (first, last) = key_bytes(key);
    let mut bytes = first.as_slice().to_vec();
    if key.set().has_ranges() {
        bytes.extend(last.as_slice());
    }
    bytes
}

fn class(number: u32) -> Option<Class> {
    let ways = [
        Way::Plain,
        Way::External,
        Way::Shortcut,
        Way::Local,
        Way::NodePortExternal,
        Way::NodePortShortcut,
        Way::NodePortLocal,
    ];
    let way = ways.into_iter().find(|way| u32::from(*way as u8) == number >> 16)?;
    Some(Class { way, count: number & 0xffff })
}

fn target(data: &[u8], family: IpFamily) -> Option<SocketAddr> {
    let (address, rest): (IpAddr, _) = match family {
        IpFamily::V4 => (<[u8; 4]>::try_from(data.get(..4)?).ok()?.into(), &data[4..]),
        IpFamily::V6 => {
            (Ipv6Addr::from(<[u8; 16]>::try_from(data.get(..16)?).ok()?).into(), &data[16..])
        }
    };
    Some((address, u16::from_be_bytes(rest.get(..2)?.try_into().ok()?)).into())
}
