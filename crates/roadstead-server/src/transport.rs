//! How requests come in and answers go out: connections, TLS, bodies, compression, and who has to wait.

pub(crate) mod compress;
pub(crate) mod connections;
pub(crate) mod etag;
pub(crate) mod fairness;
pub(crate) mod limits;
pub mod local;
pub(crate) mod place;
pub mod receive;
pub mod response;
pub(crate) mod rotation;
pub mod serve;
pub mod serving_certificate;
pub(crate) mod slices;
pub(crate) mod warning;
pub(crate) mod yaml;

use std::sync::Arc;

use roadstead_store::kv::Store;

use fairness::Fairness;
use limits::Limits;
use receive::Bodies;
use rotation::Rotation;

/// What is shared by all requests under way.
pub(crate) struct Traffic {
    /// Who is served now, and who waits.
    pub(crate) fairness: Fairness,
    /// The connections to pods and Services that are in the making.
    pub(crate) connecting: Limits,
    pub(crate) bodies: Bodies,
    pub(crate) rotation: Rotation,
}

impl Traffic {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self {
            fairness: Fairness::new(store),
            connecting: Limits::default(),
            bodies: Bodies::default(),
            rotation: Rotation::default(),
        }
    }
}
