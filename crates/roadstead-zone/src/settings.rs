//! What the operator chooses about a zone.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::name::Name;

/// How long clients may remember answers, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetimes {
    /// Of ClusterIPs, which hardly ever change.
    pub cluster_ip: u32,
    /// Of endpoints, which come and go.
    pub endpoint: u32,
    /// Of names that do not exist.
    pub negative: u32,
    /// Of names that do not exist yet, below a Service that does.
    pub negative_below_service: u32,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self { cluster_ip: 30, endpoint: 5, negative: 5, negative_below_service: 1 }
    }
}

/// What `10-1-2-3.namespace.pod` means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodNames {
    /// Nothing: there are no such names.
    Disabled,
    /// That address, whether there is such a pod or not.
    #[default]
    Insecure,
    /// That address, if a pod in that namespace has it.
    Verified,
}

/// What becomes of questions about addresses that nobody in the cluster has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reverse {
    /// No address has a name here.
    NotServed,
    /// Others may know.
    #[default]
    FallThrough,
    /// Such an address has no name.
    Authoritative,
}

/// Which namespaces there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Namespaces {
    /// All that were seen or that have a Service.
    #[default]
    All,
    /// Only these.
    Listed(BTreeSet<String>),
    /// Only those that were seen: somebody else has selected them.
    Seen,
}

/// A zone beside the cluster's, for outsiders: the addresses by which they reach Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The zone's name.
    pub origin: Name,
    /// How long clients may remember answers, in seconds.
    pub lifetime: u32,
    /// Whether a headless Service stands for its endpoints there.
    pub headless: bool,
}

/// What the operator chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSettings {
    /// The zone's name.
    pub origin: Name,
    /// How long clients may remember answers.
    pub lifetimes: Lifetimes,
    /// Where clients find this server, for the zone's NS record.
    pub servers: Vec<IpAddr>,
    /// The machine's own addresses: if nobody says where clients find this server, it is by the
    /// Service that has one of them as an endpoint.
    pub local: Vec<IpAddr>,
    /// What pod names mean.
    pub pods: PodNames,
    /// What becomes of unknown addresses.
    pub reverse: Reverse,
    /// Below which names addresses are ours; all if there are none.
    pub reverse_zones: Vec<Name>,
    /// Which namespaces exist.
    pub namespaces: Namespaces,
    /// Whether an endpoint without a host name is called like its pod.
    pub endpoint_pod_names: bool,
    /// Whether `zone.pin._zone.service` and `zone.prefer._zone.service` are the endpoints of a
    /// headless Service that run in a zone. It takes memory for them a second time.
    pub zonal: bool,
    /// The zone for outsiders.
    pub outside: Option<Outside>,
    /// Whether a Service without ready endpoints does not exist.
    pub ignore_empty_services: bool,
    /// Whether to answer as CoreDNS does where that differs from the RFCs.
    pub coredns_compat: bool,
}

impl ZoneSettings {
    /// The usual settings for a zone.
    pub fn new(origin: &Name) -> Self {
        Self {
            origin: origin.to_lowercase(),
            lifetimes: Lifetimes::default(),
            servers: Vec::new(),
            local: Vec::new(),
            pods: PodNames::default(),
            reverse: Reverse::default(),
            reverse_zones: Vec::new(),
            namespaces: Namespaces::default(),
            endpoint_pod_names: false,
            zonal: false,
            outside: None,
            ignore_empty_services: false,
            coredns_compat: false,
        }
    }
}
