//! `roadstead proxy`: the proxy alone, in any cluster, in the place of kube-proxy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgAction, Parser};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use roadstead_announce::AnnouncerInputs;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::configuration::Configuration;
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_proxy::kube_proxy::{self, KubeProxy, KubeProxyOptions, agent_config};
use roadstead_proxy::startup;
use roadstead_watch::events::{self, EventDraft, InvolvedObject, Severity};
use serde_json::Value;
use tracing::{info, warn};

use crate::kube_proxy_flags::KubeProxyFlags;
use crate::log_level::LogLevel;
use crate::rules_claim::Rules;
use crate::servers::{self, ServerArgs};
use crate::{machine, network_claim, notify, world};

/// Run only the proxy, against any cluster.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// How to reach the API server; without it, as the configuration says, or as a pod does.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// A KubeProxyConfiguration; without one, the ConfigMap kube-system/kube-proxy is read.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address of the API server, whatever the kubeconfig says.
    #[arg(long, value_name = "URL")]
    master: Option<String>,
    /// Set what needs root of the kernel's settings, and exit.
    #[arg(long)]
    init_only: bool,
    /// Write the configuration, with what the flags say, to a file, and exit.
    #[arg(long, value_name = "FILE")]
    write_config_to: Option<PathBuf>,
    /// Delete all rules and exit.
    #[arg(long)]
    cleanup: bool,
    /// How to carry traffic, whatever the configuration says.
    #[arg(long, value_name = "MODE")]
    proxy_mode: Option<ProxyMode>,
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
    /// Answer ARP and NDP for the addresses of load balancers, one node for each address. Not
    /// where something else announces them, such as MetalLB.
    #[arg(long, conflicts_with = "no_lease")]
    announce: bool,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten, next_help_heading = "Flags of kube-proxy")]
    flags: KubeProxyFlags,
}

/// Carries out `roadstead proxy`.
pub(crate) async fn run(args: Args, log_level: LogLevel) -> anyhow::Result<()> {
    if args.cleanup {
        let _claim = Rules::Proxy.take_for_removal()?;
        network_claim::check_rules_are_free()?;
        return roadstead_proxy::agent::cleanup().context("rules are left behind");
    }
    if args.write_config_to.is_none() && !machine::may_write_rules() {
        bail!("only root (CAP_NET_ADMIN) can write the rules of the proxy");
    }
    let may_write = !args.init_only && args.write_config_to.is_none();
    let _claim = may_write.then(|| Rules::Proxy.keep());
    let mut flags = args.flags.fields;
    if let Some(mode) = args.proxy_mode {
        // Other fields depend on it.
        flags["mode"] = mode.to_string().into();
    }
    let flags = &flags;
    if let Some(path) = &args.write_config_to {
        return write_config(args.config.as_deref(), flags, path);
    }
    let file = args.config.as_deref().map(|path| from_file(path, flags)).transpose()?;
    let named = file.as_ref().and_then(|(configuration, _)| configuration.kubeconfig.clone());
    let client = client(args.kubeconfig.or(named), args.master, &args.servers).await?;
    let stop = crate::cli::interrupted();
    let (mut configuration, notes, source) = match file {
        Some((configuration, notes)) => (configuration, notes, None),
        None => tokio::select! {
            () = stop.cancelled() => return Ok(()),
            found = from_cluster(&client, flags) => found,
        },
    };
    if !args.cluster_cidr.is_empty() {
        configuration.cluster_networks = args.cluster_cidr;
    }
    if configuration.is_talkative() {
        log_level.log_everything_of("roadstead_proxy");
    }
    let name = args.hostname_override.or(configuration.node_name.clone());
    let node_name = name.unwrap_or_else(machine::host_name);
    if !notes.is_empty() {
        tell_of_ignored(&client, source.unwrap_or_else(|| node(&node_name)), &notes).await;
    }
    info!(node = node_name, mode = %configuration.mode, "proxy starts");
    let options = KubeProxyOptions {
        healthz: configuration.healthz,
        metrics: configuration.metrics,
        publish: (!args.no_lease).then_some(Duration::from_secs(1)),
        sysctls: configuration.sysctls.clone(),
        most_connections: configuration.most_connections,
        oom_score_adjustment: configuration.oom_score_adjustment,
        announce: args.announce,
    };
    if args.init_only {
        kube_proxy::prepare(&options);
        return Ok(());
    }
    let config =
        Config { ipvs_fallback: args.ipvs_fallback, ..agent_config(&configuration, &node_name) };
    let outputs = Outputs::default();
    notify::ready_after(outputs.programmed.subscribe(), |programmed| programmed.commits > 0);
    let announce = announcer(client.clone(), node_name, &outputs);
    let proxy = kube_proxy::run(KubeProxy { client, config, options, outputs }, stop);
    tokio::select! {
        outcome = proxy => outcome?,
        () = announce, if args.announce => {}
    }
    Ok(())
}

/// Answers for the addresses of load balancers that the proxy knows of, on a node of that name.
pub(crate) fn announcer(
    client: Client,
    node: String,
    outputs: &Outputs,
) -> impl Future<Output = ()> + Send + use<> {
    let inputs = AnnouncerInputs {
        node,
        announcements: outputs.announcements.subscribe(),
        lease_good_until: outputs.lease_good_until.subscribe(),
        state: outputs.component.state.clone(),
    };
    roadstead_announce::run(client, inputs)
}

/// A client for the cluster of a kubeconfig, for the user's own, or for that in whose pod we run.
async fn client(
    kubeconfig: Option<PathBuf>,
    master: Option<String>,
    more: &ServerArgs,
) -> anyhow::Result<Client> {
    let master = master.map(|url| url.parse().with_context(|| format!("{url} is not a URL")));
    let config = match (kubeconfig, master.transpose()?) {
        (Some(path), None) => world::client_config(&path).await?,
        (Some(path), Some(url)) => {
            let mut config = world::client_config(&path).await?;
            config.cluster_url = url;
            config
        }
        (None, Some(url)) => {
            let inferred = kube::Config::infer().await.ok();
            let mut config = inferred.unwrap_or_else(|| kube::Config::new(url.clone()));
            config.cluster_url = url;
            config
        }
        (None, None) => {
            let config = kube::Config::infer().await;
            config.context("no cluster: --kubeconfig is missing, and --config names none")?
        }
    };
    servers::connect(config, more)
}

/// Writes the configuration of a file, or the default one, as the flags change it. JSON is YAML.
fn write_config(file: Option<&Path>, flags: &Value, to: &Path) -> anyhow::Result<()> {
    let text = file.map(std::fs::read_to_string).transpose().context("cannot read --config")?;
    let merged = Configuration::merged(text.as_deref().unwrap_or("{}"), flags.clone());
    let mut merged = merged.map_err(|error| anyhow::anyhow!("--config is unreadable: {error}"))?;
    merged["apiVersion"] = "kubeproxy.config.k8s.io/v1alpha1".into();
    merged["kind"] = "KubeProxyConfiguration".into();
    let text = serde_json::to_string_pretty(&merged)? + "\n";
    std::fs::write(to, text).with_context(|| format!("cannot write {}", to.display()))
}

fn from_file(path: &Path, flags: &Value) -> anyhow::Result<(Configuration, Vec<String>)> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Configuration::parse_with(&text, flags.clone())
        .map_err(|error| anyhow::anyhow!("{} is not a configuration: {error}", path.display()))
}

/// Reads the ConfigMap that kubeadm makes; waits for an API server that does not answer yet.
/// Whatever is wrong with it, there are defaults. Returns with it what could not be understood, and
/// the ConfigMap that says so.
async fn from_cluster(
    client: &Client,
    flags: &Value,
) -> (Configuration, Vec<String>, Option<InvolvedObject>) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let what = "ConfigMap kube-system/kube-proxy";
    let map = startup::wait_for_answer(what, || api.get("kube-proxy")).await;
    if map.is_none() {
        info!("no {what}, using defaults");
    }
    let text = map.as_ref().and_then(|map| map.data.as_ref()?.get("config.conf"));
    let parsed = Configuration::parse_with(text.map_or("{}", String::as_str), flags.clone());
    let (configuration, notes) = parsed.unwrap_or_else(|error| {
        let defaults = Configuration::parse_with("{}", flags.clone());
        let (configuration, notes) = defaults.unwrap_or_default();
        (configuration, [vec![error], notes].concat())
    });
    (configuration, notes, map.as_ref().map(InvolvedObject::of))
}

async fn tell_of_ignored(client: &Client, about: InvolvedObject, notes: &[String]) {
    let message = format!("ignored: {}", notes.join("; "));
    warn!(message, "part of the configuration is ignored");
    let (severity, reason) = (Severity::Warning, "ConfigurationIgnored".into());
    let draft = EventDraft { about, severity, reason, message };
    events::record_once(client.clone(), "kube-proxy", draft).await;
}

/// Our Node, as Events name it: the kubelet, too, takes its name for its uid.
fn node(name: &str) -> InvolvedObject {
    let (api_version, kind) = ("v1".into(), "Node".into());
    InvolvedObject {
        api_version,
        kind,
        name: name.into(),
        uid: name.into(),
        ..InvolvedObject::default()
    }
}
