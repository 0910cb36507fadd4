//! Keys, bytes and revisions: where objects live and in which order they changed.
//!
//! The store knows nothing of kinds. It gives every write the next revision, keeps a bounded
//! history, and offers one ordered feed per bucket from which any number of watchers read at their
//! own pace: a slow one finds its history gone and must start again, it never slows a writer.
//!
//! All reads come from memory. A store on disk differs from one in memory only in what happens
//! before a write is published: the committer hands it to a journal, which returns when it is
//! durable. Only `roadstead-server` uses this crate; the binary opens it and makes snapshots.

mod ahead;
mod clock;
mod committer;
pub mod damage;
mod delta;
mod disk;
pub mod entry;
pub mod error;
pub mod feed;
pub mod history;
mod holder;
mod journal;
mod linked;
mod open;
mod past;
mod plan;
mod scrub;
pub mod snapshot;
mod state;
pub mod store;
mod sums;
pub mod transaction;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod rot;
