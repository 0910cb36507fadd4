//! `roadstead controllers`: any of the controllers against any cluster.

use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use ipnet::IpNet;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use roadstead_controllers::certificates::signer::Signer;
use roadstead_controllers::leader::Election;
use roadstead_controllers::{
    Settings, certificates, endpoints, loadbalancer, node_ipam, node_lifecycle,
    pod_garbage_collector,
};
use roadstead_plan::loadbalancer::{Pool, Range};

use crate::compose::Tasks;
use crate::controller_pages::ControllerPages;
use crate::node_cidr_sizes::NodeCidrSizes;
use crate::servers::{self, ServerArgs};
use crate::{duration, machine, notify};

/// Run controllers against any Kubernetes cluster.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// How to reach the cluster [default: $KUBECONFIG, ~/.kube/config or the pod's own account].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Which controllers run: names, `*` for all, `-name` for all but that one.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "*")]
    #[arg(allow_hyphen_values = true)]
    controllers: Vec<String>,
    /// Where to serve /healthz, /readyz, /metrics, /metrics/objects (what kube-state-metrics would say) and
    /// /debug/state; port 0 picks a free one, and nothing means nowhere.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:10252")]
    metrics_bind_address: Option<SocketAddr>,
    /// Work only while holding the Lease kube-system/roadstead-controllers.
    #[arg(long)]
    leader_elect: bool,
    /// Where volumes are made for claims of the class local-path: a directory of every node, whose agent
    /// makes them; without it nobody makes any, and there is no such class.
    #[arg(long, value_name = "DIRECTORY", value_parser = absolute)]
    local_storage: Option<PathBuf>,
    /// Where the addresses of pods come from: one range, or one of each IP family. Each node gets a block;
    /// without ranges nobody gives any.
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    node_cidr_sizes: NodeCidrSizes,
    #[command(flatten)]
    signing: Signing,
    #[command(flatten)]
    options: Options,
}

/// Who signs certificates.
#[derive(Clone, Debug, Parser)]
struct Signing {
    /// The certificate of the authority that approved certificate requests are signed with; without
    /// it and its key nobody signs them.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    cluster_signing_cert_file: Option<PathBuf>,
    /// The key of that authority.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    cluster_signing_key_file: Option<PathBuf>,
}

impl Signing {
    fn signer(&self, duration: Duration) -> anyhow::Result<Option<Arc<Signer>>> {
        let (Some(certificate), Some(key)) =
            (&self.cluster_signing_cert_file, &self.cluster_signing_key_file)
        else {
            return Ok(None);
        };
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path);
            text.with_context(|| format!("cannot read {}", path.display()))
        };
        let signer = Signer::new(&read(certificate)?, &read(key)?, duration);
        let signer = signer.map_err(|why| {
            anyhow::anyhow!(
                "cannot sign with {} and {}: {why}",
                certificate.display(),
                key.display()
            )
        })?;
        Ok(Some(Arc::new(signer)))
    }
}

/// What can be chosen about the controllers themselves.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Options {
    /// How many endpoints fit into an EndpointSlice.
    #[arg(long, value_name = "NUMBER", default_value = "100")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    max_endpoints_per_slice: u16,
    /// How many addresses of each subset of hand-written Endpoints are mirrored.
    #[arg(long, value_name = "NUMBER", default_value = "1000")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    mirroring_max_endpoints_per_subset: u16,
    /// How long changes of pods are collected before endpoints are written, in milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value = "0")]
    endpoint_updates_batch_period: u64,
    /// Addresses for Services of type LoadBalancer: addresses, CIDRs or ranges such as
    /// 192.0.2.10-192.0.2.20 [default: the addresses of the nodes].
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',')]
    load_balancer_pool: Vec<Range>,
    /// How traffic for load balancers arrives: VIP or Proxy.
    #[arg(long, value_name = "MODE", default_value = "VIP", value_parser = ["VIP", "Proxy"])]
    load_balancer_ip_mode: String,
    /// A node that shows no sign of life for so many seconds is lost.
    #[arg(long, value_name = "SECONDS", default_value = "40")]
    node_monitor_grace_period: u64,
    /// So many finished pods are kept; 0 keeps all.
    #[arg(long, value_name = "NUMBER", default_value = "12500")]
    terminated_pod_gc_threshold: usize,
    /// For how long certificates are valid that approved requests get; a request may ask for less.
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = duration::parse)]
    cluster_signing_duration: Duration,
}

impl Options {
    /// The addresses that load balancers get; none if they get those of the nodes.
    pub(crate) fn pool(&self) -> &[Range] {
        &self.load_balancer_pool
    }

    /// Whether load balancers get addresses that no machine has.
    pub(crate) fn has_pool(&self) -> bool {
        !self.load_balancer_pool.is_empty()
    }

    /// For how long signed certificates are valid.
    pub(crate) fn signing_duration(&self) -> Duration {
        self.cluster_signing_duration
    }

    /// What the controllers are told.
    pub(crate) fn settings(&self) -> Settings {
        let pool = match self.load_balancer_pool.as_slice() {
            [] => Pool::Nodes,
            ranges => Pool::Ranges(ranges.to_vec()),
        };
        Settings {
            root_ca: None,
            endpoints: endpoints::Config {
                max_endpoints: self.max_endpoints_per_slice.into(),
                max_mirrored: self.mirroring_max_endpoints_per_subset.into(),
                batch_period: Duration::from_millis(self.endpoint_updates_batch_period),
            },
            load_balancer: loadbalancer::Config {
                pool,
                ip_mode: self.load_balancer_ip_mode.clone(),
                ..Default::default()
            },
            node_lifecycle: node_lifecycle::Config {
                grace_period: Duration::from_secs(self.node_monitor_grace_period),
            },
            pod_garbage_collector: pod_garbage_collector::Config {
                terminated_threshold: self.terminated_pod_gc_threshold,
            },
            ..Settings::default()
        }
    }
}

/// Runs controllers until interrupted.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let mut names = roadstead_controllers::choose(&args.controllers).map_err(anyhow::Error::msg)?;
    let signer = args.signing.signer(args.options.signing_duration())?;
    names.retain(|name| signer.is_some() || *name != roadstead_controllers::CERTIFICATES);
    anyhow::ensure!(!names.is_empty(), "--controllers leaves none to run");
    let ranges = args.node_cidr_sizes.ranges(&args.cluster_cidr)?;
    let config = config(args.kubeconfig.as_deref()).await?;
    let settings = Settings {
        root_ca: root_ca(&config),
        certificates: certificates::Config { signer, ..certificates::Config::default() },
        local_storage: args.local_storage,
        node_ipam: node_ipam::Config { ranges, kept: Vec::new() },
        ..args.options.settings()
    };
    let server = config.cluster_url.to_string();
    let client = servers::connect(config, &args.servers).context("cannot use the kubeconfig")?;
    let stop = crate::cli::interrupted();
    let mut tasks = Tasks::new(stop.clone());
    if let Some(address) = args.metrics_bind_address {
        let pages = ControllerPages { settings: settings.clone(), server: None };
        let address = pages.serve(address, client.clone(), &mut tasks).await?;
        eprintln!(
            "metrics on http://{address}/metrics, those of objects below it on /metrics/objects"
        );
    }
    eprintln!("controllers of {server}: {}", names.join(", "));
    // One of several may wait for the others for months.
    notify::ready();
    let election = args.leader_elect.then(|| {
        let identity = format!("{}_{}", machine::host_name(), std::process::id());
        Election::new(identity)
    });
    if let Some(election) = &election {
        tokio::select! {
            () = election.win(&client) => {}
            () = stop.cancelled() => return tasks.finish().await,
        }
        let (election, client, stop) = (election.clone(), client.clone(), stop.clone());
        tasks.spawn("leader election", async move {
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                // Another may work now: starting again is the safe way to stop.
                () = election.hold(&client) => anyhow::bail!("the lease is lost"),
            }
        });
    }
    for (name, names) in roadstead_controllers::tasks(&names) {
        let settings = settings.clone();
        let work = roadstead_controllers::run(names, client.clone(), settings, stop.clone());
        tasks.spawn(name, async move {
            work.await;
            Ok(())
        });
    }
    let outcome = tasks.finish().await;
    if let Some(election) = election {
        election.resign(&client).await;
    }
    outcome
}

/// A path that means the same on every node.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_plain = !path.components().any(|part| part == Component::ParentDir);
    if path.is_absolute() && is_plain {
        Ok(path)
    } else {
        Err("must be an absolute path, without '..'".to_owned())
    }
}

/// The cluster that a kubeconfig names, or the usual places.
async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<Config> {
    let Some(path) = kubeconfig else {
        return Config::infer().await.context("no cluster is configured; see --kubeconfig");
    };
    let options = KubeConfigOptions::default();
    let file = Kubeconfig::read_from(path)
        .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
    Config::from_custom_kubeconfig(file, &options)
        .await
        .with_context(|| format!("{} names no cluster that can be used", path.display()))
}

/// What pods of that cluster should trust: what we trust ourselves.
fn root_ca(config: &Config) -> Option<String> {
    use base64::Engine;
    let certificates = config.root_cert.as_ref()?.iter().map(|der| {
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        let body = lines.join("\n");
        format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
    });
    Some(certificates.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_volumes_are_made() {
        let read = |more: &[&str]| {
            let words = ["controllers"].iter().chain(more);
            Args::try_parse_from(words).map(|args| args.local_storage)
        };
        assert_eq!(read(&[]).unwrap(), None);
        let path = read(&["--local-storage", "/var/lib/volumes"]).unwrap();
        assert_eq!(path, Some(PathBuf::from("/var/lib/volumes")));
        for wrong in ["volumes", "/var/../etc", ""] {
            assert!(read(&["--local-storage", wrong]).is_err(), "{wrong:?}");
        }
    }
}
