//! `roadstead wait`: until a change is in the kernel of every node.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use roadstead_proxy::lease::{ANNOTATION, DURATION_SECONDS, NAMESPACE, PREFIX, leases};
use tokio::time;

use crate::world;

/// Wait until every proxy has programmed what a Service looks like now.
#[derive(Debug, Parser)]
pub struct Args {
    /// The Service: svc/NAME.
    #[arg(long, value_name = "svc/NAME")]
    programmed: String,
    /// Its namespace.
    #[arg(short, long, default_value = "default")]
    namespace: String,
    /// How to reach the API server.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: PathBuf,
    /// Give up after so many seconds.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    timeout: u64,
}

/// Carries out `roadstead wait`.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let client = world::client(&args.kubeconfig).await?;
    let name = args.programmed.rsplit('/').next().unwrap_or_default();
    let wanted = revision(&client, &args.namespace, name).await?;
    let done = time::timeout(Duration::from_secs(args.timeout), until(&client, wanted));
    match done.await {
        Ok(nodes) => {
            let nodes = nodes?;
            writeln!(io::stdout(), "service/{name} programmed on {nodes} node(s)")?;
            Ok(())
        }
        Err(_) => bail!("service/{name} is not programmed everywhere after {} s", args.timeout),
    }
}

/// The newest revision among the Service and its slices.
async fn revision(client: &Client, namespace: &str, name: &str) -> anyhow::Result<u64> {
    let service = Api::<Service>::namespaced(client.clone(), namespace).get(name).await?;
    let selector = format!("kubernetes.io/service-name={name}");
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), namespace);
    let slices = slices.list(&ListParams::default().labels(&selector)).await?;
    let versions = slices.items.iter().map(ResourceExt::resource_version);
    let versions = versions.chain([service.resource_version()]).flatten();
    versions.filter_map(|text| text.parse().ok()).max().context("revisions are not numbers here")
}

/// Waits until all living proxies are there; returns how many they are.
async fn until(client: &Client, wanted: u64) -> anyhow::Result<usize> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &leases());
    loop {
        let all = api.list(&ListParams::default()).await?;
        let programmed: Vec<u64> =
            all.items.iter().filter(|lease| is_alive(lease)).filter_map(programmed).collect();
        if !programmed.is_empty() && programmed.iter().all(|revision| *revision >= wanted) {
            return Ok(programmed.len());
        }
        time::sleep(Duration::from_millis(50)).await;
    }
}

fn programmed(lease: &DynamicObject) -> Option<u64> {
    lease.annotations().get(ANNOTATION)?.parse().ok()
}

fn is_alive(lease: &DynamicObject) -> bool {
    let renewed = lease.data["spec"]["renewTime"].as_str().and_then(|text| text.parse().ok());
    let age = renewed.map(|at: Timestamp| Timestamp::now().duration_since(at).as_secs());
    let limit = i64::try_from(DURATION_SECONDS).unwrap_or(i64::MAX);
    lease.name_any().starts_with(PREFIX) && age.is_some_and(|age| age <= limit)
}
