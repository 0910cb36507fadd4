//! What should be true: the desired state behind each controller, as pure functions.
//!
//! A plan takes the objects that matter (and the time, where it matters) and returns the writes
//! that bring the cluster closer to what its owner asked for, together with notes worth telling.
//! Watching, writing and retrying belong to `roadstead-controllers`; picking addresses and ports
//! inside a transaction is carried out by `roadstead-server`.

pub mod advice;
pub mod alloc;
pub mod backend;
pub mod certificate;
pub mod deployment;
pub mod endpoints;
pub mod endpointslice;
pub mod gc;
pub mod loadbalancer;
pub mod mirror;
pub mod namespace;
pub mod namespace_content;
pub mod node_health;
pub mod owner;
pub mod pod;
pub mod replicaset;
pub mod schedule;
pub mod selection;
pub mod trigger;
