//! The pages that kube-proxy serves: `/healthz`, `/livez`, `/metrics`, `/proxyMode`; and our own
//! `/debug/state`.

use std::future;
use std::net::SocketAddr;

use roadstead_component::component::Component;
use roadstead_component::pages::{Page, serve};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tracing::warn;

use crate::agent::config::Outputs;
use crate::data_plane::ProxyMode;

/// Whether the proxy does its work.
pub(super) async fn serve_health(address: Option<SocketAddr>, outputs: &Outputs) {
    let (health, metrics) = (outputs.health.clone(), outputs.metrics.clone());
    let page = move |path: &str| {
        let (code, body) = health.page(path == "/healthz");
        match path {
            "/healthz" => metrics.note_healthz(code),
            "/livez" => metrics.note_livez(code),
            _ => return None,
        }
        Some(Page { code, content_type: "application/json", body })
    };
    listen(address, page).await;
}

/// What the proxy counts, and how it works.
pub(super) async fn serve_metrics(address: Option<SocketAddr>, mode: ProxyMode, outputs: &Outputs) {
    let (metrics, component) = (outputs.metrics.clone(), outputs.component.clone());
    let page = move |path: &str| match path {
        "/proxyMode" => Some(Page::text(200, mode.to_string())),
        path => component.page(path, || metrics.page()),
    };
    listen(address, page).await;
}

/// Shows how the proxy works, and says when it is ready: when the kernel has what was there at the start.
pub(super) fn show_state(mode: ProxyMode, outputs: &Outputs) -> impl Future<Output = ()> + use<> {
    let Component { readiness, state } = &outputs.component;
    let (programmed, health) = (outputs.programmed.subscribe(), outputs.health.clone());
    let mut first = programmed.clone();
    state.register("proxy", move || {
        let programmed = *programmed.borrow();
        let health: Value = serde_json::from_str(&health.page(true).1).unwrap_or_default();
        json!({"mode": mode.to_string(), "programmed": programmed, "health": health})
    });
    let ready = readiness.register("proxy");
    async move {
        if first.wait_for(|programmed| programmed.commits > 0).await.is_ok() {
            drop(ready);
        }
        future::pending().await
    }
}

/// Serves pages for ever, if there is an address to serve them on.
async fn listen(
    address: Option<SocketAddr>,
    page: impl Fn(&str) -> Option<Page> + Send + Sync + 'static,
) {
    let Some(address) = address else { return future::pending().await };
    match TcpListener::bind(address).await {
        Ok(listener) => serve(listener, page).await,
        Err(error) => {
            warn!(%address, %error, "cannot listen, going on without");
            future::pending().await
        }
    }
}
