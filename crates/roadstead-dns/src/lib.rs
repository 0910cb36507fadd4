//! The DNS server: sockets and tasks around `roadstead-dns-core`, which says what the replies are.
//!
//! `udp` and `tcp` are loops around its `respond`; `resolve` and what is below it (`flights`,
//! `upstream`) fetch what other servers know. `active_setup` is the configuration in use,
//! `configuration` follows its sources, `zone_updater` the cluster, and `clients` the pods that ask;
//! `agent` puts all of it together. Which names exist is decided in `roadstead-zone`.

mod active_setup;
pub mod agent;
mod chance;
pub mod clients;
pub mod configuration;
mod files;
mod flights;
pub mod metrics;
pub mod own_lookups;
mod programmed;
pub mod publish;
mod query_log;
pub mod resolve;
pub mod server;
mod shares;
mod tasks;
pub mod tcp;
pub mod udp;
mod upstream;
mod zone_updater;
