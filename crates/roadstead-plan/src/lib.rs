//! What should be true: the desired state behind each controller, as pure functions.
//!
//! A plan takes the objects that matter (and the time, where it matters) and returns the writes
//! that bring the cluster closer to what its owner asked for, together with notes worth telling.
//! Watching, writing and retrying belong to `roadstead-controllers`; picking addresses and ports
//! inside a transaction is carried out by `roadstead-server`.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

pub mod alloc;
pub mod bootstrap_token;
pub mod certificate_approval;
pub mod certificate_signing;
pub mod cronjob;
pub mod daemonset;
pub mod deployment;
pub mod disruption;
pub mod disruption_target;
pub mod drain;
pub mod endpoint_warnings;
pub mod endpoints;
pub mod endpointslice;
pub mod endpointslice_mirroring;
pub mod flow_control;
pub mod garbage_collector;
pub mod horizontal;
pub mod job;
pub mod limit_range;
pub mod loadbalancer;
pub mod namespace;
pub mod namespace_content;
pub mod node_graph;
pub mod node_lifecycle;
pub mod node_ranges;
pub mod owner;
pub mod persistentvolume;
mod pod_amounts;
pub mod pod_status;
pub mod pod_view;
pub mod pods;
pub mod port_bitmap;
pub mod quota;
pub mod replicaset;
pub mod revisions;
pub mod scheduler;
pub mod selection;
pub mod statefulset;
pub mod trigger_time;
