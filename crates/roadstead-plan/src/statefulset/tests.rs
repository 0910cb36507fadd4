use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::pod_view::Phase;

fn set(image: &str, more: Value) -> StatefulSet {
    let mut object = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "uid", "generation": 1},
        "spec": {
            "replicas": 3, "serviceName": "nginx",
            "selector": {"matchLabels": {"app": "nginx"}},
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "template": {
                "metadata": {"labels": {"app": "nginx"}},
                "spec": {"containers": [{"name": "c", "image": image}]},
            },
            "volumeClaimTemplates": [{"metadata": {"name": "www"}, "spec": {}}],
        },
    });
    for (key, value) in more.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

/// Carries out plans on pods that do what the test says.
#[derive(Default)]
struct Cluster {
    pods: BTreeMap<String, PodView>,
    claims: Vec<PersistentVolumeClaim>,
    revisions: Vec<ControllerRevision>,
    status: Option<StatefulSetStatus>,
    made: u32,
}

/// What a sync did: `+web-0 -web-1`.
fn deeds(plan: &StatefulSetPlan<'_>) -> String {
    let create = plan.create.iter().map(|pod| format!("+{}", pod.metadata.name.clone().unwrap()));
    let delete = plan.delete.iter().map(|pod| format!("-{}", pod.name()));
    create.chain(delete).collect::<Vec<_>>().join(" ")
}

impl Cluster {
    fn sync(&mut self, set: &StatefulSet) -> String {
        let mut set = set.clone();
        set.status = self.status.clone();
        let (pods, claims, revisions) =
            (self.pods.clone(), self.claims.clone(), self.revisions.clone());
        let has = Belongings {
            pods: pods.values().collect(),
            claims: claims.iter().collect(),
            revisions: revisions.iter().collect(),
        };
        let plan = plan(&set, &has, Timestamp::UNIX_EPOCH);
        let deeds = deeds(&plan);
        for revision in plan.revisions.create.iter().chain(&plan.revisions.renumber) {
            self.revisions.retain(|old| old.metadata.name != revision.metadata.name);
            self.revisions.push(revision.clone());
        }
        for gone in &plan.revisions.delete {
            self.revisions.retain(|old| old.metadata.name != gone.metadata.name);
        }
        self.claims.extend(plan.claims.clone());
        for (claim, owners) in &plan.owners {
            let mut all = self.claims.iter_mut();
            let own = all.find(|own| own.metadata.name == claim.metadata.name).unwrap();
            own.metadata.owner_references = Some(owners.clone());
        }
        for pod in &plan.create {
            self.made += 1;
            let mut view: PodView =
                serde_json::from_value(serde_json::to_value(pod).unwrap()).unwrap();
            view.metadata.uid = Some(self.made.to_string());
            let before = self.pods.insert(view.name().to_owned(), view);
            assert!(before.is_none(), "a pod was made twice");
        }
        for pod in &plan.delete {
            let gone = self.pods.get_mut(pod.name()).unwrap();
            gone.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
            gone.ready = false;
        }
        self.status = Some(plan.status.clone());
        deeds
    }

    /// All pods do what they should: those that were told to go are gone, the others are ready.
    fn settle(&mut self) {
        self.pods.retain(|_, pod| !pod.is_terminating());
        for pod in self.pods.values_mut().filter(|pod| !pod.is_finished()) {
            (pod.phase, pod.ready) = (Phase::Running, true);
            pod.ready_since = Some(Timestamp::UNIX_EPOCH);
        }
    }

    fn run(&mut self, set: &StatefulSet) -> Vec<String> {
        let mut steps = Vec::new();
        for _ in 0..60 {
            let deeds = self.sync(set);
            if deeds.is_empty() {
                break;
            }
            steps.push(deeds);
            self.settle();
        }
        // What is true now is told once more.
        self.sync(set);
        steps
    }

    fn images(&self) -> String {
        let newest = self.status.as_ref().unwrap().update_revision.as_deref().unwrap();
        let is_new = |pod: &PodView| if revision(pod) == newest { "new" } else { "old" };
        let all = self.pods.values().map(|pod| format!("{}:{}", pod.name(), is_new(pod)));
        all.collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn pods_come_and_go_in_order() {
    let parallel = json!({"podManagementPolicy": "Parallel"});
    let cases = [
        ("one after the other", json!({}), vec!["+web-0", "+web-1", "+web-2"]),
        ("at once", parallel, vec!["+web-0 +web-1 +web-2"]),
        ("from five", json!({"ordinals": {"start": 5}, "replicas": 2}), vec!["+web-5", "+web-6"]),
    ];
    for (name, more, want) in cases {
        let mut cluster = Cluster::default();
        assert_eq!(cluster.run(&set("v1", more.clone())), want, "{name}");
        let mut fewer = more;
        fewer["replicas"] = json!(0);
        let gone = cluster.run(&set("v1", fewer));
        let all: Vec<_> = gone.join(" ").split(' ').map(str::to_owned).collect();
        let mut back: Vec<_> = want.join(" ").split(' ').map(|w| w.replace('+', "-")).collect();
        back.reverse();
        assert_eq!(all, back, "{name}: the last goes first");
    }
}

#[test]
fn updates_go_from_the_last_to_the_first() {
    let strategy = |rolling: Value| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}});
    let on_delete = json!({"updateStrategy": {"type": "OnDelete"}});
    let cases = [
        (
            "all",
            strategy(json!({"partition": 0})),
            vec!["-web-2", "+web-2", "-web-1", "+web-1", "-web-0", "+web-0"],
        ),
        ("above the partition", strategy(json!({"partition": 2})), vec!["-web-2", "+web-2"]),
        ("nobody", on_delete, vec![]),
        (
            "two at a time",
            strategy(json!({"partition": 0, "maxUnavailable": 2})),
            vec!["-web-2 -web-1", "+web-1", "+web-2", "-web-0", "+web-0"],
        ),
    ];
    for (name, more, want) in cases {
        let mut cluster = Cluster::default();
        cluster.run(&set("v1", more.clone()));
        assert_eq!(cluster.run(&set("v2", more.clone())), want, "{name}");
        assert_eq!(cluster.run(&set("v2", more)), Vec::<String>::new(), "{name}: nothing is left");
    }
}

#[test]
fn a_lost_pod_below_the_partition_comes_back_as_it_was() {
    let more =
        json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}});
    let mut cluster = Cluster::default();
    cluster.run(&set("v1", more.clone()));
    cluster.run(&set("v2", more.clone()));
    assert_eq!(cluster.images(), "web-0:old web-1:new web-2:new");
    cluster.pods.clear();
    cluster.run(&set("v2", more));
    assert_eq!(cluster.images(), "web-0:old web-1:new web-2:new");
    let status = cluster.status.unwrap();
    assert_eq!((status.current_replicas, status.updated_replicas), (Some(1), Some(2)));
}

#[test]
fn a_pod_has_its_name_everywhere() {
    let mut cluster = Cluster::default();
    cluster.run(&set("v1", json!({"replicas": 1})));
    let set = set("v1", json!({}));
    let revisions = revisions::find(&set, &set.spec.template, &[], 0);
    let pod = pod::pod(&set, 1, &set.spec.template, revisions::name(&revisions.newest));
    let pod = serde_json::to_value(pod).unwrap();
    assert_eq!(pod["metadata"]["name"], "web-1");
    assert_eq!(pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"], "web-1");
    assert_eq!(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "1");
    assert_eq!(pod["spec"]["hostname"], "web-1");
    assert_eq!(pod["spec"]["subdomain"], "nginx");
    assert_eq!(pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "www-web-1");
    let claim = &cluster.claims[0].metadata;
    assert_eq!(claim.name.as_deref(), Some("www-web-0"));
    assert_eq!(claim.labels.as_ref().unwrap()["app"], "nginx");
    let cases = [("web-0", Some(0)), ("web-01", None), ("web", None), ("web-x-1", None)];
    for (name, want) in cases {
        assert_eq!(ordinal(&set, name), want, "{name}");
    }
}

#[test]
fn claims_go_with_whom_they_should() {
    let cases = [
        ("Retain", "Retain", "", ""),
        ("Delete", "Retain", "StatefulSet", "StatefulSet"),
        ("Retain", "Delete", "", "Pod"),
        ("Delete", "Delete", "StatefulSet", "Pod"),
    ];
    for (deleted, scaled, kept, surplus) in cases {
        let policy = json!({"whenDeleted": deleted, "whenScaled": scaled});
        let more = |replicas: i32| {
            set(
                "v1",
                json!({"replicas": replicas,
                "persistentVolumeClaimRetentionPolicy": policy}),
            )
        };
        let owner = |cluster: &Cluster, index: usize| {
            let owners = cluster.claims[index].metadata.owner_references.clone();
            owners.unwrap_or_default().first().map_or(String::new(), |own| own.kind.clone())
        };
        let mut cluster = Cluster::default();
        cluster.run(&more(2));
        assert_eq!(owner(&cluster, 1), kept, "{policy}");
        cluster.sync(&more(1));
        assert_eq!(
            (owner(&cluster, 0), owner(&cluster, 1)),
            (kept.into(), surplus.into()),
            "{policy}"
        );
    }
}

#[test]
fn failed_pods_are_made_again() {
    let mut cluster = Cluster::default();
    let set = set("v1", json!({}));
    cluster.run(&set);
    cluster.pods.get_mut("web-1").unwrap().phase = Phase::Failed;
    assert_eq!(cluster.run(&set), ["-web-1", "+web-1"]);
}

#[test]
fn pods_that_have_ended_hold_up_no_scaling() {
    for (first, second) in [(Phase::Failed, Phase::Failed), (Phase::Failed, Phase::Running)] {
        let mut cluster = Cluster::default();
        cluster.run(&set("v1", json!({"replicas": 2})));
        for (name, phase) in [("web-0", first), ("web-1", second)] {
            let pod = cluster.pods.get_mut(name).unwrap();
            (pod.phase, pod.ready) = (phase, false);
        }
        let fewer = set("v1", json!({"replicas": 0}));
        assert_eq!(cluster.run(&fewer), ["-web-1", "-web-0"], "{first:?} {second:?}");
    }
}

proptest! {
    /// Whatever happens to the pods, the set gets there, and takes down no more than it may.
    #[test]
    fn random_histories_converge(
        history in prop::collection::vec((0..6u8, 0..4usize), 1..40),
        parallel in any::<bool>(),
        most in 1..3i32,
    ) {
        let mut cluster = Cluster::default();
        let (mut image, mut replicas) = (1, 3);
        let spec = |image: i32, replicas: i32| {
            set(&format!("v{image}"), json!({"replicas": replicas,
                "podManagementPolicy": if parallel { "Parallel" } else { "OrderedReady" },
                "updateStrategy": {"type": "RollingUpdate",
                    "rollingUpdate": {"partition": 0, "maxUnavailable": most}}}))
        };
        for (event, which) in history {
            let name = format!("web-{which}");
            match event {
                0 => image = which as i32,
                1 => replicas = which as i32,
                2 => drop(cluster.pods.remove(&name)),
                3 => if let Some(pod) = cluster.pods.get_mut(&name) {
                    (pod.phase, pod.ready) = (Phase::Failed, false);
                },
                4 => if let Some(pod) = cluster.pods.get_mut(&name) {
                    pod.ready = false;
                },
                _ => cluster.settle(),
            }
            let wanted = spec(image, replicas);
            let works = |cluster: &Cluster| {
                let all = cluster.pods.values().filter(|pod| pod.ready && !pod.is_terminating());
                all.filter(|pod| ordinal(&wanted, pod.name()).unwrap() < replicas).count()
            };
            let before = works(&cluster);
            cluster.sync(&wanted);
            let floor = (replicas - most).max(0) as usize;
            prop_assert!(works(&cluster) >= before.min(floor), "too many are down");
        }
        let wanted = spec(image, replicas);
        cluster.settle();
        cluster.run(&wanted);
        let want: Vec<_> = (0..replicas).map(|n| format!("web-{n}:new")).collect();
        prop_assert_eq!(cluster.images(), want.join(" "));
        prop_assert_eq!(cluster.sync(&wanted), "");
        let status = cluster.status.clone();
        cluster.sync(&wanted);
        prop_assert_eq!(status, cluster.status, "a second sync says nothing new");
    }
}
