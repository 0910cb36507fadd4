//! The node agent: runs the pods of one node.
//!
//! A pod is a network namespace with its own address on the node's bridge, and processes in it.
//! The agent starts and stops them, probes them, and reports their status. Which pods run on the
//! node is decided by the scheduler, through `spec.nodeName`.
//!
//! What should happen is decided by `roadstead-pod`, and here, purely, by `addresses`, `seccomp` and
//! `cgroup::places`.
//! The shells around it are thin: `agent` and `worker` (tasks), `network` and `heal` (netlink), `runtime`
//! (processes), `prober` (sockets) and `serving` (what `kubectl logs` asks for). `container` and `applet` run in processes of their own,
//! made from the same executable: see [`applet::applet_main`].

mod addresses;
pub mod agent;
mod allocations;
pub mod applet;
mod cgroup;
pub mod config;
mod container;
mod events;
mod heal;
mod heartbeat;
mod host_ports;
mod housekeeping;
mod image_gc;
pub mod images;
mod link_guard;
mod machine;
mod manifests;
mod measure;
mod mirrors;
mod network;
mod objects;
mod pod_api;
mod pod_network;
mod policy_gate;
mod probe_counts;
mod prober;
mod resolv_conf;
pub mod runtime;
mod seccomp;
mod services;
pub mod serving;
mod storage;
mod worker;
