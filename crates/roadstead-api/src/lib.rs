//! What Kubernetes objects mean, as pure values.
//!
//! This crate knows the names, scopes, defaults, validation rules, table columns and selectable
//! fields of every kind we serve, and the small types (keys, selectors, addresses) that the other
//! crates share. It leaves to others: how any object is described (`roadstead-schema`), storing
//! objects (`roadstead-store`), merging them (`roadstead-patch`), serving them (`roadstead-server`),
//! and deciding what follows from them (`roadstead-plan`, `roadstead-forwarding`, `roadstead-zone`).
//! No clock, no randomness, no IO.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

pub mod duration;
pub mod ip;
pub mod key;
pub mod kind;
pub mod kinds;
pub mod metadata;
pub mod names;
pub mod node_affinity;
pub mod pod_security;
pub mod quantity;
pub mod requests;
pub mod resolv;
pub mod schedule;
pub mod selector;
pub mod table;
pub mod time_zone;
