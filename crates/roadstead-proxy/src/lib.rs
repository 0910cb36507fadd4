//! The proxy: keeps the kernel's load balancer equal to the cluster's Services.
//!
//! The agent follows Services and EndpointSlices, `roadstead-forwarding` decides, and the writers
//! here carry it out: `nft` over a netlink socket, one atomic batch per burst of changes, and
//! `iptables` by running `iptables-restore`, `ipvs` over netlink again; `plane` is what the agent
//! sees of them. Nothing is written before everything is known, and after a failure the last good
//! state stays.

mod accounting;
pub mod addresses;
pub mod agent;
pub mod announce;
pub mod configuration;
pub mod conntrack;
pub mod drop_in;
mod family;
pub mod forward;
pub mod health;
pub mod iptables;
pub mod ipvs;
pub mod lease;
pub mod localhost;
pub mod metrics;
pub mod netlink;
mod news;
pub mod nft;
mod nodes;
mod pace;
pub mod patience;
pub mod plane;
pub mod presumed;
mod retry;
pub mod sysctl;
mod watched;
