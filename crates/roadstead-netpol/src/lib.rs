//! NetworkPolicies, enforced on a node: keeps a table of nftables equal to what policies say.
//!
//! The agent follows Pods, Namespaces and NetworkPolicies, `roadstead-policy` decides, and `plane`
//! writes it over netlink, one atomic batch per burst of changes and address family. Nothing is written
//! before everything is known, after a failure the last good state stays, and what somebody destroys
//! comes back.

pub mod agent;
pub mod bridges;
mod encode;
pub mod metrics;
pub mod plane;
