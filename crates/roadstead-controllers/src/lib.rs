//! The controllers: one short file each.
//!
//! A controller says what it watches, which keys a change wakes, calls `roadstead-plan`, and
//! carries out the answer through `kube::Client`. What the right answer is, is not decided here.
//! Every controller is one task that owns its caches; its own writes are in them at once, so it
//! never plans on a state that it has already changed. What they have in common is in `runner`.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::{Api, Client};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub mod certificates;
pub mod deployment;
pub mod endpoints;
pub mod event_ttl;
pub mod garbage;
pub mod kinds;
pub mod leader;
pub mod loadbalancer;
pub mod metrics;
pub mod namespace;
pub mod namespace_content;
pub mod node_lifecycle;
pub mod pod_gc;
pub mod replicaset;
pub mod runner;
pub mod scheduler;

/// Names of the controllers, as the command line knows them.
pub const ALL: [&str; 14] = [
    "deployment",
    "replicaset",
    "endpointslice",
    "endpoints",
    "endpointslice-mirroring",
    "loadbalancer",
    "node-lifecycle",
    "pod-garbage-collector",
    "scheduler",
    "garbage-collector",
    "namespace",
    "namespace-content",
    "event-ttl",
    CERTIFICATES,
];

/// The controller that runs only where it has the key of an authority.
pub const CERTIFICATES: &str = "certificate-signing";

/// What the controllers are told at their start.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The certificate that pods trust, in PEM.
    pub root_ca: Option<String>,
    /// Who signs certificates; without one nobody does.
    pub signer: Option<Arc<certificates::signer::Signer>>,
    /// How endpoints are packed, listed and mirrored.
    pub endpoints: endpoints::Config,
    /// Where addresses of load balancers come from.
    pub load_balancer: loadbalancer::Config,
    /// When a node is lost.
    pub node_lifecycle: node_lifecycle::Config,
    /// When finished pods go.
    pub pod_gc: pod_gc::Config,
    /// Where everything is counted.
    pub metrics: metrics::Metrics,
}

/// Which controllers run together as one task, and under which name.
///
/// The three that make endpoints look at the same objects, so those of them that are wanted share
/// one task.
pub fn tasks(names: &[&'static str]) -> Vec<(&'static str, Vec<&'static str>)> {
    let makes_endpoints = |name: &&&'static str| part(name).is_some();
    let together: Vec<_> = names.iter().filter(makes_endpoints).copied().collect();
    let alone = names.iter().filter(|name| part(name).is_none());
    let mut tasks: Vec<_> = alone.map(|name| (*name, vec![*name])).collect();
    if let Some(first) = together.first() {
        tasks.push((first, together));
    }
    tasks
}

fn part(name: &str) -> Option<endpoints::Part> {
    match name {
        "endpointslice" => Some(endpoints::Part::Slices),
        "endpoints" => Some(endpoints::Part::Endpoints),
        "endpointslice-mirroring" => Some(endpoints::Part::Mirror),
        _ => None,
    }
}

/// Runs the controllers of one task until `stop`. Unknown names are a mistake of the caller.
pub async fn run(
    names: Vec<&'static str>,
    client: Client,
    settings: Settings,
    stop: CancellationToken,
) {
    let metrics = settings.metrics;
    let parts: BTreeSet<_> = names.iter().filter_map(|name| part(name)).collect();
    let work = async {
        match names.first().copied().unwrap_or_default() {
            _ if !parts.is_empty() => {
                let config = endpoints::Config { parts, ..settings.endpoints };
                endpoints::run(client, config, metrics).await;
            }
            "deployment" => deployment::run(client, metrics).await,
            "replicaset" => replicaset::run(client, metrics).await,
            "loadbalancer" => loadbalancer::run(client, settings.load_balancer, metrics).await,
            "node-lifecycle" => node_lifecycle::run(client, settings.node_lifecycle, metrics).await,
            "pod-garbage-collector" => pod_gc::run(client, settings.pod_gc).await,
            "scheduler" => scheduler::run(client, metrics).await,
            "garbage-collector" => garbage::run(client).await,
            "namespace" => namespace::run(client).await,
            "namespace-content" => namespace_content::run(client, settings.root_ca, metrics).await,
            "event-ttl" => event_ttl::run(client).await,
            CERTIFICATES => match settings.signer {
                Some(signer) => certificates::run(client, signer).await,
                None => std::future::pending().await,
            },
            other => warn!(controller = other, "no such controller"),
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// Which controllers a list such as `*,-scheduler` or `endpoints,endpointslice` means.
pub fn choose(list: &[String]) -> Result<Vec<&'static str>, String> {
    let plain = |word: &str| word.trim_start_matches(['+', '-']).to_owned();
    for word in list.iter().map(|word| plain(word)).filter(|word| word != "*") {
        if !ALL.contains(&&*word) {
            let known = ALL.join(", ");
            return Err(format!("{word:?} is not a controller; there are {known}"));
        }
    }
    let named = |name: &str| list.iter().any(|word| plain(word) == name && !word.starts_with('-'));
    let refused = |name: &str| list.iter().any(|word| word.strip_prefix('-') == Some(name));
    let all = list.iter().any(|word| word == "*") || list.iter().all(|word| word.starts_with('-'));
    let chosen = ALL.into_iter().filter(|name| !refused(name) && (all || named(name)));
    Ok(chosen.collect())
}

/// The objects of a kind in one namespace.
fn within<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), namespace)
}

/// Whether the API server says that there is no such object, or another one of the same name.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_controllers() {
        let cases = [
            ("", Ok(ALL.len())),
            ("*", Ok(ALL.len())),
            ("*,-scheduler", Ok(ALL.len() - 1)),
            ("-scheduler,-endpoints", Ok(ALL.len() - 2)),
            ("endpoints,endpointslice", Ok(2)),
            ("endpoints,-endpoints", Ok(0)),
            ("nonsense", Err(())),
        ];
        for (list, want) in cases {
            let words: Vec<_> =
                list.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect();
            assert_eq!(choose(&words).map(|chosen| chosen.len()).map_err(drop), want, "{list}");
        }
    }

    #[test]
    fn those_that_make_endpoints_run_together() {
        let tasks = tasks(&ALL);
        assert_eq!(tasks.len(), ALL.len() - 2);
        let together = tasks.iter().find(|(name, _)| *name == "endpointslice").unwrap();
        assert_eq!(together.1, ["endpointslice", "endpoints", "endpointslice-mirroring"]);
    }
}
