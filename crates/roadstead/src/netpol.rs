//! `roadstead netpol`: NetworkPolicies enforced on this node, in any cluster whose network plugin does
//! not do that.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Parser;
use roadstead_netpol::agent::{self, Config};
use roadstead_netpol::bridges;
use tracing::info;

use crate::rules_claim::Rules;
use crate::servers::{self, ServerArgs};
use crate::{machine, network_claim, notify, world};

/// Enforce NetworkPolicies on this node, in any cluster whose network plugin does not.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// How to reach the API server; without it, as a pod does.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// The name of this node [default: its host name].
    #[arg(long, value_name = "NAME")]
    hostname_override: Option<String>,
    /// Where to serve /healthz, /readyz and /metrics.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10253")]
    pages: SocketAddr,
    /// Delete all rules and exit.
    #[arg(long)]
    cleanup: bool,
    #[command(flatten)]
    servers: ServerArgs,
}

/// Carries out `roadstead netpol`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    if !machine::may_write_rules() {
        bail!("only root (CAP_NET_ADMIN) can write the rules of policies");
    }
    if args.cleanup {
        let _claim = Rules::Netpol.take_for_removal()?;
        network_claim::check_rules_are_free()?;
        return agent::cleanup().context("rules are left behind");
    }
    let _claim = Rules::Netpol.keep();
    let config = match args.kubeconfig {
        Some(path) => world::client_config(&path).await?,
        None => {
            let config = kube::Config::infer().await;
            config.context("no cluster: --kubeconfig is missing")?
        }
    };
    let client = servers::connect(config, &args.servers)?;
    let node_name = args.hostname_override.unwrap_or_else(machine::host_name);
    info!(node = node_name, "policies are enforced here");
    bridges::look();
    let config = Config { node_name, pages: Some(args.pages), ..Config::default() };
    notify::ready_after(config.programmed.subscribe(), |programmed| *programmed);
    Ok(agent::run(client, config, crate::cli::interrupted()).await?)
}
