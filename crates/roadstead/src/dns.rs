//! `roadstead dns`: the DNS server alone, for any cluster, in the place of CoreDNS; and
//! `roadstead dns why`: what a name means, and why it has no answer.

use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use roadstead_dns::agent::{
    Config, CorefileSource, DnsAgent, Outputs, Pages, UpstreamSource, ZoneConfig,
};
use roadstead_dns::clients::ClientNode;
use roadstead_dns_core::rate_limit::{RateLimits, USUAL_RATE};
use roadstead_zone::answer::{Answer, AnswerEnd};
use roadstead_zone::entry::{V4_RECORD, V6_RECORD};
use roadstead_zone::name::Name;
use roadstead_zone::record_type::RecordType;
use roadstead_zone::records::Records;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::{Lifetimes, ZoneSettings};
use roadstead_zone::zone::{Keeper, Zone};

use crate::servers::{self, ServerArgs};
use crate::{machine, notify};

/// Run only the DNS server, for any cluster, in the place of CoreDNS.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// A configuration in CoreDNS' language; it is looked at again when it changes.
    #[arg(long, visible_alias = "conf", value_name = "FILE")]
    corefile: Option<PathBuf>,
    /// Take the configuration from a ConfigMap of the cluster, and follow it.
    #[arg(long, value_name = "NAMESPACE/NAME", num_args = 0..=1,
          default_missing_value = "kube-system/coredns", conflicts_with = "corefile")]
    configmap: Option<String>,
    /// Where to answer, on UDP and TCP [default: port 53 of all addresses, or the Corefile's].
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// Whom to ask about other names [default: this machine's name servers].
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = server)]
    upstream: Vec<SocketAddr>,
    /// The addresses under which clients know this server.
    #[arg(long, value_name = "IP")]
    cluster_ip: Vec<IpAddr>,
    /// Answer as CoreDNS does where that differs from the RFCs.
    #[arg(long)]
    coredns_compat: bool,
    #[command(flatten)]
    lifetimes: LifetimeArgs,
    /// Answer ZONE.pin._zone and ZONE.prefer._zone in front of a headless Service's name with those
    /// of its endpoints that run in that zone.
    #[arg(long)]
    zonal: bool,
    /// How many replies per second a network of strangers gets over UDP; 0 is without limit.
    #[arg(long, value_name = "NUMBER", default_value_t = USUAL_RATE)]
    stranger_rate: u32,
    /// Public networks that are no strangers: those of nodes, pods and other clients of your own. An
    /// endpoint of a Service is never one, nor is anybody with a private address.
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    friends: Vec<IpNet>,
    /// Where to answer GET /health [default: port 8080, or the Corefile's].
    #[arg(long, value_name = "ADDRESS:PORT")]
    health: Option<SocketAddr>,
    /// Where to answer GET /ready [default: port 8181, or the Corefile's].
    #[arg(long, value_name = "ADDRESS:PORT")]
    ready: Option<SocketAddr>,
    /// Where to answer GET /metrics [default: port 9153, or the Corefile's].
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// The Lease in kube-system that says which revision is being answered from; empty for none.
    #[arg(long, value_name = "NAME")]
    lease: Option<String>,
    /// Complete the searches of this node's pods, whose name server is --cluster-ip, so that a name
    /// from outside costs them one round trip. Their node must have this machine's resolv.conf.
    #[arg(long, value_name = "NODE", requires = "cluster_ip")]
    complete_searches_of: Option<String>,
    /// How many threads answer over UDP [default: one per processor].
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
}

/// How long clients may remember answers.
#[derive(Clone, Debug, Parser)]
struct LifetimeArgs {
    /// For how long clients may remember the address of a Service [with a Corefile: its ttl].
    #[arg(long, value_name = "SECONDS", default_value_t = Lifetimes::default().cluster_ip)]
    ttl_cluster_ip: u32,
    /// For how long they may remember endpoints; a Corefile's ttl may make it less, as for the others.
    #[arg(long, value_name = "SECONDS", default_value_t = Lifetimes::default().endpoint)]
    ttl_headless: u32,
    /// For how long they may remember that there is no such name, or nothing of that type.
    #[arg(long, value_name = "SECONDS", default_value_t = Lifetimes::default().negative)]
    ttl_negative: u32,
    /// The same below a Service that exists: such names may come soon.
    #[arg(long, value_name = "SECONDS",
          default_value_t = Lifetimes::default().negative_below_service)]
    ttl_negative_below_service: u32,
}

impl From<&LifetimeArgs> for Lifetimes {
    fn from(args: &LifetimeArgs) -> Self {
        Self {
            cluster_ip: args.ttl_cluster_ip,
            endpoint: args.ttl_headless,
            negative: args.ttl_negative,
            negative_below_service: args.ttl_negative_below_service,
        }
    }
}

/// Which cluster.
#[derive(Clone, Debug, Parser)]
struct ClusterArgs {
    /// The cluster to follow [default: the Corefile's, the one this runs in, or kubectl's].
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// The domain that all names of the cluster end in.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local", global = true)]
    cluster_domain: String,
    #[command(flatten)]
    servers: ServerArgs,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Say what a name means, step by step, and why it has no answer.
    Why(WhyArgs),
}

#[derive(Clone, Debug, Parser)]
struct WhyArgs {
    /// A name as a program in a pod would use it, or an address.
    name: String,
    /// The namespace of that pod.
    #[arg(long, short, default_value = "default")]
    namespace: String,
}

fn server(text: &str) -> Result<SocketAddr, String> {
    let plain = text.parse::<IpAddr>().map(|address| (address, 53).into());
    plain.or_else(|_| text.parse()).map_err(|_| format!("{text}: not an address"))
}

/// Carries out the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command.clone() {
        Some(Command::Why(why)) => {
            let client = args.cluster.client(None).await?;
            explain(&client, &args.cluster.cluster_domain, &why).await
        }
        None => serve(args).await,
    }
}

impl ClusterArgs {
    /// `other` is what the configuration says, if no flag does.
    async fn client(&self, other: Option<(PathBuf, Option<String>)>) -> anyhow::Result<Client> {
        let config = match self.kubeconfig.clone().map(|path| (path, None)).or(other) {
            None => {
                kube::Config::infer().await.context("no cluster to follow: use --kubeconfig")?
            }
            Some((path, context)) => {
                let read = || format!("cannot read {}", path.display());
                let file = Kubeconfig::read_from(&path).with_context(read)?;
                let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
                kube::Config::from_custom_kubeconfig(file, &options).await.with_context(read)?
            }
        };
        servers::connect(config, &self.servers)
    }
}

async fn serve(args: Args) -> anyhow::Result<()> {
    roadstead_dns::tcp::raise_file_limit();
    let stop = crate::cli::interrupted();
    let corefile = match (&args.corefile, &args.configmap) {
        (Some(path), _) => Some(CorefileSource::File(path.clone())),
        (None, Some(place)) => {
            let Some((namespace, name)) = place.split_once('/') else {
                bail!("--configmap {place}: should be NAMESPACE/NAME");
            };
            Some(CorefileSource::ConfigMap(namespace.into(), name.into()))
        }
        (None, None) => None,
    };
    // The newer family stands for both.
    let everywhere = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let page = |given: Option<SocketAddr>, port| match corefile {
        // The file says where, or that there is none.
        Some(CorefileSource::File(_)) => given,
        _ => given.or(Some(everywhere(port))),
    };
    let lease = args.lease.clone();
    let lease = lease.unwrap_or_else(|| format!("roadstead-dns-{}", machine::host_name()));
    let mut config = Config {
        listen: args.listen.clone(),
        zone: ZoneConfig {
            domain: args.cluster.cluster_domain.clone(),
            lifetimes: (&args.lifetimes).into(),
            servers: args.cluster_ip.clone(),
            zonal: args.zonal,
        },
        upstreams: UpstreamSource {
            addresses: args.upstream.clone(),
            resolv_conf: Some(machine::RESOLV_CONF.into()),
        },
        coredns_compat: args.coredns_compat,
        limits: RateLimits { rate: args.stranger_rate, friends: args.friends.clone() },
        lease: Some(lease).filter(|name| !name.is_empty()),
        pages: Pages {
            health: page(args.health, 8080),
            ready: page(args.ready, 8181),
            metrics: page(args.metrics, 9153),
        },
        lingers: true,
        threads: args.threads,
        complete_searches_of: args
            .complete_searches_of
            .clone()
            .map(|name| ClientNode { name, resolv_conf: machine::RESOLV_CONF.into() }),
        corefile: corefile.clone(),
    };
    if config.listen.is_empty() {
        config.listen = roadstead_dns::configuration::places(&config)?;
    }
    let client = args.cluster.client(roadstead_dns::configuration::kubeconfig(&config)?).await?;
    let outputs = Outputs::default();
    notify::ready_after(outputs.programmed.subscribe(), |programmed| programmed.ready);
    let agent = DnsAgent { client, config, outputs };
    agent.run(stop).await.context("the DNS server failed")
}

/// Says what a name means in a cluster.
async fn explain(client: &Client, domain: &str, why: &WhyArgs) -> anyhow::Result<()> {
    let origin = Name::parse(domain);
    let origin = origin.with_context(|| format!("{domain:?} is not a domain name"))?;
    let mut keeper = Keeper::new(ZoneSettings::new(&origin), 1, Seed::new(1));
    let all = ListParams::default();
    for namespace in Api::<Namespace>::all(client.clone()).list(&all).await? {
        keeper.observe_namespace(&namespace.name_any());
    }
    for service in Api::<Service>::all(client.clone()).list(&all).await? {
        keeper.observe_service(&service);
    }
    for slice in Api::<EndpointSlice>::all(client.clone()).list(&all).await? {
        keeper.observe_slice(&slice);
    }
    keeper.set_synced();
    let story = tell(keeper.zone(), domain, &why.name, &why.namespace)?;
    std::io::Write::write_all(&mut std::io::stdout(), story.as_bytes())?;
    Ok(())
}

/// The names that a pod's resolver tries, in order.
fn candidates(name: &str, namespace: &str, domain: &str) -> Vec<String> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return vec![reverse_name(address)];
    }
    if let Some(absolute) = name.strip_suffix('.') {
        return vec![absolute.into()];
    }
    let searches = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.into()];
    let mut all: Vec<String> = searches.iter().map(|search| format!("{name}.{search}")).collect();
    // With ndots:5 a name with five dots or more is tried as it is first.
    let at = if name.matches('.').count() >= 5 { 0 } else { all.len() };
    all.insert(at, name.into());
    all
}

fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let mut text = String::new();
            for octet in address.octets().iter().rev() {
                let _ = write!(text, "{:x}.{:x}.", octet & 15, octet >> 4);
            }
            text + "ip6.arpa"
        }
    }
}

fn tell(zone: &Zone, domain: &str, name: &str, namespace: &str) -> anyhow::Result<String> {
    let mut story = String::new();
    let is_address = name.parse::<IpAddr>().is_ok();
    for candidate in candidates(name, namespace, domain) {
        let Some(wire) = Name::parse(&candidate).map(|name| name.to_lowercase()) else {
            bail!("{candidate} is not a domain name");
        };
        let kinds: &[(RecordType, &str)] = match is_address {
            true => &[(RecordType::Ptr, "PTR")],
            false => &[(RecordType::A, "A"), (RecordType::Aaaa, "AAAA")],
        };
        writeln!(story, "{candidate}")?;
        let mut found = false;
        for (kind, label) in kinds {
            let answer = zone.answer(wire.wire(), *kind);
            found |= matches!(
                answer.end,
                AnswerEnd::Found(..) | AnswerEnd::Elsewhere | AnswerEnd::NoData(_)
            );
            writeln!(story, "  {label:<5}{}", describe(zone, wire.wire(), *kind, &answer))?;
        }
        if found {
            break;
        }
    }
    Ok(story)
}

fn describe(zone: &Zone, name: &[u8], kind: RecordType, answer: &Answer<'_>) -> String {
    let mut words: Vec<String> =
        answer.aliases.iter().map(|alias| format!("alias of {alias}")).collect();
    let reason = |text: &str| match zone.explain(name, kind, answer) {
        Some(reason) => format!("{text}: {reason}"),
        None => text.to_owned(),
    };
    words.push(match &answer.end {
        AnswerEnd::Found(records, lifetime) => format!("{} (for {lifetime} s)", shown(records)),
        AnswerEnd::NoData(_) => reason("no records"),
        AnswerEnd::NoName(_) => reason("no such name"),
        AnswerEnd::Loop | AnswerEnd::TooLong => reason("an error"),
        AnswerEnd::NotReady => reason("unknown"),
        AnswerEnd::Elsewhere | AnswerEnd::NotOurs => {
            "outside the cluster: upstream servers are asked".into()
        }
    });
    words.join(", ")
}

fn shown(records: &Records<'_>) -> String {
    let addresses = |all: &[u8], length: usize| -> Vec<String> {
        let v4 = |record: &[u8]| <[u8; 4]>::try_from(&record[12..]).map(IpAddr::from);
        let v6 = |record: &[u8]| <[u8; 16]>::try_from(&record[12..]).map(IpAddr::from);
        let text = |record: &[u8]| match v4(record).or_else(|_| v6(record)) {
            Ok(address) => address.to_string(),
            Err(_) => String::new(),
        };
        all.chunks_exact(length).map(text).collect()
    };
    let words = match records {
        Records::V4(all) => addresses(all, V4_RECORD),
        Records::V6(all) => addresses(all, V6_RECORD),
        Records::HostV4(host) | Records::HostV6(host) => {
            host.addresses().map(|address| address.to_string()).collect()
        }
        Records::One(address) => vec![address.to_string()],
        Records::Pointers(all) => all
            .iter()
            .filter_map(|target| Name::from_wire(&[target.key, &[0]].concat()))
            .map(|name| format!("Service {name}"))
            .collect(),
        other => vec![format!("{other:?}")],
    };
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn zone() -> Keeper {
        let mut keeper =
            Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
        keeper.observe_namespace("shop");
        keeper.observe_namespace("default");
        let web = json!({"metadata": {"namespace": "shop", "name": "web"},
            "spec": {"clusterIPs": ["10.96.0.7"]}});
        keeper.observe_service(&serde_json::from_value(web).unwrap());
        keeper.set_synced();
        keeper
    }

    #[test]
    fn stories() {
        let cases = [
            ("web", "shop", 1, "A    10.96.0.7 (for 30 s)"),
            ("web", "default", 4, "Service web exists in namespace shop, you asked in default"),
            ("web.shop", "default", 2, "A    10.96.0.7 (for 30 s)"),
            ("web.shop.svc.cluster.local.", "default", 1, "A    10.96.0.7 (for 30 s)"),
            ("example.org", "shop", 4, "outside the cluster"),
            ("10.96.0.7", "shop", 1, "PTR  Service web.shop."),
        ];
        let keeper = zone();
        for (name, namespace, names, want) in cases {
            let story = tell(keeper.zone(), "cluster.local", name, namespace).unwrap();
            let tried = story.lines().filter(|line| !line.starts_with(' ')).count();
            assert!(tried == names && story.contains(want), "{name} in {namespace}:\n{story}");
        }
    }
}
