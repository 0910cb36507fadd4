//! The proxy's brain: which connection may go where, and which kernel program makes it so.
//!
//! ```text
//!  Service ────1:n───► ServicePort ────1:n───► Frontend         what clients dial:
//!  (API object)        (namespace/name:port,   (host, protocol,  ClusterIP, load balancer,
//!      ▲                protocol)               port)            external IP, node port
//!      │ label              │
//!      │ service-name       │ select: usable from this node,
//!      │                    ▼ under policy Cluster and under policy Local
//!  EndpointSlice ─1:n─► Endpoint ──────n:m───► Target           where a connection goes:
//!  (API object)        (address, port, node,   (address, port,   an endpoint that may be
//!                       EndpointState, hints)   Locality)        used now
//!
//!  Tracker ──service_ports──► ForwardingTable ──► compile ──► diff ──► what the kernel is told
//!  (both kinds of objects)    (one per IpFamily;  (nft, iptables, ipvs)
//!                             decide = reference) ──► trace, which must equal decide
//! ```
//!
//! `tracker` follows Services and EndpointSlices, `select` picks the endpoints that may be used,
//! `table` keeps the result and answers for any packet what may become of it: that answer is the
//! reference. Each data plane then translates the table; `nft` for nftables, `iptables`
//! for iptables, `ipvs` for IPVS. `node_network` is what the table knows of the node besides
//! Services, `conntrack` which flows a change made stale. Nothing here touches the kernel, the
//! network or the clock: `roadstead-proxy` does.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

pub mod announce;
pub mod conntrack;
pub mod iptables;
pub mod ipvs;
pub mod nft;
pub mod node_addresses;
pub mod node_network;
pub mod packet;
pub mod select;
pub mod service;
pub mod table;
pub mod tracker;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod samples;
