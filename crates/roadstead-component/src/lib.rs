//! What every component has besides its work: who is not ready yet, what its parts are doing, pages over
//! HTTP, metrics, a Lease that says it is alive, and when it tries again what failed.
//!
//! Nothing here knows what a component does. Its metrics and its state are its own, and so is the
//! decision on which port it shows its pages. [`component::Component`] is what they have in common.

pub mod component;
pub mod lease;
pub mod metrics;
pub mod pacer;
pub mod pages;
pub mod readiness;
