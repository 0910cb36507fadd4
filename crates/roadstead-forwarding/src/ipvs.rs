//! The table as IPVS virtual servers, in the layout of kube-proxy's ipvs mode.
//!
//! The kernel's load balancer has one list of destinations per virtual server, so some of what
//! the table decides cannot be had: under policy Local, senders inside the cluster are not told
//! from others. The differences are listed in `properties`, and checked there. A few iptables
//! rules with ipsets do what IPVS itself cannot: masquerading and source ranges.

pub mod compile;
pub mod diff;
pub mod model;
pub mod rules;
pub mod trace;

#[cfg(test)]
pub(crate) mod properties;
