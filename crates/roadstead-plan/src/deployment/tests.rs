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
    status: Option<DeploymentStatus>,
    now: i64,
}

impl Cluster {
    fn sync(&mut self, deployment: &Deployment) -> DeploymentPlan {
        let now = Timestamp::from_second(self.now).unwrap();
        let mut deployment = deployment.clone();
        deployment.status = self.status.clone();
        let sets = self.sets.clone();
        let is_taken = |wanted: &str| sets.iter().any(|set| name(&set.metadata) == wanted);
        let plan = plan(&deployment, &sets.iter().collect::<Vec<_>>(), &is_taken, now);
        self.status = Some(plan.status.clone());
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

/// As many replicas as a number can name: one more is not fewer.
#[test]
fn numbers_do_not_wrap() {
    let most = i32::MAX;
    for strategy in [rolling(json!("25%"), json!("25%")), rolling(json!(most), json!(most))] {
        let mut cluster = Cluster::default();
        assert_eq!(cluster.run(&deployment("v1", most, strategy.clone())), [most.to_string()]);
        let steps = cluster.run(&deployment("v2", most, strategy));
        assert_eq!(steps.last().unwrap(), &format!("0 {most}"), "{steps:?}");
        // The next version after the highest number that somebody wrote there.
        annotate(&mut cluster.sets[1], REVISION, &u64::MAX.to_string());
        cluster.run(&deployment("v3", most, rolling(json!(1), json!(0))));
    }
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
    assert_eq!(reasons(&plan), "MinimumReplicasUnavailable=False NewReplicaSetCreated=True");
    cluster.settle(|_| true);
    let plan = cluster.sync(&deployment);
    assert_eq!(reasons(&plan), "MinimumReplicasAvailable=True NewReplicaSetAvailable=True");
    assert_eq!(plan.status.available_replicas, Some(2));
}

fn progress(cluster: &Cluster) -> String {
    let status = cluster.status.as_ref().unwrap();
    let all = status.conditions.iter().flatten();
    let own = all.into_iter().find(|own| own.type_.as_deref() == Some("Progressing"));
    own.map_or_else(String::new, |own| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        format!("{}={}", text(&own.reason), text(&own.status))
    })
}

#[test]
fn who_waits_too_long_hears_of_it() {
    let strategy = rolling(json!(1), json!(0));
    let mut cluster = Cluster::default();
    let mut own = deployment("v1", 2, strategy);
    own.spec.progress_deadline_seconds = Some(60);
    let plan = cluster.sync(&own);
    assert_eq!(progress(&cluster), "NewReplicaSetCreated=True");
    assert_eq!(plan.again_after, None, "it comes with the status of the set");
    cluster.settle(|_| false);
    let plan = cluster.sync(&own);
    assert_eq!(progress(&cluster), "ReplicaSetUpdated=True");
    assert_eq!(plan.again_after, Some(Duration::from_secs(60)));
    cluster.now += 59;
    assert_eq!(cluster.sync(&own).again_after, Some(Duration::from_secs(1)));
    assert_eq!(progress(&cluster), "ReplicaSetUpdated=True");
    cluster.now += 1;
    assert_eq!(cluster.sync(&own).again_after, None);
    assert_eq!(progress(&cluster), "ProgressDeadlineExceeded=False");
    cluster.settle(|_| true);
    cluster.sync(&own);
    assert_eq!(progress(&cluster), "NewReplicaSetAvailable=True");
    // What was done stays done when a pod falters.
    cluster.settle(|_| false);
    cluster.now += 1000;
    cluster.sync(&own);
    assert_eq!(progress(&cluster), "NewReplicaSetAvailable=True");
}

#[test]
fn paused_and_resumed() {
    let strategy = rolling(json!(1), json!(0));
    let mut cluster = Cluster::default();
    cluster.run(&deployment("v1", 2, strategy.clone()));
    let mut own = deployment("v2", 3, strategy);
    own.spec.paused = Some(true);
    cluster.sync(&own);
    assert_eq!(
        (progress(&cluster).as_str(), cluster.sizes().as_str()),
        ("DeploymentPaused=Unknown", "3")
    );
    cluster.settle(|_| true);
    assert_eq!(cluster.run(&own), ["3"], "it is scaled, but not updated");
    own.spec.paused = None;
    let plan = cluster.sync(&own);
    assert_eq!(progress(&cluster), "NewReplicaSetCreated=True", "{plan:?}");
    cluster.run(&own);
    assert_eq!(
        (progress(&cluster).as_str(), cluster.sizes().as_str()),
        ("NewReplicaSetAvailable=True", "0 3")
    );
}

#[test]
fn every_version_gets_its_share() {
    // The example of Kubernetes' documentation: 10 pods, a surge of 3, a new image that does not run.
    let strategy = rolling(json!(3), json!(2));
    let mut cluster = Cluster::default();
    cluster.run(&deployment("v1", 10, strategy.clone()));
    for _ in 0..5 {
        cluster.sync(&deployment("v2", 10, strategy.clone()));
        cluster.settle(|set| revision(set) == 1);
    }
    assert_eq!(cluster.sizes(), "8 5");
    cluster.sync(&deployment("v2", 15, strategy.clone()));
    assert_eq!(cluster.sizes(), "11 7");
    cluster.settle(|set| revision(set) == 1);
    cluster.sync(&deployment("v2", 10, strategy.clone()));
    assert_eq!(cluster.sizes(), "8 5", "and back");
    cluster.settle(|set| revision(set) == 1);
    cluster.sync(&deployment("v2", 0, strategy));
    assert_eq!(cluster.sizes(), "0 0");
}

#[test]
fn recreate_waits_for_the_last_of_the_old() {
    let strategy = json!({"type": "Recreate"});
    let mut cluster = Cluster::default();
    cluster.run(&deployment("v1", 2, strategy.clone()));
    let next = deployment("v2", 2, strategy);
    cluster.sync(&next);
    assert_eq!(cluster.sizes(), "2 0");
    cluster.sync(&next);
    cluster.settle(|_| true);
    cluster.sets[0].status.as_mut().unwrap().terminating_replicas = Some(1);
    cluster.sync(&next);
    assert_eq!(cluster.sizes(), "0 0", "one of the old ones still runs");
    cluster.settle(|_| true);
    cluster.sync(&next);
    assert_eq!(cluster.sizes(), "0 2");
}

#[test]
fn versions_are_taken_over_and_keep_their_numbers() {
    let strategy = rolling(json!(1), json!(0));
    let mut cluster = Cluster::default();
    for image in ["v1", "v2", "v1"] {
        cluster.run(&deployment(image, 1, strategy.clone()));
    }
    let now = cluster.sets.iter().find(|set| revision(set) == 3).unwrap();
    assert_eq!(now.metadata.annotations.as_ref().unwrap()[HISTORY], "1");
    // `kubectl delete --cascade=orphan`, and another one of the same name.
    let mut another = deployment("v1", 1, strategy.clone());
    another.metadata.uid = Some("another".to_owned());
    cluster.sets.iter_mut().for_each(|set| set.metadata.owner_references = None);
    let claim = claim(&another, cluster.sets.iter());
    assert_eq!((claim.own.len(), claim.adopt.len(), claim.release.len()), (0, 2, 0));
    for set in &mut cluster.sets {
        set.metadata.owner_references = Some(vec![owner::controlled_by(&another)]);
    }
    cluster.status = None;
    cluster.sync(&another);
    assert_eq!(cluster.sizes(), "0 1", "nothing moves");
    assert_eq!(progress(&cluster), "NewReplicaSetAvailable=True");
    // One that no longer matches is let go.
    cluster.sets[0].metadata.labels = None;
    assert_eq!(super::claim(&another, cluster.sets.iter()).release.len(), 1);
    // Notes on the Deployment are notes on its newest version.
    let cause = ("kubernetes.io/change-cause".to_owned(), "a test".to_owned());
    another.metadata.annotations = Some([cause].into());
    cluster.sync(&another);
    let newest = cluster.sets.iter().max_by_key(|set| revision(set)).unwrap();
    assert_eq!(
        newest.metadata.annotations.as_ref().unwrap()["kubernetes.io/change-cause"],
        "a test"
    );
}

#[test]
fn a_name_that_is_taken() {
    let own = deployment("v1", 1, json!({"type": "Recreate"}));
    let mut cluster = Cluster::default();
    let first = new_set(&own, &own.spec, 1);
    let taken = name(&first.metadata).to_owned();
    let plan = plan(&own, &[], &|name| name == taken, Timestamp::UNIX_EPOCH);
    assert_eq!((plan.create, plan.status.collision_count), (None, Some(1)));
    cluster.status = Some(plan.status);
    let plan = cluster.sync(&own);
    assert_ne!(name(&plan.create.unwrap().metadata), taken);
    assert_eq!(plan.status.collision_count, Some(1));
}

proptest! {
    /// Whatever somebody asks for while a rollout goes on, there are never more pods than the most that
    /// was allowed, it ends with all pods in the new version, and then nothing is written any more.
    #[test]
    fn random_histories(
        (surge, unavailable) in (0i32..4, 0i32..4),
        events in proptest::collection::vec((0u8..6, 0i32..9), 1..30),
    ) {
        let strategy = rolling(json!(surge), json!(unavailable));
        let mut cluster = Cluster::default();
        let (mut image, mut wanted, mut most) = ("v0".to_owned(), 3, 0);
        for (what, number) in events {
            match what {
                0 => image = format!("v{number}"),
                1 => wanted = number,
                2 => cluster.settle(|_| true),
                3 => cluster.settle(|set| revision(set).is_multiple_of(2)),
                _ => {}
            }
            let mut own = deployment(&image, wanted, strategy.clone());
            own.spec.paused = Some(what == 5);
            cluster.sync(&own);
            let total: i32 = cluster.sets.iter().map(replicas).sum();
            most = most.max(wanted + surge.max(1));
            prop_assert!(total <= most, "{total} pods: {}", cluster.sizes());
        }
        let own = deployment(&image, wanted, strategy);
        for _ in 0..60 {
            cluster.sync(&own);
            cluster.settle(|_| true);
        }
        let now: Vec<_> = cluster.sets.iter().filter(|set| replicas(set) > 0).collect();
        prop_assert_eq!(now.iter().map(|set| replicas(set)).sum::<i32>(), wanted);
        prop_assert!(now.iter().all(|set| is_of(set, &own.spec.template)));
        let before = cluster.status.clone();
        let plan = cluster.sync(&own);
        prop_assert!(plan.create.is_none() && plan.update.is_empty() && plan.delete.is_empty());
        prop_assert_eq!(Some(plan.status), before);
    }
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
