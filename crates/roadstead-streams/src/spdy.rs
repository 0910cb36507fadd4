//! SPDY/3.1, as far as Kubernetes uses it: streams with headers, data, half-close, reset, ping.
//!
//! There is no flow control (no peer practises it): what is not read stays in the socket, so
//! whoever drives a [`session::Session`] stops reading while a stream's target does not take more.

mod dictionary;
pub mod frame;
mod headers;
pub mod session;
