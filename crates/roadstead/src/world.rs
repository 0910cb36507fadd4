//! The proxy's view of a cluster, from a file or an API server: what `render` and `trace` ask.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Parser;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, ResourceExt};
use roadstead_forwarding::select::NodeView;
use roadstead_forwarding::service::IpFamily;
use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::tracker::Tracker;
use serde_json::Value;

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
}

impl Source {
    /// The tables of both families.
    pub async fn tables(&mut self) -> anyhow::Result<[ForwardingTable; 2]> {
        let (services, slices) = match (&self.filename, &self.kubeconfig) {
            (Some(path), _) => self.read_file(path)?,
            (None, Some(path)) => {
                let client = client(path).await?;
                self.ask_for_node(&client).await?;
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
            ..Surroundings::default()
        }
    }

    fn read_file(&self, path: &PathBuf) -> anyhow::Result<(Vec<Service>, Vec<EndpointSlice>)> {
        let text = match path.to_str() {
            Some("-") => std::io::read_to_string(std::io::stdin())?,
            _ => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?,
        };
        let (mut services, mut slices) = (Vec::new(), Vec::new());
        for object in objects(&text)? {
            match object["kind"].as_str() {
                Some("Service") => services.push(serde_json::from_value(object)?),
                Some("EndpointSlice") => slices.push(serde_json::from_value(object)?),
                _ => {}
            }
        }
        Ok((services, slices))
    }
}

async fn from_server(client: Client) -> anyhow::Result<(Vec<Service>, Vec<EndpointSlice>)> {
    let all = ListParams::default();
    let services = Api::<Service>::all(client.clone()).list(&all).await?;
    let slices = Api::<EndpointSlice>::all(client).list(&all).await?;
    Ok((services.items, slices.items))
}

/// A client for the cluster that a kubeconfig names.
pub async fn client(path: &PathBuf) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(path)
        .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    Ok(Client::try_from(config)?)
}

/// All objects of a text of several documents, with those in lists; each has a namespace.
fn objects(text: &str) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for document in text.split("\n---") {
        let value: Value = serde_saphyr::from_str(document).context("neither YAML nor JSON")?;
        match value["items"].as_array() {
            Some(items) => found.extend(items.iter().cloned()),
            None => found.push(value),
        }
    }
    for object in found.iter_mut().filter(|object| object.is_object()) {
        if object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists() {
        let cases = [
            ("one", "kind: Service\nmetadata: {name: a}", 1),
            ("two", "---\nkind: Service\n---\nkind: Service\nmetadata: {namespace: x}\n", 2),
            ("a list", "{\"kind\": \"List\", \"items\": [{\"kind\": \"Service\"}]}", 1),
        ];
        for (name, text, want) in cases {
            let got = objects(text).unwrap();
            assert_eq!(got.len(), want, "{name}: {got:?}");
        }
        assert!(objects("{ no").is_err());
    }
}
