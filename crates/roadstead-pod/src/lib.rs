//! The pod's brain: what a node should do about a pod, and what it says about it. Pure.
//!
//! ```text
//! Pod + PodFacts + time ──► lifecycle ──► PodSteps        what to do next
//!                       ──► status    ──► PodStatus       what the API shows
//! Pod + Container + NodeFacts ──► container_config ──► ContainerConfig, all that a runtime has to know
//! ```
//!
//! [`usage`] reads what the kernel counts. [`sandbox`] and [`host_ports`] are what the containers of a pod share.
//! [`addresses`] are a pod's, of one family or both. [`admission`] says which pods a node takes, [`resize`] which get more of it while they run. [`facts`] is what a node knows about a pod's processes; [`recovery`] is how it knows it again after a
//! restart. [`probe`] and [`backoff`] judge series of results; [`hook`] reads what containers
//! do when they start and end, and [`ephemeral`] those that come later. `environment`, [`env_file`], [`hosts`], [`service_links`],
//! [`sources`], [`downward`], [`volumes`], [`termination_message`], [`security`], [`sysctls`], [`seccomp_profile`], [`capabilities`], [`mandatory`] and [`resources`] read parts of
//! the spec for [`container_config`]; [`image`] is what it needs of an image, [`builtin_image`] has those that need no
//! store, and [`oci`] writes the configuration that an OCI runtime runs the others by. [`exec`] is about
//! commands that join a container later, [`logs`] about what is shown of a log.
//!
//! Processes, sockets, files and clocks are the business of `roadstead-node`.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

pub mod addresses;
pub mod admission;
pub mod backoff;
pub mod builtin_image;
pub mod capabilities;
pub mod container_config;
pub mod departure;
pub mod downward;
pub mod env_file;
mod environment;
pub mod ephemeral;
pub mod eviction;
pub mod exec;
pub mod facts;
pub mod hook;
pub mod host_ports;
pub mod hosts;
pub mod image;
pub mod lifecycle;
pub mod logs;
pub mod mandatory;
pub mod oci;
pub mod pod_name;
pub mod probe;
pub mod recovery;
pub mod resize;
pub mod resources;
pub mod sandbox;
pub mod seccomp_profile;
pub mod security;
pub mod service_links;
pub mod sources;
pub mod static_pods;
pub mod status;
pub mod sysctls;
pub mod termination_message;
pub mod usage;
mod user;
pub mod volumes;
