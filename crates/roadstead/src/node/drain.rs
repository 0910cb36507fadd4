//! `roadstead node drain`: no new pods for a node, and its pods go elsewhere, as fast as their budgets
//! allow.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use roadstead_plan::drain::{Allowed, plan_drain};
use serde_json::json;
use tokio::time;

use crate::duration;

/// So many pods are on their way at a time.
const AT_ONCE: usize = 32;
/// After a budget has said no.
const RETRY: Duration = Duration::from_secs(2);
/// How often it is looked whether a pod has gone.
const LOOK: Duration = Duration::from_millis(500);

/// Take no more pods on a node, and evict those that are there, as their budgets allow.
///
/// Pods of DaemonSets and static pods stay. `kubectl drain` does the same.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Args {
    /// The node.
    #[arg(value_name = "NODE")]
    name: String,
    #[command(flatten)]
    cluster: Cluster,
    /// How many seconds each pod has to end [default: what it says itself].
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<u32>,
    /// Give up after this time [default: never].
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Leave the pods of DaemonSets where they are; with `=false`, do nothing if there are any.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true",
        require_equals = true, action = clap::ArgAction::Set)]
    ignore_daemonsets: bool,
    /// Go on even if there are pods with emptyDir volumes: what is in them is lost.
    #[arg(long)]
    delete_emptydir_data: bool,
    /// Go on even if there are pods that nobody makes again.
    #[arg(long)]
    force: bool,
}

/// Let a node take pods again.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Uncordon {
    /// The node.
    #[arg(value_name = "NODE")]
    name: String,
    #[command(flatten)]
    cluster: Cluster,
}

/// Which cluster.
#[derive(Clone, Debug, Parser)]
struct Cluster {
    /// How to reach the API server [default: as a pod does, or kubectl's].
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

impl Cluster {
    async fn client(&self) -> anyhow::Result<Client> {
        let mut config = super::configuration(self.kubeconfig.as_deref()).await?;
        // What a budget refuses is told, not tried again in silence.
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }
}

/// Carries out `roadstead node uncordon`.
pub(crate) async fn uncordon(args: Uncordon) -> anyhow::Result<()> {
    cordon(&args.cluster.client().await?, &args.name, false).await
}

/// Carries out `roadstead node drain`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let client = args.cluster.client().await?;
    cordon(&client, &args.name, true).await?;
    let work = empty(&client, &args);
    match args.timeout {
        None => work.await?,
        Some(limit) => match time::timeout(limit, work).await {
            Ok(done) => done?,
            Err(_) => bail!("node/{} is not empty after {} s", args.name, limit.as_secs()),
        },
    }
    say(&format!("node/{} drained", args.name))
}

/// Lets a node take no more pods, or some again.
pub(crate) async fn cordon(client: &Client, name: &str, yes: bool) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get(name).await.map_err(in_its_own_words)?;
    let is_so = node.spec.and_then(|spec| spec.unschedulable).unwrap_or(false) == yes;
    if !is_so {
        let patch = json!({"spec": {"unschedulable": yes}});
        let params = PatchParams::default();
        nodes.patch(name, &params, &Patch::Merge(&patch)).await.map_err(in_its_own_words)?;
    }
    let (already, un) = (if is_so { "already " } else { "" }, if yes { "" } else { "un" });
    say(&format!("node/{name} {already}{un}cordoned"))
}

async fn empty(client: &Client, args: &Args) -> anyhow::Result<()> {
    let there = ListParams::default().fields(&format!("spec.nodeName={}", args.name));
    let pods = Api::<Pod>::all(client.clone()).list(&there).await.map_err(in_its_own_words)?;
    let allowed = Allowed {
        ignore_daemonsets: args.ignore_daemonsets,
        delete_emptydir_data: args.delete_emptydir_data,
        force: args.force,
    };
    let plan = plan_drain(&pods.items, allowed);
    let names =
        |pods: &[&Pod]| pods.iter().map(|pod| full_name(pod)).collect::<Vec<_>>().join(", ");
    if !plan.refusals.is_empty() {
        let refusals = plan.refusals.iter().map(|(why, pods)| format!("{why}: {}", names(pods)));
        bail!("{}", refusals.collect::<Vec<_>>().join(", "));
    }
    if !plan.daemons.is_empty() {
        say(&format!("ignoring DaemonSet-managed Pods: {}", names(&plan.daemons)))?;
    }
    let pods: Vec<Pod> = plan.leave.into_iter().cloned().collect();
    let leaving = pods.into_iter().map(|pod| evict(client.clone(), pod, args.grace_period));
    futures::stream::iter(leaving).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(())
}

/// Sends all pods of a node away that can go elsewhere, as their budgets allow; waits for that time at most. It
/// asks for nothing that the node itself may not ask for.
pub(crate) async fn send_away(
    client: &Client,
    node: &str,
    patience: Duration,
) -> anyhow::Result<()> {
    let allowed = Allowed { ignore_daemonsets: true, delete_emptydir_data: true, force: true };
    let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let all: Api<Pod> = Api::all(client.clone());
    let working = async {
        loop {
            let pods = all.list(&there).await.map_err(in_its_own_words)?;
            let leave = plan_drain(&pods.items, allowed).leave;
            if leave.is_empty() {
                return anyhow::Ok(());
            }
            for pod in leave.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
                let pods: Api<Pod> =
                    Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
                match pods.evict(&pod.name_any(), &EvictParams::default()).await {
                    Ok(_) => say(&format!("evicting pod {}", full_name(pod)))?,
                    // It has to wait, or is gone.
                    Err(kube::Error::Api(status)) if [429, 404].contains(&status.code) => {}
                    Err(error) => return Err(in_its_own_words(error)),
                }
            }
            time::sleep(LOOK).await;
        }
    };
    match time::timeout(patience, working).await {
        Ok(done) => done,
        Err(_) => say(&format!("node/{node} still has pods after {} s", patience.as_secs())),
    }
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// Asks until the budgets of a pod allow it, and waits until the pod has gone.
async fn evict(client: Client, pod: Pod, grace_period: Option<u32>) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
    let (name, full) = (pod.name_any(), full_name(&pod));
    let options = DeleteParams { grace_period_seconds: grace_period, ..DeleteParams::default() };
    let how = EvictParams { delete_options: Some(options), ..EvictParams::default() };
    let mut is_told = false;
    say(&format!("evicting pod {full}"))?;
    loop {
        match pods.evict(&name, &how).await {
            Ok(_) => break,
            Err(kube::Error::Api(status)) if status.code == 404 => break,
            Err(kube::Error::Api(status)) if status.code == 429 => {
                if !is_told {
                    say(&format!("pod {full} has to wait: {}", status.message))?;
                }
                is_told = true;
                time::sleep(RETRY).await;
            }
            Err(error) => {
                return Err(in_its_own_words(error)).context(format!("cannot evict pod {full}"));
            }
        }
    }
    loop {
        let now = pods.get_opt(&name).await.map_err(in_its_own_words)?;
        if now.is_none_or(|now| now.uid() != pod.uid()) {
            return say(&format!("pod {full} evicted"));
        }
        time::sleep(LOOK).await;
    }
}

/// What the server said, without the shell around it.
fn in_its_own_words(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        other => other.into(),
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "{line}")?)
}
