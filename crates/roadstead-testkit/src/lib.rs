//! What the tests of every crate share: a private network laboratory made of namespaces, a driver
//! for the real kubectl, and golden files. Never part of the product.

pub mod cluster;
pub mod kubectl;
pub mod netns;
