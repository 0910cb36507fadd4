//! The cluster's DNS zone: from Services, EndpointSlices and Namespaces to answers.
//!
//! A `Keeper` takes objects in one at a time, at a cost that follows the change, and hands out
//! immutable `Zone`s that answer questions without allocating. It knows which names exist
//! (Kubernetes DNS specification 1.1.0, with the extras that CoreDNS users rely on) and says so as
//! RFC 8020 demands: a name with something below it exists for every type. Bytes on the wire, sockets and other people's zones belong to
//! `roadstead-dns`.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

mod address_names;
mod aliases;
pub mod answer;
pub mod blob;
pub mod entry;
pub mod explain;
mod index;
mod label_path;
pub mod name;
mod prefixes;
pub mod record_type;
pub mod records;
pub mod reverse;
pub mod search;
pub mod seed;
pub mod settings;
pub mod transfer;
pub mod view;
pub mod zone;
