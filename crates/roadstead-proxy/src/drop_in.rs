//! The proxy with everything around it: what kube-proxy is to a cluster.
//!
//! Health, metrics, the health checks of Services, the published revision and the settings of the
//! kernel run beside the agent. Only the agent may fail; the rest says so and goes on.

use std::future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ListParams;
use kube::{Api, Client};
use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};
use roadstead_watch::events::{self, About, Happening, Severity};
use roadstead_watch::status::{Page, serve};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::agent::complaints::Note;
use crate::agent::{self, Config, ProxyError};
use crate::configuration::{Configuration, DetectLocalMode};
use crate::health::{Complaint, Health, serve_checks};
use crate::lease::Publisher;
use crate::metrics::{Metrics, OfCode};
use crate::plane::Mode;
use crate::{announce, forward, localhost, patience, sysctl};

/// What the agent needs, as a configuration says it.
pub fn agent_config(configuration: &Configuration, node_name: &str) -> Config {
    let detect_local = match &configuration.detect_local {
        DetectLocalMode::ClusterCidr if configuration.cluster_networks.is_empty() => {
            DetectLocal::Unknown
        }
        DetectLocalMode::ClusterCidr => {
            DetectLocal::Networks(configuration.cluster_networks.clone())
        }
        DetectLocalMode::NodeCidr => DetectLocal::Unknown,
        DetectLocalMode::Bridge(name) => DetectLocal::Bridge(name.clone()),
        DetectLocalMode::InterfacePrefix(name) => DetectLocal::InterfacePrefix(name.clone()),
    };
    // kube-proxy's defaults: nftables serves node ports on the primary addresses, iptables on all.
    let mut node_port_addresses = configuration.node_port_addresses.clone();
    if node_port_addresses.is_empty() && configuration.mode == Mode::Nftables {
        node_port_addresses.push("primary".into());
    }
    Config {
        node_name: node_name.to_owned(),
        mode: configuration.mode,
        ipvs: configuration.ipvs.clone(),
        shortest_pause: configuration.shortest_pause,
        surroundings: Surroundings {
            detect_local,
            masquerade_all: configuration.masquerade_all,
            masquerade_mark: 1 << configuration.masquerade_bit,
            ..Surroundings::default()
        },
        node_port_addresses,
        localhost_node_ports: configuration.localhost_node_ports,
        node_networks: configuration.detect_local == DetectLocalMode::NodeCidr,
        follow_node: true,
        // Only nftables tells an unused ClusterIP from any other address.
        follow_service_networks: configuration.mode == Mode::Nftables,
        ..Config::default()
    }
}

/// Where to listen, and how often to publish the programmed revision.
#[derive(Clone, Debug, Default)]
pub struct Around {
    /// For `/healthz` and `/livez`.
    pub healthz: Option<SocketAddr>,
    /// For `/metrics` and `/proxyMode`.
    pub metrics: Option<SocketAddr>,
    /// The shortest time between two updates of the Lease; `None` for no Lease at all.
    pub publish: Option<Duration>,
    /// Settings of the kernel.
    pub sysctls: Vec<(&'static str, String)>,
    /// How many connections the kernel must be able to remember at least.
    pub most_connections: Option<u64>,
    /// How readily the kernel ends us when memory is short.
    pub oom_score_adjustment: Option<i64>,
    /// Whether to answer ARP and NDP for the addresses of load balancers; needs the Lease.
    pub announce: bool,
}

/// Sets what the kernel must be told once.
pub fn prepare(around: &Around) {
    sysctl::apply([("net/ipv4/ip_forward", "1")]);
    sysctl::apply(around.sysctls.iter().map(|(name, value)| (*name, value.as_str())));
    if let Some(least) = around.most_connections {
        sysctl::raise("net/netfilter/nf_conntrack_max", least);
    }
}

/// Runs the agent and everything around it until `stop`.
pub async fn run(
    client: Client,
    mut config: Config,
    around: Around,
    stop: CancellationToken,
) -> Result<(), ProxyError> {
    let mode = agent::usable_mode(&config)?;
    if mode != config.mode {
        tell_of_fallback(&client, config.mode, mode).await;
        config.mode = mode;
    }
    if config.follow_service_networks {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            has = has_service_networks(&client) => config.follow_service_networks = has,
        }
    }
    prepare(&around);
    if let Some(adjustment) = around.oom_score_adjustment {
        sysctl::adjust_oom_score(adjustment);
    }
    let (health, metrics) = (config.health.clone(), config.metrics.clone());
    let (complain, complaints) = mpsc::channel(16);
    let checks = serve_checks(config.health_checks.subscribe(), health.clone(), complain);
    let complaints = tell_of_checks(&client, &config.node_name, complaints);
    let (note, notes) = mpsc::channel(64);
    config.notes = Some(note);
    let notes = tell_owners(&client, notes);
    let relays = localhost::serve(config.relays.subscribe());
    let programmed = config.programmed.subscribe();
    let publisher = around.publish.map(|pause| Publisher {
        node: config.node_name.clone(),
        pause,
        announces: around.announce,
        renewed: watch::Sender::default(),
    });
    let lease = async {
        let Some(publisher) = &publisher else { return future::pending().await };
        let publish = publisher.run(client.clone(), programmed.clone());
        if !around.announce {
            return publish.await;
        }
        let announcements = config.announcements.subscribe();
        let (node, renewed) = (config.node_name.clone(), publisher.renewed.subscribe());
        let announce = announce::run(client.clone(), node, announcements, renewed);
        tokio::join!(publish, announce);
    };
    let (node, surroundings) = (config.node_name.clone(), config.surroundings.clone());
    let forwarding = forward::keep_open(client.clone(), node, surroundings);
    let health_pages = {
        let metrics = metrics.clone();
        listen(around.healthz, move |path| health_page(path, &health, &metrics))
    };
    let metrics_pages = listen(around.metrics, move |path| match path {
        "/metrics" => Some(Page::metrics(metrics.page())),
        "/proxyMode" => Some(Page::text(200, mode.to_string())),
        "/healthz" => Some(Page::text(200, "ok")),
        _ => None,
    });
    let agent = agent::run(client.clone(), config.clone(), stop);
    let outcome = tokio::select! {
        outcome = agent => outcome,
        () = async { tokio::join!(checks, complaints, notes, relays, lease, forwarding, health_pages, metrics_pages); } => Ok(()),
    };
    if let Some(publisher) = publisher {
        let programmed = *programmed.borrow();
        publisher.give_up(client, programmed).await;
    }
    outcome
}

/// Whether the cluster says which networks ClusterIPs are taken from, and lets us know. Clusters
/// before 1.33 do not.
async fn has_service_networks(client: &Client) -> bool {
    let api: Api<ServiceCIDR> = Api::all(client.clone());
    let one = ListParams::default().limit(1);
    patience::answer("ServiceCIDRs", || api.list_metadata(&one)).await.is_some()
}

/// Tells of ports that cannot be had, on the Services that want them.
async fn tell_of_checks(client: &Client, node: &str, mut complaints: mpsc::Receiver<Complaint>) {
    while let Some(Complaint { service, port, error }) = complaints.recv().await {
        let message = format!(
            "node {node} failed to start healthcheck \"{service}\" on port {port}: {error}"
        );
        tell_owner(client, Note { service, reason: "FailedToStartServiceHealthcheck", message })
            .await;
    }
    // Nobody complains any more: whoever waits for all of us must not be told.
    future::pending().await
}

/// Tells the owners of Services what the agent has to say.
async fn tell_owners(client: &Client, mut notes: mpsc::Receiver<Note>) {
    while let Some(note) = notes.recv().await {
        tell_owner(client, note).await;
    }
    future::pending().await
}

async fn tell_owner(client: &Client, Note { service: key, reason, message }: Note) {
    let api: Api<Service> = Api::namespaced(client.clone(), &key.namespace);
    let Ok(Some(service)) = api.get_metadata_opt(&key.name).await else { return };
    let about = About {
        api_version: "v1".into(),
        kind: "Service".into(),
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        uid: service.metadata.uid.unwrap_or_default(),
        field: String::new(),
    };
    let (severity, reason) = (Severity::Warning, reason.to_owned());
    let happening = Happening { about, severity, reason, message };
    events::tell_once(client.clone(), "kube-proxy", happening).await;
}

/// Says, where people look for it, that another mode runs than was asked for.
async fn tell_of_fallback(client: &Client, asked: Mode, used: Mode) {
    let about = About {
        api_version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "kube-system".into(),
        name: "kube-proxy".into(),
        ..About::default()
    };
    let message = format!("the kernel lacks what mode {asked} needs: using mode {used} instead");
    let reason = "ProxyModeFallback".into();
    let happening = Happening { about, severity: Severity::Warning, reason, message };
    events::tell_once(client.clone(), "kube-proxy", happening).await;
}

fn health_page(path: &str, health: &Arc<Health>, metrics: &Metrics) -> Option<Page> {
    let (counter, (code, body)) = match path {
        "/healthz" => (&metrics.healthz, health.page(true)),
        "/livez" => (&metrics.livez, health.page(false)),
        _ => return None,
    };
    counter.get_or_create(&OfCode { code }).inc();
    Some(Page { code, content_type: "application/json", body })
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
