//! `roadstead apiserver`: the API server alone.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use ipnet::IpNet;
use jiff::Timestamp;
use roadstead_plan::alloc;
use roadstead_server::api::Api;
use roadstead_server::bootstrap;
use roadstead_server::config::{Config, Neighbours, Services};
use roadstead_server::identity::audit::{Audit, Policy};
use roadstead_server::identity::authority::{Authority, end_of};
use roadstead_server::identity::secret_file::append_private;
use roadstead_server::identity::token_file::TokenFile;
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::node_agents::RemoteAgents;
use roadstead_server::objects::admission_plugins::Plugins;
use roadstead_server::transport::receive::Timeouts;
use roadstead_server::transport::serve::{self, SecureServing};
use roadstead_server::transport::serving_certificate::ServingCertificate;
use roadstead_store::kv::Store;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::data_directory::DataDirectory;
use crate::definitions::DefinitionArgs;
use crate::etcd_args::{EtcdArgs, EtcdClientArgs};
use crate::renewal::{AdminConfig, CertificateArgs, Renewal};
use crate::store_args::StoreArgs;
use crate::{culprit, duration, machine, notify, server_tasks, visible};

/// Run only the API server.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Keep everything in memory: objects and certificates are gone when the process ends.
    #[arg(long, conflicts_with = "etcd_servers")]
    ephemeral: bool,
    /// Where objects and certificates are kept.
    #[arg(long, value_name = "DIRECTORY", default_value_os_t = machine::data_dir())]
    #[arg(value_parser = machine::directory)]
    data_dir: PathBuf,
    /// Where to serve HTTPS; port 0 picks a free one.
    #[arg(long, default_value = "127.0.0.1:6443", value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// Where to write the admin's kubeconfig once the server is ready.
    #[arg(long, default_value = "roadstead.kubeconfig", value_name = "FILE")]
    kubeconfig_out: PathBuf,
    /// The address under which pods and other machines reach this server: the endpoint of the Service
    /// kubernetes. Unless it is given, the one of --listen if others can reach that.
    #[arg(long, value_name = "ADDRESS")]
    advertise_address: Option<IpAddr>,
    /// Serve metrics.k8s.io (`kubectl top`) from what the agents of nodes measure, where no metrics server
    /// does it.
    #[arg(long)]
    serve_metrics: bool,
    /// How long to go on as before after it was asked to stop, when /readyz fails already: for load balancers that
    /// ask now and then. After that clients are sent to the other servers, if there are any.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    shutdown_delay_duration: Option<Duration>,
    #[command(flatten)]
    services: ServiceArgs,
    #[command(flatten)]
    plugins: PluginArgs,
    #[command(flatten)]
    definitions: DefinitionArgs,
    /// Where pods have their addresses. Requests for pods and Services (`kubectl get --raw
    /// …/proxy/`) are handed on to nothing else but, for pods in the network of their node, the
    /// node's addresses [default: spec.podCIDRs of the Nodes].
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',')]
    cluster_cidr: Vec<IpNet>,
    /// Tokens that are known from the start: `token,user,uid,"group1,group2"` on each line. A line
    /// that is not like that, an empty token or one that is there twice ends the start.
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    #[command(flatten)]
    certificates: CertificateArgs,
    #[command(flatten)]
    audit: AuditArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    etcd: EtcdArgs,
}

impl Args {
    /// Where objects are, if that is etcd.
    pub(crate) fn etcd(&self) -> &EtcdClientArgs {
        self.etcd.connection()
    }
}

/// What is done to new objects.
#[derive(Clone, Debug, Parser)]
pub(crate) struct PluginArgs {
    /// Admission plugins to switch off, by upstream's names: DefaultIngressClass,
    /// DefaultTolerationSeconds, Priority, ServiceAccount.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// Admission plugins to switch on; all that this server has are on unless switched off.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
}

impl PluginArgs {
    /// What is to be done; says which of it this server cannot do.
    pub(crate) fn plugins(&self) -> anyhow::Result<Plugins> {
        let plugins =
            Plugins::choose(&self.enable_admission_plugins, &self.disable_admission_plugins)
                .map_err(anyhow::Error::msg)?;
        for name in &plugins.missing {
            if name == "DenyServiceExternalIPs" {
                bail!("{name} is switched on by --deny-service-external-ips");
            }
            warn!(plugin = name, "this server does not have the admission plugin");
        }
        Ok(plugins)
    }
}

/// Addresses and ports of Services.
#[derive(Clone, Debug, Parser)]
pub(crate) struct ServiceArgs {
    /// Where the addresses of Services come from: one range, or one of each family. Services get
    /// an address of the first unless they ask for more.
    #[arg(
        long,
        alias = "service-cluster-ip-range",
        value_name = "CIDR[,CIDR]",
        value_delimiter = ',',
        default_value = "10.96.0.0/12"
    )]
    service_cidr: Vec<IpNet>,
    /// Where node ports come from.
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range,
        default_value = "30000-32767")]
    service_node_port_range: RangeInclusive<u16>,
    /// Whether to tell everybody who uses Endpoints that EndpointSlices have replaced them.
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set, default_value_t = true)]
    endpoints_deprecation_warning: bool,
    /// Whether Services that ask for new external addresses (spec.externalIPs) are refused, as by
    /// kube-apiserver's DenyServiceExternalIPs: whoever may write a Service takes the traffic to
    /// them [default: true in `up`, false in `apiserver`].
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    deny_service_external_ips: Option<bool>,
}

impl ServiceArgs {
    /// The first range, and all other choices.
    pub(crate) fn service_config(&self) -> anyhow::Result<(IpNet, Services)> {
        let (first, second) = match self.service_cidr[..] {
            [first] => (first, None),
            [first, second] => (first, Some(second)),
            _ => bail!("--service-cidr takes one range, or one of each family"),
        };
        if second.is_some_and(|second| second.addr().is_ipv4() == first.addr().is_ipv4()) {
            bail!("--service-cidr {first} and the second range must be of different IP family");
        }
        for range in &self.service_cidr {
            if range.addr() != range.network() {
                bail!(
                    "--service-cidr {range} has bits beyond its prefix; did you mean {}?",
                    range.trunc()
                );
            }
            if !alloc::is_usable(*range) {
                bail!("--service-cidr {range} is too large: the shortest IPv6 prefix is 64");
            }
        }
        let services = Services {
            second_range: second,
            node_ports: self.service_node_port_range.clone(),
            warn_about_endpoints: self.endpoints_deprecation_warning,
            deny_external_ips: self.deny_service_external_ips.unwrap_or(false),
            pod_ranges: Vec::new(),
            gives_pod_ranges: false,
        };
        Ok((first, services))
    }

    /// Whether external addresses are refused, where nobody expects to have them.
    pub(crate) fn denies_external_ips(&self) -> bool {
        self.deny_service_external_ips.unwrap_or(true)
    }

    /// Where node ports come from.
    pub(crate) fn node_ports(&self) -> RangeInclusive<u16> {
        self.service_node_port_range.clone()
    }

    /// The ranges, the first of them being the one for Services that do not ask.
    pub(crate) fn ranges(&self) -> &[IpNet] {
        &self.service_cidr
    }
}

/// Reads `30000-32767`, or `30000+2768`.
fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || format!("{text:?} is not a range of ports such as 30000-32767");
    let number = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
    let (first, last) = match (text.split_once('-'), text.split_once('+')) {
        (Some((first, last)), _) => (number(first)?, number(last)?),
        (None, Some((first, size))) => {
            let last = number(first)?.checked_add(number(size)?.checked_sub(1).ok_or_else(wrong)?);
            (number(first)?, last.ok_or_else(wrong)?)
        }
        (None, None) => (number(text)?, number(text)?),
    };
    if first == 0 || last < first { Err(wrong()) } else { Ok(first..=last) }
}

/// Who did what, in a file.
#[derive(Clone, Debug, Parser)]
pub(crate) struct AuditArgs {
    /// Append a line of JSON about each request to this file, which only its owner can read.
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Which requests are written, and how much of them: an audit.k8s.io/v1 Policy. The contents
    /// of Secrets and tokens are never written, those of ConfigMaps if a rule names them.
    #[arg(long, value_name = "FILE", requires = "audit_log")]
    audit_policy: Option<PathBuf>,
}

impl AuditArgs {
    /// Opens the log, if one is wanted.
    pub(crate) fn open(&self) -> anyhow::Result<Option<Audit>> {
        let Some(log) = &self.audit_log else { return Ok(None) };
        let policy = match &self.audit_policy {
            None => Policy::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.with_context(|| format!("cannot read {}", path.display()))?;
                Policy::parse(&text)
                    .map_err(|why| anyhow::anyhow!("{} is wrong: {why}", path.display()))?
            }
        };
        let file = append_private(log)
            .with_context(|| format!("cannot open the audit log {}", log.display()))?;
        Ok(Some(Audit::new(policy, file)))
    }
}

/// Serves until interrupted.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let begin = Instant::now();
    let stop = crate::cli::interrupted();
    // Every connection is a file.
    roadstead_dns::tcp::raise_file_limit();
    let _directory = match args.ephemeral {
        true => None,
        false => Some(DataDirectory::claim(&args.data_dir)?),
    };
    let (authority, mut tokens, store) = match args.ephemeral {
        true => (Authority::ephemeral()?, Tokens::ephemeral()?, args.store.memory()),
        false => {
            let pki = pki(&args.data_dir);
            let authority = Authority::in_directory(&pki)?;
            let store = match args.etcd.is_given() {
                true => args.etcd.open().await?,
                false => args.store.open(&args.data_dir)?,
            };
            (authority, Tokens::in_directory(&pki)?, store)
        }
    };
    if let Some(path) = &args.token_auth_file {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let known = TokenFile::parse(&text);
        tokens = tokens.with_known(known.with_context(|| path.display().to_string())?);
    }
    let (service_range, mut services) = args.services.service_config()?;
    services.pod_ranges = args.cluster_cidr;
    let facts = facts(&services.pod_ranges, args.services.ranges());
    let setup = Setup {
        facts,
        authority: args.certificates.limit(authority),
        kubeconfig: args.kubeconfig_out.clone(),
        tokens,
        audit: args.audit.open()?,
        store,
        listen: args.listen,
        service_range,
        services,
        advertise: advertised(args.advertise_address, args.listen)?,
        plugins: args.plugins.plugins()?,
        definitions: args.definitions.objects(),
        metrics: args.serve_metrics,
        shutdown_delay: args.shutdown_delay_duration.unwrap_or_default(),
        // Who else acts on objects, a server alone cannot know.
        neighbours: Neighbours::default(),
    };
    let server = start(setup, stop).await?;
    let took = begin.elapsed().as_millis();
    eprintln!("ready in {took} ms on https://{}", server.address);
    eprintln!("next: kubectl --kubeconfig {} get services", args.kubeconfig_out.display());
    notify::ready();
    server.task.await??;
    Ok(())
}

/// A running API server.
pub(crate) struct Server {
    pub api: Arc<Api>,
    pub address: SocketAddr,
    /// The names and addresses in its certificate.
    pub names: Vec<String>,
    pub task: tokio::task::JoinHandle<std::io::Result<()>>,
}

/// Where the cluster's authority is kept.
pub(crate) fn pki(data_dir: &Path) -> PathBuf {
    data_dir.join("pki")
}

/// Where objects are kept.
pub(crate) fn store_file(data_dir: &Path) -> PathBuf {
    data_dir.join("store/roadstead.redb")
}

/// What an API server needs.
pub(crate) struct Setup {
    pub authority: Arc<Authority>,
    /// Where the administrator's kubeconfig goes.
    pub kubeconfig: PathBuf,
    pub tokens: Tokens,
    pub audit: Option<Audit>,
    pub store: Arc<Store>,
    pub listen: SocketAddr,
    pub service_range: IpNet,
    pub services: Services,
    pub advertise: Option<IpAddr>,
    pub neighbours: Neighbours,
    /// Whether agents elsewhere are asked what they measure.
    pub metrics: bool,
    pub plugins: Plugins,
    /// CustomResourceDefinitions to make known.
    pub definitions: Vec<Value>,
    /// How long it goes on after it was asked to stop.
    pub shutdown_delay: Duration,
    /// What nodes that join must know, if nobody else tells them.
    pub facts: Option<Value>,
}

/// The endpoint of the Service kubernetes: what the operator says, or where we listen if that is
/// not for this machine alone.
fn advertised(given: Option<IpAddr>, listen: SocketAddr) -> anyhow::Result<Option<IpAddr>> {
    let local = |ip: &IpAddr| ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
    match given {
        Some(ip) if local(&ip) => bail!("--advertise-address {ip}: nobody else can reach it"),
        Some(ip) => Ok(Some(ip)),
        None => Ok(Some(listen.ip()).filter(|ip| !local(ip))),
    }
}

/// What nodes must know of a cluster, if the operator has said where its pods have their addresses.
fn facts(pods: &[IpNet], services: &[IpNet]) -> Option<Value> {
    let list =
        |ranges: &[IpNet]| ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let dns = alloc::nth(*services.first()?, 10).to_string();
    (!pods.is_empty()).then(|| {
        json!({"clusterDomain": "cluster.local", "clusterCIDR": list(pods),
            "serviceCIDR": list(services), "dnsIP": dns})
    })
}

/// Starts an API server.
pub(crate) async fn start(setup: Setup, stop: CancellationToken) -> anyhow::Result<Server> {
    let Setup { authority, tokens, audit, store, listen, service_range, services, .. } = setup;
    let Setup { advertise, plugins, neighbours, metrics, kubeconfig, definitions, .. } = setup;
    let Setup { shutdown_delay, facts, .. } = setup;
    warn_of_the_end(&authority);
    let listener = bind(listen).await?;
    let address = listener.local_addr().context("a bound socket has an address")?;
    let advertise = advertise.map(|ip| (ip, address.port()));
    let config = Config { service_range, advertise, audit };
    let is_shared = store.is_shared();
    let api = Api::with_services(store, config, services, tokens);
    api.set_plugins(plugins);
    api.set_neighbours(neighbours);
    api.set_remote_agents(RemoteAgents::new(authority.clone()));
    if metrics {
        api.serve_metrics();
    }
    bootstrap::run(&api)
        .await
        .map_err(|error| anyhow::anyhow!("cannot prepare the cluster: {}", error.message))?;
    bootstrap::agree(&api, authority.certificate()).await.map_err(|error| {
        anyhow::anyhow!("cannot be a server of this cluster: {}", error.message)
    })?;
    bootstrap::define(&api, definitions)
        .await
        .map_err(|error| anyhow::anyhow!("cannot make kinds known: {}", error.message))?;
    let names = certificate_names(address, service_range, advertise.map(|(ip, _)| ip));
    let public = advertise.map_or_else(|| url(address), |(ip, port)| url((ip, port).into()));
    bootstrap::publish(&api, authority.certificate(), &public)
        .await
        .map_err(|error| anyhow::anyhow!("cannot tell where the cluster is: {}", error.message))?;
    if let Some(facts) = facts {
        let told = bootstrap::tell_nodes(&api, visible::CLUSTER, facts).await;
        told.map_err(|error| anyhow::anyhow!("cannot tell nodes of it: {}", error.message))?;
    }
    let serving = Arc::new(ServingCertificate::new(&authority.server(names.clone())?)?);
    let tls = authority.tls_with(serving.clone())?;
    let admin = AdminConfig { path: kubeconfig, url: url(address) };
    admin.write(&authority)?;
    let own_names = names.clone();
    let renewal = Renewal { api: api.clone(), authority, serving, names, admin };
    let renewing = renewal.run(stop.clone());
    let keeping = bootstrap::keep(api.clone(), stop.clone());
    let tending = server_tasks::run(api.clone(), is_shared, stop.clone());
    let timeouts = Timeouts::default();
    let serving = SecureServing { listener, tls, timeouts, shutdown_delay };
    let serving = serve::run(api.clone(), serving, stop);
    let task = tokio::spawn(async move { tokio::join!(serving, keeping, tending, renewing).0 });
    Ok(Server { api, address, names: own_names, task })
}

/// What the authority has signed ends with it.
fn warn_of_the_end(authority: &Authority) {
    let Some(end) = end_of(authority.certificate()) else { return };
    if end.as_second() - Timestamp::now().as_second() < 365 * 24 * 3600 {
        warn!(%end, "the certificate of the cluster's authority ends soon, and everything with it");
    }
}

/// Where clients on this machine reach a server.
fn url(mut address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        address.set_ip([127, 0, 0, 1].into());
    }
    format!("https://{address}")
}

impl Server {
    /// Where clients on this machine reach the server.
    pub(crate) fn url(&self) -> String {
        url(self.address)
    }
}

/// Opens the port; if it is taken, says by whom.
async fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| {
        let holder = match error.kind() {
            std::io::ErrorKind::AddrInUse => culprit::listening_on(listen),
            _ => None,
        };
        match holder {
            Some(holder) => anyhow::anyhow!(
                "{listen} is already used by {holder}; stop it or choose another --listen"
            ),
            None => anyhow::Error::new(error).context(format!("cannot listen on {listen}")),
        }
    })
}

/// The names under which clients may reach the server.
fn certificate_names(
    address: SocketAddr,
    service_range: IpNet,
    advertise: Option<IpAddr>,
) -> Vec<String> {
    let first = alloc::nth(service_range, 1);
    let mut names = vec![
        "localhost".to_owned(),
        "kubernetes".to_owned(),
        "kubernetes.default".to_owned(),
        "kubernetes.default.svc".to_owned(),
        "kubernetes.default.svc.cluster.local".to_owned(),
        "127.0.0.1".to_owned(),
        first.to_string(),
    ];
    match address.ip().is_unspecified() {
        false => names.push(address.ip().to_string()),
        // Whoever can reach the machine can reach the server, under any of its names.
        true => names.extend(own_names()),
    }
    names.extend(advertise.map(|ip| ip.to_string()));
    names.sort();
    names.dedup();
    names
}

/// The name and the addresses of this machine, as far as the kernel tells them.
fn own_names() -> Vec<String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let host = read("/proc/sys/kernel/hostname").trim().to_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
    let host = Some(host).filter(|host| !host.is_empty() && host.chars().all(plain));
    let addresses = own_addresses(&read("/proc/net/fib_trie"), &read("/proc/net/if_inet6"));
    host.into_iter().chain(addresses).collect()
}

/// The addresses in the kernel's tables of both families.
fn own_addresses(routes: &str, sixth: &str) -> Vec<String> {
    let lines: Vec<_> = routes.lines().map(str::trim).collect();
    let local = lines.windows(2).filter(|pair| pair[1].starts_with("/32 host LOCAL"));
    let fourth = local.filter_map(|pair| pair[0].split_whitespace().last()?.parse().ok());
    let sixth = sixth.lines().filter_map(|line| {
        let digits = line.split_whitespace().next()?;
        Some(Ipv6Addr::from_bits(u128::from_str_radix(digits, 16).ok()?))
    });
    let sixth = sixth.filter(|address| !address.is_unicast_link_local());
    let all = fourth.map(IpAddr::V4).chain(sixth.map(IpAddr::V6));
    all.map(|address: IpAddr| address.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_machine() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 4\n     |-- 192.0.2.0\n        /24 link UNICAST\n     \
            |-- 192.0.2.2\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n";
        let sixth = "00000000000000000000000000000001 01 80 10 80       lo\n\
            fe800000000000000000000000000001 02 40 20 80     eth0\n\
            fd000000000000000000000000000002 02 40 00 80     eth0\n";
        assert_eq!(own_addresses(routes, sixth), ["192.0.2.2", "::1", "fd00::2"]);
        assert!(own_addresses("", "").is_empty());
    }

    #[test]
    fn ranges_of_ports() {
        for (text, want) in [
            ("30000-32767", Some(30_000..=32_767)),
            ("30000+2768", Some(30_000..=32_767)),
            ("30000", Some(30_000..=30_000)),
            ("32767-30000", None),
            ("0-10", None),
            ("30000-70000", None),
            ("60000+6000", None),
            ("30000+0", None),
            ("many", None),
        ] {
            assert_eq!(port_range(text).ok(), want, "{text}");
        }
    }

    #[test]
    fn ranges_of_services() {
        let ranges = |text: &str| {
            let args = ServiceArgs::try_parse_from(["test", "--service-cidr", text]).unwrap();
            args.service_config()
                .map(|(first, services)| (first.to_string(), services.second_range))
        };
        let dual = ranges("fd00::/112,10.96.0.0/16").unwrap();
        assert_eq!(dual, ("fd00::/112".into(), Some("10.96.0.0/16".parse().unwrap())));
        assert_eq!(ranges("10.96.0.0/16").unwrap(), ("10.96.0.0/16".into(), None));
        for wrong in [
            "10.96.0.0/16,10.97.0.0/16",
            "10.96.0.0/16,fd00::/112,fd01::/112",
            "10.96.0.1/16",
            "fd00::/48",
        ] {
            assert!(ranges(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_advertised() {
        // The flag, where the server listens, and the endpoint; `!` is an error.
        let cases = [
            ("", "127.0.0.1:6443", ""),
            ("", "0.0.0.0:6443", ""),
            ("", "192.0.2.1:6443", "192.0.2.1"),
            ("192.0.2.2", "0.0.0.0:6443", "192.0.2.2"),
            ("fd00::1", "127.0.0.1:6443", "fd00::1"),
            ("127.0.0.1", "0.0.0.0:6443", "!"),
            ("0.0.0.0", "192.0.2.1:6443", "!"),
        ];
        for (given, listen, want) in cases {
            let found = advertised(given.parse().ok(), listen.parse().unwrap());
            let found =
                found.map_or("!".to_owned(), |ip| ip.map_or(String::new(), |ip| ip.to_string()));
            assert_eq!(found, want, "{given} {listen}");
        }
    }
}
