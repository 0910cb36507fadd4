//! The proxy: keeps the kernel's load balancer equal to the cluster's Services.
//!
//! The agent follows Services and EndpointSlices, `roadstead-forwarding` decides, and the writers
//! here carry it out: `nft` over a netlink socket, one atomic batch per burst of changes, and
//! `iptables` by running `iptables-restore`, `ipvs` over netlink again; `data_plane` is what the agent
//! sees of them. Nothing is written before everything is known, and after a failure the last good
//! state stays.

pub mod addresses;
pub mod agent;
pub mod configuration;
mod conntrack;
pub mod data_plane;
pub mod described_node;
mod family;
pub mod forward_policy;
pub mod health;
pub mod iptables;
pub mod ipvs;
pub mod kube_proxy;
pub mod lease;
pub mod localhost;
pub mod metrics;
mod named_counters;
pub mod nft;
mod pacer;
pub mod startup;
pub mod sysctl;
mod triggers;
mod unserved;
