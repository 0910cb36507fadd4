//! `roadstead proxy`: the proxy alone, in any cluster, in the place of kube-proxy.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgAction, Parser};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use roadstead_proxy::agent::Config;
use roadstead_proxy::configuration::Configuration;
use roadstead_proxy::drop_in::{self, Around, agent_config};
use roadstead_proxy::plane::Mode;
use roadstead_watch::events::{self, About, Happening, Severity};
use tracing::{info, warn};

use crate::{machine, world};

/// Run only the proxy, against any cluster.
#[derive(Debug, Parser)]
pub struct Args {
    /// How to reach the API server.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", required_unless_present = "cleanup")]
    kubeconfig: Option<PathBuf>,
    /// A KubeProxyConfiguration; without one, the ConfigMap kube-system/kube-proxy is read.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Delete all rules and exit.
    #[arg(long)]
    cleanup: bool,
    /// How to carry traffic, whatever the configuration says.
    #[arg(long, value_name = "MODE")]
    proxy_mode: Option<Mode>,
    /// Whether mode iptables takes the place of ipvs where the kernel has no IPVS.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    ipvs_fallback: bool,
    /// The name of this node.
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// The networks of the cluster's pods, whatever the configuration says.
    #[arg(long, value_delimiter = ',', value_name = "CIDR,…")]
    cluster_cidr: Vec<ipnet::IpNet>,
    /// Do not publish the programmed revision as a Lease.
    #[arg(long)]
    no_lease: bool,
}

/// Carries out `roadstead proxy`.
pub async fn run(args: Args) -> anyhow::Result<()> {
    if args.cleanup {
        return roadstead_proxy::agent::cleanup().context("rules are left behind");
    }
    if !machine::may_write_rules() {
        bail!("only root (CAP_NET_ADMIN) can write the rules of the proxy");
    }
    let kubeconfig = args.kubeconfig.as_ref().context("--kubeconfig is missing")?;
    let client = world::client(kubeconfig).await?;
    let mut configuration = match &args.config {
        Some(path) => from_file(path)?,
        None => from_cluster(&client).await,
    };
    if let Some(mode) = args.proxy_mode {
        configuration.mode = mode;
    }
    if !args.cluster_cidr.is_empty() {
        configuration.cluster_networks = args.cluster_cidr;
    }
    let name = args.hostname_override.or(configuration.node_name.clone());
    let node_name = name.unwrap_or_else(machine::host_name);
    info!(node = node_name, mode = %configuration.mode, "proxy starts");
    let around = Around {
        healthz: configuration.healthz,
        metrics: configuration.metrics,
        publish: (!args.no_lease).then_some(Duration::from_secs(1)),
        sysctls: configuration.sysctls.clone(),
    };
    let config =
        Config { ipvs_fallback: args.ipvs_fallback, ..agent_config(&configuration, &node_name) };
    drop_in::run(client, config, around, crate::cli::interrupted()).await?;
    Ok(())
}

fn from_file(path: &PathBuf) -> anyhow::Result<Configuration> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (configuration, notes) = Configuration::parse(&text)
        .map_err(|error| anyhow::anyhow!("{} is not a configuration: {error}", path.display()))?;
    for note in notes {
        warn!(note, file = %path.display(), "part of the configuration is ignored");
    }
    Ok(configuration)
}

/// Reads the ConfigMap that kubeadm makes. Whatever is wrong with it, there are defaults.
async fn from_cluster(client: &Client) -> Configuration {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let map = match api.get_opt("kube-proxy").await {
        Ok(Some(map)) => map,
        Ok(None) => return Configuration::default(),
        Err(error) => {
            warn!(%error, "cannot read the ConfigMap kube-system/kube-proxy, using defaults");
            return Configuration::default();
        }
    };
    let text = map.data.as_ref().and_then(|data| data.get("config.conf"));
    let parsed = Configuration::parse(text.map_or("{}", String::as_str));
    let (configuration, notes) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => (Configuration::default(), vec![error]),
    };
    if !notes.is_empty() {
        let message = format!("ignored: {}", notes.join("; "));
        warn!(message, "part of the configuration is ignored");
        let (about, reason) = (About::object(&map), "ConfigurationIgnored".into());
        let happening = Happening { about, severity: Severity::Warning, reason, message };
        events::tell_once(client.clone(), "kube-proxy", happening).await;
    }
    configuration
}
