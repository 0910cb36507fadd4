//! The protocols of `kubectl exec`, `attach` and `port-forward`, without sockets.
//!
//! A client reaches a process in a pod over one upgraded connection that carries several streams.
//! There are two families: messages of a [`websocket`] whose first byte names a channel
//! ([`channel`]), and SPDY/3.1 frames ([`spdy`]). Both only turn bytes into events and back; who
//! reads the socket, and what a stream is connected to, is for others.
//!
//! [`connection`] makes one of the two of a command, [`forward_connection`] of connections to ports.
//!
//! ```text
//! upgrade ──► protocol ──► channel   (WebSocket: stdin, stdout, stderr, error, resize)
//!                     └──► spdy ──► command   (the same, one SPDY stream each)
//!                               └─► forward   (two SPDY streams per connection)
//! ```

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests read files and clocks"))]

pub mod channel;
pub mod command;
pub mod connection;
pub mod forward;
pub mod forward_connection;
pub mod outcome;
pub mod protocol;
pub mod spdy;
pub mod websocket;
