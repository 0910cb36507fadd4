//! What the tests of every crate share: a private network laboratory made of namespaces, a driver
//! for the real kubectl, a real etcd, golden files, and a judge of what clients of a store were told. Never part of
//! the product.

pub mod cluster;
pub mod etcd;
pub mod history;
pub mod kubectl;
pub mod lab;
pub mod link;
pub mod netns;
pub mod terminal;
