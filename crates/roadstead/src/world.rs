//! The proxy's view of a cluster, from a file or an API server: what `render` and `trace` ask.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Parser;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::tracker::Tracker;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::manifests::objects;

/// Where the objects come from, and for which node the proxy decides.
#[derive(Debug, Parser)]
pub struct Source {
    /// A file with Services and EndpointSlices, as YAML or JSON; `-` for standard input.
    #[arg(short = 'f', long, value_name = "FILE")]
    pub filename: Option<PathBuf>,
    /// A kubeconfig, to ask the API server instead.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// The name of the node that decides. An API server knows its zone and its addresses.
    #[arg(long, default_value = "", value_name = "NAME")]
    pub node: String,
    /// The zone of that node.
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
    /// The addresses of that node.
    #[arg(long, value_delimiter = ',', value_name = "IP,…")]
    pub node_address: Vec<IpAddr>,
    /// The networks of the cluster's pods.
    #[arg(long, value_delimiter = ',', default_value = "10.244.0.0/16", value_name = "CIDR,…")]
    pub cluster_cidr: Vec<IpNet>,
    /// The networks that ClusterIPs are taken from, as an API server says.
    #[arg(skip)]
    service_networks: Vec<IpNet>,
}

impl Source {
    /// The tables of both families.
    pub async fn tables(&mut self) -> anyhow::Result<[ForwardingTable; 2]> {
        let (services, slices) = match (&self.filename, &self.kubeconfig) {
            (Some(path), _) => self.read_file(path)?,
            (None, Some(path)) => {
                let client = client(path).await?;
                self.ask_for_node(&client).await?;
                self.service_networks = service_networks(&client).await;
                from_server(client).await?
            }
            (None, None) => bail!("give a file with -f, or a cluster with --kubeconfig"),
        };
        let node = NodeView { name: self.node.clone(), zone: self.zone.clone() };
        let mut tracker = Tracker::new(node);
        services.iter().for_each(|service| tracker.observe_service(service));
        slices.iter().for_each(|slice| tracker.observe_slice(slice));
        let dirty = tracker.take_dirty();
        let surroundings = self.surroundings();
        let table = |family| {
            let mut table = ForwardingTable::new(family, &surroundings);
            for key in &dirty {
                table.replace(key, tracker.service_ports(key, family));
            }
            table
        };
        Ok([table(IpFamily::V4), table(IpFamily::V6)])
    }

    /// Fills in what the node's object says, unless the user has said something else.
    async fn ask_for_node(&mut self, client: &Client) -> anyhow::Result<()> {
        if self.node.is_empty() {
            return Ok(());
        }
        let node = Api::<Node>::all(client.clone()).get_opt(&self.node).await?;
        let Some(node) = node else { bail!("there is no node {}", self.node) };
        if self.zone.is_none() {
            self.zone = node.labels().get("topology.kubernetes.io/zone").cloned();
        }
        if self.node_address.is_empty() {
            let listed = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
            self.node_address = listed.filter_map(|a| a.address.parse().ok()).collect();
        }
        Ok(())
    }

    fn surroundings(&self) -> Surroundings {
        let node_addresses: BTreeSet<_> = self.node_address.iter().copied().collect();
        Surroundings {
            detect_local: DetectLocal::Networks(self.cluster_cidr.clone()),
            node_address: self.node_address.first().copied(),
            node_addresses,
            service_networks: self.service_networks.clone(),
            ..Surroundings::default()
        }
    }

    fn read_file(&self, path: &PathBuf) -> anyhow::Result<(Vec<Service>, Vec<EndpointSlice>)> {
        let text = match path.to_str() {
            Some("-") => std::io::read_to_string(std::io::stdin())?,
            _ => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?,
        };
        sort_out(objects(&text)?).with_context(|| format!("in {}", path.display()))
    }
}

/// The networks of ServiceCIDRs; none where the cluster has no such objects, or hides them.
async fn service_networks(client: &Client) -> Vec<IpNet> {
    let found = Api::<ServiceCIDR>::all(client.clone()).list(&ListParams::default()).await;
    let all = found.map(|list| list.items).unwrap_or_default();
    let specs = all.into_iter().filter_map(|object| object.spec);
    let texts = specs.flat_map(|spec| spec.cidrs.unwrap_or_default());
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// The objects that forwarding depends on, if there are any.
fn sort_out(objects: Vec<Value>) -> anyhow::Result<(Vec<Service>, Vec<EndpointSlice>)> {
    let (mut services, mut slices) = (Vec::new(), Vec::new());
    let mut others = BTreeSet::new();
    for object in objects {
        match object["kind"].as_str() {
            Some("Service") => services.push(read(object)?),
            Some("EndpointSlice") => slices.push(read(with_named_ports(object))?),
            kind => drop(others.insert(kind.unwrap_or("objects without a kind").to_owned())),
        }
    }
    if services.is_empty() {
        let others = others.into_iter().chain((!slices.is_empty()).then(|| "EndpointSlice".into()));
        match others.collect::<Vec<_>>().join(", ") {
            found if found.is_empty() => bail!("there is no Service, and nothing else"),
            found => bail!("there is no Service, only: {found}"),
        }
    }
    Ok((services, slices))
}

/// In a slice that an API server has seen, a port that has no name says so with an empty one.
fn with_named_ports(mut slice: Value) -> Value {
    let ports = slice.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        port.entry("name").or_insert_with(|| "".into());
    }
    slice
}

fn read<K: DeserializeOwned>(object: Value) -> anyhow::Result<K> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
    serde_json::from_value(object).with_context(|| format!("{name} makes no sense"))
}

async fn from_server(client: Client) -> anyhow::Result<(Vec<Service>, Vec<EndpointSlice>)> {
    let all = ListParams::default();
    let services = Api::<Service>::all(client.clone()).list(&all).await?;
    let slices = Api::<EndpointSlice>::all(client).list(&all).await?;
    Ok((services.items, slices.items))
}

/// A client for the cluster that a kubeconfig names.
pub async fn client(path: &PathBuf) -> anyhow::Result<Client> {
    Ok(Client::try_from(client_config(path).await?)?)
}

/// How to reach the API server that a kubeconfig names.
pub async fn client_config(path: &PathBuf) -> anyhow::Result<kube::Config> {
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
    fn what_is_no_service_is_said() {
        let service = json!({"kind": "Service", "metadata": {"name": "a"}});
        let slice = json!({"kind": "EndpointSlice", "addressType": "IPv4", "endpoints": []});
        let cases = [
            ("both", vec![service.clone(), slice.clone()], ""),
            ("nothing", vec![], "there is no Service, and nothing else"),
            ("only a slice", vec![slice], "there is no Service, only: EndpointSlice"),
            (
                "other things",
                vec![json!({"kind": "Pod"}), json!({"kind": "Pod"}), json!("x")],
                "there is no Service, only: Pod, objects without a kind",
            ),
            (
                "a strange Service",
                vec![json!({"kind": "Service", "metadata": {"name": "a"}, "spec": 7})],
                "Service a makes no sense",
            ),
        ];
        for (name, objects, want) in cases {
            let said = sort_out(objects).map_or_else(|error| error.to_string(), |_| String::new());
            assert_eq!(said, want, "{name}");
        }
    }
}
