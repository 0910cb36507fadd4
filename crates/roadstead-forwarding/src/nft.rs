//! The table as an nftables program, in a flat layout.
//!
//! All Services share a few global maps instead of having chains and maps of their own, because
//! the kernel's work for a new map grows with the number of maps. A frontend's entry in
//! `service-ips` (or `service-nodeports`) says which way its connections go and how many targets it
//! has; for N of them the chain `pick-N` draws a slot below N and finds the target in `endpoints`
//! under frontend and slot. One endpoint more or less is then a handful of element operations,
//! whatever the size of the cluster. Table, base chain and map names are those of kube-proxy
//! wherever the meaning is the same. Only Services with session affinity have chains of their own.
//!
//! `compile` makes the program, `diff` the smallest transaction from one state to the next,
//! `print` the text that `nft -f` accepts, and `trace` follows a packet through a program.

mod affinity;
mod chains;
pub mod compile;
pub mod diff;
pub mod model;
pub mod names;
pub mod print;
pub mod trace;

#[cfg(test)]
pub(crate) mod properties;
