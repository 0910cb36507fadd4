//! Keys, bytes and revisions: where objects live and in which order they changed.
//!
//! The store knows nothing of kinds. It gives every committed transaction the next revision,
//! keeps a bounded history, and offers one ordered feed per bucket from which any number of
//! watchers read at their own pace. Only `roadstead-server` uses it.
