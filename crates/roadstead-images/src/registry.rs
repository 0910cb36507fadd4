//! Brings images in from registries.
//!
//! ```text
//! Reference ──► hosts: which servers, in which order, by which protocol
//!           ──► connection: one request, its redirects, its token (challenge, credentials)
//!           ──► pull: index, manifest, configuration and layers, each checked, into the store
//! ```
//!
//! Plain HTTP is spoken only where the configuration says so. A password goes only to the server
//! it is for, and to the place where that server says its tokens are had.

mod challenge;
mod connection;
pub mod credentials;
pub mod error;
pub mod hosts;
pub mod pull;
