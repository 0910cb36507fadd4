//! The command line.

use std::io::IsTerminal;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::log_level::LogLevel;
use crate::part_logs::PartLogs;
use crate::{
    apiserver, certificates, controllers, dns, etcd, image, join, lab, leave, netpol, node, notify,
    prometheus, proxy, render, shell, snapshot, token, trace, up, wait,
};

/// Kubernetes Services for any Linux machine.
///
/// `roadstead up` starts everything on this machine and writes a kubeconfig; any kubectl can use
/// it. The other commands run one part.
#[derive(Debug, Parser)]
#[command(version = VERSION, max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// What to log, as LEVEL or TARGET=LEVEL,… (error, warn, info, debug).
    #[arg(long, global = true, env = "ROADSTEAD_LOG", default_value = "info")]
    pub log: String,
    #[command(subcommand)]
    pub command: Command,
}

/// With the commit, where whoever builds says which: `scripts/dist` does.
const VERSION: &str = match option_env!("ROADSTEAD_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

const EXAMPLES: &str = "\
Examples:
  sudo roadstead up                     everything on this machine
  roadstead apiserver --ephemeral       a Kubernetes API for tests, in memory, without root
  sudo roadstead token create           what to type on another machine, to make it a node
  sudo roadstead proxy --kubeconfig F   in the place of kube-proxy, in any cluster
  sudo roadstead netpol --kubeconfig F  NetworkPolicies, where the network plugin has none
  sudo roadstead dns --kubeconfig F     DNS for another cluster, in the place of CoreDNS
  sudo roadstead node --kubeconfig F    pods on this machine, in the place of a kubelet
  roadstead node drain NODE             no pods on a node any more, as fast as budgets allow
  sudo roadstead snapshot save FILE     a copy of all objects, while it runs
  sudo roadstead image load FILE        an image from a file, for a machine without a registry
  sudo roadstead certificates list      when certificates end, and which keys there are
  sudo roadstead cleanup                remove everything: pods, rules and objects";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start everything on this machine: API server, controllers, DNS, proxy and node agent.
    Up(up::Args),
    /// Make this machine a node of a cluster, and run all that a node has.
    Join(Box<join::Args>),
    /// Be a node no more: pods go elsewhere, and nothing of ours stays on this machine.
    Leave(Box<leave::Args>),
    /// Let machines join the cluster: tokens, each good for a while.
    Token(token::Args),
    /// Run only the API server.
    Apiserver(apiserver::Args),
    /// Run controllers against any Kubernetes cluster.
    Controllers(controllers::Args),
    /// Run only the proxy, in the place of kube-proxy in any cluster.
    Proxy(proxy::Args),
    /// Run only the node agent, for any cluster, in the place of a kubelet.
    Node(Box<node::Args>),
    /// Enforce NetworkPolicies on this node, in any cluster whose network plugin does not.
    Netpol(netpol::Args),
    /// Print what the proxy would write into the kernel.
    Render(render::Args),
    /// Say what happens to a packet, and which Service and which NetworkPolicy decided it.
    Trace(trace::Args),
    /// Wait until a change is in the kernel of every node.
    Wait(wait::Args),
    /// Run only the DNS server, for any cluster, in the place of CoreDNS.
    Dns(Box<dns::Args>),
    /// Save all objects in a file, or restore them from one.
    Snapshot(snapshot::Args),
    /// Look after the etcd in which API servers keep their objects.
    Etcd(etcd::Args),
    /// Load, pull, list, save and remove the images of this machine.
    Image(image::Args),
    /// Show or renew certificates, and the keys of service-account tokens.
    Certificates(certificates::Args),
    /// Print what ServiceMonitors and PrometheusRules mean, as the files of a Prometheus.
    Prometheus(prometheus::Args),
    /// Learn by doing: the documents as lessons, with a check for every step.
    Lab(lab::Args),
    /// Print what bash, zsh or fish need to complete commands and flags.
    Completion(shell::CompletionArgs),
    /// Write manual pages, one for each command.
    Manual(shell::ManualArgs),
    /// Remove every process, namespace, link, rule and file that `up` with the same flags made, objects
    /// included.
    Cleanup(up::CleanupArgs),
}

/// Carries out a command.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<()> {
    let part_logs = PartLogs::default();
    // Only there is what the parts say to be seen elsewhere, too.
    let parts = matches!(cli.command, Command::Up(_) | Command::Join(_)).then(|| {
        let own = Targets::new().with_target("roadstead_proxy", LevelFilter::DEBUG);
        part_logs.clone().with_filter(own.with_target("roadstead_dns", LevelFilter::DEBUG))
    });
    let (filter, log_level) = LogLevel::new(format!("nlink=error,{}", cli.log));
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // If the log is on a disk that is full, to complain about it there would be a panic.
        .log_internal_errors(false)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .compact()
        .with_filter(filter);
    tracing_subscriber::registry().with(log).with(parts).init();
    notify::keep_alive();
    match cli.command {
        Command::Up(args) => up::run(args, part_logs).await,
        Command::Join(args) => join::run(*args, part_logs).await,
        Command::Leave(args) => leave::run(*args).await,
        Command::Token(args) => token::run(args).await,
        Command::Apiserver(args) => apiserver::run(args).await,
        Command::Controllers(args) => controllers::run(args).await,
        Command::Proxy(args) => proxy::run(args, log_level).await,
        Command::Node(args) => node::run(*args).await,
        Command::Netpol(args) => netpol::run(args).await,
        Command::Render(args) => render::run(args).await,
        Command::Trace(args) => trace::run(args).await,
        Command::Wait(args) => wait::run(args).await,
        Command::Dns(args) => dns::run(*args).await,
        Command::Snapshot(args) => snapshot::run(args).await,
        Command::Etcd(args) => etcd::run(args).await,
        Command::Image(args) => image::run(args).await,
        Command::Certificates(args) => certificates::run(args),
        Command::Prometheus(args) => prometheus::run(args).await,
        Command::Lab(args) => lab::run(args).await,
        Command::Completion(args) => {
            shell::completion(args);
            Ok(())
        }
        Command::Manual(args) => shell::manual(args),
        Command::Cleanup(args) => up::removal::cleanup(args).await,
    }
}

/// A token that is cancelled when the user or the system asks us to stop.
pub(crate) fn interrupted() -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let terminate = signal(SignalKind::terminate());
        let mut terminate = terminate.expect("signals can be watched");
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        notify::stopping();
        token.cancel();
    });
    stop
}
