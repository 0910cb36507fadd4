//! How every component learns about objects: informers, caches and work queues.
//!
//! All of it stands on `kube::Client` alone, so the same component runs in one process with our
//! API server, against it over HTTPS, or against any Kubernetes cluster. An informer turns
//! list-and-watch (with its relists and reconnects) into a stream of changes in which nothing is
//! repeated and nothing vanishes silently. A cache is such a stream folded into a map, with the
//! owner's own writes visible at once. A queue holds keys, so bursts collapse. What to do about a
//! change is up to the component.

pub mod apart;
pub mod cache;
pub mod discovery;
pub mod events;
pub mod every_kind;
pub mod informer;
pub mod keys_only;
pub mod queue;
mod watcher;
pub mod write;

// Whoever follows kinds that it reads finds the code for that here, and makes no copy.
use roadstead_typed as _;
