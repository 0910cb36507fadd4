use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::pod_view::Phase;

fn set(image: &str, strategy: Value) -> DaemonSet {
    serde_json::from_value(json!({
        "metadata": {"name": "agent", "namespace": "default", "uid": "uid", "generation": 1},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "updateStrategy": strategy,
            "template": {
                "metadata": {"labels": {"app": "agent"}},
                "spec": {"containers": [{"name": "c", "image": image}],
                    "nodeSelector": {"runs": "agents"}},
            },
        },
    }))
    .unwrap()
}

fn rolling(surge: Value, unavailable: Value) -> Value {
    json!({"type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

/// `a`, or with a taint `a:NoSchedule`, or one that does not suit `a:other`.
fn nodes(text: &str) -> Vec<Node> {
    let read = |word: &str| {
        let (name, state) = word.split_once(':').unwrap_or((word, ""));
        let taints = match state {
            "" | "other" => json!([]),
            "cordoned" => {
                json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}])
            }
            effect => json!([{"key": "k", "effect": effect}]),
        };
        let runs = if state == "other" { "nothing" } else { "agents" };
        serde_json::from_value(json!({"metadata": {"name": name, "labels": {"runs": runs}},
            "spec": {"taints": taints}}))
        .unwrap()
    };
    text.split_whitespace().map(read).collect()
}

#[derive(Default)]
struct Cluster {
    nodes: Vec<Node>,
    pods: Vec<PodView>,
    revisions: Vec<ControllerRevision>,
    status: DaemonSetStatus,
    made: i64,
    held: BTreeMap<String, Duration>,
    again_after: Option<Duration>,
}

impl Cluster {
    fn on(nodes: Vec<Node>) -> Self {
        Self { nodes, ..Self::default() }
    }

    /// What a sync did, by node: `+a -b`.
    fn sync(&mut self, set: &DaemonSet) -> String {
        let (pods, revisions) = (self.pods.clone(), self.revisions.clone());
        let has = Belongings {
            pods: pods.iter().collect(),
            nodes: self.nodes.iter().collect(),
            revisions: revisions.iter().collect(),
            held: self.held.clone(),
        };
        let plan = plan(set, &has, Timestamp::UNIX_EPOCH);
        self.revisions.extend(plan.revisions.create.clone());
        let mut deeds = Vec::new();
        for pod in &plan.create {
            self.made += 1;
            let mut view: PodView =
                serde_json::from_value(serde_json::to_value(pod).unwrap()).unwrap();
            view.metadata.name = Some(format!("agent-{}", self.made));
            view.metadata.creation_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
                    Timestamp::from_second(self.made).unwrap(),
                ));
            deeds.push(format!("+{}", view.aim()));
            self.pods.push(view);
        }
        for gone in &plan.delete {
            deeds.push(format!("-{}", gone.aim()));
            let pod = self.pods.iter_mut().find(|pod| pod.name() == gone.name()).unwrap();
            pod.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
            pod.ready = false;
        }
        self.status = plan.status;
        self.again_after = plan.again_after;
        deeds.join(" ")
    }

    fn settle(&mut self) {
        self.pods.retain(|pod| !pod.is_terminating());
        for pod in self.pods.iter_mut().filter(|pod| !pod.is_finished()) {
            pod.node = pod.aim().to_owned();
            (pod.phase, pod.ready) = (Phase::Running, true);
        }
    }

    fn run(&mut self, set: &DaemonSet) -> Vec<String> {
        let mut steps = Vec::new();
        for _ in 0..60 {
            let deeds = self.sync(set);
            if deeds.is_empty() {
                break;
            }
            steps.push(deeds);
            self.settle();
        }
        steps
    }
}

#[test]
fn which_nodes_have_pods() {
    let set = set("v1", rolling(json!(0), json!(1)));
    let mut cluster = Cluster::on(nodes("a b:other c:NoSchedule d:NoExecute e:cordoned"));
    assert_eq!(cluster.run(&set), ["+a +e"]);
    cluster.nodes = nodes("a:NoSchedule e:NoExecute");
    assert_eq!(cluster.run(&set), ["-e"], "who runs already bears more");
    let misplaced = (cluster.status.desired_number_scheduled, cluster.status.number_misscheduled);
    assert_eq!(misplaced, (0, 1));
    cluster.nodes = vec![];
    assert_eq!(cluster.run(&set), ["-a"], "with the node its pod goes");
}

#[test]
fn a_pod_is_aimed_at_its_node() {
    let mut set = set("v1", rolling(json!(0), json!(1)));
    let term =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]});
    set.spec.template.spec.as_mut().unwrap().affinity = serde_json::from_value(json!(
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}))
    .unwrap();
    let pod = serde_json::to_value(pod::pod(&set, "n1", "h")).unwrap();
    let terms = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"];
    assert_eq!(terms[0]["matchExpressions"][0]["key"], "a");
    assert_eq!(terms[0]["matchFields"][0]["values"][0], "n1");
    let view: PodView = serde_json::from_value(pod).unwrap();
    assert_eq!(view.aim(), "n1");
}

#[test]
fn pods_that_fail_again_and_again_stay_longer() {
    let agent = |image: &str| set(image, rolling(json!(0), json!(1)));
    let mut cluster = Cluster::on(nodes("a b"));
    cluster.run(&agent("v1"));
    let end = |cluster: &mut Cluster, phase: Phase| {
        let pod = cluster.pods.iter_mut().find(|pod| pod.aim() == "a").unwrap();
        (pod.phase, pod.ready) = (phase, false);
    };
    let three = Duration::from_secs(3);
    end(&mut cluster, Phase::Failed);
    assert_eq!(cluster.run(&agent("v1")), ["-a", "+a"], "the first time");
    end(&mut cluster, Phase::Failed);
    cluster.held = [("a".to_owned(), three), ("b".to_owned(), three)].into();
    assert_eq!(cluster.run(&agent("v1")), [""; 0]);
    assert_eq!(cluster.again_after, Some(three));
    assert_eq!(cluster.status.number_unavailable, Some(1));
    assert_eq!(
        cluster.run(&agent("v2")),
        ["-a", "+a", "-b", "+b"],
        "another version may do better"
    );
    assert_eq!(cluster.again_after, None);
    end(&mut cluster, Phase::Succeeded);
    assert_eq!(cluster.run(&agent("v2")), ["-a", "+a"], "that is no failure");
    end(&mut cluster, Phase::Failed);
    cluster.nodes = nodes("b");
    assert_eq!(cluster.run(&agent("v2")), ["-a"], "there is nothing to wait for");
}

#[test]
fn updates_go_node_by_node() {
    let cases = [
        ("one at a time", rolling(json!(0), json!(1)), vec!["-a", "+a", "-b", "+b", "-c", "+c"]),
        ("half", rolling(json!(0), json!("50%")), vec!["-a -b", "+a +b", "-c", "+c"]),
        ("beside the old ones", rolling(json!(2), json!(0)), vec!["+a +b", "-a -b", "+c", "-c"]),
        ("by hand", json!({"type": "OnDelete"}), vec![]),
    ];
    for (name, strategy, want) in cases {
        let mut cluster = Cluster::on(nodes("a b c"));
        cluster.run(&set("v1", strategy.clone()));
        assert_eq!(cluster.run(&set("v2", strategy)), want, "{name}");
    }
}

proptest! {
    #[test]
    fn random_histories_converge(
        history in prop::collection::vec((0..6u8, 0..4usize), 1..40),
        surge in 0..3i32,
        most in 1..3i32,
    ) {
        let unavailable = if surge > 0 { 0 } else { most };
        let strategy = rolling(json!(surge), json!(unavailable));
        let mut cluster = Cluster::on(nodes("a b c d"));
        let mut image = 1;
        for (event, which) in history {
            let count = cluster.pods.len();
            match event {
                0 => image = which,
                1 => cluster.nodes = nodes(["a b c d", "a b", "a b:other c", "d"][which]),
                2 if count > 0 => drop(cluster.pods.remove(which % count)),
                3 if count > 0 => {
                    let pod = &mut cluster.pods[which % count];
                    (pod.phase, pod.ready) = (Phase::Failed, false);
                }
                4 if count > 0 => cluster.pods[which % count].ready = false,
                _ => cluster.settle(),
            }
            let wanted = set(&format!("v{image}"), strategy.clone());
            let places: Vec<String> = cluster.nodes.iter()
                .filter(|node| suits(&wanted, node).0)
                .map(|node| node.metadata.name.clone().unwrap()).collect();
            let up = |cluster: &Cluster| {
                let on = |name: &String| cluster.pods.iter()
                    .any(|pod| pod.ready && !pod.is_terminating() && pod.aim() == name);
                places.iter().filter(|name| on(name)).count()
            };
            let before = up(&cluster);
            cluster.sync(&wanted);
            let floor = places.len().saturating_sub(unavailable as usize);
            prop_assert!(up(&cluster) >= before.min(floor), "too many are down");
            for node in &places {
                let alive = cluster.pods.iter().filter(|pod| {
                    pod.aim() == node && !pod.is_finished() && !pod.is_terminating()
                });
                prop_assert!(alive.count() <= if surge > 0 { 2 } else { 1 }, "one too many");
            }
        }
        let wanted = set(&format!("v{image}"), strategy);
        cluster.settle();
        cluster.run(&wanted);
        cluster.sync(&wanted);
        let status = cluster.status.clone();
        let desired = status.desired_number_scheduled;
        prop_assert_eq!(status.number_ready, desired);
        prop_assert_eq!(status.updated_number_scheduled.unwrap_or(0), desired);
        prop_assert_eq!(cluster.pods.len(), desired as usize);
        prop_assert_eq!(cluster.sync(&wanted), "");
        prop_assert_eq!(cluster.status, status);
    }
}
