//! Guided lessons: what they say, in two languages, and whether a step is done.
//!
//! A lesson is a file of `data`. Its steps are checked against the objects of one namespace and what the reader
//! answers; who fetches these, and keeps where the reader is, is elsewhere.

#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod check;
pub mod kind;
pub mod language;
pub mod lesson;
