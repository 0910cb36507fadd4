//! Rules of iptables as values: what they look at, and what they do.
//!
//! Both the iptables and the IPVS data plane write such rules. How a rule reads as text is
//! `print`'s business.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

use ipnet::IpNet;

use crate::service::{IpFamily, Protocol};

/// The kernel's tables, as far as we write to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableName {
    /// Holds nothing but a canary.
    Mangle,
    /// Address translation.
    Nat,
    /// What may pass.
    Filter,
}

impl TableName {
    /// All of them.
    pub const ALL: [TableName; 3] = [TableName::Mangle, TableName::Nat, TableName::Filter];
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TableName::Mangle => "mangle",
            TableName::Nat => "nat",
            TableName::Filter => "filter",
        })
    }
}

/// The name of a chain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainName(Arc<str>);

impl Deref for ChainName {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for ChainName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for ChainName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl std::borrow::Borrow<str> for ChainName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a match must hold or must not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// It must hold.
    Is,
    /// It must not hold.
    IsNot,
}

/// Which state of connection tracking a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackedState {
    /// The first packet of a connection.
    New,
    /// A packet that fits no connection.
    Invalid,
    /// A packet of a known connection, or one that belongs to it.
    Established,
}

/// Which part of a packet is looked up in an ipset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The source address.
    Source,
    /// The destination address or port.
    Destination,
}

/// One thing that a rule looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The source address.
    Source(IpNet, Sense),
    /// The destination address.
    Destination(IpNet, Sense),
    /// The link by which it came in: its name, or the beginning of it and `+`.
    Input(String, Sense),
    /// The protocol; `Port` and `Transport` need it, too.
    Protocol(Protocol),
    /// Matches always; for people.
    Comment(String),
    /// The destination port.
    Port(Protocol, u16),
    /// Loads the protocol's extension, as DNAT to a port needs it.
    Transport(Protocol),
    /// The source is an address of this node.
    SourceLocal,
    /// The destination is an address of this node.
    DestinationLocal,
    /// The state of the connection.
    State(TrackedState),
    /// A bit of the packet's mark.
    Marked(u32, Sense),
    /// One packet in so many.
    OneIn(u32),
    /// The client is on this list since at most so many seconds.
    SeenWithin(ChainName, u32),
    /// Puts the client on this list.
    Remember(ChainName),
    /// It goes through a virtual server of IPVS.
    Virtual(IpAddr, Protocol, u16),
    /// Neither of a known connection nor on its way through a Service.
    Uninvited,
    /// Matches always; the kernel counts the packet under this name.
    Count(&'static str),
    /// The fields are in an ipset.
    InSet(String, Vec<Field>, Sense),
}

/// What a rule does with the packets that match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Goes through another chain, and comes back if that does not decide.
    Jump(ChainName),
    /// Back to the calling chain.
    Return,
    /// Lets it pass.
    Accept,
    /// Makes it disappear.
    Drop,
    /// Refuses it, with a message to the sender.
    Reject,
    /// Sets a bit of the mark.
    Mark(u32),
    /// Flips a bit of the mark, which is known to be set.
    Unmark(u32),
    /// Gives it this node's address as its source.
    Masquerade,
    /// Sends it to another destination.
    Destination(SocketAddr),
    /// Nothing; the rule is there for people to read.
    Nothing,
}

/// A rule: when all matches hold, the verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// In the order of evaluation.
    pub matches: Vec<Match>,
    /// What then.
    pub verdict: Verdict,
}

impl Rule {
    /// A rule with these matches.
    pub fn new(matches: impl IntoIterator<Item = Match>, verdict: Verdict) -> Self {
        Self { matches: matches.into_iter().collect(), verdict }
    }
}

/// A jump from one of the kernel's own chains into ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The table of both chains.
    pub table: TableName,
    /// The kernel's chain.
    pub from: &'static str,
    /// The rule that is put in front of all others.
    pub rule: Rule,
}

/// The rules of our own chains.
pub type Chains = BTreeMap<(TableName, ChainName), Vec<Rule>>;

/// Everything that the kernel is to hold of ours, in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The address family.
    pub family: IpFamily,
    /// Our chains.
    pub chains: Chains,
    /// The jumps into them, in the order of their making: the last one comes first.
    pub hooks: Vec<Hook>,
}

impl Program {
    /// The chains of a table.
    pub(crate) fn chains_of(
        &self,
        table: TableName,
    ) -> impl Iterator<Item = (&ChainName, &Vec<Rule>)> {
        self.chains
            .iter()
            .filter(move |((of, _), _)| *of == table)
            .map(|((_, name), rules)| (name, rules))
    }
}
