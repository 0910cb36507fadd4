//! The controller of PodDisruptionBudgets: says how many pods may be evicted. The API server spends it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Selector;
use roadstead_plan::disruption;
use roadstead_plan::owner::controller_of;
use roadstead_plan::pod_view::PodView;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::key_of;
use roadstead_watch::queue::Queue;
use roadstead_watch::write::Write;

use crate::Context;
use crate::horizontal::target::Target;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

pub(crate) async fn run(context: Context) {
    let client = &context.client;
    let inputs = Inputs::new()
        .watch(every::<PodDisruptionBudget>(client))
        .watch(every::<Deployment>(client))
        .watch(every::<ReplicaSet>(client))
        .watch(every::<StatefulSet>(client))
        .watch(every::<ReplicationController>(client))
        .watch(every::<PodView>(client));
    let state = State {
        client: client.clone(),
        budgets: Cache::default(),
        deployments: Cache::default(),
        replica_sets: Cache::default(),
        stateful_sets: Cache::default(),
        controllers: Cache::default(),
        pods: Cache::default(),
    };
    runner::run(context, state, inputs).await;
}

struct State {
    client: Client,
    budgets: Cache<PodDisruptionBudget>,
    deployments: Cache<Deployment>,
    replica_sets: Cache<ReplicaSet>,
    stateful_sets: Cache<StatefulSet>,
    controllers: Cache<ReplicationController>,
    pods: Cache<PodView>,
}

impl Watches<PodDisruptionBudget> for State {
    fn cache(&mut self) -> &mut Cache<PodDisruptionBudget> {
        &mut self.budgets
    }

    fn wake(&mut self, change: &Changed<PodDisruptionBudget>, queue: &mut Queue<ObjectKey>) {
        queue.add(change.key.clone());
    }
}

/// How many pods an owner asks for may matter to every budget of its namespace.
macro_rules! watch_owner {
    ($kind:ty, $cache:ident, $replicas:expr) => {
        impl Watches<$kind> for State {
            fn cache(&mut self) -> &mut Cache<$kind> {
                &mut self.$cache
            }

            fn wake(&mut self, change: &Changed<$kind>, queue: &mut Queue<ObjectKey>) {
                let replicas: fn(&$kind) -> Option<i32> = $replicas;
                let (before, now) = (change.before.as_deref(), change.now.as_deref());
                if before.map(replicas) != now.map(replicas) {
                    self.wake_namespace(&change.key.namespace, queue);
                }
            }
        }
    };
}

watch_owner!(Deployment, deployments, |own| own.spec.replicas);
watch_owner!(ReplicaSet, replica_sets, |own| own.spec.replicas);
watch_owner!(StatefulSet, stateful_sets, |own| own.spec.replicas);
watch_owner!(ReplicationController, controllers, |own| own.spec.as_ref()?.replicas);

impl Watches<PodView> for State {
    fn cache(&mut self) -> &mut Cache<PodView> {
        &mut self.pods
    }

    fn wake(&mut self, change: &Changed<PodView>, queue: &mut Queue<ObjectKey>) {
        if let (Some(before), Some(now)) = (&change.before, &change.now)
            && !now.differs_from(before)
        {
            return;
        }
        for (key, budget) in self.budgets.iter() {
            let is_near = key.namespace == change.key.namespace;
            if is_near && change.states().any(|pod| covers(budget, pod)) {
                queue.add(key.clone());
            }
        }
    }
}

impl State {
    fn wake_namespace(&self, namespace: &str, queue: &mut Queue<ObjectKey>) {
        let all = self.budgets.iter().filter(|(key, _)| key.namespace == namespace);
        all.for_each(|(key, _)| queue.add(key.clone()));
    }

    /// How many pods the owners of these ask for, as far as it is known here.
    fn expected(&self, namespace: &str, pods: &[Arc<PodView>]) -> Result<Expected, String> {
        let mut counted = BTreeMap::new();
        let mut ask = BTreeMap::new();
        for pod in pods {
            // A pod that nobody makes again is nobody's number.
            let Some(owner) = controller_of(&pod.metadata) else { continue };
            match self.scale(namespace, owner) {
                Scale::Is(uid, replicas) => drop(counted.insert(uid, replicas)),
                Scale::Ask => drop(ask.insert(owner.uid.clone(), owner.clone())),
                Scale::Gone => {
                    return Err(format!("found no controllers for pod {:?}", pod.name()));
                }
                Scale::None(resource) => {
                    return Err(format!("{resource} does not implement the scale subresource"));
                }
            }
        }
        let sum = counted.values().fold(0, |sum: i32, own| sum.saturating_add(*own));
        Ok(Expected { sum, ask: ask.into_values().collect() })
    }

    /// Who decides how many there are, and how many.
    fn scale(&self, namespace: &str, owner: &OwnerReference) -> Scale {
        let key = ObjectKey::new(namespace, &owner.name);
        match owner.kind.as_str() {
            "ReplicaSet" => self.replica_set_scale(&key, owner),
            "StatefulSet" => {
                let set = self.stateful_sets.get(&key);
                Scale::of(set.map(|set| (&set.metadata, set.spec.replicas)), owner)
            }
            "ReplicationController" => {
                let own = self.controllers.get(&key);
                let replicas = |own: &ReplicationController| own.spec.as_ref()?.replicas;
                Scale::of(own.map(|own| (&own.metadata, replicas(own))), owner)
            }
            "DaemonSet" => Scale::None("daemonsets.apps"),
            "Job" => Scale::None("jobs.batch"),
            "Node" => Scale::None("nodes"),
            _ => Scale::Ask,
        }
    }

    fn replica_set_scale(&self, key: &ObjectKey, owner: &OwnerReference) -> Scale {
        let set = self.replica_sets.get(key);
        let Some(set) = set.filter(|set| is(&set.metadata, owner)) else { return Scale::Gone };
        match controller_of(&set.metadata).filter(|above| above.kind == "Deployment") {
            Some(above) => {
                let own = self.deployments.get(&ObjectKey::new(&key.namespace, &above.name));
                Scale::of(own.map(|own| (&own.metadata, own.spec.replicas)), above)
            }
            None => Scale::of(Some((&set.metadata, set.spec.replicas)), owner),
        }
    }
}

/// What the owners of pods ask for.
#[derive(Debug, Default)]
struct Expected {
    sum: i32,
    /// Kinds that we do not follow: these are asked.
    ask: Vec<OwnerReference>,
}

/// What one owner asks for.
enum Scale {
    /// Who decides, by its uid, and how many.
    Is(String, i32),
    /// There is no such object, or not any more.
    Gone,
    /// This resource asks for no number.
    None(&'static str),
    /// It may have a `scale`.
    Ask,
}

impl Scale {
    fn of(found: Option<(&ObjectMeta, Option<i32>)>, owner: &OwnerReference) -> Self {
        match found.filter(|(metadata, _)| is(metadata, owner)) {
            Some((_, replicas)) => Self::Is(owner.uid.clone(), replicas.unwrap_or(1)),
            None => Self::Gone,
        }
    }
}

fn is(metadata: &ObjectMeta, owner: &OwnerReference) -> bool {
    metadata.uid.as_ref() == Some(&owner.uid)
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "controllermanager";
    const QUEUE: &'static str = "disruption";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let Some(budget) = self.budgets.get(key) else { return WritePlan::none() };
        let near = self.pods.in_namespace(&key.namespace);
        let alive = near.filter(|pod| !pod.is_finished() && covers(budget, pod));
        let pods: Vec<_> = alive.cloned().collect();
        let expected = match disruption::needs_scale(budget) {
            true => self.expected(&key.namespace, &pods),
            false => Ok(Expected::default()),
        };
        match expected {
            Ok(Expected { sum, ask }) if !ask.is_empty() => {
                let (client, budget) = (self.client.clone(), budget.clone());
                let survey = async move {
                    let asked = sum_of(&client, &budget, &ask).await;
                    Ok(settle(&budget, &pods, asked.map(|more| sum.saturating_add(more)), now))
                };
                WritePlan { survey: Some(survey.boxed()), ..WritePlan::none() }
            }
            Ok(Expected { sum, .. }) => settle(budget, &pods, Ok(sum), now),
            Err(why) => settle(budget, &pods, Err(why), now),
        }
    }
}

/// What owners of other kinds ask for.
async fn sum_of(
    client: &Client,
    budget: &PodDisruptionBudget,
    owners: &[OwnerReference],
) -> Result<i32, String> {
    let namespace = budget.metadata.namespace.as_deref().unwrap_or("");
    let mut sum = 0_i32;
    for owner in owners {
        let reference = CrossVersionObjectReference {
            api_version: Some(owner.api_version.clone()),
            kind: owner.kind.clone(),
            name: owner.name.clone(),
        };
        let scale = Target::find(client, namespace, &reference).await?.scale().await?;
        sum = sum.saturating_add(scale.replicas());
    }
    Ok(sum)
}

/// When a budget is looked at again of which not all is known.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// Writes what is true of a budget. While it is not known, nobody is evicted.
fn settle(
    budget: &Arc<PodDisruptionBudget>,
    pods: &[Arc<PodView>],
    expected: Result<i32, String>,
    now: Timestamp,
) -> WritePlan {
    let pods: Vec<_> = pods.iter().map(Arc::as_ref).collect();
    let (status, again_after) = match &expected {
        Ok(expected) => disruption::status(budget, &pods, *expected, now),
        Err(why) => (disruption::unknown(budget, why, now), Some(TRY_AGAIN)),
    };
    if budget.status.as_ref() == Some(&status) {
        return WritePlan { again_after, ..WritePlan::none() };
    }
    let mut newest = budget.as_ref().clone();
    newest.status = Some(status);
    let told = expected.err().map(|why| EventDraft {
        about: InvolvedObject::of(budget.as_ref()),
        severity: Severity::Warning,
        reason: "CalculateExpectedPodCountFailed".to_owned(),
        message: format!("Failed to calculate the number of expected pods: {why}"),
    });
    WritePlan {
        // Who evicts at this moment writes the status, too: its version decides.
        writes: vec![Write::replace_status(key_of(budget.as_ref()), &newest)],
        events: told.into_iter().collect(),
        again_after,
        ..WritePlan::none()
    }
}

/// Whether a budget is about this pod; an empty selector is about all.
fn covers(budget: &PodDisruptionBudget, pod: &PodView) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let labels = pod.metadata.labels.as_ref();
    selector.is_some_and(|selector| Selector::from_object(selector).matches_labels(labels))
}
