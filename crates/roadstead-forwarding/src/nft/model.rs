//! Our subset of nftables, as values.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use crate::service::{IpFamily, Protocol, ServicePortName};

/// The name of the table, in either family. It is kube-proxy's, so that only one of us is active.
pub const TABLE: &str = "kube-proxy";

/// A frontend with an address of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vip {
    /// The virtual address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The Service port.
    pub port: u16,
}

/// Everything in the kernel's table: the complete desired (or present) state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// `table ip` or `table ip6`.
    pub family: IpFamily,
    /// The chains with their rules. The sets and maps are always the same: [`SetName::ALL`].
    pub chains: BTreeMap<ChainName, Chain>,
    /// What the sets and maps hold.
    pub elements: BTreeMap<Key, Value>,
}

/// A change to a program. All of it happens, or nothing does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Chains to create, by their number of slots, with their elements in `picks`. They are never
    /// deleted one by one: an unused one is harmless, and old kernels release references too late
    /// to delete one safely.
    pub add_picks: Vec<u32>,
    /// Elements to delete, before any are added.
    pub delete: Vec<Key>,
    /// Elements to add.
    pub add: Vec<(Key, Value)>,
}

impl Transaction {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.operations() == 0
    }

    /// How many operations the kernel has to carry out.
    pub fn operations(&self) -> usize {
        self.add_picks.len() + self.delete.len() + self.add.len()
    }
}

/// The names of our chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChainName {
    /// One of the fixed chains.
    Fixed(&'static str),
    /// `pick-N`: forwards to one of N slots.
    Pick(u32),
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChainName::Fixed(name) => f.write_str(name),
            ChainName::Pick(count) => write!(f, "pick-{count}"),
        }
    }
}

/// A list of rules, perhaps attached to a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// `ip saddr != network`.
    SourceOutside(IpNet),
    /// `meta mark & bits == 0`.
    MarkClear(u32),
    /// `fields @set`.
    Member(&'static [Field], SetName),
    /// `meta mark set meta mark | bits`.
    SetMark(u32),
    /// `meta mark set meta mark ^ bits`.
    FlipMark(u32),
    /// `meta priority set fields map @map`: remembers how many slots the frontend has.
    ///
    /// A packet's priority is the one place where a value can be kept from one lookup to the next
    /// without disturbing anybody: marks belong to others, too. Nobody reads it before we clear it.
    RememberCount(&'static [Field], SetName),
    /// `meta priority vmap @map`: goes on by what was remembered.
    GotoByCount(SetName),
    /// `meta priority set none`: forgets it.
    ForgetCount,
    /// `dnat to ip daddr . meta l4proto . th dport . numgen random mod N map @map`.
    DestinationFromSlot(u32, SetName),
    /// `masquerade fully-random`.
    Masquerade,
    /// `reject`.
    Reject,
    /// `drop`.
    Drop,
    /// `return`.
    Return,
    /// `jump chain`.
    Jump(ChainName),
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

/// The key of a frontend.
pub const FRONTEND: &[Field] = &[Field::Destination, Field::Protocol, Field::Port];

/// Our sets and maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// All ClusterIPs.
    ClusterIps,
    /// Endpoints of this node calling themselves.
    HairpinConnections,
    /// Frontend to its number of slots. A verdict for each would make the kernel check all of
    /// them whenever one is added, to see that no chains lead in a circle.
    ServiceIps,
    /// Number of slots to `pick-N`.
    Picks,
    /// Frontends without any endpoint.
    NoEndpointServices,
    /// Frontends without an endpoint that policy lets us use from here.
    NoLocalEndpointServices,
    /// Frontend and slot to target.
    Endpoints,
}

impl SetName {
    /// All of them, in the order of creation.
    pub const ALL: [SetName; 7] = [
        SetName::ClusterIps,
        SetName::HairpinConnections,
        SetName::ServiceIps,
        SetName::Picks,
        SetName::NoEndpointServices,
        SetName::NoLocalEndpointServices,
        SetName::Endpoints,
    ];

    /// The name in the kernel.
    pub fn name(self) -> &'static str {
        match self {
            SetName::ClusterIps => "cluster-ips",
            SetName::HairpinConnections => "hairpin-connections",
            SetName::ServiceIps => "service-ips",
            SetName::Picks => "picks",
            SetName::NoEndpointServices => "no-endpoint-services",
            SetName::NoLocalEndpointServices => "no-local-endpoint-services",
            SetName::Endpoints => "endpoints",
        }
    }

    /// The types that its keys are made of.
    pub fn key_types(self) -> &'static [Type] {
        match self {
            SetName::ClusterIps => &[Type::Address],
            SetName::HairpinConnections => {
                &[Type::Address, Type::Address, Type::Protocol, Type::Port]
            }
            SetName::ServiceIps
            | SetName::NoEndpointServices
            | SetName::NoLocalEndpointServices => &[Type::Address, Type::Protocol, Type::Port],
            SetName::Picks => &[Type::Count],
            SetName::Endpoints => &[Type::Address, Type::Protocol, Type::Port, Type::Mark],
        }
    }

    /// What its keys map to.
    pub fn data(self) -> Data {
        match self {
            SetName::ClusterIps
            | SetName::HairpinConnections
            | SetName::NoEndpointServices
            | SetName::NoLocalEndpointServices => Data::Nothing,
            SetName::ServiceIps => Data::Count,
            SetName::Picks => Data::Verdict,
            SetName::Endpoints => Data::Target,
        }
    }
}

/// The types of key fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `ipv4_addr` or `ipv6_addr`.
    Address,
    /// `inet_proto`.
    Protocol,
    /// `inet_service`.
    Port,
    /// `mark`; we use it for slots, as the only plain 32-bit number that a set can be declared of.
    Mark,
    /// `classid`, the type of priorities.
    Count,
}

/// What a set or map holds under each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// It is a set.
    Nothing,
    /// It is a map to a number of slots.
    Count,
    /// It is a verdict map.
    Verdict,
    /// It is a map to `ipv4_addr . inet_service`.
    Target,
}

/// The key of an element, which says which set it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// In `cluster-ips`.
    ClusterIp(IpAddr),
    /// In `hairpin-connections`: from this endpoint to itself.
    Hairpin(IpAddr, Protocol, u16),
    /// In `service-ips`.
    Service(Vip),
    /// In `picks`.
    Pick(u32),
    /// In `no-endpoint-services`.
    NoEndpoint(Vip),
    /// In `no-local-endpoint-services`.
    NoLocalEndpoint(Vip),
    /// In `endpoints`: a slot of a frontend.
    Endpoint(Vip, u32),
}

/// One field of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyField {
    /// An address.
    Address(IpAddr),
    /// A protocol.
    Protocol(Protocol),
    /// A port.
    Port(u16),
    /// A slot.
    Mark(u32),
    /// A number of slots.
    Count(u32),
}

impl Key {
    /// The set or map it is in.
    pub fn set(&self) -> SetName {
        match self {
            Key::ClusterIp(_) => SetName::ClusterIps,
            Key::Hairpin(..) => SetName::HairpinConnections,
            Key::Service(_) => SetName::ServiceIps,
            Key::Pick(_) => SetName::Picks,
            Key::NoEndpoint(_) => SetName::NoEndpointServices,
            Key::NoLocalEndpoint(_) => SetName::NoLocalEndpointServices,
            Key::Endpoint(..) => SetName::Endpoints,
        }
    }

    /// Its fields, of the types that the set declares.
    pub fn fields(&self) -> impl Iterator<Item = KeyField> {
        use KeyField::{Address, Count, Mark, Port, Protocol};
        let frontend =
            |f: &Vip| [Some(Address(f.address)), Some(Protocol(f.protocol)), Some(Port(f.port))];
        let fields = match self {
            Key::ClusterIp(address) => [Some(Address(*address)), None, None, None],
            Key::Hairpin(address, protocol, port) => [
                Some(Address(*address)),
                Some(Address(*address)),
                Some(Protocol(*protocol)),
                Some(Port(*port)),
            ],
            Key::Pick(count) => [Some(Count(*count)), None, None, None],
            Key::Service(f) | Key::NoEndpoint(f) | Key::NoLocalEndpoint(f) => {
                let [address, protocol, port] = frontend(f);
                [address, protocol, port, None]
            }
            Key::Endpoint(f, slot) => {
                let [address, protocol, port] = frontend(f);
                [address, protocol, port, Some(Mark(*slot))]
            }
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
    Unserved(Arc<ServicePortName>),
    /// How many slots a frontend of this service has.
    Slots(u32, Arc<ServicePortName>),
    /// Go on in that chain, and do not come back.
    Goto(ChainName),
    /// Where a slot leads.
    Target(SocketAddr),
}
