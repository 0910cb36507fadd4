//! How requests come in and answers go out: connections, TLS, bodies, compression, and who has to wait.

pub(crate) mod compress;
pub(crate) mod connections;
pub(crate) mod etag;
pub(crate) mod fairness;
pub(crate) mod farewell;
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
use std::sync::atomic::{AtomicBool, Ordering};

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
    leaving: AtomicBool,
}

impl Traffic {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self {
            fairness: Fairness::new(store),
            connecting: Limits::default(),
            bodies: Bodies::default(),
            rotation: Rotation::default(),
            leaving: AtomicBool::new(false),
        }
    }

    /// From now on the server is not ready: it takes its leave.
    pub(crate) fn leaves(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether it does.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }
}
