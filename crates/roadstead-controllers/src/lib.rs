//! The controllers: one short file each.
//!
//! A controller says what it watches, which keys a change wakes, calls `roadstead-plan`, and
//! carries out the answer through `kube::Client`. What the right answer is, is not decided here.
