//! Reading objects of any kind: one, a list, a watch, in the form that the client wants.

pub(crate) mod filter;
pub(crate) mod listing;
pub(crate) mod object;
pub(crate) mod read;
pub(crate) mod view;
pub(crate) mod watch;
