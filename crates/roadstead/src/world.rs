//! The proxy's view of a cluster, from a file or an API server: what `render` and `trace` ask.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Parser;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{NetworkPolicy, ServiceCIDR};
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use roadstead_api::ip;
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::tracker::Tracker;
use roadstead_policy::cluster::PolicyCluster;
use roadstead_policy::pod::{PolicyPod, pod_blocks};
use roadstead_policy::policy::Policy;
use roadstead_proxy::agent::config::Config;
use roadstead_proxy::configuration::{Configuration, DetectLocalMode};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_proxy::described_node::{self, DescribedNode};
use roadstead_proxy::kube_proxy::agent_config;
use roadstead_typed::Typed;
use roadstead_watch::informer::key_of;
use serde_json::Value;

use crate::kube_proxy_flags::KubeProxyFlags;
use crate::manifests::objects;
use crate::trace::Hosts;

/// The networks of pods where nobody says otherwise.
const USUAL_PODS: &str = "10.244.0.0/16";

/// Where the objects come from, for which node the proxy decides, and how it is configured.
#[derive(Debug, Parser)]
pub(crate) struct Source {
    /// A file with Services, EndpointSlices, ServiceCIDRs and the Node, and for `trace` with Pods,
    /// Namespaces and NetworkPolicies, as YAML or JSON; `-` for
    /// standard input.
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: Option<PathBuf>,
    /// A kubeconfig, to ask the API server instead.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// The name of the node that decides. Its object says its zone and its addresses.
    #[arg(long, default_value = "", value_name = "NAME")]
    pub node: String,
    /// The zone of that node.
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// The addresses of that node; the first of each family is the one that the cluster knows.
    #[arg(long, value_delimiter = ',', value_name = "IP,…", value_parser = address)]
    pub node_address: Vec<IpAddr>,
    /// How the proxy is configured: a KubeProxyConfiguration.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How traffic is carried, whatever the configuration says.
    #[arg(long, alias = "proxy-mode", value_name = "MODE")]
    pub mode: Option<ProxyMode>,
    /// The networks of the cluster's pods, whatever the configuration says.
    #[arg(long, value_delimiter = ',', value_name = "CIDR,…", value_parser = network)]
    pub cluster_cidr: Vec<IpNet>,
    /// The networks that ClusterIPs are taken from, whatever ServiceCIDRs say.
    #[arg(long, value_delimiter = ',', value_name = "CIDR,…", value_parser = network)]
    pub service_cidr: Vec<IpNet>,
    #[command(flatten, next_help_heading = "Flags of kube-proxy")]
    pub flags: KubeProxyFlags,
    /// Whether somebody has said where node ports are served.
    #[arg(skip)]
    says_node_ports: bool,
}

fn address(text: &str) -> Result<IpAddr, String> {
    ip::parse(text).ok_or_else(|| format!("{text} is not an address"))
}

fn network(text: &str) -> Result<IpNet, String> {
    ip::parse_network(text).ok_or_else(|| format!("{text} is not a network"))
}

/// What the proxy would know, and how it is configured.
pub(crate) struct World {
    /// The tables of both families.
    pub tables: [ForwardingTable; 2],
    /// The addresses of the node, as far as somebody said.
    pub node_addresses: Vec<IpAddr>,
    /// The loopback addresses on which it listens itself.
    pub relayed: BTreeSet<IpAddr>,
    /// How it is configured.
    pub config: Config,
    /// What nobody said, so that it had to be assumed.
    pub assumed: Vec<String>,
    /// The NetworkPolicies, and the pods that they are about.
    pub policies: PolicyCluster,
    /// The nodes, as far as they are known.
    pub hosts: Hosts,
}

impl World {
    /// Says what was assumed, where it does not get into the way of the answer.
    pub(crate) fn say_assumed(&self) {
        self.assumed.iter().for_each(|line| eprintln!("assumed: {line}"));
    }
}

impl Source {
    /// Reads everything.
    pub(crate) async fn world(mut self) -> anyhow::Result<World> {
        let mut assumed = Vec::new();
        let config = self.configuration(&mut assumed)?;
        let objects = match (&self.filename, &self.kubeconfig) {
            (Some(path), _) => read_file(path)?,
            (None, Some(path)) => from_server(&client(path).await?, &self.node).await?,
            (None, None) => bail!("give a file with -f, or a cluster with --kubeconfig"),
        };
        let found = objects.nodes.iter().find(|node| node.name_any() == self.node);
        if found.is_none() && self.filename.is_none() && !self.node.is_empty() {
            bail!("there is no node {}", self.node);
        }
        let machine = self.machine(found, &objects.networks);
        self.assume(&config, &machine, &mut assumed);
        assumed.extend(objects.odd);
        let view = NodeView { name: self.node.clone(), zone: self.zone.clone() };
        let mut tracker = Tracker::new(view);
        objects.services.iter().for_each(|service| tracker.observe_service(service));
        objects.slices.iter().for_each(|slice| tracker.observe_slice(slice));
        let dirty = tracker.take_dirty();
        let mut table = |family| {
            let (network, notes) = described_node::node_network(&config, &machine, family);
            assumed.extend(notes);
            let mut table = ForwardingTable::new(family, &network);
            for key in &dirty {
                table.replace(key, tracker.service_ports(key, family));
            }
            table
        };
        let tables = [table(IpFamily::V4), table(IpFamily::V6)];
        let relayed = described_node::relayed(&config, &machine);
        let (node_addresses, mut policies) = (self.node_address, objects.policies);
        for node in &objects.nodes {
            policies.observe_node(&node.name_any(), Some(pod_blocks(node)));
        }
        let hosts = Hosts::of(&objects.nodes);
        Ok(World { tables, node_addresses, relayed, config, assumed, policies, hosts })
    }

    /// The configuration of the file and the flags.
    fn configuration(&mut self, assumed: &mut Vec<String>) -> anyhow::Result<Config> {
        let mut flags = std::mem::take(&mut self.flags.fields);
        if let Some(mode) = self.mode {
            flags["mode"] = mode.to_string().into();
        }
        let text = self.config.as_deref().map(std::fs::read_to_string).transpose();
        let text = text.context("cannot read --config")?;
        let parsed = Configuration::parse_with(text.as_deref().unwrap_or("{}"), flags.clone());
        let (mut configuration, notes) =
            parsed.map_err(|error| anyhow::anyhow!("--config is not a configuration: {error}"))?;
        assumed.extend(notes.into_iter().map(|note| format!("nothing of what is odd: {note}")));
        self.says_node_ports = !configuration.node_port_addresses.is_empty();
        if flags["mode"].is_null() && self.config.is_none() {
            assumed.push(format!("mode {} (--config, --mode)", configuration.mode));
        }
        if !self.cluster_cidr.is_empty() {
            configuration.cluster_networks = self.cluster_cidr.clone();
        }
        let by_network = configuration.detect_local == DetectLocalMode::ClusterCidr;
        if by_network && configuration.cluster_networks.is_empty() && self.config.is_none() {
            configuration.cluster_networks = vec![USUAL_PODS.parse()?];
            assumed.push(format!("pods have addresses of {USUAL_PODS} (--cluster-cidr)"));
        }
        Ok(agent_config(&configuration, &self.node))
    }

    /// What is known of the machine. Its object says what the user does not.
    fn machine(&mut self, node: Option<&Node>, networks: &[IpNet]) -> DescribedNode {
        if let Some(node) = node {
            let zone = node.labels().get("topology.kubernetes.io/zone").cloned();
            self.zone = self.zone.take().or(zone);
            if self.node_address.is_empty() {
                let status = node.status.iter();
                let listed = status.flat_map(|status| status.addresses.iter().flatten());
                self.node_address = listed.filter_map(|a| ip::parse(&a.address)).collect();
            }
        }
        let of = |family| self.node_address.iter().find(|a| IpFamily::of(**a) == family);
        let primary = [IpFamily::V4, IpFamily::V6].into_iter().filter_map(of).copied();
        let spec = node.and_then(|node| node.spec.as_ref());
        let pods = spec.and_then(|spec| spec.pod_cidrs.as_ref()).into_iter().flatten();
        let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
        let service_networks = match self.service_cidr.as_slice() {
            [] => networks.to_vec(),
            said => said.to_vec(),
        };
        DescribedNode {
            addresses: self.node_address.iter().copied().chain(loopback).collect(),
            primary: primary.collect(),
            pod_networks: pods.filter_map(|text| ip::parse_network(text)).collect(),
            service_networks,
        }
    }

    /// Notes what nobody has said.
    fn assume(&self, config: &Config, machine: &DescribedNode, assumed: &mut Vec<String>) {
        let mut assume = |condition: bool, text: &str| {
            if condition {
                assumed.push(text.to_owned());
            }
        };
        assume(self.node.is_empty(), "no endpoint runs on this node (--node)");
        assume(self.node_address.is_empty(), "the node has no address (--node, --node-address)");
        assume(
            config.node_port_addresses == ["primary"] && !self.says_node_ports,
            "node ports are served on the primary address, as by `roadstead proxy`; by `roadstead \
             up` on all (--nodeport-addresses all)",
        );
        let unknown = config.follow.service_networks && machine.service_networks.is_empty();
        assume(
            unknown,
            "nobody knows where ClusterIPs come from: one that no Service has is left alone \
             (--service-cidr)",
        );
    }
}

/// The objects that forwarding depends on.
#[derive(Debug, Default)]
struct Objects {
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
    nodes: Vec<Node>,
    networks: Vec<IpNet>,
    policies: PolicyCluster,
    /// What was left out.
    odd: Vec<String>,
}

fn read_file(path: &Path) -> anyhow::Result<Objects> {
    let text = match path.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin())?,
        _ => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?,
    };
    sort_out(objects(&text)?).with_context(|| format!("in {}", path.display()))
}

/// The networks of a ServiceCIDR.
fn networks_of(range: ServiceCIDR) -> Vec<IpNet> {
    let texts = range.spec.and_then(|spec| spec.cidrs).unwrap_or_default();
    texts.iter().filter_map(|text| ip::parse_network(text)).collect()
}

/// Puts objects in their places.
fn sort_out(objects: Vec<Value>) -> anyhow::Result<Objects> {
    let mut sorted = Objects::default();
    let mut others = BTreeSet::new();
    for object in objects.into_iter().filter(|object| !object.is_null()) {
        match object["kind"].as_str() {
            Some("Service") => sorted.services.push(read(object)?),
            Some("EndpointSlice") => sorted.slices.push(read(with_named_ports(object))?),
            Some("ServiceCIDR") => sorted.networks.extend(networks_of(read(object)?)),
            Some("Node") => sorted.nodes.push(read(object)?),
            Some("Pod") => observe_pod(&mut sorted.policies, &read(object)?),
            Some("Namespace") => observe_namespace(&mut sorted.policies, &read(object)?),
            Some("NetworkPolicy") => observe_policy(&mut sorted.policies, &read(object)?),
            kind => drop(others.insert(kind.unwrap_or("objects without a kind").to_owned())),
        }
    }
    if sorted.services.is_empty() {
        sorted.odd.push("there is no Service".into());
    }
    if !others.is_empty() {
        let others: Vec<_> = others.into_iter().collect();
        sorted.odd.push(format!("these make no difference: {}", others.join(", ")));
    }
    Ok(sorted)
}

fn observe_pod(policies: &mut PolicyCluster, pod: &Pod) {
    policies.observe_pod(key_of(pod), Some(PolicyPod::read(pod)));
}

/// An API server gives each namespace a label with its name.
fn observe_namespace(policies: &mut PolicyCluster, namespace: &Namespace) {
    let mut labels = namespace.labels().clone();
    labels.insert("kubernetes.io/metadata.name".into(), namespace.name_any());
    policies.observe_namespace(&namespace.name_any(), Some(labels));
}

fn observe_policy(policies: &mut PolicyCluster, policy: &NetworkPolicy) {
    policies.observe_policy(&key_of(policy), Some(Policy::read(policy)));
}

/// All that policies are about; as far as whoever asks may see it.
async fn policies_from_server(client: &Client) -> PolicyCluster {
    let mut policies = PolicyCluster::default();
    let all = ListParams::default();
    let pods = Api::<Pod>::all(client.clone()).list(&all).await;
    pods.into_iter().flatten().for_each(|pod| observe_pod(&mut policies, &pod));
    let namespaces = Api::<Namespace>::all(client.clone()).list(&all).await;
    namespaces.into_iter().flatten().for_each(|own| observe_namespace(&mut policies, &own));
    let found = Api::<NetworkPolicy>::all(client.clone()).list(&all).await;
    found.into_iter().flatten().for_each(|policy| observe_policy(&mut policies, &policy));
    policies
}

/// In a slice that an API server has seen, a port that has no name says so with an empty one.
fn with_named_ports(mut slice: Value) -> Value {
    let ports = slice.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        port.entry("name").or_insert_with(|| "".into());
    }
    slice
}

fn read<K: Typed>(object: Value) -> anyhow::Result<K> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
    K::from_value(&object).with_context(|| format!("{name} makes no sense"))
}

/// Everything from an API server. ServiceCIDRs may be missing there, or hidden.
async fn from_server(client: &Client, node: &str) -> anyhow::Result<Objects> {
    let all = ListParams::default();
    let services = Api::<Service>::all(client.clone()).list(&all).await?;
    let slices = Api::<EndpointSlice>::all(client.clone()).list(&all).await?;
    let ranges = Api::<ServiceCIDR>::all(client.clone()).list(&all).await;
    let ranges = ranges.map(|list| list.items).unwrap_or_default();
    let nodes = match (Api::<Node>::all(client.clone()).list(&all).await, node) {
        (Ok(list), _) => list.items,
        (Err(_), "") => Vec::new(),
        (Err(_), name) => {
            Api::<Node>::all(client.clone()).get_opt(name).await?.into_iter().collect()
        }
    };
    Ok(Objects {
        services: services.items,
        slices: slices.items,
        nodes,
        networks: ranges.into_iter().flat_map(networks_of).collect(),
        policies: policies_from_server(client).await,
        odd: Vec::new(),
    })
}

/// A client for the cluster that a kubeconfig names.
pub(crate) async fn client(path: &PathBuf) -> anyhow::Result<Client> {
    Ok(Client::try_from(client_config(path).await?)?)
}

/// How to reach the API server that a kubeconfig names.
pub(crate) async fn client_config(path: &PathBuf) -> anyhow::Result<kube::Config> {
    let kubeconfig = Kubeconfig::read_from(path)
        .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
    let options = KubeConfigOptions::default();
    Ok(kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_without_a_name() {
        let slice = json!({"ports": [{"port": 80}, {"name": "web"}, 7]});
        let want = json!({"ports": [{"port": 80, "name": ""}, {"name": "web"}, 7]});
        assert_eq!(with_named_ports(slice), want);
        for odd in [json!({}), json!({"ports": 7}), json!(7)] {
            assert_eq!(with_named_ports(odd.clone()), odd);
        }
    }

    #[test]
    fn what_makes_no_difference_is_said() {
        let service = json!({"kind": "Service", "metadata": {"name": "a"}});
        let slice = json!({"kind": "EndpointSlice", "addressType": "IPv4", "endpoints": []});
        let range = json!({"kind": "ServiceCIDR", "spec": {"cidrs": ["010.96.0.0/12"]}});
        let none = "there is no Service";
        let cases = [
            ("all", vec![service, slice.clone(), range], ""),
            ("nothing", vec![], none),
            ("an empty document", vec![Value::Null], none),
            ("only a slice", vec![slice], none),
            (
                "other things",
                vec![json!({"kind": "ConfigMap"}), json!({"kind": "ConfigMap"}), json!("x")],
                "there is no Service; these make no difference: ConfigMap, objects without a kind",
            ),
            (
                "a strange Service",
                vec![json!({"kind": "Service", "metadata": {"name": "a"}, "spec": 7})],
                "Service a makes no sense",
            ),
        ];
        for (name, objects, want) in cases {
            let said = match sort_out(objects) {
                Ok(sorted) => {
                    let ranges = if name == "all" { 1 } else { 0 };
                    assert_eq!(sorted.networks.len(), ranges, "{name}");
                    sorted.odd.join("; ")
                }
                Err(error) => error.to_string(),
            };
            assert_eq!(said, want, "{name}");
        }
    }

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        source: Source,
    }

    async fn world(flags: &str) -> World {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), WORLD).unwrap();
        let file = file.path().display().to_string();
        let words = ["roadstead", "-f", &file].into_iter().chain(flags.split_whitespace());
        Program::try_parse_from(words).unwrap().source.world().await.unwrap()
    }

    const WORLD: &str = "
kind: ServiceCIDR
spec: {cidrs: [10.96.0.0/12]}
---
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: z1}}
spec: {podCIDRs: [10.8.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.168.0.7}, {type: ExternalIP, address: 192.0.2.7}]}
---
kind: Service
metadata: {name: web}
spec: {clusterIPs: [10.96.0.1], ports: [{port: 80, nodePort: 30080}]}
";

    #[tokio::test]
    async fn a_proxy_is_taken_as_it_is_configured() {
        use roadstead_forwarding::node_network::{DetectLocal, NodePorts};
        let world_of_all = |flags: &'static str| async move {
            let world = world(flags).await;
            let [v4, _] = &world.tables;
            assert_eq!(v4.port_count(), 1, "{flags}");
            (v4.node_network().clone(), world.assumed.join("\n"))
        };
        let (around, assumed) = world_of_all("").await;
        assert_eq!(around.detect_local, DetectLocal::Networks(vec![USUAL_PODS.parse().unwrap()]));
        assert_eq!(around.service_networks.len(), 1, "as the ServiceCIDR says");
        for word in ["mode nftables", "10.244.0.0/16", "--node-address", "primary address"] {
            assert!(assumed.contains(word), "{word} is missing in\n{assumed}");
        }
        let own: IpAddr = "192.168.0.7".parse().unwrap();
        let (around, assumed) = world_of_all("--node n1 --detect-local-mode NodeCIDR").await;
        assert_eq!(
            around.detect_local,
            DetectLocal::Networks(vec!["10.8.1.0/24".parse().unwrap()])
        );
        assert_eq!(around.node_ports, NodePorts::On([own].into()));
        assert!(!assumed.contains("--node-address"), "{assumed}");
        let flags = "--node n1 --mode iptables --masquerade-all --cluster-cidr 10.8.0.0/16";
        let (around, assumed) = world_of_all(flags).await;
        assert!(around.masquerade_all && around.serves_loopback());
        assert_eq!(around.node_ports, NodePorts::Every { loopback: true });
        assert_eq!((around.service_networks.len(), assumed.as_str()), (0, ""));
        let flags = "--node n1 --nodeport-addresses 192.0.2.0/024 --service-cidr 10.96.0.0/16";
        let (around, assumed) = world_of_all(flags).await;
        assert_eq!(around.node_ports, NodePorts::On(["192.0.2.7".parse().unwrap()].into()));
        assert!(!assumed.contains("primary") && !assumed.contains("odd"), "{assumed}");
        let relaying = world("--node n1 --nodeport-addresses primary,localhost").await;
        let want: BTreeSet<IpAddr> = ["127.0.0.1", "::1"].map(|a| a.parse().unwrap()).into();
        assert_eq!(relaying.relayed, want);
        assert!(world("--mode iptables").await.relayed.is_empty());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "mode: ipvs\niptables: {masqueradeAll: true}\nnew: 1").unwrap();
        let world = world(&format!("--node n1 --config {}", file.path().display())).await;
        let around = world.tables[0].node_network();
        assert!(around.masquerade_all && !around.detect_local.is_known());
        assert_eq!(world.config.mode, ProxyMode::Ipvs);
        assert_eq!(world.assumed, ["nothing of what is odd: unknown field new"]);
    }
}
