//! `roadstead wait`: until a change is in the kernel of every node.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use roadstead_component::lease::NAMESPACE;
use roadstead_proxy::agent::config::Revisions;
use roadstead_proxy::lease::{OF_SERVICES, OF_SLICES, PREFIX};
use tokio::time;

use crate::world;

/// Wait until every proxy has programmed what a Service looks like now.
#[derive(Debug, Parser)]
pub(crate) struct Args {
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
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
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
        services: number(service.resource_version())?,
        slices: of_slices.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0),
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
    let mut seen = Seen::default();
    loop {
        let all = api.list(&ListParams::default()).await.map_err(in_its_own_words)?;
        let alive = seen.alive(&all.items, Timestamp::now(), Instant::now());
        let programmed: Vec<_> = alive.map(|lease| is_there(lease, wanted)).collect();
        if !programmed.is_empty() && programmed.iter().all(|there| *there) {
            return Ok(programmed.len());
        }
        time::sleep(Duration::from_millis(50)).await;
    }
}

/// The kind, by its name only: this is all we need of it.
fn leases() -> ApiResource {
    ApiResource {
        group: "coordination.k8s.io".into(),
        version: "v1".into(),
        api_version: "coordination.k8s.io/v1".into(),
        kind: "Lease".into(),
        plural: "leases".into(),
    }
}

fn is_there(lease: &DynamicObject, wanted: Revisions) -> bool {
    let number = |name| lease.annotations().get(name).and_then(|text| text.parse::<u64>().ok());
    number(OF_SERVICES).is_some_and(|there| there >= wanted.services)
        && number(OF_SLICES).is_some_and(|there| there >= wanted.slices)
}

/// Whoever is alive renews within this time, unless its Lease is shorter.
const RENEWAL: Duration = Duration::from_secs(12);
/// Clocks do not differ by more than this.
const SKEW: Duration = Duration::from_secs(300);

/// The Leases of proxies as we saw them: when each was renewed, and when we noticed.
///
/// Clocks of machines differ, so what counts is whether a Lease is renewed before our eyes. Only one
/// that is older than any two clocks could differ is dead at once.
#[derive(Debug, Default)]
struct Seen(BTreeMap<String, (String, Instant)>);

impl Seen {
    /// Those that are alive, as far as we can know by now.
    fn alive<'a>(
        &mut self,
        all: &'a [DynamicObject],
        today: Timestamp,
        now: Instant,
    ) -> impl Iterator<Item = &'a DynamicObject> {
        all.iter().filter(move |lease| {
            let spec = &lease.data["spec"];
            let held = spec["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty());
            let renewed = spec["renewTime"].as_str().unwrap_or_default();
            let (Ok(at), true) = (renewed.parse::<Timestamp>(), held) else { return false };
            let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or(0);
            let good_for = Duration::from_secs(seconds).min(RENEWAL);
            let age = Duration::try_from(today.duration_since(at)).unwrap_or_default();
            let fresh = || (renewed.to_owned(), now);
            let known = self.0.entry(lease.name_any()).or_insert_with(fresh);
            if known.0 != renewed {
                *known = fresh();
            }
            lease.name_any().starts_with(PREFIX)
                && age < good_for + SKEW
                && now.saturating_duration_since(known.1) <= good_for
        })
    }
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
        let wanted = Revisions { services: 7, slices: 9 };
        for (name, services, slices, want) in cases {
            let annotations = json!({OF_SERVICES: services, OF_SLICES: slices});
            let lease = json!({"metadata": {"name": "x", "annotations": annotations}});
            assert_eq!(is_there(&serde_json::from_value(lease).unwrap(), wanted), want, "{name}");
        }
    }

    #[test]
    fn the_dead_are_not_waited_for() {
        let (today, start): (Timestamp, _) =
            ("2026-01-01T12:00:00Z".parse().unwrap(), Instant::now());
        let (old, slow, fast) =
            ("2026-01-01T10:00:00Z", "2026-01-01T11:58:00Z", "2026-01-01T12:01:00Z");
        let cases = [
            ("renewed just now", "kube-proxy-n1", "n1", "2026-01-01T11:59:59Z", [true, false]),
            ("its clock is slow", "kube-proxy-n1", "n1", slow, [true, false]),
            ("its clock is fast", "kube-proxy-n1", "n1", fast, [true, false]),
            ("renewed long ago", "kube-proxy-n1", "n1", old, [false, false]),
            ("given up", "kube-proxy-n1", "", "2026-01-01T11:59:59Z", [false, false]),
            ("of somebody else", "kube-scheduler", "n1", "2026-01-01T11:59:59Z", [false, false]),
        ];
        for (name, lease, holder, renewed, want) in cases {
            let mut seen = Seen::default();
            let mut alive = |renewed: &str, after: u64| {
                let lease = json!({"metadata": {"name": lease}, "spec": {
                    "holderIdentity": holder, "leaseDurationSeconds": 40, "renewTime": renewed}});
                let all = [serde_json::from_value(lease).unwrap()];
                let now = start + Duration::from_secs(after);
                seen.alive(&all, today, now).count() == 1
            };
            let got = [alive(renewed, 0), alive(renewed, 13)];
            assert_eq!(got, want, "{name}: at first, and without a sign of life");
            let ours = holder == "n1" && lease != "kube-scheduler";
            assert_eq!(alive("2026-01-01T12:00:10Z", 14), ours, "{name}: renewed");
        }
    }
}
