use k8s_openapi::api::apps::v1::ReplicaSetStatus;
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn deployment(image: &str, replicas: i32, strategy: serde_json::Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "uid", "generation": 1},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": strategy,
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
        },
    }))
    .unwrap()
}

fn rolling(surge: serde_json::Value, unavailable: serde_json::Value) -> serde_json::Value {
    json!({"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

/// Carries out plans; `settle` decides how many of a set's pods are available.
#[derive(Default)]
struct Cluster {
    sets: Vec<ReplicaSet>,
}

impl Cluster {
    fn sync(&mut self, deployment: &Deployment) -> DeploymentPlan {
        let now = Timestamp::UNIX_EPOCH;
        let plan = plan(deployment, &self.sets.iter().collect::<Vec<_>>(), now);
        for set in &plan.update {
            let old = self.sets.iter_mut().find(|old| old.metadata.name == set.metadata.name);
            *old.unwrap() = set.clone();
        }
        self.sets.extend(plan.create.clone());
        for set in &plan.delete {
            self.sets.retain(|old| old.metadata.name != set.metadata.name);
        }
        plan
    }

    fn settle(&mut self, works: impl Fn(&ReplicaSet) -> bool) {
        for set in &mut self.sets {
            let available = Some(if works(set) { replicas(set) } else { 0 });
            set.status = Some(ReplicaSetStatus {
                replicas: replicas(set),
                ready_replicas: available,
                available_replicas: available,
                ..Default::default()
            });
        }
    }

    /// Sizes in the order of revisions.
    fn sizes(&self) -> String {
        let mut sets: Vec<_> = self.sets.iter().collect();
        sets.sort_by_key(|set| revision(set));
        sets.iter().map(|set| replicas(set).to_string()).collect::<Vec<_>>().join(" ")
    }

    fn run(&mut self, deployment: &Deployment) -> Vec<String> {
        let mut steps = Vec::new();
        for _ in 0..50 {
            self.sync(deployment);
            self.settle(|_| true);
            if steps.last() == Some(&self.sizes()) {
                break;
            }
            steps.push(self.sizes());
        }
        steps
    }
}

#[test]
fn rollouts_move_step_by_step() {
    let cases = [
        (
            "surge",
            rolling(json!(1), json!(0)),
            "0 3",
            vec!["3 1", "2 1", "2 2", "1 2", "1 3", "0 3"],
        ),
        (
            "in place",
            rolling(json!(0), json!(1)),
            "0 3",
            vec!["3 0", "2 0", "2 1", "1 1", "1 2", "0 2", "0 3"],
        ),
        ("at once", json!({"type": "Recreate"}), "0 3", vec!["3 0", "0 0", "0 3"]),
    ];
    for (name, strategy, end, steps) in cases {
        let mut cluster = Cluster::default();
        assert_eq!(cluster.run(&deployment("v1", 3, strategy.clone())), ["3"], "{name}");
        let got = cluster.run(&deployment("v2", 3, strategy));
        assert_eq!(got, steps, "{name}");
        assert_eq!(cluster.sizes(), end, "{name}");
    }
}

#[test]
fn a_broken_version_does_not_take_the_working_one_down() {
    let strategy = rolling(json!("25%"), json!("25%"));
    let mut cluster = Cluster::default();
    cluster.run(&deployment("v1", 4, strategy.clone()));
    let broken = deployment("v2", 4, strategy.clone());
    for _ in 0..10 {
        cluster.sync(&broken);
        cluster.settle(|set| revision(set) == 1);
    }
    assert_eq!(cluster.sizes(), "3 2");
    cluster.run(&deployment("v1", 4, strategy));
    assert_eq!(cluster.sizes(), "0 4", "going back makes the old version the newest");
}

#[test]
fn scaling_needs_no_new_version() {
    let strategy = rolling(json!("25%"), json!("25%"));
    let mut cluster = Cluster::default();
    cluster.run(&deployment("v1", 3, strategy.clone()));
    assert_eq!(cluster.run(&deployment("v1", 5, strategy.clone())), ["5"]);
    assert_eq!(cluster.run(&deployment("v1", 0, strategy)), ["0"]);
}

#[test]
fn status_says_when_the_rollout_is_done() {
    let strategy = rolling(json!(1), json!(0));
    let mut cluster = Cluster::default();
    let deployment = deployment("v1", 2, strategy);
    let reasons = |plan: &DeploymentPlan| {
        let conditions = plan.status.conditions.iter().flatten();
        let reasons = conditions.map(|c| {
            format!("{}={}", c.reason.as_deref().unwrap_or(""), c.status.as_deref().unwrap_or(""))
        });
        reasons.collect::<Vec<_>>().join(" ")
    };
    let plan = cluster.sync(&deployment);
    assert_eq!(reasons(&plan), "MinimumReplicasUnavailable=False ReplicaSetUpdated=True");
    cluster.settle(|_| true);
    let plan = cluster.sync(&deployment);
    assert_eq!(reasons(&plan), "MinimumReplicasAvailable=True NewReplicaSetAvailable=True");
    assert_eq!(plan.status.available_replicas, Some(2));
}

proptest! {
    /// Whatever the bounds, a rollout never has too many pods nor too few available ones, and
    /// ends with all pods in the new version.
    #[test]
    fn rollouts_stay_within_their_bounds(
        replicas_wanted in 1i32..12, surge in 0i32..4, unavailable in 0i32..4,
    ) {
        let strategy = rolling(json!(surge), json!(unavailable));
        let mut cluster = Cluster::default();
        cluster.run(&deployment("v1", replicas_wanted, strategy.clone()));
        let next = deployment("v2", replicas_wanted, strategy);
        let bounds = rollout::bounds(&next.spec);
        for _ in 0..60 {
            cluster.sync(&next);
            let total: i32 = cluster.sets.iter().map(replicas).sum();
            prop_assert!(total <= bounds.wanted + bounds.surge, "{total} pods");
            let available: i32 = cluster.sets.iter().map(|set| {
                let status = set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0);
                status.min(replicas(set))
            }).sum();
            prop_assert!(available >= bounds.wanted - bounds.unavailable, "{available} available");
            cluster.settle(|_| true);
        }
        prop_assert_eq!(cluster.sizes(), format!("0 {replicas_wanted}"));
    }
}
