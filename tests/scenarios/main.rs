//! Stories: the real kubectl, curl and nslookup against the real binary.
//!
//! Those that need a network run in a laboratory of namespaces; no root is needed.

mod api_walk;
mod bad_input;
mod bad_pods;
mod by_hand;
mod certificates;
mod churn;
mod controllers;
mod debug_state;
mod dns;
mod dns_alone;
mod dns_fresh;
mod documents;
mod etcd;
mod fairness;
mod guards;
mod ha;
mod housekeeping;
mod images;
mod join;
mod killed_proxy;
mod kube_rs;
mod lab;
mod lifetime;
mod monitoring;
mod netpol_alone;
mod network_policy;
mod node_alone;
mod package;
mod pod_life;
#[path = "../process.rs"]
mod process;
mod proxy;
mod scaling;
mod scheduler;
mod security;
mod seeds;
mod service_manager;
mod slow_clients;
mod snapshot;
mod stateful;
mod static_pods;
mod streams;
mod thread;
mod top;
mod tour;
mod two_families;
mod verbs;
mod visible_parts;
mod workloads;
