//! Questions to a runtime, over its socket.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use roadstead_grpc::channel::GrpcChannel;
use roadstead_grpc::status::{Code, Status};

/// As kubelets wait for most answers.
const LIMIT: Duration = Duration::from_secs(120);
/// For what takes as long as others want it to.
pub(crate) const PATIENT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Asks a runtime.
#[derive(Debug)]
pub(crate) struct Client(GrpcChannel);

impl Client {
    pub(crate) fn new(socket: &Path) -> Self {
        Self(GrpcChannel::new(socket))
    }

    /// Asks about sandboxes and containers.
    pub(crate) async fn ask<A: Message + Default>(
        &self,
        method: &str,
        question: &impl Message,
    ) -> Result<A, Status> {
        self.ask_within(method, question, LIMIT).await
    }

    /// The same, with another patience.
    pub(crate) async fn ask_within<A: Message + Default>(
        &self,
        method: &str,
        question: &impl Message,
        limit: Duration,
    ) -> Result<A, Status> {
        self.0.call(&format!("/runtime.v1.RuntimeService/{method}"), question, limit).await
    }

    /// Asks about images.
    pub(crate) async fn ask_images<A: Message + Default>(
        &self,
        method: &str,
        question: &impl Message,
        limit: Duration,
    ) -> Result<A, Status> {
        self.0.call(&format!("/runtime.v1.ImageService/{method}"), question, limit).await
    }
}

/// What is gone already need not be removed.
pub(crate) fn gone_is_fine<A: Default>(answer: Result<A, Status>) -> Result<A, Status> {
    match answer {
        Err(status) if status.code == Code::NotFound => Ok(A::default()),
        answer => answer,
    }
}
