//! Keys, bytes and revisions: where objects live and in which order they changed.
//!
//! The store knows nothing of kinds. It gives every write the next revision, keeps a bounded
//! history, and offers one ordered feed per bucket from which any number of watchers read at their
//! own pace: a slow one finds its history gone and must start again, it never slows a writer.
//! Only `roadstead-server` uses it.

pub mod entry;
pub mod error;
pub mod feed;
pub mod memory;
pub mod transaction;
