//! What is removed when an ephemeral cluster ends, and by `roadstead cleanup`: only what carries our mark.

use anyhow::{Context, bail};
use tracing::{info, warn};

use crate::data_directory::DataDirectory;
use crate::machine;
use crate::network_claim::{Extent, NetworkClaim};
use crate::rules_claim::Rules;
use crate::up::CleanupArgs;
use crate::up::plan::UpPlan;

/// Removes everything of ours from the kernel at the end of `up --ephemeral`. Rules have the names
/// that kube-proxy gives them: where we wrote none, they are somebody else's.
pub(super) async fn sweep(plan: &UpPlan, wrote_rules: bool) {
    if let Err(error) = plan.machines().remove().await {
        warn!("other nodes are left behind: {error:#}");
    }
    if wrote_rules {
        sweep_rules(Rules::Proxy, roadstead_proxy::agent::cleanup);
    }
    sweep_rules(Rules::Netpol, roadstead_netpol::agent::cleanup);
    if let Err(error) = roadstead_node::agent::cleanup(&plan.node()).await {
        warn!(%error, "pods left behind");
    }
    if let Err(error) = roadstead_podnet::agent::cleanup() {
        warn!(%error, "routes to other nodes left behind");
    }
}

/// Removes rules, unless somebody beside us keeps them.
fn sweep_rules<E: std::error::Error>(rules: Rules, remove: fn() -> Result<(), E>) {
    match rules.take_for_removal() {
        Ok(_claim) => {
            if let Err(error) = remove() {
                warn!(%error, ?rules, "rules left behind");
            }
        }
        Err(why) => info!(why = format!("{why:#}"), ?rules, "rules stay"),
    }
}

/// Carries out `roadstead cleanup`: removes what carries our mark, once it is sure that nobody uses
/// it and that it belongs to this data directory.
pub(crate) async fn cleanup(args: CleanupArgs) -> anyhow::Result<()> {
    let plan = UpPlan::new(args.up)?;
    if !machine::is_privileged() {
        bail!("only root can remove links, namespaces and rules");
    }
    let data_dir = plan.args.data_dir.display();
    let directory = DataDirectory::claim_for_removal(&plan.args.data_dir)?;
    let claim = NetworkClaim::take(&plan.args.data_dir, Extent::Cluster)?;
    let _rules = [Rules::Proxy.take_for_removal()?, Rules::Netpol.take_for_removal()?];
    for name in plan.machines().remove().await? {
        eprintln!("removed: the node {name}, and all that was in it");
    }
    let node = roadstead_node::agent::cleanup(&plan.node()).await;
    let node = node.context("pods are left behind")?;
    if node.pods > 0 {
        eprintln!("removed: {} pods", node.pods);
    }
    if node.bridge {
        eprintln!("removed: the bridge {} and the links on it", plan.args.node.bridge);
    }
    if roadstead_podnet::agent::cleanup().context("routes to other nodes are left behind")? > 0 {
        eprintln!("removed: the routes to other nodes");
    }
    // Rules have the names that kube-proxy gives them: on a machine where none of us ran since it
    // started they are somebody else's.
    if claim.had_owner() || node.bridge {
        roadstead_proxy::agent::cleanup().context("rules are left behind")?;
        eprintln!("removed: the rules of the proxy");
    }
    // The name of that table is ours alone.
    roadstead_netpol::agent::cleanup().context("rules of policies are left behind")?;
    for setting in claim.release() {
        eprintln!("restored: {setting}");
    }
    let Some(directory) = directory else {
        eprintln!("{data_dir} does not exist or is empty");
        return Ok(());
    };
    if args.keep_data {
        eprintln!("kept: {data_dir}");
        return Ok(());
    }
    let removed = directory.remove()?;
    eprintln!("removed: {data_dir} ({})", removed.names.join(", "));
    if !removed.left.is_empty() {
        eprintln!("left in {data_dir}, because it is not ours: {}", removed.left.join(", "));
    }
    Ok(())
}
