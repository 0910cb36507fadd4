//! `roadstead up`: everything on this machine.

mod components;
mod dns_part;
mod machines;
mod plan;
pub(crate) mod proxy_part;
pub(crate) mod removal;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{ArgAction, Parser};
use ipnet::IpNet;
use jiff::Timestamp;
use kube::Client;
use roadstead_controllers::identities::user_of;
use roadstead_controllers::object_metrics;
use roadstead_dns::agent::{CorefileSource, DnsAgent, Outputs, UpstreamSource, ZoneConfig};
use roadstead_dns_core::rate_limit::{RateLimits, USUAL_RATE};
use roadstead_node::runtime::parts::{PartLog, ProcessPart};
use roadstead_node::serving::secure::SecurePort;
use roadstead_pod::builtin_image::BuiltInImage;
use roadstead_podnet::plan::PodNetworkMode;
use roadstead_proxy::agent::config as proxy_config;
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_proxy::kube_proxy::KubeProxyOptions;
use roadstead_server::api::Api;
use roadstead_server::identity::authority::Authority;
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::node_agents::LocalAgent;
use roadstead_server::objects::await_dns::DnsProgress;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::compose::Tasks;
use crate::controller_pages::ControllerPages;
use crate::data_directory::DataDirectory;
use crate::definitions::DefinitionArgs;
use crate::join::identity::Files;
use crate::network_claim::{Extent, NetworkClaim};
use crate::node_args::NodeArgs;
use crate::node_cidr_sizes::NodeCidrSizes;
use crate::part_logs::PartLogs;
use crate::proxy::announcer;
use crate::renewal::{AgentCertificate, CertificateArgs};
use crate::rules_claim::Rules;
use crate::store_args::StoreArgs;
use crate::up::components::Components;
use crate::up::dns_part::DnsPart;
use crate::up::machines::MachineArgs;
use crate::up::plan::UpPlan;
use crate::up::proxy_part::ProxyPart;
use crate::{apiserver, controllers, identities, image, machine, notify, visible};

/// Start everything on this machine: API server, controllers, DNS, proxy and node agent.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Args {
    /// Take flags from this file, too: YAML, whose keys are the flags without the dashes. What is given
    /// here counts.
    #[arg(long, value_name = "FILE")]
    #[allow(dead_code, reason = "it is read before all others, by `config_file`")]
    config: Option<PathBuf>,
    /// Where objects, certificates and the state of pods are kept.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    #[arg(value_parser = machine::directory)]
    data_dir: PathBuf,
    /// Load the images of this directory at the start, those that are not here yet: archives or
    /// directories, as `roadstead image load` takes them.
    #[arg(long, value_name = "DIRECTORY")]
    images: Option<PathBuf>,
    /// Keep objects in memory, and at the end stop all pods and remove all rules. Without it pods
    /// go on when roadstead stops, and the next start takes them over.
    #[arg(long)]
    ephemeral: bool,
    /// Where to serve the Kubernetes API; port 0 picks a free one [default: port 6443 of every address].
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Where to write the admin's kubeconfig [default: admin.kubeconfig in the data directory].
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<PathBuf>,
    #[command(flatten)]
    services: apiserver::ServiceArgs,
    #[command(flatten)]
    plugins: apiserver::PluginArgs,
    #[command(flatten)]
    definitions: DefinitionArgs,
    /// Where the addresses of pods come from: one range, or one of each IP family, the primary one first. Each
    /// node gets a block; this one has the first.
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', default_value = "10.244.0.0/16")]
    cluster_cidr: Vec<IpNet>,
    #[command(flatten)]
    node_cidr_sizes: NodeCidrSizes,
    /// How packets get to pods of other nodes: by routes, in VXLAN, by one or the other as it is possible, or by
    /// what others have set up.
    #[arg(long, value_name = "auto|routes|vxlan|none", default_value_t = PodNetworkMode::Auto)]
    pod_network: PodNetworkMode,
    /// How the kernel is told to balance connections [default: nftables]. Like --cluster-cidr it is written
    /// into the ConfigMap kube-system/kube-proxy, which counts from then on: edit it, and delete the pods
    /// labelled k8s-app=kube-proxy.
    #[arg(long, value_name = "nftables|iptables|ipvs")]
    proxy_mode: Option<ProxyMode>,
    /// Whether mode iptables takes the place of ipvs where the kernel has no IPVS.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    ipvs_fallback: bool,
    /// The address of the cluster's DNS [default: the tenth of the service range].
    #[arg(long, value_name = "IP")]
    dns_ip: Option<IpAddr>,
    /// The domain that all names of the cluster end in.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
    /// Whether DNS tells pods at once what their search for a name will end with.
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    search_completion: bool,
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    machines: MachineArgs,
    #[command(flatten)]
    certificates: CertificateArgs,
    #[command(flatten)]
    audit: apiserver::AuditArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    controllers: controllers::Options,
    /// Where to serve /metrics of the controllers, /metrics/objects (what kube-state-metrics would say),
    /// /metrics/apiserver, /healthz, /readyz and /debug/state [default: 127.0.0.1:10252 as root, else nowhere].
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_bind_address: Option<SocketAddr>,
}

/// What is to be removed.
#[derive(Clone, Debug, Parser)]
pub(crate) struct CleanupArgs {
    #[command(flatten)]
    up: Args,
    /// Keep objects, certificates, images and volumes: the next start has the same cluster, whose pods then
    /// begin anew.
    #[arg(long)]
    keep_data: bool,
}

/// Runs everything until interrupted.
pub(crate) async fn run(args: Args, logs: PartLogs) -> anyhow::Result<()> {
    let begin = Instant::now();
    let open_files = roadstead_dns::tcp::raise_file_limit();
    let plan = UpPlan { open_files, ..UpPlan::new(args)? };
    if let Some(node) = Files::of(&plan.args.data_dir).read("node") {
        bail!(
            "{} is that of the node {:?} of another cluster: let it leave first (`roadstead leave`), or \
             choose another --data-dir",
            plan.args.data_dir.display(),
            node.trim()
        );
    }
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
    if let Some(images) = plan.args.images.clone() {
        load_images(&plan.args.data_dir, images).await?;
    }
    let claim = || NetworkClaim::take(&plan.args.data_dir, Extent::Cluster);
    let claim = privileged.then(claim).transpose()?;
    if privileged {
        // The API server has their address in its certificate.
        plan.machines().make(&plan.args.cluster_cidr).await?;
    }
    let rules = privileged.then(|| [Rules::Proxy.keep(), Rules::Netpol.keep()]);
    let mut wrote_rules = false;
    let outcome = serve(&plan, (privileged, logs), begin, &mut wrote_rules).await;
    drop(rules);
    if let Some(claim) = claim
        && plan.args.ephemeral
    {
        // Objects lived in memory only, so nothing of theirs may outlive the process.
        removal::sweep(&plan, wrote_rules || claim.had_owner()).await;
        claim.release();
    }
    outcome
}

/// Loads images before any pod asks for one.
async fn load_images(data_dir: &Path, directory: PathBuf) -> anyhow::Result<()> {
    let (begin, store) = (Instant::now(), image::open(data_dir)?);
    let from = directory.display().to_string();
    let loading = tokio::task::spawn_blocking(move || {
        // What a killed process left half done takes room.
        store.tidy()?;
        image::load_directory(&store, &directory)
    });
    let loaded = loading.await??;
    let took_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    info!(directory = from, loaded, took_ms, "images are here");
    Ok(())
}

/// How many who want to look into pods may wait for the agent to take them in.
const STREAMS_AT_ONCE: usize = 64;

/// Starts all parts and keeps them going until interrupted.
async fn serve(
    plan: &UpPlan,
    (privileged, logs): (bool, PartLogs),
    begin: Instant,
    wrote_rules: &mut bool,
) -> anyhow::Result<()> {
    let stop = crate::cli::interrupted();
    let pki = apiserver::pki(&plan.args.data_dir);
    let authority = plan.args.certificates.limit(Authority::in_directory(&pki)?);
    let (service_range, mut services) = plan.args.services.service_config()?;
    services.deny_external_ips = plan.args.services.denies_external_ips();
    services.pod_ranges = plan.args.cluster_cidr.clone();
    services.gives_pod_ranges = true;
    let setup = apiserver::Setup {
        authority: authority.clone(),
        kubeconfig: plan.kubeconfig.clone(),
        tokens: Tokens::in_directory(&pki)?,
        audit: plan.args.audit.open()?,
        store: plan.store()?,
        listen: plan.listen(),
        service_range,
        services,
        advertise: privileged.then_some(plan.internal_ips.first),
        plugins: plan.args.plugins.plugins()?,
        definitions: plan.args.definitions.objects(),
        neighbours: plan.neighbours(),
        // The agent of this machine brings them.
        metrics: false,
        shutdown_delay: Duration::ZERO,
        facts: None,
    };
    let server = apiserver::start(setup, stop.clone()).await?;
    let own_port = server.address.port();
    let api = server.api.clone();
    let mut tasks = Tasks::new(stop.clone());
    let (url, server_names) = (server.url(), server.names.clone());
    tasks.spawn("API server", async move { Ok(server.task.await??) });
    let root_ca = Some(authority.certificate().to_owned());
    let signer = Some(plan.signer(&authority)?);
    let certificates = roadstead_controllers::certificates::Config { signer, server_names };
    let options = plan.args.controllers.settings();
    let mut settings = roadstead_controllers::Settings { root_ca, certificates, ..options };
    let own_ports = [own_port..=own_port, plan.args.services.node_ports()];
    settings.load_balancer.own_ports.extend(own_ports);
    settings.node_ipam = plan.node_ipam();
    // Only what runs pods has room for their volumes.
    settings.local_storage = privileged.then(|| plan.args.data_dir.join("storage"));
    let components = Components::default();
    settings.component = components.controllers.clone();
    let shown = components.clone();
    api.show_parts(move || shown.show());
    for (name, names) in roadstead_controllers::tasks(&roadstead_controllers::names()) {
        let (settings, client) = (settings.clone(), identities::client(&api, user_of(name)));
        let work = roadstead_controllers::run(names, client, settings, stop.clone());
        tasks.spawn(name, async move {
            work.await;
            Ok(())
        });
    }
    if let Some(address) = plan.controller_pages() {
        let client = identities::client(&api, object_metrics::USER);
        let pages = ControllerPages { settings, server: Some(client.clone()) };
        pages.serve(address, client, &mut tasks).await?;
    }
    let dns = plan.dns_address(privileged);
    let mut parts = Parts { plan, authority, api, components, tasks: &mut tasks, stop, logs };
    // It hears of one container at a time.
    let (starts, began) = mpsc::channel(1);
    if privileged {
        parts.start_privileged((dns, starts), wrote_rules).await?;
    }
    parts.start_dns((dns, began))?;
    parts.start_machines(privileged, (own_port, dns)).await?;
    eprintln!("ready in {} ms", begin.elapsed().as_millis());
    report(plan, &url, dns, privileged);
    notify::ready();
    tasks.finish().await
}

/// Starts the parts that talk to the API server, each by its own configuration.
struct Parts<'a> {
    plan: &'a UpPlan,
    authority: Arc<Authority>,
    api: Arc<Api>,
    components: Components,
    tasks: &'a mut Tasks,
    stop: CancellationToken,
    logs: PartLogs,
}

impl Parts<'_> {
    fn client(&self, user: &str) -> Client {
        identities::client(&self.api, user)
    }

    /// Starts what needs root: the node agent, the proxy, and the pods that parts of this process are.
    async fn start_privileged(
        &mut self,
        (dns, dns_starts): (SocketAddr, mpsc::Sender<PartLog>),
        wrote_rules: &mut bool,
    ) -> anyhow::Result<()> {
        let (since, plan, client) = (Timestamp::now(), self.plan, self.client(identities::UP));
        let (starts, began) = mpsc::channel(1);
        let proxy = ProcessPart { image: BuiltInImage::KubeProxy, starts };
        let dns_part = ProcessPart { image: BuiltInImage::CoreDns, starts: dns_starts };
        let node = self.start_node(vec![proxy, dns_part])?;
        let network =
            roadstead_podnet::agent::run(node.clone(), plan.pod_network(), self.stop.clone());
        self.tasks.spawn("pod network", async move { Ok(network.await?) });
        // The proxy asks for the Node that it serves.
        self.tasks.unless_one_fails(visible::node_exists(&node, &plan.node_name)).await?;
        *wrote_rules = true;
        let texts = visible::Texts { proxy: plan.proxy_text(), dns: plan.dns_text() };
        let maps = visible::config_maps(&client, texts);
        maps.await.context("cannot prepare the ConfigMaps of kube-system")?;
        let facts = visible::for_others(&client, plan.facts());
        facts.await.context("cannot prepare what machines that join need")?;
        let mut health = self.start_proxy(began);
        let service = visible::dns_service(&client, plan.dns_ip, dns);
        service.await.context("cannot prepare the Service kube-system/kube-dns")?;
        self.tasks.unless_one_fails(is_known(&mut health)).await?;
        // Who is stopped meanwhile needs no pods.
        let Some(page) = *health.borrow_and_update() else { return Ok(()) };
        let name = &plan.node_name;
        let proxy = visible::proxy_workload(&client, name, page);
        let workloads = async { tokio::try_join!(proxy, visible::dns_workload(&client, name)) };
        workloads.await.context("cannot prepare the pods of kube-system")?;
        let follow = visible::follow_health(client, name.clone(), health);
        let stopped = self.stop.clone().cancelled_owned();
        self.tasks.spawn("pods of the proxy", async move {
            tokio::select! {
                () = stopped => {}
                () = follow => {}
            }
            Ok(())
        });
        // The DNS server listens on the bridge, which is there when the node is ready.
        self.tasks.unless_one_fails(visible::node_ready(&node, &plan.node_name, since)).await
    }

    /// Starts the other nodes, and waits until they are ready.
    async fn start_machines(
        &mut self,
        privileged: bool,
        (port, dns): (u16, SocketAddr),
    ) -> anyhow::Result<()> {
        let machines = self.plan.machines();
        let names = machines.names();
        if names.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(privileged, "only root can make other nodes: --nodes needs it");
        let since = Timestamp::now();
        // Nobody but who has this process makes tokens and names zones.
        let admin = identities::master(&self.api);
        let flags = self.plan.flags_of_machines();
        let place = (port, dns.ip());
        let ends = machines.start(&admin, place, (&flags, self.stop.clone())).await?;
        self.tasks.spawn("other nodes", async move {
            futures::future::join_all(ends).await;
            Ok(())
        });
        for name in names {
            let ready = visible::node_ready(&admin, &name, since);
            self.tasks.unless_one_fails(ready).await?;
        }
        machines.label(&admin).await.context("cannot say in which zones nodes are")
    }

    /// Starts the agent; returns a client with the rights of its node.
    fn start_node(&mut self, parts: Vec<ProcessPart>) -> anyhow::Result<Client> {
        // Our own API server comes to the agent by memory; others come to its port.
        let (accept, incoming) = mpsc::channel(STREAMS_AT_ONCE);
        self.api.set_local_agent(LocalAgent::new(&*self.plan.node_name, accept));
        let client = identities::node_client(&self.api, &self.plan.node_name);
        let stop = self.stop.clone();
        let secure_port = self.secure_port()?;
        let component = self.components.node.clone();
        let config =
            roadstead_node::config::Config { secure_port, parts, component, ..self.plan.node() };
        let node = roadstead_node::agent::run(client.clone(), config, incoming, stop);
        self.tasks.spawn("node agent", async move { Ok(node.await?) });
        Ok(client)
    }

    /// The agent's port, and what keeps its certificate fresh.
    fn secure_port(&mut self) -> anyhow::Result<Option<SecurePort>> {
        let port = self.plan.args.node.kubelet_port;
        if port == 0 {
            return Ok(None);
        }
        let node = &self.plan.node_name;
        let own = self.plan.internal_ips.iter().map(|own| own.to_string());
        let names = [node.clone(), "127.0.0.1".into()].into_iter().chain(own).collect();
        let certificate = AgentCertificate::new(self.authority.clone(), node, names)?;
        let port = certificate
            .port((machine::every_address(self.plan.internal_ips.first), port).into())?;
        let renewing = certificate.run(self.stop.clone());
        self.tasks.spawn("agent's certificate", async move {
            renewing.await;
            Ok(())
        });
        Ok(Some(port))
    }

    /// Starts the proxy; returns where its page of health is.
    fn start_proxy(
        &mut self,
        starts: mpsc::Receiver<PartLog>,
    ) -> watch::Receiver<Option<SocketAddr>> {
        let announces = self.plan.args.controllers.has_pool();
        let options = KubeProxyOptions {
            publish: Some(Duration::from_millis(100)),
            announce: announces,
            ..KubeProxyOptions::default()
        };
        let component = self.components.proxy.clone();
        let outputs = proxy_config::Outputs { component, ..proxy_config::Outputs::default() };
        let config = self.plan.proxy();
        self.start_netpol(&config);
        if announces {
            self.start_announcer(&outputs);
        }
        let part = ProxyPart {
            client: self.client(identities::PROXY),
            base: self.plan.proxy_text(),
            asked: self.plan.args.proxy_mode,
            config,
            options,
            outputs,
            spoken: self.logs.proxy.clone(),
            starts,
            health: watch::Sender::default(),
        };
        let health = part.health.subscribe();
        self.tasks.spawn("proxy", part.run(self.stop.clone()));
        health
    }

    /// Both write to nftables, and neither takes the other for a stranger.
    fn start_netpol(&mut self, proxy: &proxy_config::Config) {
        let config = roadstead_netpol::agent::Config {
            node_name: self.plan.node_name.clone(),
            pages: Some((Ipv4Addr::LOCALHOST, 10253).into()),
            component: self.components.network_policy.clone(),
            own_commits: proxy.own_commits.clone(),
            ..roadstead_netpol::agent::Config::default()
        };
        let client = self.client(identities::NETWORK_POLICY);
        let netpol = roadstead_netpol::agent::run(client, config, self.stop.clone());
        self.tasks.spawn("enforcement of policies", async move { Ok(netpol.await?) });
    }

    fn start_announcer(&mut self, outputs: &proxy_config::Outputs) {
        let (client, node) = (self.client(identities::PROXY), self.plan.node_name.clone());
        let announce = announcer(client, node, outputs);
        let stopped = self.stop.clone().cancelled_owned();
        self.tasks.spawn("announcer", async move {
            tokio::select! {
                () = stopped => {}
                () = announce => {}
            }
            Ok(())
        });
    }

    fn start_dns(
        &mut self,
        (listen, starts): (SocketAddr, mpsc::Receiver<PartLog>),
    ) -> anyhow::Result<()> {
        let config = roadstead_dns::agent::Config {
            listen: vec![listen],
            zone: ZoneConfig {
                domain: self.plan.args.cluster_domain.clone(),
                servers: vec![self.plan.dns_ip],
                ..ZoneConfig::default()
            },
            upstreams: UpstreamSource {
                resolv_conf: Some(machine::RESOLV_CONF.into()),
                ..UpstreamSource::default()
            },
            corefile: Some(CorefileSource::ConfigMap("kube-system".into(), "coredns".into())),
            lease: Some(format!("roadstead-dns-{}", self.plan.node_name)),
            pages: self.plan.dns_pages(),
            limits: RateLimits { rate: USUAL_RATE, friends: self.plan.pod_cidrs.clone() },
            complete_searches_of: self.plan.args.search_completion.then(|| self.plan.dns_clients()),
            ..Default::default()
        };
        let component = self.components.dns.clone();
        let outputs = Outputs { component, ..Outputs::default() };
        let mut programmed = outputs.programmed.subscribe();
        let services = outputs.services.subscribe();
        let agent = DnsAgent { client: self.client(identities::DNS), config, outputs };
        let api = self.api.clone();
        let part = DnsPart { server: agent.bind()?, agent, spoken: self.logs.dns.clone(), starts };
        let dns = part.run(self.stop.clone());
        self.tasks.spawn("DNS", async move {
            let connect = async {
                if programmed.wait_for(|programmed| programmed.ready).await.is_ok() {
                    // A Service is acknowledged when its name resolves.
                    api.await_dns(DnsProgress { resource: "services".into(), revision: services });
                }
                std::future::pending::<()>().await;
            };
            tokio::select! {
                ended = dns => ended,
                () = connect => Ok(()),
            }
        });
        Ok(())
    }
}

/// Waits until the proxy knows where it can be asked about its health, or has ended.
async fn is_known(health: &mut watch::Receiver<Option<SocketAddr>>) -> anyhow::Result<()> {
    let _ = health.wait_for(Option::is_some).await;
    Ok(())
}

/// Says what runs, and what to type next.
fn report(plan: &UpPlan, url: &str, dns: SocketAddr, privileged: bool) {
    let kubeconfig = plan.kubeconfig.display();
    eprintln!("  API        {url}");
    if privileged {
        eprintln!("  DNS        {} ({})", plan.dns_ip, plan.args.cluster_domain);
        let pods: Vec<_> = plan.pod_cidrs.iter().map(ToString::to_string).collect();
        eprintln!("  node       {} with pods from {}", plan.node_name, pods.join(" and "));
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
