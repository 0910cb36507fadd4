//! Images: what they are called, what they are made of, and where they lie on this machine.
//!
//! ```text
//! Reference ──► manifest ──► config          what to run: entrypoint, environment, user
//!  (a name)     (a digest)   layers ──► directories, one per chain of layers, for overlayfs
//! ```
//!
//! [`reference`], [`manifest`] and [`digest`] decide; [`store`] keeps blobs, unpacked layers and
//! names in one directory; [`archive`] brings images in from files and out again. Everything that
//! comes from outside is checked: digests and sizes of blobs, the digest of each unpacked layer,
//! and every name in a layer (`unpack`).

pub mod archive;
pub mod digest;
pub mod error;
mod in_use;
pub mod manifest;
pub mod reference;
pub mod registry;
pub mod store;
mod unpack;
