//! The table as iptables rules, in the layout of kube-proxy.
//!
//! Everything that people and tools know is there: the names of chains, the comments, the
//! probabilities, the order of jumps. `compile` makes the program, `diff` the smallest input for
//! `iptables-restore` that leads from one state to the next, `print` the text of a rule exactly as
//! a listing shows it, and `trace` follows a packet through a program.
//!
//! Differences from the table's decisions are upstream's: a packet for a ClusterIP's unused port,
//! or for an address that no Service has, is not ours.

pub mod compile;
pub mod diff;
pub mod listing;
pub mod model;
pub mod names;
pub mod print;
pub mod service;
pub mod trace;

#[cfg(test)]
pub(crate) mod properties;
