//! What containers are told about Services, asked for when a container starts.
//!
//! No cache of all Services is kept for it. Those who start containers at the same moment share one
//! question, and nobody gets an answer to a question older than his own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::try_join;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::time::{self, Instant};
use tracing::warn;

use roadstead_pod::service_links::{MASTER, service_links};

/// A list that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Environment variables, with their names.
pub(crate) type Links = Arc<Vec<(String, String)>>;

/// Asks the API for Services.
pub(crate) struct Services {
    client: Client,
    /// By namespace; an empty one stands for the API server's Service alone.
    known: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Known>>>>>,
}

struct Known {
    asked_at: Instant,
    links: Links,
}

impl Services {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// Returns the variables for a container of the pod; an error only if they were never known.
    pub(crate) async fn links(&self, pod: &Pod) -> Result<Links, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let wanted = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
        let namespace = if wanted { namespace } else { "" };
        let begin = Instant::now();
        let slot = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            known.entry(namespace.to_owned()).or_default().clone()
        };
        let mut known = slot.lock().await;
        if let Some(fresh) = known.as_ref().filter(|known| known.asked_at >= begin) {
            return Ok(fresh.links.clone());
        }
        let asked_at = Instant::now();
        match time::timeout(TIMEOUT, self.ask(namespace)).await {
            Ok(Ok(services)) => {
                let links = Arc::new(service_links(namespace, &services));
                *known = Some(Known { asked_at, links: links.clone() });
                Ok(links)
            }
            failed => {
                let why = match failed {
                    Ok(Err(error)) => error.to_string(),
                    _ => "the API server did not answer".into(),
                };
                warn!(namespace, error = why, "cannot list services");
                let last = known.as_ref().map(|known| known.links.clone());
                // A container that must restart does not wait for the API server.
                last.ok_or_else(|| {
                    format!(
                        "services have not yet been read at least once, cannot construct envs: {why}"
                    )
                })
            }
        }
    }

    async fn ask(&self, namespace: &str) -> kube::Result<Vec<Service>> {
        let master = async {
            let api: Api<Service> = Api::namespaced(self.client.clone(), MASTER.0);
            if namespace == MASTER.0 { Ok(None) } else { api.get_opt(MASTER.1).await }
        };
        let own = async {
            let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
            match namespace {
                "" => Ok(vec![]),
                _ => api.list(&ListParams::default()).await.map(|list| list.items),
            }
        };
        let (master, own) = try_join(master, own).await?;
        Ok(own.into_iter().chain(master).collect())
    }
}
