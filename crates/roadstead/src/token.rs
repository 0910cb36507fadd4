//! `roadstead token`: with which machines join.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Parser, Subcommand};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::config::Kubeconfig;
use kube::{Api, Client, ResourceExt};
use roadstead_plan::bootstrap_token::{BootstrapToken, GROUP, NAMESPACE, PREFIX, TYPE};
use roadstead_server::identity::authority::public_key_hash;

use crate::etcd_args::EtcdClientArgs;
use crate::token_text::{JoinToken, Pin};
use crate::{control_plane, duration, machine, world};

/// Let machines join the cluster: tokens, each good for a while.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token, and print what to type on the machine that is to join.
    Create {
        /// For how long it is good.
        #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration::parse)]
        ttl: Duration,
        /// What it is for, in words.
        #[arg(long, value_name = "TEXT", default_value = "")]
        description: String,
        /// Only the machine of this name may join with it.
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
        /// Print the token alone.
        #[arg(long)]
        quiet: bool,
        /// For a machine that is to be an API server of this cluster, which is in etcd: the keys of this one's data
        /// directory lie there until the token ends, and only the token opens them.
        #[arg(long, conflicts_with_all = ["node", "description"])]
        control_plane: bool,
        #[command(flatten)]
        etcd: Box<EtcdClientArgs>,
        #[command(flatten)]
        cluster: Cluster,
    },
    /// Say which tokens there are; not their secrets.
    List {
        #[command(flatten)]
        cluster: Cluster,
    },
    /// Remove a token. Machines that have joined with it stay.
    Delete {
        /// Its id: the first six characters.
        id: String,
        #[command(flatten)]
        cluster: Cluster,
    },
}

/// Which cluster, as its administrator.
#[derive(Debug, Parser)]
struct Cluster {
    /// How to reach the API server as an administrator [default: admin.kubeconfig in the data directory].
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// Where certificates are kept.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    data_dir: PathBuf,
}

impl Cluster {
    fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone().unwrap_or_else(|| self.data_dir.join("admin.kubeconfig"))
    }

    async fn secrets(&self) -> anyhow::Result<Api<Secret>> {
        Ok(Api::namespaced(world::client(&self.kubeconfig()).await?, NAMESPACE))
    }
}

/// Carries out `roadstead token`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Create { ttl, quiet, control_plane: true, etcd, cluster, .. } => {
            control_plane::offer(&cluster.data_dir, &etcd, (ttl, quiet)).await
        }
        Command::Create { ttl, description, node, quiet, cluster, .. } => {
            let secrets = cluster.secrets().await?;
            let token = BootstrapToken { description, ..fresh(ttl, node)? };
            create(&secrets, &token).await?;
            show(&cluster, &secrets.into_client(), &token, quiet).await
        }
        Command::List { cluster } => list(&cluster.secrets().await?).await,
        Command::Delete { id, cluster } => {
            let id = id.split('.').next().unwrap_or("").to_owned();
            let deleted = cluster.secrets().await?;
            let deleted = deleted.delete(&format!("{PREFIX}{id}"), &DeleteParams::default()).await;
            deleted.with_context(|| format!("cannot delete the token {id}"))?;
            Ok(writeln!(io::stdout(), "token {id} deleted")?)
        }
    }
}

/// A token that nobody has guessed.
pub(crate) fn fresh(ttl: Duration, node: Option<String>) -> anyhow::Result<BootstrapToken> {
    let lasts = SignedDuration::try_from(ttl).context("--ttl is too long")?;
    Ok(BootstrapToken {
        id: random(6)?,
        secret: random(16)?,
        end: Some(Timestamp::now().checked_add(lasts).context("--ttl is too long")?),
        authenticates: true,
        signs: true,
        groups: vec![GROUP.to_owned()],
        node,
        description: String::new(),
    })
}

/// Letters and digits, each as likely as any other.
fn random(length: usize) -> anyhow::Result<String> {
    const CHARACTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::new();
    while text.len() < length {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| anyhow::anyhow!("there is no randomness"))?;
        let fair = bytes.iter().filter(|byte| **byte < 252);
        text.extend(fair.map(|byte| char::from(CHARACTERS[usize::from(byte % 36)])));
    }
    text.truncate(length);
    Ok(text)
}

/// Makes a token known.
pub(crate) async fn create(secrets: &Api<Secret>, token: &BootstrapToken) -> anyhow::Result<()> {
    let data = token.data().into_iter();
    let secret = Secret {
        metadata: ObjectMeta { name: Some(token.secret_name()), ..ObjectMeta::default() },
        type_: Some(TYPE.to_owned()),
        data: Some(data.map(|(name, value)| (name, ByteString(value.into_bytes()))).collect()),
        ..Secret::default()
    };
    let made = secrets.create(&PostParams::default(), &secret).await;
    made.map(drop).context("cannot make the token")
}

async fn show(
    cluster: &Cluster,
    client: &Client,
    token: &BootstrapToken,
    quiet: bool,
) -> anyhow::Result<()> {
    let path = cluster.kubeconfig();
    // What the administrator trusts, and not what somebody may have written into the cluster.
    let (server, authority) = public(client).await?;
    if trusted(&path)?.is_some_and(|own| own != authority) {
        bail!("cluster-info names another authority than {}: nobody can join", path.display());
    }
    let token = pinned(&authority, token)?;
    let text = token.to_text();
    let mut out = io::stdout();
    if quiet {
        return Ok(writeln!(out, "{text}")?);
    }
    writeln!(out, "sudo roadstead join --server {server} --token {text}")?;
    if let Some(pin) = token.pin {
        eprintln!("# or, as kubeadm has it: --token {} --ca-hash {pin}", token.token);
    }
    Ok(())
}

/// The token with that by which the cluster is known.
fn pinned(authority: &str, token: &BootstrapToken) -> anyhow::Result<JoinToken> {
    let hash = public_key_hash(authority).context("the authority's certificate is unreadable")?;
    Ok(JoinToken { token: format!("{}.{}", token.id, token.secret), pin: Some(Pin(hash)) })
}

/// What a machine is given, by somebody who is the cluster.
pub(crate) async fn text(client: &Client, token: &BootstrapToken) -> anyhow::Result<String> {
    let (_, authority) = public(client).await?;
    Ok(pinned(&authority, token)?.to_text())
}

/// Where the cluster says that it is, and its authority, in PEM.
async fn public(client: &Client) -> anyhow::Result<(String, String)> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    let map = maps.get("cluster-info").await.context("cannot read kube-public/cluster-info")?;
    let text = map.data.and_then(|mut data| data.remove("kubeconfig")).unwrap_or_default();
    cluster_of(&text).context("kube-public/cluster-info has no kubeconfig that can be used")
}

/// Server and authority of the first cluster in a kubeconfig.
pub(crate) fn cluster_of(text: &str) -> Option<(String, String)> {
    let config = Kubeconfig::from_yaml(text).ok()?;
    let cluster = config.clusters.into_iter().find_map(|named| named.cluster)?;
    let authority = STANDARD.decode(cluster.certificate_authority_data?).ok()?;
    Some((cluster.server?, String::from_utf8(authority).ok()?))
}

fn trusted(path: &std::path::Path) -> anyhow::Result<Option<String>> {
    let text = std::fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(cluster_of(&text).map(|(_, authority)| authority))
}

async fn list(secrets: &Api<Secret>) -> anyhow::Result<()> {
    let only = ListParams::default().fields(&format!("type={TYPE}"));
    let found = secrets.list(&only).await.context("cannot list tokens")?;
    let mut out = io::stdout();
    writeln!(out, "{:<8} {:<22} {:<20} DESCRIPTION", "TOKEN", "ENDS", "NODE")?;
    for secret in &found {
        let data = secret.data.iter().flatten();
        let texts =
            data.map(|(name, value)| (name.clone(), String::from_utf8_lossy(&value.0).into()));
        let token = BootstrapToken::read(&secret.name_any(), TYPE, &texts.collect());
        match token {
            Ok(token) => {
                let end = token.end.map_or_else(
                    || "never".into(),
                    |end| end.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
                );
                let end = if token.is_over(Timestamp::now()) { "is over".into() } else { end };
                let node = token.node.unwrap_or_else(|| "any".into());
                writeln!(out, "{:<8} {end:<22} {node:<20} {}", token.id, token.description)?;
            }
            Err(why) => writeln!(out, "{}: {why}", secret.name_any())?,
        }
    }
    Ok(())
}

#[test]
fn tokens_are_their_own() {
    let one = fresh(Duration::from_secs(60), None).unwrap();
    let other = fresh(Duration::from_secs(60), None).unwrap();
    assert_ne!((&one.id, &one.secret), (&other.id, &other.secret));
    let text = format!("{}.{}", one.id, one.secret);
    assert!(text.parse::<JoinToken>().is_ok(), "{text}");
}
