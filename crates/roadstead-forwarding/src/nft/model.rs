//! Our subset of nftables, as values.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use super::names::{AffinitySet, ChainName, SetName};
use crate::service::{Frontend, Host, IpFamily, Protocol, ServicePortName};

/// The name of the table, in either family. It is kube-proxy's, so that only one of us is active.
pub const TABLE: &str = "kube-proxy";

/// Everything in the kernel's table: the complete desired (or present) state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// `table ip` or `table ip6`.
    pub family: IpFamily,
    /// The chains with their rules. The sets and maps are always the same: [`SetName::ALL`].
    pub chains: BTreeMap<ChainName, Chain>,
    /// What the sets and maps hold.
    pub elements: BTreeMap<Key, Value>,
    /// The sets in which rules note who uses a target. What they hold is the kernel's business.
    pub affinity: BTreeSet<AffinitySet>,
}

/// A change to a program. All of it happens, or nothing does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Affinity sets to create.
    pub add_sets: Vec<AffinitySet>,
    /// Chains to create.
    pub add_chains: Vec<(ChainName, Chain)>,
    /// Elements to delete, before any are added.
    pub delete: Vec<Key>,
    /// Elements to add.
    pub add: Vec<(Key, Value)>,
    /// Chains whose rules are replaced by these.
    pub rewrite: Vec<(ChainName, Vec<Rule>)>,
    /// Chains to delete; nothing refers to them any more.
    pub delete_chains: Vec<ChainName>,
    /// Affinity sets to delete.
    pub delete_sets: Vec<AffinitySet>,
}

impl Transaction {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations() == 0
    }

    /// Puts everything that is added into the order of its names, in which programs have it.
    pub fn sort(&mut self) {
        self.add_sets.sort_unstable();
        self.add_chains.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        self.add.sort_unstable_by_key(|(key, _)| *key);
    }

    /// How many operations the kernel has to carry out.
    pub fn operations(&self) -> usize {
        self.add_sets.len()
            + self.add_chains.len()
            + self.delete.len()
            + self.add.len()
            + self.rewrite.len()
            + self.delete_chains.len()
            + self.delete_sets.len()
    }
}

/// A list of rules, perhaps attached to a hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Set on base chains only.
    pub base: Option<Base>,
    /// In order.
    pub rules: Vec<Rule>,
}

/// Where and when a base chain runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// What the chain may do.
    pub kind: ChainKind,
    /// The place in a packet's path.
    pub hook: Hook,
    /// Lower runs earlier.
    pub priority: i32,
}

/// The two types of base chains we use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainKind {
    /// Sees every packet.
    Filter,
    /// Sees the first packet of each connection.
    Nat,
}

/// The places in a packet's path, with the numbers the kernel gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hook {
    /// Just arrived.
    Prerouting = 0,
    /// For this machine.
    Input = 1,
    /// For another machine.
    Forward = 2,
    /// Sent by this machine.
    Output = 3,
    /// About to leave.
    Postrouting = 4,
}

/// Statements, done in order until one does not match.
pub type Rule = Vec<Statement>;

/// One condition or action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// `ct state new`.
    IsNew,
    /// `ct status dnat`: we have forwarded it, or somebody else has.
    IsTranslated,
    /// `ip saddr network` or `ip saddr != network`.
    Source(Is, IpNet),
    /// `ip daddr network` or `ip daddr != network`.
    Destination(Is, IpNet),
    /// `iifname name` or `iifname != name`.
    Interface(Is, String),
    /// `iifname "name*"` or `iifname != "name*"`.
    InterfacePrefix(Is, String),
    /// `fib saddr type local`: one of the node's own addresses.
    SourceIsOurs,
    /// `fib daddr type local`.
    DestinationIsOurs,
    /// `meta l4proto tcp`.
    ProtocolIs(Protocol),
    /// `meta mark & bits != 0`.
    MarkSet(u32),
    /// `fields @set` or `fields != @set`.
    Member(&'static [Field], Is, SetName),
    /// `ip saddr @set`: the sender has used this target not long ago.
    Remembered(AffinitySet),
    /// `update @set { ip saddr }`: the sender uses this target now.
    Remember(AffinitySet),
    /// `numgen random mod N 0`: once in so many times.
    OnceIn(u32),
    /// `meta mark set meta mark | bits`.
    SetMark(u32),
    /// `meta mark set meta mark ^ bits`.
    FlipMark(u32),
    /// `meta priority set fields map @map`: remembers how the frontend is carried.
    ///
    /// A packet's priority is the one place where a value can be kept from one lookup to the next
    /// without disturbing anybody: marks belong to others, too. Nobody reads it before we clear it.
    RememberClass(&'static [Field], SetName),
    /// `meta priority vmap @map`: goes on by what was remembered.
    GotoByClass(SetName),
    /// `meta priority set none`: forgets it.
    ForgetClass,
    /// `fields vmap @map`: goes on by what the map says.
    GotoByFields(&'static [Field], SetName),
    /// `dnat to fields . numgen random mod N map @map`.
    DestinationFromSlot(&'static [Field], u32, SetName),
    /// `dnat to address:port`.
    DestinationTo(SocketAddr),
    /// `masquerade fully-random`.
    Masquerade,
    /// `reject`.
    Reject,
    /// `drop`.
    Drop,
    /// `accept`.
    Accept,
    /// `return`.
    Return,
    /// `jump chain`.
    Jump(ChainName),
    /// `goto chain`: jumps and does not come back.
    Goto(ChainName),
}

/// Whether a condition is turned around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// It holds.
    In,
    /// It does not hold.
    NotIn,
}

/// What a rule can read from a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `ip saddr`.
    Source,
    /// `ip daddr`.
    Destination,
    /// `meta l4proto`.
    Protocol,
    /// `th dport`.
    Port,
}

/// The key of a frontend with an address of its own.
pub(crate) const ADDRESS_KEY: &[Field] = &[Field::Destination, Field::Protocol, Field::Port];
/// The key of a node port.
pub(crate) const NODE_PORT_KEY: &[Field] = &[Field::Protocol, Field::Port];

/// How connections to a frontend go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// Which way.
    pub way: Way,
    /// To how many targets.
    pub count: u32,
}

/// The ways to a target; the numbers tell them apart in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Way {
    /// Straight to a target.
    Plain = 1,
    /// Masqueraded to a target: external traffic under policy Cluster.
    External = 2,
    /// Pods and the node go to any target, everybody else to a local one.
    Shortcut = 3,
    /// Straight to a local target.
    Local = 4,
    /// `External`, for a node port.
    NodePortExternal = 5,
    /// `Shortcut`, for a node port.
    NodePortShortcut = 6,
    /// `Local`, for a node port.
    NodePortLocal = 7,
}

impl Class {
    /// As the kernel keeps it. nft cannot read back a priority below 1:0.
    pub fn number(self) -> u32 {
        (u32::from(self.way as u8) << 16) | self.count
    }
}

/// The key of an element, which says which set it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// In `cluster-ips`.
    ClusterIp(IpAddr),
    /// In `nodeport-ips`.
    NodePortIp(IpAddr),
    /// In `frontend-ips`.
    FrontendIp(IpAddr),
    /// In `nodeports-in-use`.
    NodePort(Protocol, u16),
    /// In `hairpin-connections`: from this endpoint to itself.
    Hairpin(IpAddr, Protocol, u16),
    /// In `service-ips` or `service-nodeports`.
    Service(Frontend),
    /// In `local-service-ips` or `local-service-nodeports`.
    LocalService(Frontend),
    /// In `affinity-services` or `affinity-nodeports`.
    Affinity(Frontend),
    /// In `picks` or `local-picks`.
    Pick(Class),
    /// In `no-endpoint-services` or `no-endpoint-nodeports`.
    NoEndpoint(Frontend),
    /// In `no-local-endpoint-services` or `no-local-endpoint-nodeports`.
    NoLocalEndpoint(Frontend),
    /// In `firewall-ips`.
    Firewalled(Frontend),
    /// In `firewall-allowed`: who may call a frontend.
    Allowed(Frontend, IpNet),
    /// In `endpoints` or `nodeport-endpoints`: a slot of a frontend.
    Endpoint(Frontend, u32),
    /// In `local-endpoints` or `local-nodeport-endpoints`.
    LocalEndpoint(Frontend, u32),
}

/// One field of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyField {
    /// An address.
    Address(IpAddr),
    /// All addresses of a network.
    Network(IpNet),
    /// A protocol.
    Protocol(Protocol),
    /// A port.
    Port(u16),
    /// A slot.
    Mark(u32),
    /// How a frontend is carried.
    Class(Class),
}

impl Key {
    /// The set or map it is in.
    pub fn set(&self) -> SetName {
        let by_host = |f: &Frontend, address, node| match f.host {
            Host::Address(_) => address,
            Host::Node => node,
        };
        use SetName as S;
        match self {
            Key::ClusterIp(_) => S::ClusterIps,
            Key::NodePortIp(_) => S::NodePortIps,
            Key::FrontendIp(_) => S::FrontendIps,
            Key::NodePort(..) => S::NodePortsInUse,
            Key::Hairpin(..) => S::HairpinConnections,
            Key::Service(f) => by_host(f, S::ServiceIps, S::ServiceNodePorts),
            Key::LocalService(f) => by_host(f, S::LocalServiceIps, S::LocalServiceNodePorts),
            Key::Affinity(f) => by_host(f, S::AffinityServices, S::AffinityNodePorts),
            Key::Pick(Class { way: Way::Local | Way::NodePortLocal, .. }) => S::LocalPicks,
            Key::Pick(_) => S::Picks,
            Key::NoEndpoint(f) => by_host(f, S::NoEndpointServices, S::NoEndpointNodePorts),
            Key::NoLocalEndpoint(f) => {
                by_host(f, S::NoLocalEndpointServices, S::NoLocalEndpointNodePorts)
            }
            Key::Firewalled(_) => S::FirewallIps,
            Key::Allowed(..) => S::FirewallAllowed,
            Key::Endpoint(f, _) => by_host(f, S::Endpoints, S::NodePortEndpoints),
            Key::LocalEndpoint(f, _) => by_host(f, S::LocalEndpoints, S::LocalNodePortEndpoints),
        }
    }

    /// The same frontend's key for another slot.
    pub(crate) fn at_slot(self, slot: u32) -> Self {
        match self {
            Key::Endpoint(frontend, _) => Key::Endpoint(frontend, slot),
            Key::LocalEndpoint(frontend, _) => Key::LocalEndpoint(frontend, slot),
            other => other,
        }
    }

    /// Its fields, of the types that the set declares.
    pub fn fields(&self) -> impl Iterator<Item = KeyField> {
        use KeyField::{Address, Mark, Network, Port, Protocol};
        let of = |f: &Frontend, last: Option<KeyField>| {
            let address = match f.host {
                Host::Address(address) => Some(Address(address)),
                Host::Node => None,
            };
            [address, Some(Protocol(f.protocol)), Some(Port(f.port)), last]
        };
        let fields = match self {
            Key::ClusterIp(address) | Key::NodePortIp(address) | Key::FrontendIp(address) => {
                [Some(Address(*address)), None, None, None]
            }
            Key::NodePort(protocol, port) => {
                [Some(Protocol(*protocol)), Some(Port(*port)), None, None]
            }
            Key::Hairpin(address, protocol, port) => [
                Some(Address(*address)),
                Some(Address(*address)),
                Some(Protocol(*protocol)),
                Some(Port(*port)),
            ],
            Key::Pick(class) => [Some(KeyField::Class(*class)), None, None, None],
            Key::Service(f)
            | Key::LocalService(f)
            | Key::Affinity(f)
            | Key::NoEndpoint(f)
            | Key::NoLocalEndpoint(f)
            | Key::Firewalled(f) => of(f, None),
            Key::Allowed(f, network) => of(f, Some(Network(*network))),
            Key::Endpoint(f, slot) | Key::LocalEndpoint(f, slot) => of(f, Some(Mark(*slot))),
        };
        fields.into_iter().flatten()
    }
}

/// What an element holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Being there is all.
    Member,
    /// A frontend of this service, which `nft list` shows as a comment.
    Named(Arc<ServicePortName>),
    /// How a frontend of this service is carried.
    Class(Class, Arc<ServicePortName>),
    /// Go on in that chain, and do not come back.
    Goto(ChainName),
    /// Where a slot leads.
    Target(SocketAddr),
}
