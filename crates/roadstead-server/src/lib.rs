//! The Kubernetes API over HTTPS.
//!
//! A request comes in (`transport`), is taken apart and passed through the filters (`request`): who
//! sends it, and what they may do (`identity`). Reads come from the store in the form the client
//! wants (`reading`); writes are decoded, merged where they are patches, given defaults and validated
//! by their kind (`roadstead-api`), completed by what the kind needs of other objects (`kinds`), and
//! committed (`objects`). What is not about objects is in `documents`. What takes long is done in
//! turns, beside everything else (`transport::rotation`). Components in the same process use the
//! same way without a socket (`transport::local`).

pub mod api;
pub mod bootstrap;
pub mod config;
mod documents;
pub mod error;
pub mod etcd_layout;
pub mod identity;
pub mod kinds;
pub mod node_agents;
pub mod objects;
mod reading;
mod registry;
pub mod request;
mod servers;
mod storage;
pub mod transport;
