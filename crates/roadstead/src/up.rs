//! `roadstead up`: everything on this machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{ArgAction, Parser};
use ipnet::Ipv4Net;
use jiff::Timestamp;
use kube::Client;
use roadstead_controllers::certificates::signer::Signer;
use roadstead_dns::agent::{Pages, Source};
use roadstead_dns::limit::{Limits, USUAL_RATE};
use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};
use roadstead_plan::alloc;
use roadstead_proxy::drop_in;
use roadstead_proxy::plane::Mode;
use roadstead_server::api::{Api, Neighbours, User};
use roadstead_server::identity::Authority;
use roadstead_server::local::Local;
use roadstead_server::settle::Settled;
use roadstead_server::tokens::Tokens;
use roadstead_store::store::Store;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::compose::Tasks;
use crate::data_directory::DataDirectory;
use crate::network_claim::NetworkClaim;
use crate::ranges::Ranges;
use crate::renewal::CertificateArgs;
use crate::store_args::StoreArgs;
use crate::{apiserver, controllers, machine, visible};

/// Start everything on this machine: API server, controllers, DNS, proxy and node agent.
#[derive(Clone, Debug, Parser)]
pub struct Args {
    /// Where objects, certificates and the state of pods are kept.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    data_dir: PathBuf,
    /// Keep objects in memory, and at the end stop all pods and remove all rules. Without it pods
    /// go on when roadstead stops, and the next start takes them over.
    #[arg(long)]
    ephemeral: bool,
    /// Where to serve the Kubernetes API; port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:6443")]
    listen: SocketAddr,
    /// Where to write the admin's kubeconfig [default: admin.kubeconfig in the data directory].
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,
    /// What this machine is called among the nodes [default: its host name].
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    services: apiserver::ServiceArgs,
    #[command(flatten)]
    plugins: apiserver::PluginArgs,
    /// Where the addresses of pods come from; this node takes the first /24 of it.
    #[arg(long, value_name = "CIDR", default_value = "10.244.0.0/16")]
    cluster_cidr: Ipv4Net,
    /// How the kernel is told to balance connections.
    #[arg(long, default_value_t = Mode::default(), value_name = "nftables|iptables|ipvs")]
    proxy_mode: Mode,
    /// Whether mode iptables takes the place of ipvs where the kernel has no IPVS.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    ipvs_fallback: bool,
    /// The address of the cluster's DNS [default: the tenth of the service range].
    #[arg(long, value_name = "IP")]
    dns_ip: Option<Ipv4Addr>,
    /// The domain that all names of the cluster end in.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// Whether DNS tells pods at once what their search for a name will end with.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    search_completion: bool,
    /// The bridge that the pods of this machine hang on.
    #[arg(long, value_name = "NAME", default_value = "roadstead0")]
    bridge: String,
    /// Let pods ask for what gives them this machine: privileged containers, capabilities beyond the
    /// usual ones, no system call filter. Whoever may create pods is then root here.
    #[arg(long)]
    allow_privileged: bool,
    #[command(flatten)]
    certificates: CertificateArgs,
    #[command(flatten)]
    audit: apiserver::AuditArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    controllers: controllers::Options,
}

/// What `up` has worked out from its arguments and the machine.
struct Plan {
    args: Args,
    node_name: String,
    kubeconfig: PathBuf,
    pod_cidr: Ipv4Net,
    service_cidr: Ipv4Net,
    dns_ip: Ipv4Addr,
    internal_ip: IpAddr,
    /// How many files programs may open, if not as many as we.
    open_files: Option<u64>,
}

impl Plan {
    fn new(args: Args) -> anyhow::Result<Self> {
        let name = args.node_name.clone().unwrap_or_else(machine::host_name);
        let kubeconfig = args.kubeconfig_out.clone();
        let kubeconfig = kubeconfig.unwrap_or_else(|| args.data_dir.join("admin.kubeconfig"));
        let Some(pod_cidr) = args.cluster_cidr.subnets(24).ok().and_then(|mut all| all.next())
        else {
            bail!("--cluster-cidr {} has no room for a /24", args.cluster_cidr);
        };
        let Some(service_cidr) = args.services.ipv4_range() else {
            bail!("pods have IPv4 addresses here: --service-cidr needs an IPv4 range");
        };
        let IpAddr::V4(tenth) = alloc::nth(service_cidr.into(), 10) else {
            bail!("--service-cidr must be IPv4")
        };
        if args.dns_ip.is_none() && !service_cidr.contains(&tenth) {
            bail!(
                "--service-cidr {service_cidr} is too small for a cluster: it needs a /28 or more"
            );
        }
        let dns_ip = args.dns_ip.unwrap_or(tenth);
        if !service_cidr.contains(&dns_ip) {
            bail!("--dns-ip {dns_ip} is not in --service-cidr {service_cidr}");
        }
        let internal_ip = primary_address().unwrap_or_else(|| gateway(pod_cidr).into());
        Ok(Self {
            args,
            node_name: name,
            kubeconfig,
            pod_cidr,
            service_cidr,
            dns_ip,
            internal_ip,
            open_files: None,
        })
    }

    /// Refuses what cannot work before anything is touched; warns of what may not be meant.
    fn check_ranges(&self) -> anyhow::Result<()> {
        self.args.services.settle()?;
        let ranges = Ranges {
            pods: self.args.cluster_cidr,
            services: self.args.services.ranges(),
            pool: self.args.controllers.pool(),
        };
        ranges.check(primary_address())?;
        for warning in ranges.warnings(&self.args.bridge) {
            warn!("{warning}");
        }
        Ok(())
    }

    fn store(&self) -> anyhow::Result<Arc<Store>> {
        match self.args.ephemeral {
            true => Ok(self.args.store.memory()),
            false => self.args.store.open(&self.args.data_dir),
        }
    }

    /// Approved requests for certificates are signed with the cluster's own authority.
    fn signer(&self, authority: &Authority) -> anyhow::Result<Arc<Signer>> {
        let pair = authority.signing();
        let longest = self.args.controllers.signing_duration();
        let signer = Signer::new(&pair.certificate, &pair.key, longest);
        Ok(Arc::new(signer.map_err(anyhow::Error::msg).context("cannot sign certificates")?))
    }

    /// What the API server knows about its neighbours: that there are no others.
    fn neighbours(&self) -> Neighbours {
        Neighbours { components: Some(roadstead_controllers::ALL.to_vec()) }
    }

    fn node(&self) -> roadstead_node::config::Config {
        roadstead_node::config::Config {
            node_name: self.node_name.clone(),
            bridge: self.args.bridge.clone(),
            pod_cidr: self.pod_cidr,
            service_cidr: self.service_cidr,
            cluster_dns: self.dns_ip.into(),
            cluster_domain: self.args.cluster_domain.clone(),
            state_dir: self.args.data_dir.join("node"),
            internal_ip: self.internal_ip,
            open_files: self.open_files,
            allow_privileged: self.args.allow_privileged,
        }
    }

    fn proxy(&self) -> roadstead_proxy::agent::Config {
        let detect_local = DetectLocal::Networks(vec![self.args.cluster_cidr.into()]);
        roadstead_proxy::agent::Config {
            node_name: self.node_name.clone(),
            mode: self.args.proxy_mode,
            ipvs_fallback: self.args.ipvs_fallback,
            surroundings: Surroundings {
                detect_local,
                service_networks: self.args.services.ranges().to_vec(),
                masquerade_egress: true,
                ..Surroundings::default()
            },
            follow_node: true,
            // Who has this machine may try a node port the short way.
            node_port_addresses: vec!["all".into(), "localhost".into()],
            ..Default::default()
        }
    }

    /// As root we have the machine to ourselves, and show what the DNS server counted where
    /// CoreDNS does, to the machine itself.
    fn dns_pages(&self) -> Pages {
        let metrics = machine::is_privileged().then_some((Ipv4Addr::LOCALHOST, 9153).into());
        Pages { metrics, ..Pages::default() }
    }

    /// The pods of this machine ask the DNS server of this machine.
    fn dns_clients(&self) -> roadstead_dns::clients::Node {
        let resolv_conf = machine::RESOLV_CONF.into();
        roadstead_dns::clients::Node { name: self.node_name.clone(), resolv_conf }
    }

    /// The DNS server listens on the bridge, where pods and the machine itself reach it; without
    /// a bridge, on loopback.
    fn dns_address(&self, privileged: bool) -> SocketAddr {
        match privileged {
            true => (gateway(self.pod_cidr), 53).into(),
            false => ([127, 0, 0, 1], 1053).into(),
        }
    }
}

/// Runs everything until interrupted.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let begin = Instant::now();
    let open_files = roadstead_dns::tcp::raise_file_limit();
    let plan = Plan { open_files, ..Plan::new(args)? };
    plan.check_ranges()?;
    let privileged = machine::is_privileged();
    // Whoever else uses the directory or the network is found before anything is touched.
    let _directory = DataDirectory::claim(&plan.args.data_dir)?;
    if plan.args.ephemeral && apiserver::store_file(&plan.args.data_dir).exists() {
        bail!(
            "{} holds the objects of a cluster, whose pods --ephemeral would remove; \
             give it another --data-dir",
            plan.args.data_dir.display()
        );
    }
    let claim = privileged.then(|| NetworkClaim::take(&plan.args.data_dir)).transpose()?;
    let mut wrote_rules = false;
    let outcome = serve(&plan, privileged, begin, &mut wrote_rules).await;
    if let Some(claim) = claim
        && plan.args.ephemeral
    {
        // Objects lived in memory only, so nothing of theirs may outlive the process.
        sweep(&plan, wrote_rules || claim.had_owner()).await;
        claim.release();
    }
    outcome
}

/// Starts all parts and keeps them going until interrupted.
async fn serve(
    plan: &Plan,
    privileged: bool,
    begin: Instant,
    wrote_rules: &mut bool,
) -> anyhow::Result<()> {
    let stop = crate::cli::interrupted();
    let pki = apiserver::pki(&plan.args.data_dir);
    let authority = plan.args.certificates.limit(Authority::in_directory(&pki)?);
    let (service_range, mut services) = plan.args.services.settle()?;
    services.deny_external_ips = plan.args.services.denies_external_ips();
    services.pod_ranges = vec![plan.args.cluster_cidr.into()];
    let setup = apiserver::Setup {
        authority: authority.clone(),
        kubeconfig: plan.kubeconfig.clone(),
        tokens: Tokens::in_directory(&pki)?,
        audit: plan.args.audit.open()?,
        store: plan.store()?,
        listen: plan.args.listen,
        service_range,
        services,
        advertise: privileged.then_some(plan.internal_ip),
        plugins: plan.args.plugins.settle()?,
        neighbours: plan.neighbours(),
    };
    let server = apiserver::start(setup, stop.clone()).await?;
    let own_port = server.address.port();
    let client = Client::new(Local::new(server.api.clone(), User::component()), "default");
    let api = server.api.clone();
    let mut tasks = Tasks::new(stop.clone());
    let url = server.url();
    tasks.spawn("API server", async move { Ok(server.task.await??) });
    let root_ca = Some(authority.certificate().to_owned());
    let signer = Some(plan.signer(&authority)?);
    let mut settings =
        roadstead_controllers::Settings { root_ca, signer, ..plan.args.controllers.settings() };
    let own_ports = [own_port..=own_port, plan.args.services.node_ports()];
    settings.load_balancer.own_ports.extend(own_ports);
    for (name, names) in roadstead_controllers::tasks(&roadstead_controllers::ALL) {
        let settings = settings.clone();
        let work = roadstead_controllers::run(names, client.clone(), settings, stop.clone());
        tasks.spawn(name, async move {
            work.await;
            Ok(())
        });
    }
    let dns = plan.dns_address(privileged);
    if privileged {
        let since = Timestamp::now();
        start_node(plan, &client, &mut tasks, &stop);
        // The proxy asks for the Node that it serves.
        tasks.unless_one_fails(visible::node_exists(&client, &plan.node_name)).await?;
        *wrote_rules = true;
        start_proxy(plan, &client, &mut tasks, &stop);
        let service = visible::dns_service(&client, plan.dns_ip, dns);
        service.await.context("cannot prepare the Service kube-system/kube-dns")?;
        // The DNS server listens on the bridge, which is there when the node is ready.
        tasks.unless_one_fails(visible::node_ready(&client, &plan.node_name, since)).await?;
    }
    start_dns(plan, dns, (&client, api), &mut tasks, &stop);
    report(plan, &url, dns, privileged, begin);
    tasks.finish().await
}

fn start_node(plan: &Plan, client: &Client, tasks: &mut Tasks, stop: &CancellationToken) {
    let node = roadstead_node::agent::run(client.clone(), plan.node(), stop.clone());
    tasks.spawn("node agent", async move { Ok(node.await?) });
}

fn start_proxy(plan: &Plan, client: &Client, tasks: &mut Tasks, stop: &CancellationToken) {
    let around = drop_in::Around {
        healthz: Some((Ipv4Addr::UNSPECIFIED, 10256).into()),
        metrics: Some((Ipv4Addr::LOCALHOST, 10249).into()),
        publish: Some(Duration::from_millis(100)),
        sysctls: Vec::new(),
        announce: plan.args.controllers.has_pool(),
        ..drop_in::Around::default()
    };
    let proxy = drop_in::run(client.clone(), plan.proxy(), around, stop.clone());
    tasks.spawn("proxy", async move { Ok(proxy.await?) });
}

fn start_dns(
    plan: &Plan,
    listen: SocketAddr,
    (client, api): (&Client, Arc<Api>),
    tasks: &mut Tasks,
    stop: &CancellationToken,
) {
    let config = roadstead_dns::agent::Config {
        listen: vec![listen],
        zone: plan.args.cluster_domain.clone(),
        resolv_conf: Some(machine::RESOLV_CONF.into()),
        addresses: vec![plan.dns_ip.into()],
        corefile: Some(Source::ConfigMap("kube-system".into(), "coredns".into())),
        lease: Some(format!("roadstead-dns-{}", plan.node_name)),
        pages: plan.dns_pages(),
        limits: Limits { rate: USUAL_RATE, friends: vec![plan.pod_cidr.into()] },
        complete_searches_of: plan.args.search_completion.then(|| plan.dns_clients()),
        ..Default::default()
    };
    let mut programmed = config.published.subscribe();
    let services = config.services.subscribe();
    let dns = roadstead_dns::agent::run(client.clone(), config, stop.clone());
    tasks.spawn("DNS", async move {
        let settle = async {
            if programmed.wait_for(|programmed| programmed.ready).await.is_ok() {
                // A Service is acknowledged when its name resolves.
                api.settle(Settled { resource: "services".into(), revision: services });
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = dns => Ok(ended?),
            () = settle => Ok(()),
        }
    });
}

/// Says what runs, and what to type next.
fn report(plan: &Plan, url: &str, dns: SocketAddr, privileged: bool, begin: Instant) {
    let kubeconfig = plan.kubeconfig.display();
    eprintln!("ready in {} ms", begin.elapsed().as_millis());
    eprintln!("  API        {url}");
    if privileged {
        eprintln!("  DNS        {} ({})", plan.dns_ip, plan.args.cluster_domain);
        eprintln!("  node       {} with pods from {}", plan.node_name, plan.pod_cidr);
    } else {
        eprintln!("  DNS        {dns} ({})", plan.args.cluster_domain);
        eprintln!("  not running: the node agent and the proxy, which need root: pods stay");
        eprintln!(
            "               Pending and ClusterIPs lead nowhere. API, controllers and DNS work."
        );
    }
    eprintln!("  kubeconfig {kubeconfig} (context roadstead)");
    eprintln!("next: kubectl --kubeconfig {kubeconfig} get services");
}

/// Removes everything of ours from the kernel at the end of `up --ephemeral`. Rules have the names
/// that kube-proxy gives them: where we wrote none, they are somebody else's.
async fn sweep(plan: &Plan, wrote_rules: bool) {
    if wrote_rules && let Err(error) = roadstead_proxy::agent::cleanup() {
        warn!(%error, "rules left behind");
    }
    if let Err(error) = roadstead_node::agent::cleanup(&plan.node()).await {
        warn!(%error, "pods left behind");
    }
}

/// Carries out `roadstead cleanup`: removes what carries our mark, once it is sure that nobody uses
/// it and that it belongs to this data directory.
pub async fn cleanup(args: Args) -> anyhow::Result<()> {
    let plan = Plan::new(args)?;
    if !machine::is_privileged() {
        bail!("only root can remove links, namespaces and rules");
    }
    let data_dir = plan.args.data_dir.display();
    let directory = DataDirectory::claim_for_removal(&plan.args.data_dir)?;
    let claim = NetworkClaim::take(&plan.args.data_dir)?;
    let node = roadstead_node::agent::cleanup(&plan.node()).await;
    let node = node.context("pods are left behind")?;
    if node.pods > 0 {
        eprintln!("removed: {} pods", node.pods);
    }
    if node.bridge {
        eprintln!("removed: the bridge {} and the links on it", plan.args.bridge);
    }
    // Rules have the names that kube-proxy gives them: on a machine where none of us ran since it
    // started they are somebody else's.
    if claim.had_owner() || node.bridge {
        roadstead_proxy::agent::cleanup().context("rules are left behind")?;
        eprintln!("removed: the rules of the proxy");
    }
    for setting in claim.release() {
        eprintln!("restored: {setting}");
    }
    let Some(directory) = directory else {
        eprintln!("{data_dir} does not exist or is empty");
        return Ok(());
    };
    let removed = directory.remove()?;
    eprintln!("removed: {data_dir} ({})", removed.names.join(", "));
    if !removed.left.is_empty() {
        eprintln!("left in {data_dir}, because it is not ours: {}", removed.left.join(", "));
    }
    Ok(())
}

fn gateway(pod_cidr: Ipv4Net) -> Ipv4Addr {
    pod_cidr.hosts().next().unwrap_or(pod_cidr.addr())
}

/// The address from which this machine would talk to the world. Nothing is sent.
fn primary_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // TEST-NET-2: a place that is nowhere.
    socket.connect("198.51.100.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}
