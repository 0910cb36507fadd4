//! The controllers: one short file each, one row each in `CONTROLLERS`.
//!
//! A controller says what it watches, which keys a change concerns, and what is to be done about a
//! key: `roadstead-plan` decides that, and the answer is a list of writes. All the rest, from
//! queues to readiness, is in `runner`. Every controller is one task; its own writes are in its
//! caches at once, so it never plans on a state that it has already changed.

use std::collections::BTreeSet;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use roadstead_component::component::Component;
use roadstead_component::readiness::ReadyGuard;
use tokio_util::sync::CancellationToken;

use crate::endpoints::EndpointsController;

mod certificate_approval;
pub mod certificates;
mod cronjob;
mod daemonset;
mod deployment;
mod disruption;
pub mod endpoints;
mod event_ttl;
mod garbage_collector;
mod horizontal;
pub mod identities;
mod job;
pub mod leader;
pub mod loadbalancer;
pub mod metrics;
mod namespace;
mod namespace_content;
pub mod node_ipam;
pub mod node_lifecycle;
pub mod object_metrics;
mod persistentvolume;
pub mod pod_garbage_collector;
mod pods;
mod replicaset;
mod resource_quota;
mod revisions;
mod runner;
mod scheduler;
pub mod state;
mod statefulset;
mod token_cleaner;
mod zones;

/// One controller.
struct Registration {
    /// As the command line and the logs know it.
    name: &'static str,
    /// What upstream calls those that do the same; they can be chosen by these names, too.
    upstream_names: &'static [&'static str],
    start: Start,
}

/// How a controller is started.
#[derive(Clone, Copy)]
enum Start {
    /// As a task of its own.
    Alone(fn(Context) -> BoxFuture<'static, ()>),
    /// Together with those that look at the same objects.
    Endpoints(EndpointsController),
}

/// The controller that runs only where it has the key of an authority.
pub const CERTIFICATES: &str = "certificate-signing";

/// All of them.
const CONTROLLERS: [Registration; 26] = [
    Registration {
        name: "deployment",
        upstream_names: &["deployment-controller"],
        start: Start::Alone(|context| deployment::run(context).boxed()),
    },
    Registration {
        name: "replicaset",
        upstream_names: &["replicaset-controller"],
        start: Start::Alone(|context| replicaset::run(context).boxed()),
    },
    Registration {
        name: "replicationcontroller",
        upstream_names: &["replicationcontroller-controller"],
        start: Start::Alone(|context| replicaset::run_replication_controllers(context).boxed()),
    },
    Registration {
        name: "statefulset",
        upstream_names: &["statefulset-controller"],
        start: Start::Alone(|context| statefulset::run(context).boxed()),
    },
    Registration {
        name: "daemonset",
        upstream_names: &["daemonset-controller"],
        start: Start::Alone(|context| daemonset::run(context).boxed()),
    },
    Registration {
        name: "job",
        upstream_names: &["job-controller", "ttl-after-finished-controller"],
        start: Start::Alone(|context| job::run(context).boxed()),
    },
    Registration {
        name: "cronjob",
        upstream_names: &["cronjob-controller"],
        start: Start::Alone(|context| cronjob::run(context).boxed()),
    },
    Registration {
        name: "horizontal-pod-autoscaler",
        upstream_names: &["horizontal-pod-autoscaler-controller"],
        start: Start::Alone(|context| horizontal::run(context).boxed()),
    },
    Registration {
        name: "disruption",
        upstream_names: &["disruption-controller"],
        start: Start::Alone(|context| disruption::run(context).boxed()),
    },
    Registration {
        name: "persistentvolume-binder",
        upstream_names: &[
            "persistentvolume-binder-controller",
            "persistentvolumeclaim-protection-controller",
            "persistentvolume-protection-controller",
        ],
        start: Start::Alone(|context| persistentvolume::run(context).boxed()),
    },
    Registration {
        name: "endpointslice",
        upstream_names: &["endpointslice-controller"],
        start: Start::Endpoints(EndpointsController::Slices),
    },
    Registration {
        name: "endpoints",
        upstream_names: &["endpoints-controller"],
        start: Start::Endpoints(EndpointsController::Endpoints),
    },
    Registration {
        name: "endpointslice-mirroring",
        upstream_names: &["endpointslice-mirroring-controller"],
        start: Start::Endpoints(EndpointsController::Mirroring),
    },
    Registration {
        name: "loadbalancer",
        upstream_names: &["service-lb-controller"],
        start: Start::Alone(|context| loadbalancer::run(context).boxed()),
    },
    Registration {
        name: "node-lifecycle",
        upstream_names: &["node-lifecycle-controller", "taint-eviction-controller"],
        start: Start::Alone(|context| node_lifecycle::run(context).boxed()),
    },
    Registration {
        name: "pod-garbage-collector",
        upstream_names: &["pod-garbage-collector-controller"],
        start: Start::Alone(|context| pod_garbage_collector::run(context).boxed()),
    },
    Registration {
        name: "scheduler",
        upstream_names: &["kube-scheduler"],
        start: Start::Alone(|context| scheduler::run(context).boxed()),
    },
    Registration {
        name: "garbage-collector",
        upstream_names: &["garbage-collector-controller"],
        start: Start::Alone(|context| garbage_collector::run(context).boxed()),
    },
    Registration {
        name: "namespace",
        upstream_names: &["namespace-controller"],
        start: Start::Alone(|context| namespace::run(context).boxed()),
    },
    Registration {
        name: "namespace-content",
        upstream_names: &["serviceaccount-controller", "root-ca-certificate-publisher-controller"],
        start: Start::Alone(|context| namespace_content::run(context).boxed()),
    },
    Registration {
        name: "resourcequota",
        upstream_names: &["resourcequota-controller"],
        start: Start::Alone(|context| resource_quota::run(context).boxed()),
    },
    Registration {
        name: "event-ttl",
        upstream_names: &[],
        start: Start::Alone(|context| event_ttl::run(context).boxed()),
    },
    Registration {
        name: CERTIFICATES,
        upstream_names: &["certificatesigningrequest-signing-controller"],
        start: Start::Alone(|context| certificates::run(context).boxed()),
    },
    Registration {
        name: "certificate-approval",
        upstream_names: &["certificatesigningrequest-approving-controller"],
        start: Start::Alone(|context| certificate_approval::run(context).boxed()),
    },
    Registration {
        name: "node-ipam",
        upstream_names: &["node-ipam-controller"],
        start: Start::Alone(|context| node_ipam::run(context).boxed()),
    },
    Registration {
        name: "token-cleaner",
        upstream_names: &["token-cleaner-controller"],
        start: Start::Alone(|context| token_cleaner::run(context).boxed()),
    },
];

impl Registration {
    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.upstream_names.contains(&name)
    }
}

/// The names of all controllers.
pub fn names() -> Vec<&'static str> {
    CONTROLLERS.iter().map(|controller| controller.name).collect()
}

/// What the controllers are told at their start.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The certificate that pods trust, in PEM.
    pub root_ca: Option<String>,
    /// Who gets certificates, and who signs them.
    pub certificates: certificates::Config,
    /// How endpoints are packed, listed and mirrored.
    pub endpoints: endpoints::Config,
    /// Where addresses of load balancers come from.
    pub load_balancer: loadbalancer::Config,
    /// Where the addresses of pods come from.
    pub node_ipam: node_ipam::Config,
    /// When a node is lost.
    pub node_lifecycle: node_lifecycle::Config,
    /// When finished pods go.
    pub pod_garbage_collector: pod_garbage_collector::Config,
    /// Where volumes are made for claims, a directory of every node; without one nobody makes any.
    pub local_storage: Option<std::path::PathBuf>,
    /// Where everything is counted.
    pub metrics: metrics::Metrics,
    /// Who is not ready yet, and what they show.
    pub component: Component,
    /// What each of them is doing.
    pub states: state::States,
}

/// What every controller is started with.
pub(crate) struct Context {
    pub(crate) name: &'static str,
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    /// Dropped when all that it watches has been seen once.
    pub(crate) ready: ReadyGuard,
}

/// Which controllers run together as one task, and under which name.
///
/// The three that make endpoints look at the same objects, so those of them that are wanted share
/// one task.
pub fn tasks(names: &[&'static str]) -> Vec<(&'static str, Vec<&'static str>)> {
    let wanted = CONTROLLERS.iter().filter(|controller| names.contains(&controller.name));
    let (alone, together): (Vec<_>, Vec<_>) =
        wanted.partition(|controller| matches!(controller.start, Start::Alone(_)));
    let mut tasks: Vec<_> = alone.iter().map(|own| (own.name, vec![own.name])).collect();
    if let Some(first) = together.first() {
        tasks.push((first.name, together.iter().map(|own| own.name).collect()));
    }
    tasks
}

/// Runs the controllers of one task until `stop`.
///
/// # Panics
///
/// If none of the names is known.
pub fn run(
    names: Vec<&'static str>,
    client: Client,
    settings: Settings,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send + 'static {
    let rows = CONTROLLERS.iter().filter(|controller| names.contains(&controller.name));
    let rows: Vec<_> = rows.map(|controller| (controller.name, controller.start)).collect();
    let (name, start) = *rows.first().expect("the caller names controllers that there are");
    let ready = settings.component.readiness.register(name);
    let states = settings.states.clone();
    settings.component.state.register("controllers", move || states.clone());
    let context = Context { name, client, settings, ready };
    let work = match start {
        Start::Alone(start) => start(context),
        Start::Endpoints(_) => {
            let endpoints = rows.into_iter().filter_map(|(_, start)| match start {
                Start::Endpoints(controller) => Some(controller),
                Start::Alone(_) => None,
            });
            endpoints::run(context, endpoints.collect::<BTreeSet<_>>()).boxed()
        }
    };
    async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }
}

/// Which controllers a list such as `*,-scheduler` or `endpoints,endpointslice` means.
pub fn choose(list: &[String]) -> Result<Vec<&'static str>, String> {
    let plain = |word: &str| word.trim_start_matches(['+', '-']).to_owned();
    for word in list.iter().map(|word| plain(word)).filter(|word| word != "*") {
        if !CONTROLLERS.iter().any(|controller| controller.is_called(&word)) {
            let known = names().join(", ");
            return Err(format!("{word:?} is not a controller; there are {known}"));
        }
    }
    let all = list.iter().any(|word| word == "*") || list.iter().all(|word| word.starts_with('-'));
    let is_chosen = |controller: &&Registration| {
        let mut words = list.iter().filter(|word| controller.is_called(&plain(word)));
        let is_refused = words.clone().any(|word| word.starts_with('-'));
        !is_refused && (all || words.next().is_some())
    };
    Ok(CONTROLLERS.iter().filter(is_chosen).map(|controller| controller.name).collect())
}

/// Whether the API server says that there is no such object, or another one of the same name.
fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || status.code == 409)
}

#[cfg(test)]
mod fake_api;
#[cfg(test)]
mod tests;
