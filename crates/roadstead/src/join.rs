//! `roadstead join`: this machine becomes a node of a cluster whose API server is elsewhere, and runs all
//! that a node has: pods, Services, names, policies, and the way to the pods of other nodes.

use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use roadstead_component::component::DebugState;
use roadstead_pod::addresses::Addresses;
use roadstead_podnet::plan::PodNetworkMode;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::compose::Tasks;
use crate::data_directory::DataDirectory;
use crate::join::identity::{Files, Membership};
use crate::join::place::Place;
use crate::leave::LEAVING;
use crate::network_claim::{Extent, NetworkClaim};
use crate::node_args::NodeArgs;
use crate::part_logs::PartLogs;
use crate::rules_claim::Rules;
use crate::token_text::{JoinToken, Pin};
use crate::{control_plane, machine};

pub(crate) mod identity;
mod parts;
mod place;
mod policy_token;

/// How soon it is noticed that the machine leaves.
const LOOK: Duration = Duration::from_millis(500);
/// How soon a server is asked again that was not there.
const RETRY: Duration = Duration::from_secs(2);

/// Make this machine a node of a cluster, and run all that a node has.
///
/// It begins with a token (`roadstead token create`); from then on the machine has a certificate of its own,
/// which it renews, and needs none.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Args {
    /// Where the API server is: https://HOST:PORT, or several of them. Needed the first time; others are found by
    /// themselves.
    #[arg(long, value_name = "URL,…")]
    pub server: Option<String>,
    /// What `roadstead token create` has printed. Needed the first time.
    #[arg(long, value_name = "TOKEN", env = "ROADSTEAD_TOKEN", hide_env_values = true)]
    pub token: Option<TokenInput>,
    /// The token, in a file: nobody sees it in the list of processes.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// By what the cluster's authority is known, if the token does not say it: sha256:…
    #[arg(long, value_name = "HASH")]
    pub ca_hash: Option<Pin>,
    #[command(flatten)]
    pub control_plane: ControlPlaneArgs,
    /// Where certificates, images and the state of pods are kept.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    #[arg(value_parser = machine::directory)]
    pub data_dir: PathBuf,
    /// The address of this machine among the nodes, or one of each IP family [default: by which it would talk to
    /// the world].
    #[arg(long, value_name = "IP,…")]
    pub node_ip: Option<Addresses>,
    /// How packets get to pods of other nodes: by routes, in VXLAN, by one or the other as it is possible, or by
    /// what others have set up.
    #[arg(long, value_name = "auto|routes|vxlan|none", default_value_t = PodNetworkMode::Auto)]
    pub pod_network: PodNetworkMode,
    /// Who is asked about names outside of the cluster [default: /etc/resolv.conf].
    #[arg(long, value_name = "IP,…", value_delimiter = ',')]
    pub dns_upstream: Vec<IpAddr>,
    /// End when whoever has started this ends.
    #[arg(long, hide = true)]
    pub with_parent: bool,
    #[command(flatten)]
    pub node: NodeArgs,
}

/// To be more than a node.
#[derive(Clone, Debug, Parser)]
pub(crate) struct ControlPlaneArgs {
    /// Be an API server of the cluster instead of a node: its objects are in etcd. What follows `--` are flags of
    /// `roadstead apiserver`.
    #[arg(long)]
    control_plane: bool,
    /// Flags of `roadstead apiserver`.
    #[arg(last = true, requires = "control_plane", value_name = "FLAGS")]
    server_flags: Vec<String>,
}

/// A token as it was given: of one kind or the other. Not shown: it is a secret.
#[derive(Clone)]
pub(crate) struct TokenInput(String);

impl FromStr for TokenInput {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for TokenInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenInput").finish_non_exhaustive()
    }
}

impl Args {
    /// The token that was given, if one was, in words.
    fn token_text(&self) -> anyhow::Result<Option<String>> {
        match &self.token_file {
            None => Ok(self.token.as_ref().map(|TokenInput(text)| text.clone())),
            Some(path) => {
                let text = std::fs::read_to_string(path);
                text.map(Some).with_context(|| format!("cannot read {}", path.display()))
            }
        }
    }

    /// The token that was given, if one was.
    fn given_token(&self) -> anyhow::Result<Option<JoinToken>> {
        let token: Option<JoinToken> =
            self.token_text()?.map(|text| text.parse()).transpose().map_err(anyhow::Error::msg)?;
        Ok(token.map(|token| JoinToken { pin: token.pin.or(self.ca_hash), ..token }))
    }
}

/// Joins, and is a node until interrupted; pods go on.
pub(crate) async fn run(args: Args, logs: PartLogs) -> anyhow::Result<()> {
    let ControlPlaneArgs { control_plane: is_server, server_flags } = &args.control_plane;
    if *is_server {
        let token = args.token_text()?;
        return control_plane::join(&args.data_dir, token.as_deref(), server_flags).await;
    }
    if !machine::is_privileged() {
        bail!("only root can make namespaces and links: a node needs them");
    }
    if args.with_parent {
        set_parent_process_death_signal(Some(Signal::TERM))
            .context("cannot follow who started us")?;
    }
    if crate::apiserver::store_file(&args.data_dir).exists() {
        bail!(
            "{} is that of a cluster of its own (`roadstead up`): choose another --data-dir",
            args.data_dir.display()
        );
    }
    let stop = crate::cli::interrupted();
    let _directory = DataDirectory::claim(&args.data_dir)?;
    let _claim = NetworkClaim::take(&args.data_dir, Extent::Cluster)?;
    let _rules = [Rules::Proxy.keep(), Rules::Netpol.keep()];
    roadstead_dns::tcp::raise_file_limit();
    let files = Files::of(&args.data_dir);
    if files.read(LEAVING).is_some() {
        bail!("this machine leaves the cluster: finish that with `roadstead leave`");
    }
    let leaves = stop.clone();
    tokio::spawn(async move {
        while files.read(LEAVING).is_none() {
            time::sleep(LOOK).await;
        }
        leaves.cancel();
    });
    let mut is_first = true;
    // Once more with each certificate: whoever has begun with the old one would end with it.
    while !stop.is_cancelled() {
        let (member, place) = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            found = establish(&args) => found?,
        };
        info!(node = member.node, server = member.server, pods = ?place.pod_cidrs, "this machine is a node");
        let round = stop.child_token();
        round_of(&args, (member, place), (&logs, is_first), round).await?;
        is_first = false;
    }
    Ok(())
}

/// Becomes a member, or is one already; then a server that is not there yet is waited for.
async fn establish(args: &Args) -> anyhow::Result<(Membership, Place)> {
    let member = Membership::establish(args).await?;
    let mut is_told = false;
    loop {
        match Place::find(args, &member).await {
            Ok(place) => return Ok((member, place)),
            Err(error) if Place::is_refused(&error) => return Err(error),
            Err(error) if !is_told => warn!("this machine waits for its cluster: {error:#}"),
            Err(_) => {}
        }
        is_told = true;
        time::sleep(RETRY).await;
    }
}

/// Runs everything until `round` ends, there is a new certificate, or the Node is another one.
async fn round_of(
    args: &Args,
    (member, place): (Membership, Place),
    (logs, is_first): (&PartLogs, bool),
    round: CancellationToken,
) -> anyhow::Result<()> {
    let mut tasks = Tasks::new(round.clone());
    let renewal = identity::Renewal::new(args, member.clone());
    let node = place::until_gone(member.client().await?, member.node.clone(), place.uid.clone());
    tasks.spawn_endless("memory of the API", member.api.clone().keep());
    let servers = member.api.servers.clone().follow(member.client().await?);
    tasks.spawn_endless("list of API servers", async move {
        servers.await;
        std::future::pending().await
    });
    let over = round.clone();
    tasks.spawn("membership", async move {
        tokio::select! {
            () = over.cancelled() => {}
            () = renewal.run() => over.cancel(),
            () = node => over.cancel(),
        }
        Ok(())
    });
    let state = DebugState::default();
    let mut parts =
        parts::Parts { args, member, place, logs, tasks: &mut tasks, stop: round, state };
    parts.start(is_first).await?;
    tasks.finish().await
}
