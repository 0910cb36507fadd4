//! The controllers: one short file each.
//!
//! A controller says what it watches, which keys a change wakes, calls `roadstead-plan`, and
//! carries out the answer through `kube::Client`. What the right answer is, is not decided here.
//! Every controller is one task that owns its caches; its own writes are in them at once, so it
//! never plans on a state that it has already changed.

use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub mod deployment;
pub mod endpointslice;
pub mod event_ttl;
pub mod garbage;
pub mod kinds;
pub mod namespace;
pub mod namespace_content;
pub mod replicaset;
pub mod scheduler;

/// Names of the controllers, as the command line knows them.
pub const ALL: [&str; 8] = [
    "deployment",
    "replicaset",
    "endpointslice",
    "scheduler",
    "garbage-collector",
    "namespace",
    "namespace-content",
    "event-ttl",
];

/// What the controllers are told at their start.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The certificate that pods trust, in PEM.
    pub root_ca: Option<String>,
    /// How the EndpointSlice controller packs.
    pub slices: endpointslice::Config,
}

/// Runs one controller until `stop`. Unknown names are a mistake of the caller.
pub async fn run(name: &str, client: Client, settings: Settings, stop: CancellationToken) {
    let work = async {
        match name {
            "deployment" => deployment::run(client).await,
            "replicaset" => replicaset::run(client).await,
            "endpointslice" => endpointslice::run(client, settings.slices).await,
            "scheduler" => scheduler::run(client).await,
            "garbage-collector" => garbage::run(client).await,
            "namespace" => namespace::run(client).await,
            "namespace-content" => namespace_content::run(client, settings.root_ca).await,
            "event-ttl" => event_ttl::run(client).await,
            other => warn!(controller = other, "no such controller"),
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// The objects of a kind in one namespace.
fn within<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}

/// Whether the API server says that there is no such object, or another one of the same name.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}
