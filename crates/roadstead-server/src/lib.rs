//! The Kubernetes API over HTTPS.
//!
//! A request is taken apart (`request`) and routed (`http`, `call`); reads come from the store
//! (`read`, `watch`) in the form the client wants (`view`); writes are decoded (`body`), merged where they
//! are patches (`patch`, `scale`), given defaults and validated by their kind (`roadstead-api`),
//! completed with addresses and ports (`allocate`) and committed (`write`, `delete`, `cleanup`).
//! What takes long is done in turns, beside everything else (`turns`). Components in the same
//! process use the same router without a socket (`local`).

mod about;
mod admit;
pub mod allocate;
pub mod api;
pub mod audit;
mod authorize;
mod bind;
mod body;
pub mod bootstrap;
mod call;
mod certificates;
mod cleanup;
mod compress;
mod crowd;
mod custom;
mod delete;
mod discovery;
pub mod error;
mod evict;
mod external_addresses;
mod filter;
mod health;
pub mod http;
pub mod identity;
mod impersonate;
pub mod known_tokens;
mod limits;
mod listing;
pub mod local;
mod metrics;
mod object;
mod openapi;
mod patch;
pub mod plugins;
mod proxy;
mod rbac;
mod read;
pub mod receive;
mod registry;
mod request;
mod reviews;
mod scale;
pub mod secret_file;
pub mod serve;
pub mod serving;
pub mod settle;
mod slices;
mod tag;
pub mod token_keys;
pub mod tokens;
mod turns;
mod unenforced;
mod unreadable;
mod view;
mod warning;
mod watch;
mod write;
mod yaml;
