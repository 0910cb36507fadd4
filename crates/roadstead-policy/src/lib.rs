//! Who may talk to whom: NetworkPolicies, decided and compiled.
//!
//! ```text
//!  NetworkPolicy ──► Policy ──selects──► PolicyPod (of this node: a subject)
//!                      │ rules: peers × ports
//!                      ▼
//!                    PodGroup ──matches──► PolicyPod (of any node: an address in a set)
//!
//!  PolicyCluster ──decide──► Verdict            the reference, with the policy that decided
//!     │
//!  PolicyLayout ──► PolicyProgram ──trace──► must equal decide
//!     └─────► PolicyTransaction           what the kernel is told of a change
//! ```
//!
//! `policy` and `pod` read objects, `cluster` knows all of them, `decide` answers for any attempt.
//! `layout` keeps the program of nftables that does the same, and says what a change makes of it:
//! one set of addresses for each group of pods that some rule names, shared by all policies; one chain
//! for each policy; one chain for each combination of policies that some pod is under. Nothing here
//! touches the kernel, the network or the clock: `roadstead-netpol` does.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

pub mod cluster;
pub mod decide;
pub mod layout;
pub mod pod;
pub mod policy;
pub mod program;
pub mod trace;

mod compile;
mod profiles;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod cost;
#[cfg(test)]
mod naive;
#[cfg(test)]
mod properties;
