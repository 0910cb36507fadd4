//! The proxy agent: keeps the kernel equal to the Services of the cluster.
//!
//! It feeds watched objects into `roadstead-forwarding` and writes the resulting program with one
//! atomic netlink batch per change. It decides nothing about traffic by itself.
