//! etcd as a client sees it: what our store needs of it, and no more.
//!
//! `messages` are the questions and answers, written by hand with `prost`; `client` asks them of several
//! members, and knows whether a question that failed may have been carried out all the same. Nothing here
//! knows what is kept in etcd.

pub mod client;

pub mod failure;
pub mod maintenance;
mod member;
pub mod member_url;
pub mod messages;
mod pace;
pub mod tls;
