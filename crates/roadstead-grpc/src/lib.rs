//! Calls of gRPC, as a client, over HTTP/2.
//!
//! It has what we ask of others, and no more: runtimes of containers on sockets of the file system, one
//! message there, one back; etcd on hosts and ports, with TLS, and conversations in which both sides go on
//! saying something. No balancing, no compression. Messages are written with `prost`.

pub mod channel;
pub mod conversation;
mod frame;
mod questions;
pub mod service_address;
pub mod status;
