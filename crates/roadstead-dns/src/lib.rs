//! The DNS server: sockets around `roadstead-zone`.
//!
//! It keeps the zone up to date from watched objects and answers UDP and TCP clients. What the
//! answer to a question is, is decided in `roadstead-zone`.
