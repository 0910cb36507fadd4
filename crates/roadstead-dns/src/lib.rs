//! The DNS server: answers for the cluster's zone, and asks others about the rest.
//!
//! `message` and `reply` are our own codec, which neither allocates nor trusts its input;
//! `respond` turns one query into one reply and is a plain function, so that any kind of socket
//! loop can call it. `udp` and `tcp` are such loops, `resolve` and what is below it (`cache`,
//! `upstream`) fetch what other servers know; `search` completes the searches of the pods that
//! `clients` knows. `setup` is the configuration in use, `corefile` reads it in CoreDNS' language,
//! `configuration` follows it, and `follow` the cluster; `agent` puts all of it together. Which names
//! exist is decided in `roadstead-zone`.

pub mod agent;
pub mod cache;
pub mod clients;
pub mod configuration;
pub mod corefile;
mod files;
mod follow;
pub mod limit;
pub mod memory;
pub mod message;
pub mod metrics;
mod programmed;
pub mod publish;
pub mod reply;
pub mod resolve;
pub mod respond;
pub mod search;
pub mod server;
pub mod setup;
mod shares;
pub mod tcp;
#[cfg(test)]
mod testing;
pub mod transfer;
pub mod turns;
pub mod udp;
pub mod upstream;
mod write;
