//! The proxy with everything around it: what kube-proxy is to a cluster.
//!
//! Health, metrics, the health checks of Services, the published revision and the settings of the
//! kernel run beside the agent. Only the agent may fail; the rest says so and goes on.

mod events;
mod pages;

use std::future;
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ListParams;
use kube::{Api, Client};
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::agent::config::{Config, Follow, Outputs};
use crate::agent::{self, ProxyError};
use crate::configuration::{Configuration, DetectLocalMode};
use crate::health::serve_checks;
use crate::lease::Publisher;
use crate::{forward_policy, localhost, startup, sysctl};

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
    let needs = &configuration.mode.kind().needs;
    let mut node_port_addresses = configuration.node_port_addresses.clone();
    if node_port_addresses.is_empty() {
        node_port_addresses.extend(needs.node_port_addresses.iter().map(ToString::to_string));
    }
    Config {
        node_name: node_name.to_owned(),
        mode: configuration.mode,
        ipvs: configuration.ipvs.clone(),
        shortest_pause: configuration.shortest_pause,
        node_network: NodeNetwork {
            detect_local,
            masquerade_all: configuration.masquerade_all,
            masquerade_mark: 1 << configuration.masquerade_bit,
            ..NodeNetwork::default()
        },
        node_port_addresses,
        localhost_node_ports: configuration.localhost_node_ports,
        follow: Follow {
            node: true,
            pod_networks: configuration.detect_local == DetectLocalMode::NodeCidr,
            service_networks: needs.service_networks,
        },
        ..Config::default()
    }
}

/// Where to listen, and how often to publish the programmed revision.
#[derive(Clone, Debug, Default)]
pub struct KubeProxyOptions {
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
    /// Whether the Lease says that this node answers for load balancers.
    pub announce: bool,
}

/// Sets what the kernel must be told once.
pub fn prepare(options: &KubeProxyOptions) {
    sysctl::apply([("net/ipv4/ip_forward", "1")]);
    sysctl::apply(options.sysctls.iter().map(|(name, value)| (*name, value.as_str())));
    if let Some(least) = options.most_connections {
        sysctl::raise("net/netfilter/nf_conntrack_max", least);
    }
}

/// A proxy with everything around it, ready to run.
pub struct KubeProxy {
    /// How the cluster is reached.
    pub client: Client,
    /// What the operator wants of the agent.
    pub config: Config,
    /// What the operator wants of the rest.
    pub options: KubeProxyOptions,
    /// What it tells others.
    pub outputs: Outputs,
}

/// Runs the agent and everything around it until `stop`.
pub async fn run(proxy: KubeProxy, stop: CancellationToken) -> Result<(), ProxyError> {
    let KubeProxy { client, mut config, options, outputs } = proxy;
    let mode = agent::usable_mode(&config)?;
    if mode != config.mode {
        events::record_fallback(&client, config.mode, mode).await;
        config.mode = mode;
    }
    if config.follow.service_networks {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            has = has_service_networks(&client) => config.follow.service_networks = has,
        }
    }
    prepare(&options);
    if let Some(adjustment) = options.oom_score_adjustment {
        sysctl::adjust_oom_score(adjustment);
    }
    let (service_events, recorded) = mpsc::channel(64);
    let outputs = Outputs { service_events: Some(service_events), ..outputs };
    let programmed = outputs.programmed.subscribe();
    let publisher = options.publish.map(|pause| Publisher {
        client: client.clone(),
        node: config.node_name.clone(),
        pause,
        announces: options.announce,
        good_until: outputs.lease_good_until.clone(),
    });
    let shown = pages::show_state(mode, &outputs);
    let (node, network) = (config.node_name.clone(), config.node_network.clone());
    let beside = async {
        tokio::join!(
            serve_health_checks(&client, &node, &outputs),
            events::record_service_events(&client, recorded),
            localhost::serve(outputs.relays.subscribe()),
            publish(publisher.as_ref(), &outputs),
            forward_policy::keep_open(client.clone(), node.clone(), network),
            pages::serve_health(options.healthz, &outputs),
            pages::serve_metrics(options.metrics, mode, &outputs),
            shown,
        );
    };
    let outcome = tokio::select! {
        outcome = agent::run(client.clone(), config, outputs.clone(), stop) => outcome,
        () = beside => Ok(()),
    };
    if let Some(publisher) = publisher {
        let programmed = *programmed.borrow();
        publisher.give_up(programmed).await;
    }
    outcome
}

/// Answers the health checks of Services, and tells their owners of ports that cannot be had.
async fn serve_health_checks(client: &Client, node: &str, outputs: &Outputs) {
    let (failures, failed) = mpsc::channel(16);
    let checks = outputs.health_checks.subscribe();
    let serve = serve_checks(checks, outputs.health.clone(), failures);
    tokio::join!(serve, events::record_failed_checks(client, node, failed));
}

/// Publishes how far the kernel has come, if that is wanted.
async fn publish(publisher: Option<&Publisher>, outputs: &Outputs) {
    match publisher {
        Some(publisher) => publisher.run(outputs.programmed.subscribe()).await,
        None => future::pending().await,
    }
}

/// Whether the cluster says which networks ClusterIPs are taken from, and lets us know. Clusters
/// before 1.33 do not.
async fn has_service_networks(client: &Client) -> bool {
    let api: Api<ServiceCIDR> = Api::all(client.clone());
    let one = ListParams::default().limit(1);
    startup::wait_for_answer("ServiceCIDRs", || api.list_metadata(&one)).await.is_some()
}
