//! `roadstead leave`: a machine that joined is a node no more.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time;

use crate::data_directory::DataDirectory;
use crate::join::identity::{Files, Membership};
use crate::network_claim::{Extent, NetworkClaim};
use crate::node::{drain, nowhere};
use crate::node_args::NodeArgs;
use crate::rules_claim::Rules;
use crate::{duration, machine, world};

/// What tells a running `join` to end.
pub(crate) const LEAVING: &str = "leaving";
/// How long it may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

/// Be a node no more: pods go elsewhere, and nothing of ours stays on this machine.
///
/// A `roadstead join` that runs ends by itself. A node may not delete its own Node, because it could come back as one that
/// nobody has tainted: that takes an administrator's --kubeconfig, or `kubectl delete node` afterwards.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Args {
    /// Where certificates, images and the state of pods are kept.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    #[arg(value_parser = machine::directory)]
    data_dir: PathBuf,
    /// How to reach the API server as an administrator, to delete the Node.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Ask nobody, and only clean this machine: the cluster is not there any more.
    #[arg(long, conflicts_with = "kubeconfig")]
    offline: bool,
    /// How long pods have to leave.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration::parse)]
    timeout: Duration,
    #[command(flatten)]
    node: NodeArgs,
}

/// Carries out `roadstead leave`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    if !machine::is_privileged() {
        bail!("only root can remove links, namespaces and rules");
    }
    let files = Files::of(&args.data_dir);
    if files.read("node").is_none() {
        bail!(
            "{} is not of a machine that joined; `roadstead cleanup` removes what `up` made",
            args.data_dir.display()
        );
    }
    DataDirectory::check_for_removal(&args.data_dir)?;
    if !args.offline {
        say_goodbye(&args, &files).await?;
    }
    files.write(LEAVING, "")?;
    let Some(directory) = alone(&args.data_dir).await? else { return Ok(()) };
    let claim = NetworkClaim::take(&args.data_dir, Extent::Cluster)?;
    let _rules = [Rules::Proxy.take_for_removal()?, Rules::Netpol.take_for_removal()?];
    if !args.offline {
        take_out(&args, &files).await?;
    }
    let config = args.node.config(&args.data_dir, nowhere());
    let removed = roadstead_node::agent::cleanup(&config).await.context("pods are left behind")?;
    eprintln!("removed: {} pods", removed.pods);
    roadstead_podnet::agent::cleanup().context("routes to other nodes are left behind")?;
    roadstead_proxy::agent::cleanup().context("rules are left behind")?;
    roadstead_netpol::agent::cleanup().context("rules of policies are left behind")?;
    for setting in claim.release() {
        eprintln!("restored: {setting}");
    }
    let removed = directory.remove()?;
    eprintln!("removed: {} ({})", args.data_dir.display(), removed.names.join(", "));
    if !removed.left.is_empty() {
        eprintln!("left, because it is not ours: {}", removed.left.join(", "));
    }
    Ok(())
}

/// Takes the directory, as soon as `join` has ended.
async fn alone(data_dir: &Path) -> anyhow::Result<Option<DataDirectory>> {
    let end = Instant::now() + PATIENCE;
    loop {
        match DataDirectory::claim_for_removal(data_dir) {
            Err(_) if Instant::now() < end => time::sleep(LOOK).await,
            outcome => return outcome,
        }
    }
}

/// The cluster, by whoever has most rights of those that are there.
async fn reach(args: &Args, files: &Files) -> anyhow::Result<Client> {
    match (&args.kubeconfig, Membership::left(files)) {
        (Some(path), _) => {
            let mut config = world::client_config(path).await?;
            // As the server writes it for its own machine.
            let host = config.cluster_url.host().unwrap_or("").trim_matches(['[', ']']).to_owned();
            let is_local =
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
            if let Some(server) = files.read("server").filter(|_| is_local) {
                let first = server.split(',').next().unwrap_or_default().trim();
                config.cluster_url = first.parse().context("the server's address is unreadable")?;
            }
            Ok(Client::try_from(config)?)
        }
        (None, Some(member)) => member.client().await,
        (None, None) => bail!(
            "the certificate of this node is over: give an administrator's --kubeconfig, or --offline"
        ),
    }
}

/// Lets pods go where they can, while there is somebody who can end them in order.
async fn say_goodbye(args: &Args, files: &Files) -> anyhow::Result<()> {
    let client = reach(args, files).await?;
    let node = name(files);
    let known = Api::<Node>::all(client.clone()).get_opt(&node).await;
    let known =
        known.context("the cluster does not answer: try again, or clean up with --offline")?;
    if known.is_none() {
        return Ok(());
    }
    drain::cordon(&client, &node, true).await?;
    let patience = if DataDirectory::claim(&args.data_dir).is_ok() { LOOK } else { args.timeout };
    drain::send_away(&client, &node, patience).await
}

/// Takes the node out of the cluster, as far as it may.
async fn take_out(args: &Args, files: &Files) -> anyhow::Result<()> {
    let (client, node) = (reach(args, files).await?, name(files));
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    ignore_missing(leases.delete(&node, &DeleteParams::default()).await.map(drop))?;
    let nodes: Api<Node> = Api::all(client);
    if args.kubeconfig.is_some() {
        ignore_missing(nodes.delete(&node, &DeleteParams::default()).await.map(drop))?;
        eprintln!("removed: the Node {node}");
        return Ok(());
    }
    let condition = json!([{"type": "Ready", "status": "False", "reason": "NodeLeft",
        "message": "this machine has left the cluster", "lastTransitionTime": Time(Timestamp::now())}]);
    let patch = Patch::Strategic(json!({"status": {"conditions": condition}}));
    ignore_missing(nodes.patch_status(&node, &PatchParams::default(), &patch).await.map(drop))?;
    eprintln!("the Node {node} is still listed: kubectl delete node {node}");
    Ok(())
}

fn name(files: &Files) -> String {
    files.read("node").unwrap_or_default().trim().to_owned()
}

fn ignore_missing(outcome: Result<(), kube::Error>) -> anyhow::Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => Ok(outcome?),
    }
}
