//! StatefulSets, DaemonSets and Jobs of the simulated cluster: what users do to them, and what must be
//! true of their pods when nothing happens any more.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use roadstead_plan::pod_status::{self, is_finished, is_terminating};
use serde_json::{Value, json};

use crate::cluster::Cluster;

const ZONE: &str = "topology.kubernetes.io/zone";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

impl Cluster {
    /// One thing that a user might do to a workload that is no Deployment.
    pub(crate) async fn disturb_workloads(&self) {
        let number = self.random.below(2);
        match self.random.below(10) {
            0 | 1 => self.apply_stateful_set(number).await,
            2 => self.delete::<StatefulSet>(&format!("set{number}")).await,
            3 | 4 => self.apply_daemon_set(number).await,
            5 => self.delete::<DaemonSet>(&format!("daemon{number}")).await,
            6 | 7 => self.apply_job(number).await,
            8 => self.delete::<Job>(&format!("job{number}")).await,
            _ => self.scale(number).await,
        }
    }

    async fn apply_stateful_set(&self, number: u64) {
        let name = format!("set{number}");
        // In which order pods are made cannot be changed.
        let policy = if number == 0 { "OrderedReady" } else { "Parallel" };
        let set = json!({"metadata": {"name": name}, "spec": {
            "replicas": self.random.below(4), "serviceName": name, "podManagementPolicy": policy,
            "selector": {"matchLabels": {"app": name}}, "template": self.template(&name)}});
        self.apply::<StatefulSet>(&name, set).await;
    }

    async fn apply_daemon_set(&self, number: u64) {
        let name = format!("daemon{number}");
        let rolling = if number == 0 {
            json!({"maxSurge": 0, "maxUnavailable": 1 + self.random.below(2)})
        } else {
            json!({"maxSurge": 1 + self.random.below(2), "maxUnavailable": 0})
        };
        let mut template = self.template(&name);
        let zone = format!("zone-{}", self.random.below(3));
        let zone = if self.random.once_in(2) { json!({ZONE: zone}) } else { json!(null) };
        template["spec"]["nodeSelector"] = zone;
        let set = json!({"metadata": {"name": name}, "spec": {
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "selector": {"matchLabels": {"app": name}}, "template": template}});
        self.apply::<DaemonSet>(&name, set).await;
    }

    /// Little of a Job can be changed: how many run at a time, and whether any.
    async fn apply_job(&self, number: u64) {
        let name = format!("job{number}");
        let (mode, replacement) = match number {
            0 => ("NonIndexed", "TerminatingOrFailed"),
            _ => ("Indexed", "Failed"),
        };
        let ttl = if self.random.once_in(3) { json!(0) } else { json!(null) };
        let mut template = self.template(&name);
        template["spec"]["restartPolicy"] = json!("Never");
        template["spec"]["containers"][0]["image"] = json!("job");
        let job = json!({"metadata": {"name": name}, "spec": {
            "parallelism": self.random.below(4), "completions": 4, "completionMode": mode,
            "suspend": self.random.once_in(4), "podReplacementPolicy": replacement,
            "backoffLimit": 4, "ttlSecondsAfterFinished": ttl, "template": template}});
        self.apply::<Job>(&name, job).await;
    }

    async fn scale(&self, number: u64) {
        let scale = Patch::Merge(json!({"spec": {"replicas": self.random.below(5)}}));
        let params = PatchParams::default();
        if self.random.once_in(2) {
            let api: Api<Deployment> = Api::default_namespaced(self.client.clone());
            let _ = api.patch_scale(&format!("app{number}"), &params, &scale).await;
        } else {
            let api: Api<StatefulSet> = Api::default_namespaced(self.client.clone());
            let _ = api.patch_scale(&format!("set{number}"), &params, &scale).await;
        }
    }

    fn template(&self, name: &str) -> Value {
        let image = format!("v{}", self.random.below(3));
        json!({"metadata": {"labels": {"app": name}}, "spec": {"terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": image}]}})
    }

    /// Pods of sets pass their probes again: those that do not hold up others.
    pub(crate) async fn heal(&self) {
        let api: Api<Pod> = Api::default_namespaced(self.client.clone());
        for pod in self.list::<Pod>().await {
            let owner = pod.owner_references().first().map(|owner| owner.kind.clone());
            let is_held = matches!(owner.as_deref(), Some("StatefulSet" | "DaemonSet"));
            let runs = pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some());
            if is_held && runs && !self.dead.has(pod_status::node(&pod)) {
                let ready =
                    json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
                let params = PatchParams::default();
                let _ = api.patch_status(&pod.name_any(), &params, &Patch::Strategic(&ready)).await;
            }
        }
    }
}

/// What must be true of them whenever nothing happens; returns how many of them could be held to it in
/// every point.
pub(crate) async fn check(cluster: &Cluster, when: &str) -> usize {
    let pods: Vec<Pod> = cluster.list().await;
    let sets: Vec<StatefulSet> = cluster.list().await;
    let daemons: Vec<DaemonSet> = cluster.list().await;
    let jobs: Vec<Job> = cluster.list().await;
    let view = View { cluster, pods: &pods, nodes: &cluster.list::<Node>().await, when };
    let checked = sets.iter().filter(|set| view.check_stateful_set(set)).count()
        + daemons.iter().filter(|daemon| view.check_daemon_set(daemon)).count()
        + jobs.iter().filter(|job| view.check_job(job)).count();
    let uids = sets.iter().flat_map(ResourceExt::uid);
    let uids: BTreeSet<_> = uids.chain(daemons.iter().flat_map(ResourceExt::uid)).collect();
    check_revisions(&cluster.list::<ControllerRevision>().await, &uids, when);
    checked
}

struct View<'a> {
    cluster: &'a Cluster,
    pods: &'a [Pod],
    nodes: &'a [Node],
    when: &'a str,
}

impl<'a> View<'a> {
    fn own(&self, uid: Option<String>) -> Vec<&'a Pod> {
        let owner = |pod: &Pod| pod.owner_references().first().map(|owner| owner.uid.clone());
        self.pods.iter().filter(|pod| owner(pod) == uid).collect()
    }

    fn is_lost(&self, pod: &Pod) -> bool {
        let node = pod_status::node(pod);
        node.is_empty() || self.cluster.dead.has(node)
    }

    /// A set one of whose pods is on a dead node waits for it, as nobody knows whether it still runs.
    fn check_stateful_set(&self, set: &StatefulSet) -> bool {
        let own = self.own(set.uid());
        if own.iter().any(|pod| self.is_lost(pod)) {
            return false;
        }
        let (name, when) = (set.name_any(), self.when);
        let spec = &set.spec;
        let wanted = spec.replicas.unwrap();
        let names: BTreeSet<_> = own.iter().map(|pod| pod.name_any()).collect();
        let ordinals: BTreeSet<_> =
            (0..wanted).map(|ordinal| format!("{name}-{ordinal}")).collect();
        assert_eq!(names, ordinals, "{when}: pods of {name}");
        let image = &spec.template.spec.as_ref().unwrap().containers[0].image;
        assert!(own.iter().all(|pod| image_of(pod) == image), "{when}: {name} is not up to date");
        let status = set.status.clone().unwrap_or_default();
        let numbers = (status.replicas, status.ready_replicas, status.updated_replicas);
        let some = Some(wanted).filter(|_| wanted > 0);
        let told = (numbers.0, numbers.1.filter(|n| *n > 0), numbers.2.filter(|n| *n > 0));
        assert_eq!(told, (wanted, some, some), "{when}: status of {name}");
        assert_eq!(status.current_revision, status.update_revision, "{when}: {name}");
        assert_eq!(status.observed_generation, set.metadata.generation, "{when}: {name}");
        true
    }

    /// One pod on each node that it wants; on dead ones nobody can say what has gone.
    fn check_daemon_set(&self, daemon: &DaemonSet) -> bool {
        let own = self.own(daemon.uid());
        let (name, when) = (daemon.name_any(), self.when);
        let template = daemon.spec.template.spec.as_ref().unwrap();
        let selector = template.node_selector.clone().unwrap_or_default();
        let is_wanted = |node: &&Node| {
            selector.iter().all(|(key, value)| node.labels().get(key) == Some(value))
        };
        // A node that is lost keeps what it has, and is not counted.
        let (lost, alive): (Vec<_>, Vec<_>) =
            self.nodes.iter().partition(|node| self.cluster.dead.has(&node.name_any()));
        for node in &alive {
            let there = own.iter().filter(|pod| pod_status::node(pod) == node.name_any()).count();
            let wanted = usize::from(is_wanted(node));
            assert_eq!(there, wanted, "{when}: pods of {name} on {}", node.name_any());
        }
        let status = daemon.status.clone().unwrap_or_default();
        let wanted = alive.iter().copied().filter(is_wanted).count();
        assert_eq!(status.desired_number_scheduled, wanted as i32, "{when}: status of {name}");
        assert_eq!(status.observed_generation, daemon.metadata.generation, "{when}: {name}");
        if !lost.is_empty() {
            return false;
        }
        let is_new = |pod: &&Pod| image_of(pod) == &template.containers[0].image;
        assert!(own.iter().all(is_new), "{when}: {name} is not up to date");
        assert_eq!(status.number_ready, wanted as i32, "{when}: status of {name}");
        assert_eq!(status.updated_number_scheduled.unwrap_or(0), wanted as i32, "{when}: {name}");
        true
    }

    /// Every end is counted, and once; what is over has no pods left that run.
    fn check_job(&self, job: &Job) -> bool {
        let own = self.own(job.uid());
        let (name, when) = (job.name_any(), self.when);
        let (spec, status) = (job.spec.as_ref().unwrap(), job.status.clone().unwrap_or_default());
        let active = own.iter().filter(|pod| !is_finished(pod) && !is_terminating(pod));
        let active: Vec<_> = active.collect();
        let indexes: Vec<_> =
            active.iter().filter_map(|pod| pod.annotations().get(INDEX)).collect();
        let different: BTreeSet<_> = indexes.iter().collect();
        assert_eq!(different.len(), indexes.len(), "{when}: {name} does something twice");
        assert_eq!(status.active.unwrap_or(0), active.len() as i32, "{when}: status of {name}");
        let ended = self.cluster.ended.lock().unwrap();
        let good = ended.iter().filter(|(owner, _)| Some(owner) == job.uid().as_ref()).count();
        let succeeded = status.succeeded.unwrap_or(0);
        assert!(succeeded as usize <= good, "{when}: {name} counts {succeeded} of {good}");
        let conditions = status.conditions.iter().flatten().filter(|own| own.status == "True");
        let outcome = conditions
            .map(|own| own.type_.as_str())
            .find(|own| ["Complete", "Failed"].contains(own));
        let limit = spec.parallelism.unwrap();
        let Some(outcome) = outcome else {
            let rests = spec.suspend == Some(true) || limit == 0;
            let waits = spec.pod_replacement_policy.as_deref() == Some("Failed");
            let held = own.iter().filter(|pod| waits && !is_finished(pod) && is_terminating(pod));
            let wanted = if rests { 0 } else { limit.min(4 - succeeded) - held.count() as i32 };
            assert_eq!(active.len() as i32, wanted, "{when}: pods of {name}");
            let is_stuck = active.iter().all(|pod| self.is_lost(pod));
            assert!(is_stuck, "{when}: {name} is not over");
            return rests;
        };
        assert!(active.is_empty(), "{when}: {name} is over, and {} run", active.len());
        assert!(outcome == "Failed" || succeeded >= 4, "{when}: {name}, {succeeded} succeeded");
        let held = own.iter().filter(|pod| !pod.finalizers().is_empty()).count();
        assert_eq!(held, 0, "{when}: {name} holds pods");
        if spec.completion_mode.as_deref() == Some("Indexed") && outcome == "Complete" {
            assert_eq!(status.completed_indexes.as_deref(), Some("0-3"), "{when}: {name}");
        }
        true
    }
}

fn image_of(pod: &Pod) -> &Option<String> {
    &pod.spec.as_ref().unwrap().containers[0].image
}

/// Of each set every revision is there once, and none is of a set that has gone.
fn check_revisions(revisions: &[ControllerRevision], owners: &BTreeSet<String>, when: &str) {
    let mut seen: BTreeMap<&str, (BTreeSet<i64>, BTreeSet<String>)> = BTreeMap::new();
    for revision in revisions {
        let name = revision.name_any();
        let owner = &revision.owner_references()[0].uid;
        assert!(owners.contains(owner), "{when}: revision {name} is nobody's");
        let (numbers, texts) = seen.entry(owner).or_default();
        assert!(numbers.insert(revision.revision.unwrap()), "{when}: {name} has another's number");
        let data = serde_json::to_string(&revision.data).unwrap();
        assert!(texts.insert(data), "{when}: {name} says what another says");
    }
}
