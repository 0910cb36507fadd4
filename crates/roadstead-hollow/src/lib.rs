//! Hollow nodes: what very many nodes ask of an API server, from one process that runs none of their pods.
//!
//! Each hollow node renews its Lease, writes its status, watches the pods that are bound to it and says of
//! each, after a while, that it runs. Hollow proxies watch Services, EndpointSlices and Nodes and keep a
//! hash of each object, which is compared with a list at the end. What is measured is the API server; about
//! networks and real nodes nothing can be said from it.
//!
//! Requests begin when they are due, however long others take, and their time counts from then. `schedule`,
//! `mirror`, `latencies`, `yardsticks` and `report` are pure; `run` is the shell. Never part of the product
//! (`docs/adr/0256-hollow-nodes.md`).

mod connection;
mod latencies;
mod mirror;
mod node;
mod objects;
pub mod options;
mod processes;
mod proxy;
pub mod report;
pub mod run;
mod schedule;
mod timeline;
mod watch;
mod world;
mod yardsticks;
