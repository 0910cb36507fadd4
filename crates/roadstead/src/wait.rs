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
use roadstead_proxy::lease::{NAMESPACE, OF_SERVICES, OF_SLICES, PREFIX, leases};
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
    let wanted = revisions(&client, &args.namespace, name).await?;
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

/// Revisions of both kinds: each has a watch of its own, so each is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Revisions {
    of_services: u64,
    of_slices: u64,
}

/// The revision of the Service, and the newest of its slices that proxies look at.
async fn revisions(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Revisions> {
    let services = Api::<Service>::namespaced(client.clone(), namespace);
    let service = services.get(name).await.map_err(in_its_own_words)?;
    if service.labels().contains_key("service.kubernetes.io/service-proxy-name") {
        bail!("service/{name} is carried by another proxy, as its label says");
    }
    let selector = format!("kubernetes.io/service-name={name},!service.kubernetes.io/headless");
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), namespace);
    let slices = slices.list(&ListParams::default().labels(&selector)).await;
    let slices = slices.map_err(in_its_own_words)?;
    let number = |text: Option<String>| -> anyhow::Result<u64> {
        text.and_then(|text| text.parse().ok()).context("revisions are not numbers here")
    };
    let of_slices = slices.items.iter().map(|slice| number(slice.resource_version()));
    Ok(Revisions {
        of_services: number(service.resource_version())?,
        of_slices: of_slices.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0),
    })
}

/// What the server said, without the shell around it.
fn in_its_own_words(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        other => other.into(),
    }
}

/// Waits until all living proxies are there; returns how many they are.
async fn until(client: &Client, wanted: Revisions) -> anyhow::Result<usize> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &leases());
    loop {
        let all = api.list(&ListParams::default()).await.map_err(in_its_own_words)?;
        let alive = all.items.iter().filter(|lease| is_alive(lease, Timestamp::now()));
        let programmed: Vec<_> = alive.map(|lease| is_there(lease, wanted)).collect();
        if !programmed.is_empty() && programmed.iter().all(|there| *there) {
            return Ok(programmed.len());
        }
        time::sleep(Duration::from_millis(50)).await;
    }
}

fn is_there(lease: &DynamicObject, wanted: Revisions) -> bool {
    let number = |name| lease.annotations().get(name).and_then(|text| text.parse::<u64>().ok());
    number(OF_SERVICES).is_some_and(|there| there >= wanted.of_services)
        && number(OF_SLICES).is_some_and(|there| there >= wanted.of_slices)
}

fn is_alive(lease: &DynamicObject, now: Timestamp) -> bool {
    let spec = &lease.data["spec"];
    let renewed = spec["renewTime"].as_str().and_then(|text| text.parse().ok());
    let age = renewed.map(|at: Timestamp| now.duration_since(at).as_secs());
    let limit = spec["leaseDurationSeconds"].as_i64().unwrap_or(0);
    let held = spec["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty());
    held && lease.name_any().starts_with(PREFIX) && age.is_some_and(|age| age <= limit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_is_waited_for() {
        let cases = [
            ("both are there", "7", "9", true),
            ("the Service is not", "6", "99", false),
            ("the slices are not", "99", "8", false),
            ("nothing is known", "", "", false),
        ];
        let wanted = Revisions { of_services: 7, of_slices: 9 };
        for (name, services, slices, want) in cases {
            let annotations = json!({OF_SERVICES: services, OF_SLICES: slices});
            let lease = json!({"metadata": {"name": "x", "annotations": annotations}});
            assert_eq!(is_there(&serde_json::from_value(lease).unwrap(), wanted), want, "{name}");
        }
    }

    #[test]
    fn the_dead_are_not_waited_for() {
        let now: Timestamp = "2026-01-01T00:00:40Z".parse().unwrap();
        let cases = [
            ("renewed just now", "kube-proxy-n1", "n1", 39, true),
            ("renewed long ago", "kube-proxy-n1", "n1", 1, false),
            ("given up", "kube-proxy-n1", "", 39, false),
            ("of somebody else", "kube-scheduler", "n1", 39, false),
        ];
        for (name, lease, holder, second, want) in cases {
            let lease = json!({"metadata": {"name": lease}, "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": 10,
                "renewTime": format!("2026-01-01T00:00:{second:02}Z")}});
            assert_eq!(is_alive(&serde_json::from_value(lease).unwrap(), now), want, "{name}");
        }
    }
}
