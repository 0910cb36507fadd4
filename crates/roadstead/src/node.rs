//! `roadstead node`: the pods of this machine, for any cluster, in the place of a kubelet. Below it: what an
//! operator does with nodes.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use roadstead_node::config::{Config, gateway};
use roadstead_node::serving::secure::{SecurePort, TlsFiles};
use roadstead_pod::addresses::Addresses;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::data_directory::DataDirectory;
use crate::machine::{self, own_address};
use crate::network_claim::{Extent, NetworkClaim};
use crate::node_args::{NodeArgs, NodePlace};
use crate::notify;
use crate::rules_claim::Rules;
use crate::servers::{self, ServerArgs};

pub(crate) mod drain;

/// Run only the node agent, for any cluster, in the place of a kubelet.
///
/// Routes between the pods of several nodes, and rules for Services, are the business of others: of
/// `roadstead proxy`, and of whoever connects the machines.
#[derive(Clone, Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Where images and the state of pods are kept.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    #[arg(value_parser = machine::directory)]
    data_dir: PathBuf,
    /// Where the addresses of this node's pods come from: one range, or one of each IP family [default: what
    /// the Node object says].
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    pod_cidr: Vec<IpNet>,
    /// Addresses of Services, which do not leave this machine while no rule is there for them.
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',')]
    service_cidr: Vec<IpNet>,
    /// The address of this machine among the nodes, or one of each IP family [default: by which it would talk to
    /// the world].
    #[arg(long, value_name = "IP,…")]
    node_ip: Option<Addresses>,
    /// The address of the cluster's DNS [default: that of the Service kube-system/kube-dns].
    #[arg(long, value_name = "IP")]
    cluster_dns: Option<IpAddr>,
    /// The domain that all names of the cluster end in.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// End all pods of this machine, remove what was made for them, and exit.
    #[arg(long)]
    cleanup: bool,
}

/// Which cluster.
#[derive(Clone, Debug, Parser)]
struct ClusterArgs {
    /// How to reach the API server [default: as a pod does, or kubectl's].
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    servers: ServerArgs,
}

/// What is done with a node, wherever it is, instead of being one.
#[derive(Clone, Debug, Subcommand)]
enum Action {
    Drain(drain::Args),
    Uncordon(drain::Uncordon),
}

/// What the agent shows on its port, and whom it believes. All three, or no port is opened.
#[derive(Clone, Debug, Parser)]
struct TlsArgs {
    /// The certificate of the agent's port: of an authority that the API server believes, for the address of
    /// this node.
    #[arg(long, value_name = "FILE", requires_all = ["tls_private_key_file", "client_ca_file"])]
    tls_cert_file: Option<PathBuf>,
    /// Its key.
    #[arg(long, value_name = "FILE")]
    tls_private_key_file: Option<PathBuf>,
    /// The authority of those who come with certificates, such as the API server.
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
}

/// Runs the agent until interrupted; the pods go on.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Some(Action::Drain(drain)) => return drain::run(drain).await,
        Some(Action::Uncordon(uncordon)) => return drain::uncordon(uncordon).await,
        None => {}
    }
    if !machine::is_privileged() {
        bail!("only root can make namespaces and links: pods cannot run");
    }
    let stop = crate::cli::interrupted();
    if args.cleanup {
        return cleanup(&args).await;
    }
    // Marked, so that it is known as ours when somebody wants it gone.
    DataDirectory::make(&args.data_dir)?;
    let _claim = NetworkClaim::take(&args.data_dir, Extent::Pods)?;
    let open_files = roadstead_dns::tcp::raise_file_limit();
    let config = configuration(args.cluster.kubeconfig.as_deref()).await?;
    let client = servers::connect(config, &args.cluster.servers)?;
    let place = args.place(&client).await?;
    let secure_port = args.secure_port(&place)?;
    let (pods, own) = (place.pod_cidrs.clone(), place.internal_ips);
    let config = Config { open_files, secure_port, ..args.node.config(&args.data_dir, place) };
    info!(node = config.node_name, address = %own, ?pods, "running the pods of this machine");
    // Nobody in this process asks about pods.
    let (_nobody, incoming) = mpsc::channel(1);
    notify::ready();
    Ok(roadstead_node::agent::run(client, config, incoming, stop).await?)
}

/// Removes what carries our mark, once it is sure whose it is.
async fn cleanup(args: &Args) -> anyhow::Result<()> {
    DataDirectory::check_for_removal(&args.data_dir)?;
    let claim = NetworkClaim::take(&args.data_dir, Extent::Pods)?;
    let config = args.node.config(&args.data_dir, nowhere());
    let removed = roadstead_node::agent::cleanup(&config).await;
    eprintln!("removed: {} pods", removed.context("pods are left behind")?.pods);
    // Whoever forwards to others needs the kernel as it is.
    if let Err(why) = Rules::Proxy.take_for_removal() {
        eprintln!("kept: settings of the kernel, because {why:#}");
        return Ok(());
    }
    for setting in claim.release() {
        eprintln!("restored: {setting}");
    }
    Ok(())
}

/// For removing things, which are found by their names.
pub(crate) fn nowhere() -> NodePlace {
    let none = IpAddr::from([0, 0, 0, 0]);
    NodePlace {
        pod_cidrs: Vec::new(),
        service_cidrs: Vec::new(),
        internal_ips: none.into(),
        cluster_dns: none,
        cluster_domain: String::new(),
    }
}

async fn configuration(kubeconfig: Option<&Path>) -> anyhow::Result<kube::Config> {
    Ok(match kubeconfig {
        None => kube::Config::infer().await.context("no cluster: use --kubeconfig")?,
        Some(path) => {
            let read = || format!("cannot read {}", path.display());
            let file = Kubeconfig::read_from(path).with_context(read)?;
            let options = KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(file, &options).await.with_context(read)?
        }
    })
}

impl Args {
    /// Where this node is, by the flags, or else by what the cluster says.
    async fn place(&self, client: &Client) -> anyhow::Result<NodePlace> {
        let pod_cidrs = match self.pod_cidr.as_slice() {
            [] => self.assigned(client).await?,
            given => given.to_vec(),
        };
        let own = |range: &IpNet| own_address(range.addr().is_ipv4()).unwrap_or(gateway(range));
        let found = Addresses::of(pod_cidrs.iter().map(own));
        let internal_ips = self.node_ip.or(found).context("--pod-cidr is empty")?;
        let cluster_dns = match self.cluster_dns {
            Some(given) => given,
            None => dns_of(client).await?,
        };
        Ok(NodePlace {
            pod_cidrs,
            service_cidrs: self.service_cidr.clone(),
            internal_ips,
            cluster_dns,
            cluster_domain: self.cluster_domain.clone(),
        })
    }

    /// The ranges that the cluster has given to this node.
    async fn assigned(&self, client: &Client) -> anyhow::Result<Vec<IpNet>> {
        let name = self.node.name();
        let node = Api::<Node>::all(client.clone()).get_opt(&name).await;
        let node = node.context("cannot ask for the Node")?;
        let spec = node.and_then(|node| node.spec).unwrap_or_default();
        let ranges: Vec<IpNet> =
            spec.pod_cidrs.iter().flatten().filter_map(|range| range.parse().ok()).collect();
        if ranges.is_empty() {
            bail!("the Node {name} has no podCIDRs: say which by --pod-cidr");
        }
        Ok(ranges)
    }

    fn secure_port(&self, place: &NodePlace) -> anyhow::Result<Option<SecurePort>> {
        let TlsArgs { tls_cert_file, tls_private_key_file, client_ca_file } = &self.tls;
        let (port, every) =
            (self.node.kubelet_port, machine::every_address(place.internal_ips.first));
        let files = (tls_cert_file, tls_private_key_file, client_ca_file);
        let (Some(certificate), Some(key), Some(client_ca)) = files else {
            if port != 0 {
                warn!("no --tls-cert-file: no port is opened, and nobody can look into these pods");
            }
            return Ok(None);
        };
        if port == 0 {
            return Ok(None);
        }
        let read = |path: &Path| {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let files = TlsFiles {
            certificate: read(certificate)?,
            key: read(key)?,
            client_ca: read(client_ca)?,
        };
        let port = SecurePort::with_files(SocketAddr::new(every, port), &files);
        Ok(Some(port.map_err(anyhow::Error::msg).context("cannot use the certificate")?))
    }
}

/// The address of the Service that every cluster has for its DNS.
async fn dns_of(client: &Client) -> anyhow::Result<IpAddr> {
    let services: Api<Service> = Api::namespaced(client.clone(), "kube-system");
    let found = services.get_opt("kube-dns").await.context("cannot ask for kube-dns")?;
    let address = found.and_then(|service| service.spec).and_then(|spec| spec.cluster_ip);
    let address = address.and_then(|address| address.parse().ok());
    address.context("there is no Service kube-system/kube-dns: say where DNS is by --cluster-dns")
}
