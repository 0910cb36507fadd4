//! Stories: the real kubectl, curl and nslookup against the real binary.
//!
//! Those that need a network run in a laboratory of namespaces; no root is needed.

mod api_walk;
mod bad_input;
mod by_hand;
mod certificates;
mod controllers;
mod dns;
mod dns_alone;
mod dns_fresh;
mod killed_proxy;
mod kube_rs;
mod lifetime;
#[path = "../process.rs"]
mod process;
mod proxy;
mod security;
mod slow_clients;
mod snapshot;
mod thread;
mod verbs;
