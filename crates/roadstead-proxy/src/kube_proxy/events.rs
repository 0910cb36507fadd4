//! The Events that tell people what the proxy cannot do for them.

use std::future;

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use roadstead_watch::events::{self, EventDraft, InvolvedObject, Severity};
use tokio::sync::mpsc;

use crate::agent::service_events::ServiceEvent;
use crate::data_plane::ProxyMode;
use crate::health::HealthCheckFailure;

/// Tells of ports that cannot be had, on the Services that want them.
pub(super) async fn record_failed_checks(
    client: &Client,
    node: &str,
    mut failed: mpsc::Receiver<HealthCheckFailure>,
) {
    while let Some(HealthCheckFailure { service, port, error }) = failed.recv().await {
        let message = format!(
            "node {node} failed to start healthcheck \"{service}\" on port {port}: {error}"
        );
        let reason = "FailedToStartServiceHealthcheck";
        record(client, ServiceEvent { service, reason, message }).await;
    }
    // Nothing fails any more: whoever waits for all of us must not be told.
    future::pending().await
}

/// Tells the owners of Services what the agent has to say.
pub(super) async fn record_service_events(
    client: &Client,
    mut service_events: mpsc::Receiver<ServiceEvent>,
) {
    while let Some(event) = service_events.recv().await {
        record(client, event).await;
    }
    future::pending().await
}

async fn record(client: &Client, ServiceEvent { service: key, reason, message }: ServiceEvent) {
    let api: Api<Service> = Api::namespaced(client.clone(), &key.namespace);
    let Ok(Some(service)) = api.get_metadata_opt(&key.name).await else { return };
    let about = InvolvedObject {
        api_version: "v1".into(),
        kind: "Service".into(),
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        uid: service.metadata.uid.unwrap_or_default(),
        field: String::new(),
    };
    let (severity, reason) = (Severity::Warning, reason.to_owned());
    let draft = EventDraft { about, severity, reason, message };
    events::record_once(client.clone(), "kube-proxy", draft).await;
}

/// Says, where people look for it, that another mode runs than was asked for.
pub(super) async fn record_fallback(client: &Client, asked: ProxyMode, used: ProxyMode) {
    let about = InvolvedObject {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "kube-system".into(),
        name: "kube-proxy".into(),
        ..InvolvedObject::default()
    };
    let message = format!("the kernel lacks what mode {asked} needs: using mode {used} instead");
    let reason = "ProxyModeFallback".into();
    let draft = EventDraft { about, severity: Severity::Warning, reason, message };
    events::record_once(client.clone(), "kube-proxy", draft).await;
}
