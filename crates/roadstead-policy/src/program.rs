//! The program of nftables that policies become, as values.
//!
//! There is one table per address family; both have the same chains and sets, each with the addresses
//! of its own family. What packets pass is two base chains, one for what the clients' policies say and
//! one for the servers'. Rules look at the connection that a packet belongs to and not at the packet,
//! so that whoever answers is judged like whoever asked, and nobody by what was allowed before
//! (`docs/adr/0120-policies-judge-connections.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use roadstead_api::key::ObjectKey;
use roadstead_forwarding::nft::names::bounded;
use roadstead_forwarding::service::{IpFamily, Protocol};

use crate::policy::Direction;

/// The name of our table, in either family.
pub const TABLE: &str = "roadstead-policy";
/// The name of [`PolicySet::Known`].
pub const KNOWN: &str = "known";

/// Everything in the kernel's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyProgram {
    /// The sets and maps.
    pub sets: BTreeSet<PolicySet>,
    /// The chains with their rules.
    pub chains: BTreeMap<PolicyChain, Vec<ChainRule>>,
    /// What the sets and maps hold.
    pub elements: BTreeMap<ElementKey, ElementValue>,
}

/// A set or a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicySet {
    /// `own`: pods under policies, each with itself.
    Own,
    /// `known`: the pods of this node, each with its mark: what policies say of them is in these tables
    /// (`docs/adr/0195-pods-start-when-policies-know-them.md`).
    Known,
    /// `ingress-pods`, `egress-pods`: pods of this node to the chain of their profile.
    Subjects(Direction),
    /// `group-N`: the addresses of a group of pods.
    Group(u32),
    /// `named-N`: the addresses of pods with their port of some name.
    Named(u32),
}

/// A list of rules.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyChain {
    /// Where packets come in.
    Base(Direction),
    /// What the pods under the same policies have in common: those policies.
    Profile(Direction, u32),
    /// What one policy allows.
    Policy(Direction, Arc<ObjectKey>),
    /// The peers of one rule, where it has several ports.
    Rule(Direction, Arc<ObjectKey>, usize),
    /// A network with exceptions: a peer of a rule.
    Block(Direction, Arc<ObjectKey>, usize, usize),
}

/// Conditions, and a verdict at the end.
pub type ChainRule = Vec<Step>;

/// One condition or verdict of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The kernel does not know which connection the packet belongs to.
    Untracked,
    /// Client and server are the same.
    Itself,
    /// Goes on where the profile of the pod leads, which is the packet's sender or receiver itself: for
    /// packets of no connection.
    PacketProfile(Direction),
    /// Goes on where the profile of the pod leads, which is the connection's client or server.
    Profile(Direction),
    /// The pod on the other side is of that group.
    PeerInGroup(Direction, u32),
    /// The other side is in that network.
    PeerInNetwork(Direction, IpNet),
    /// The connection's protocol.
    Protocol(Protocol),
    /// The server's port is one of these.
    Ports(u16, u16),
    /// The server has a name for its port: one of that set.
    NamedPort(u32),
    /// It may pass.
    Accept,
    /// It is thrown away.
    Drop,
    /// Not here.
    Return,
    /// There, and back if nothing was said.
    Jump(PolicyChain),
}

/// An element: its set, and its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ElementKey {
    /// The set.
    pub set: PolicySet,
    /// The key.
    pub key: SetKey,
}

/// What keys are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetKey {
    /// An address; in [`PolicySet::Own`], twice.
    Address(IpAddr),
    /// An address and a port.
    Port(IpAddr, u16),
}

/// What is under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementValue {
    /// Nothing: it is in the set.
    Member,
    /// The chain of a profile.
    Goto(Direction, u32),
    /// The mark of a pod.
    Mark(u32),
}

/// A change to a program. All of it happens, or nothing does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyTransaction {
    /// Sets to create.
    pub add_sets: Vec<PolicySet>,
    /// Chains to create.
    pub add_chains: Vec<PolicyChain>,
    /// Elements to delete, before any are added.
    pub delete: Vec<ElementKey>,
    /// Elements to add.
    pub add: Vec<(ElementKey, ElementValue)>,
    /// All rules of chains that are new or changed.
    pub write: Vec<(PolicyChain, Vec<ChainRule>)>,
    /// Chains to delete; nothing leads to them any more.
    pub delete_chains: Vec<PolicyChain>,
    /// Sets to delete; nothing reads them any more.
    pub delete_sets: Vec<PolicySet>,
}

impl Default for PolicyProgram {
    /// No policy: everything passes.
    fn default() -> Self {
        let base = |direction| (PolicyChain::Base(direction), base_rules(direction));
        Self {
            sets: Direction::ALL
                .map(PolicySet::Subjects)
                .into_iter()
                .chain([PolicySet::Own, PolicySet::Known])
                .collect(),
            chains: Direction::ALL.into_iter().map(base).collect(),
            elements: BTreeMap::new(),
        }
    }
}

fn base_rules(direction: Direction) -> Vec<ChainRule> {
    vec![
        vec![Step::Untracked, Step::PacketProfile(direction)],
        vec![Step::Itself, Step::Accept],
        vec![Step::Profile(direction)],
    ]
}

impl PolicyProgram {
    /// The transaction that makes it where there is an empty table.
    pub fn whole(&self) -> PolicyTransaction {
        PolicyTransaction {
            add_sets: self.sets.iter().copied().collect(),
            add_chains: self.chains.keys().cloned().collect(),
            add: self.elements.iter().map(|(key, value)| (*key, *value)).collect(),
            write: self.chains.iter().map(|(name, rules)| (name.clone(), rules.clone())).collect(),
            ..PolicyTransaction::default()
        }
    }
}

impl PolicyTransaction {
    /// How many operations the kernel has to carry out.
    pub fn operations(&self) -> usize {
        let rules = self.write.iter().map(|(_, rules)| rules.len() + 1).sum::<usize>();
        self.add_sets.len()
            + self.add_chains.len()
            + self.delete.len()
            + self.add.len()
            + rules
            + self.delete_chains.len()
            + self.delete_sets.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations() == 0
    }

    /// What of it concerns the table of a family.
    pub fn of_family(&self, family: IpFamily) -> Self {
        let rules = |rules: &[ChainRule]| {
            rules.iter().filter(|rule| is_of(rule, family)).cloned().collect()
        };
        Self {
            delete: self.delete.iter().filter(|key| key.is_of(family)).copied().collect(),
            add: self.add.iter().filter(|(key, _)| key.is_of(family)).copied().collect(),
            write: self.write.iter().map(|(name, own)| (name.clone(), rules(own))).collect(),
            ..self.clone()
        }
    }
}

/// Whether a rule can match anything in a family.
pub fn is_of(rule: &ChainRule, family: IpFamily) -> bool {
    rule.iter().all(|step| match step {
        Step::PeerInNetwork(_, network) => IpFamily::of(network.addr()) == family,
        _ => true,
    })
}

impl ElementKey {
    /// Whether it is in the table of that family.
    pub fn is_of(&self, family: IpFamily) -> bool {
        match self.key {
            SetKey::Address(address) | SetKey::Port(address, _) => IpFamily::of(address) == family,
        }
    }
}

impl fmt::Display for PolicySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PolicySet::Own => f.write_str("own"),
            PolicySet::Known => f.write_str(KNOWN),
            PolicySet::Subjects(direction) => write!(f, "{}-pods", direction.name()),
            PolicySet::Group(number) => write!(f, "group-{number}"),
            PolicySet::Named(number) => write!(f, "named-{number}"),
        }
    }
}

impl fmt::Display for PolicyChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            PolicyChain::Base(direction) => direction.name().to_owned(),
            PolicyChain::Profile(direction, number) => {
                format!("{}-profile-{number}", direction.name())
            }
            PolicyChain::Policy(direction, key) => format!("{}-{key}", direction.name()),
            PolicyChain::Rule(direction, key, rule) => {
                format!("{}-{key}/{rule}", direction.name())
            }
            PolicyChain::Block(direction, key, rule, peer) => {
                format!("{}-{key}/{rule}/{peer}", direction.name())
            }
        };
        f.write_str(&bounded(name))
    }
}

/// A rule in the words of nft, for those who read, and to know it again.
pub fn rule_text(family: IpFamily, rule: &ChainRule) -> String {
    let ip = match family {
        IpFamily::V4 => "ip",
        IpFamily::V6 => "ip6",
    };
    rule.iter().map(|step| step_text(ip, step)).collect::<Vec<_>>().join(" ")
}

fn step_text(ip: &str, step: &Step) -> String {
    let subject = |direction: &Direction| match direction {
        Direction::Ingress => format!("ct reply {ip} saddr"),
        Direction::Egress => format!("ct original {ip} saddr"),
    };
    let peer = |direction: &Direction| match direction {
        Direction::Ingress => subject(&Direction::Egress),
        Direction::Egress => subject(&Direction::Ingress),
    };
    let profile = |direction: &Direction| format!("vmap @{}", PolicySet::Subjects(*direction));
    match step {
        Step::Untracked => "ct state invalid,untracked".into(),
        Step::Itself => format!("ct original {ip} saddr . ct reply {ip} saddr @{}", PolicySet::Own),
        Step::PacketProfile(Direction::Ingress) => {
            format!("{ip} daddr {}", profile(&Direction::Ingress))
        }
        Step::PacketProfile(Direction::Egress) => {
            format!("{ip} saddr {}", profile(&Direction::Egress))
        }
        Step::Profile(direction) => format!("{} {}", subject(direction), profile(direction)),
        Step::PeerInGroup(direction, number) => {
            format!("{} @{}", peer(direction), PolicySet::Group(*number))
        }
        Step::PeerInNetwork(direction, network) => format!("{} {network}", peer(direction)),
        Step::Protocol(protocol) => format!("ct protocol {protocol}"),
        Step::Ports(first, last) => format!("ct reply proto-src {first}-{last}"),
        Step::NamedPort(number) => {
            format!("ct reply {ip} saddr . ct reply proto-src @{}", PolicySet::Named(*number))
        }
        Step::Accept => "accept".into(),
        Step::Drop => "drop".into(),
        Step::Return => "return".into(),
        Step::Jump(chain) => format!("jump {chain}"),
    }
}
