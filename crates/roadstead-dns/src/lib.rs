//! The DNS server: answers for the cluster's zone, and passes on questions about the rest.
//!
//! `message` and `reply` are our own codec, which neither allocates nor trusts its input;
//! `respond` turns one query into one reply and is a plain function, so that any kind of socket
//! loop can call it. `server` is such a loop, `upstream` asks other servers, and `agent` keeps the
//! zone equal to the cluster. Which names exist is decided in `roadstead-zone`.

pub mod agent;
pub mod message;
pub mod reply;
pub mod respond;
pub mod server;
pub mod upstream;
