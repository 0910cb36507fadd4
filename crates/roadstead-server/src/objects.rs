//! Changing objects of any kind: what is the same for all of them.

pub mod admission_plugins;
pub mod await_dns;
pub(crate) mod common_turn;
pub(crate) mod delete;
pub(crate) mod patch;
pub(crate) mod scale;
pub(crate) mod unreadable;
mod update;
pub(crate) mod write;
