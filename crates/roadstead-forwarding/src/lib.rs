//! The proxy's brain: which connection may go where, and which kernel program makes it so.
//!
//! `tracker` follows Services and EndpointSlices, `select` picks the endpoints that may be used,
//! `table` keeps the result and answers for any packet what may become of it: that answer is the
//! reference. Each data plane then translates the table; `nft` for nftables, `iptables`
//! for iptables, `ipvs` for IPVS. Nothing here touches the kernel, the network or the clock: `roadstead-proxy` does.

pub mod announce;
pub mod conntrack;
pub mod iptables;
pub mod ipvs;
pub mod nft;
pub mod packet;
pub mod select;
pub mod service;
pub mod surroundings;
pub mod table;
pub mod tracker;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod samples;
