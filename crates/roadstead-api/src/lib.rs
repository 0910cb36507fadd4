//! What Kubernetes objects mean, as pure values.
//!
//! This crate knows the names, scopes, defaults, validation rules, table columns and selectable
//! fields of every kind we serve, the schema behind them, and the small types (keys, selectors,
//! ages) that the other crates share. It leaves to others: storing objects (`roadstead-store`),
//! merging them (`roadstead-patch`), serving them (`roadstead-server`), and deciding what follows
//! from them (`roadstead-plan`, `roadstead-forwarding`, `roadstead-zone`).
//! No clock, no randomness, no IO.

pub mod age;
pub mod descriptions;
pub mod invalid;
pub mod ip;
pub mod key;
pub mod kind;
pub mod kinds;
pub mod look;
pub mod metadata;
pub mod names;
pub mod protobuf;
pub mod quantity;
pub mod resolv;
pub mod schema;
pub mod selector;
pub mod structural;
