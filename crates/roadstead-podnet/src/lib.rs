//! The pod network between nodes: how a packet for a pod of another machine gets there.
//!
//! Where two machines can hand packets to each other, a route is enough; otherwise they are sent in VXLAN, with
//! the parameters and the annotations of flannel. What is wanted is decided by `plan`, from Node objects that
//! may lie; `kernel` makes it so, and `agent` keeps it so. Everything is marked: routes by their protocol, the
//! link by its alias.

pub mod agent;
mod kernel;
mod peer;
pub mod plan;
