//! What a DNS server says: from the bytes of a query to the bytes of a reply, without a socket.
//!
//! `message` and `reply` are our own codec, which neither allocates nor trusts its input; `respond`
//! turns one query into one reply and is a plain function, so that any kind of socket loop can call
//! it. What only other servers know is planned by `forward`, asked for in the words of `upstream` and
//! remembered by `cache`; `search` completes the searches of the pods that `clients` knows. `setup` is
//! the configuration in use, and `corefile` reads it in CoreDNS' language. Which names of the cluster
//! exist is decided in `roadstead-zone`; sockets, files, time and chance belong to `roadstead-dns`.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

pub mod cache;
pub mod client_pods;
pub mod clients;
pub mod corefile;
mod encode;
pub mod forward;
pub mod message;
pub mod pod_outline;
pub mod rate_limit;
pub mod reply;
pub mod respond;
pub mod rotation;
pub mod search;
mod secret;
pub mod setup;
#[cfg(test)]
mod testing;
pub mod transfer;
pub mod upstream;
