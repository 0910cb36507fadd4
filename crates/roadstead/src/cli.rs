//! The command line.

use std::io::IsTerminal;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::{apiserver, certificates, controllers, dns, proxy, render, snapshot, trace, up, wait};

/// Kubernetes Services for any Linux machine.
///
/// `roadstead up` starts everything on this machine and writes a kubeconfig; any kubectl can use
/// it. The other commands run one part.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// What to log, as LEVEL or TARGET=LEVEL,… (error, warn, info, debug).
    #[arg(long, global = true, env = "ROADSTEAD_LOG", default_value = "info")]
    pub log: String,
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  sudo roadstead up                     everything on this machine
  roadstead apiserver --ephemeral       a Kubernetes API for tests, in memory, without root
  sudo roadstead proxy --kubeconfig F   in the place of kube-proxy, in any cluster
  sudo roadstead dns --kubeconfig F     DNS for another cluster, in the place of CoreDNS
  sudo roadstead snapshot save FILE     a copy of all objects, while it runs
  sudo roadstead certificates list      when certificates end, and which keys there are
  sudo roadstead cleanup                remove everything: pods, rules and objects";

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start everything on this machine: API server, controllers, DNS, proxy and node agent.
    Up(up::Args),
    /// Run only the API server.
    Apiserver(apiserver::Args),
    /// Run controllers against any Kubernetes cluster.
    Controllers(controllers::Args),
    /// Run only the proxy, in the place of kube-proxy in any cluster.
    Proxy(proxy::Args),
    /// Print what the proxy would write into the kernel.
    Render(render::Args),
    /// Say what happens to a packet, and which Service decided it.
    Trace(trace::Args),
    /// Wait until a change is in the kernel of every node.
    Wait(wait::Args),
    /// Run only the DNS server, for any cluster, in the place of CoreDNS.
    Dns(Box<dns::Args>),
    /// Save all objects in a file, or restore them from one.
    Snapshot(snapshot::Args),
    /// Show or renew certificates, and the keys of service-account tokens.
    Certificates(certificates::Args),
    /// Remove every process, namespace, link, rule and file that `up` with the same flags made, objects
    /// included.
    Cleanup(up::Args),
}

/// Carries out a command.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(format!("nlink=error,{}", cli.log)))
        .with_writer(std::io::stderr)
        // If the log is on a disk that is full, to complain about it there would be a panic.
        .log_internal_errors(false)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .compact()
        .init();
    match cli.command {
        Command::Up(args) => up::run(args).await,
        Command::Apiserver(args) => apiserver::run(args).await,
        Command::Controllers(args) => controllers::run(args).await,
        Command::Proxy(args) => proxy::run(args).await,
        Command::Render(args) => render::run(args).await,
        Command::Trace(args) => trace::run(args).await,
        Command::Wait(args) => wait::run(args).await,
        Command::Dns(args) => dns::run(*args).await,
        Command::Snapshot(args) => snapshot::run(args).await,
        Command::Certificates(args) => certificates::run(args),
        Command::Cleanup(args) => up::cleanup(args).await,
    }
}

/// A token that is cancelled when the user or the system asks us to stop.
pub fn interrupted() -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let terminate = signal(SignalKind::terminate());
        let mut terminate = terminate.expect("signals can be watched");
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        token.cancel();
    });
    stop
}
