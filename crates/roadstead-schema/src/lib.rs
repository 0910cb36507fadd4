//! How any object is described, as pure values: the types of Kubernetes and the schemas of custom
//! resources, and what follows from them without knowing a single kind.
//!
//! `types` is the one table behind decoding, patching and OpenAPI; `structural` is the same for
//! what a CustomResourceDefinition describes. `protobuf` reads the other encoding of objects, `json`
//! points into them, and `invalid` says what is wrong with one, in the words that Kubernetes uses.
//! What a kind means is for `roadstead-api`, merging two states for `roadstead-patch`.
//! No clock, no randomness, no IO.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

pub mod age;
pub mod decode;
pub mod descriptions;
pub mod invalid;
pub mod json;
pub mod protobuf;
pub mod structural;
pub mod types;
