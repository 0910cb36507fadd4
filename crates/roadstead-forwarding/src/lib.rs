//! The proxy's brain: from Services and EndpointSlices to what the kernel should do.
//!
//! A tracker folds watched objects into a model, `ForwardingTable` says for every frontend which
//! targets a packet may reach (`decide` is the reference for all data planes), and each data plane
//! compiles the table into its own program, diffs two programs and can trace a packet through one.
//! Pure: talking to the kernel belongs to `roadstead-proxy`.
