//! Keys, bytes and revisions: where objects live and in which order they changed.
//!
//! The store knows nothing of kinds. It gives every write a revision, keeps a bounded history, and
//! offers one ordered feed per bucket from which any number of followers read at their own pace: a
//! slow one finds its history gone and must start again, it never slows a writer.
//!
//! `kv` is the page to begin with. Below it, all reads come from a replica in memory, and a log
//! decides what is written and feeds the replica with what is durable. Only `roadstead-server` uses
//! this crate; the binary opens it and makes snapshots.

mod clock;
mod commit_plan;
pub mod damage;
mod delta;
pub mod entry;
pub mod error;
pub mod feed;
mod history;
pub mod kv;
pub mod layout;
mod log;
mod mutation;
mod replica;
pub mod retention;
pub mod snapshot;
mod state;
pub mod transaction;
#[cfg(test)]
mod turns;
