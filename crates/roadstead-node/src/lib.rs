//! The node agent: runs the pods of one node.
//!
//! A pod is a network namespace with its own address on the node's bridge, and processes in it.
//! The agent starts and stops them, probes them, and reports their status. Which pods run on the
//! node is decided by the scheduler, through `spec.nodeName`.
//!
//! What should happen is decided in pure code: `lifecycle` (the next steps for a pod), `status`
//! (what the API shows), `probe`, `backoff`, `addresses`, `environment`, `service_links`, `security`,
//! `seccomp`, `volumes` and `images`.
//! The shells around it are thin: `agent` and `worker` (tasks), `network` and `heal` (netlink), `runtime`
//! (processes) and `prober` (sockets). `container` and `applet` run in processes of their own,
//! made from the same executable: see [`applet::applet_main`].

mod addresses;
pub mod agent;
pub mod applet;
mod backoff;
mod capabilities;
mod cgroup;
pub mod config;
mod container;
mod environment;
mod events;
mod facts;
mod heal;
mod heartbeat;
mod images;
mod lifecycle;
mod machine;
mod network;
mod order;
mod pod_api;
mod probe;
mod prober;
mod recovery;
pub mod runtime;
mod seccomp;
mod security;
mod service_links;
mod services;
mod status;
mod volumes;
mod worker;
