//! Controllers on an API server that says yes to everything: what do they write?

use serde_json::{Value, json};

use crate::fake_api::FakeApi;
use crate::{CONTROLLERS, choose, names, tasks};

const PODS: &str = "/api/v1/pods";
const NODES: &str = "/api/v1/nodes";
const SETS: &str = "/apis/apps/v1/replicasets";

fn node(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// `a@n1=Running`: the pod named a on node n1, in that phase; `a@=Pending!` is being deleted.
fn pods(text: &str) -> Vec<Value> {
    let read = |word: &str| {
        let (name, rest) = word.split_once('@').unwrap();
        let (node, phase) = rest.split_once('=').unwrap();
        let leaving = phase.ends_with('!').then_some("2024-01-01T00:00:00Z");
        json!({"metadata": {"namespace": "default", "name": name, "uid": name,
                "resourceVersion": "2", "labels": {"app": "web"}, "deletionTimestamp": leaving},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase.trim_end_matches('!')}})
    };
    text.split_whitespace().map(read).collect()
}

fn set(replicas: usize) -> Value {
    let labels = json!({"app": "web"});
    json!({"metadata": {"namespace": "default", "name": "web", "uid": "set",
            "resourceVersion": "3"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}}})
}

#[tokio::test(start_paused = true)]
async fn pods_that_nobody_needs_are_collected() {
    let api = FakeApi::default()
        .with(NODES, &[node("n1")])
        .with(PODS, &pods("a@n1=Running b@gone=Running c@=Pending! d@=Pending"));
    let name = "pod-garbage-collector";
    let gone = |pod: &str| {
        let path = format!("/api/v1/namespaces/default/pods/{pod}");
        // Whoever waits for its end hears of it.
        format!("PATCH {path}/status\nDELETE {path}")
    };
    assert_eq!(api.run(name, 15).await, gone("c"), "the node may come back");
    let api = FakeApi::default()
        .with(NODES, &[node("n1")])
        .with(PODS, &pods("a@n1=Running b@gone=Running"));
    let written = api.run(name, 50).await;
    assert_eq!(written, gone("b"), "it did not");
    let told = api.told("b/status");
    assert_eq!(told["status"]["phase"], "Failed");
    assert_eq!(told["status"]["conditions"][0]["reason"], "DeletionByPodGC");
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_where_the_volume_of_its_claim_is() {
    let zone = |name: &str, zone: &str| {
        let mut node = node(name);
        node["metadata"]["labels"] = json!({"zone": zone});
        node
    };
    let there =
        json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z2"]}]}]);
    let spec = json!({"storageClassName": "by-hand", "accessModes": ["ReadWriteOnce"]});
    let named = |name: &str, spec: Value| json!({"metadata": {"name": name, "uid": name, "resourceVersion": "5"}, "spec": spec});
    let mut volume = named("v", spec.clone());
    volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] = there;
    let mut claim = named("c", spec);
    claim["metadata"]["namespace"] = json!("default");
    claim["status"] = json!({"phase": "Pending"});
    let mut class = named("by-hand", Value::Null);
    class["provisioner"] = json!("kubernetes.io/no-provisioner");
    class["volumeBindingMode"] = json!("WaitForFirstConsumer");
    let mut pods = pods("a@=Pending");
    pods[0]["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
    let api = FakeApi::default()
        .with(NODES, &[zone("n1", "z1"), zone("n2", "z2")])
        .with(PODS, &pods)
        .with("/api/v1/persistentvolumes", &[volume])
        .with("/api/v1/persistentvolumeclaims", &[claim])
        .with("/apis/storage.k8s.io/v1/storageclasses", &[class]);
    assert_eq!(api.run("scheduler", 5).await, "PATCH /api/v1/persistentvolumes/v");
    let given = api.told("persistentvolumes/v")["spec"]["claimRef"].take();
    assert_eq!((&given["name"], &given["uid"]), (&json!("c"), &json!("c")));
}

/// Whose pods are these, and what may be evicted?
#[tokio::test(start_paused = true)]
async fn budgets_that_cannot_be_reckoned_allow_nothing() {
    let no_scale = |resource: &str| format!("{resource} does not implement the scale subresource");
    let gone = "found no controllers for pod \"a\"".to_owned();
    for (kind, uid, want) in [
        ("ReplicaSet", "set", Ok(2)),
        ("ReplicaSet", "its-predecessor", Err(gone)),
        ("DaemonSet", "set", Err(no_scale("daemonsets.apps"))),
        ("Job", "set", Err(no_scale("jobs.batch"))),
        ("", "", Ok(0)),
    ] {
        let mut pods = pods("a@n1=Running b@n1=Running c@n1=Running");
        for pod in &mut pods {
            pod["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
            if !kind.is_empty() {
                pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1",
                    "kind": kind, "name": "web", "uid": uid, "controller": true}]);
            }
        }
        let budget = json!({"metadata": {"namespace": "default", "name": "b", "uid": "b",
                "resourceVersion": "4", "generation": 1},
            "spec": {"maxUnavailable": 2, "selector": {"matchLabels": {"app": "web"}}}});
        let api = FakeApi::default()
            .with("/apis/policy/v1/poddisruptionbudgets", &[budget])
            .with(SETS, &[set(3)])
            .with(PODS, &pods);
        api.run("disruption", 5).await;
        let told = api.told("b/status")["status"].take();
        let condition = &told["conditions"][0];
        match want {
            Ok(allowed) => assert_eq!(told["disruptionsAllowed"], allowed, "{kind} {uid}"),
            Err(why) => {
                assert_eq!(told["disruptionsAllowed"], 0, "{kind} {uid}");
                assert_eq!(
                    (&condition["reason"], &condition["message"]),
                    (&json!("SyncFailed"), &json!(why))
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pods_are_adopted_before_any_is_made() {
    let api = FakeApi::default().with(SETS, &[set(3)]).with(PODS, &pods("a@n1=Running"));
    let want = "PATCH /api/v1/namespaces/default/pods/a\n\
                POST /api/v1/namespaces/default/pods\n\
                POST /api/v1/namespaces/default/pods\n\
                PUT /apis/apps/v1/namespaces/default/replicasets/web/status";
    assert_eq!(api.run("replicaset", 10).await, want);
}

#[tokio::test(start_paused = true)]
async fn replication_controllers_do_the_same() {
    let labels = json!({"app": "web"});
    let own = json!({"metadata": {"namespace": "default", "name": "old", "uid": "rc",
            "resourceVersion": "3"},
        "spec": {"replicas": 2, "selector": labels,
            "template": {"metadata": {"labels": labels}, "spec": {"containers": []}}}});
    let api = FakeApi::default()
        .with("/api/v1/replicationcontrollers", &[own])
        .with(PODS, &pods("a@n1=Running"));
    let want = "PATCH /api/v1/namespaces/default/pods/a\n\
                POST /api/v1/namespaces/default/pods\n\
                PUT /api/v1/namespaces/default/replicationcontrollers/old/status";
    assert_eq!(api.run("replicationcontroller", 10).await, want);
}

#[tokio::test(start_paused = true)]
async fn a_time_has_one_job() {
    let cron = json!({"metadata": {"namespace": "default", "name": "c", "uid": "cron",
            "resourceVersion": "3", "creationTimestamp": "2020-01-01T00:00:30Z"},
        "spec": {"schedule": "@yearly", "jobTemplate": {"spec": {"template": {}}}}});
    let api = FakeApi::default().with("/apis/batch/v1/cronjobs", &[cron]);
    let want = "POST /apis/batch/v1/namespaces/default/jobs\n\
                PUT /apis/batch/v1/namespaces/default/cronjobs/c/status";
    assert_eq!(api.run("cronjob", 100).await, want);
}

#[tokio::test(start_paused = true)]
async fn each_pod_is_bound_once() {
    let api = FakeApi::default()
        .with(NODES, &[node("n1"), node("n2")])
        .with(PODS, &pods("a@=Pending b@=Pending c@n1=Running"));
    let written = api.run("scheduler", 100).await;
    let want = "POST /api/v1/namespaces/default/pods/a/binding\n\
                POST /api/v1/namespaces/default/pods/b/binding";
    assert_eq!(written, want);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_company_follows_it() {
    let term = json!({"labelSelector": {"matchLabels": {"app": "late"}}, "topologyKey": "host"});
    let mut shy = pods("a@=Pending").remove(0);
    shy["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!([term]);
    let mut late = pods("b@=Pending").remove(0);
    late["metadata"]["labels"]["app"] = json!("late");
    let mut n1 = node("n1");
    n1["metadata"]["labels"] = json!({"host": "n1"});
    let api = FakeApi::default().with(NODES, &[n1]).with(PODS, &[shy, late]);
    // It is tried, then the other one gets its node, and soon after that it is tried again.
    let want = "PATCH /api/v1/namespaces/default/pods/a/status\n\
                POST /api/v1/namespaces/default/pods/b/binding\n\
                POST /api/v1/namespaces/default/pods/a/binding";
    assert_eq!(api.run("scheduler", 5).await, want);
}

#[tokio::test(start_paused = true)]
async fn the_less_important_leave() {
    let priority = |pod: &mut Value, priority: i32| {
        pod["spec"]["priority"] = json!(priority);
        pod["spec"]["containers"] =
            json!([{"name": "c", "resources": {"requests": {"cpu": "700m"}}}]);
    };
    let mut pods = pods("high@=Pending low@n1=Running");
    priority(&mut pods[0], 5);
    priority(&mut pods[1], 1);
    let mut n1 = node("n1");
    n1["status"]["allocatable"] = json!({"cpu": "1"});
    let api = FakeApi::default().with(NODES, &[n1]).with(PODS, &pods);
    let want = "PATCH /api/v1/namespaces/default/pods/low/status\n\
                DELETE /api/v1/namespaces/default/pods/low\n\
                PATCH /api/v1/namespaces/default/pods/high/status\n\
                POST /api/v1/namespaces/default/pods/high/binding";
    assert_eq!(api.run("scheduler", 60).await, want, "no one is asked twice");
}

#[tokio::test(start_paused = true)]
async fn old_events_go() {
    let event = |name: &str, last: &str| {
        json!({"metadata": {"namespace": "default", "name": name, "uid": name},
            "lastTimestamp": last})
    };
    let all = [event("old", "2024-01-01T00:00:00Z"), event("new", "2999-01-01T00:00:00Z")];
    let elsewhere = FakeApi::default().with("/api/v1/events", &all);
    assert_eq!(elsewhere.run("event-ttl", 200).await, "", "in etcd they end by themselves");
    let api = elsewhere.with("/readyz", &[json!("[+]storage-scrub ok")]);
    let old = "DELETE /api/v1/namespaces/default/events/old";
    assert_eq!(api.run("event-ttl", 50).await, "", "not at once");
    assert_eq!(api.run("event-ttl", 61).await, old);
}

#[test]
fn lists_of_controllers() {
    let cases = [
        ("", Ok(CONTROLLERS.len())),
        ("*", Ok(CONTROLLERS.len())),
        ("*,-scheduler", Ok(CONTROLLERS.len() - 1)),
        ("-scheduler,-endpoints", Ok(CONTROLLERS.len() - 2)),
        ("endpoints,endpointslice", Ok(2)),
        ("namespace-controller,serviceaccount-controller", Ok(2)),
        ("*,-service-lb-controller", Ok(CONTROLLERS.len() - 1)),
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
    let tasks = tasks(&names());
    assert_eq!(tasks.len(), CONTROLLERS.len() - 2);
    let together = tasks.iter().find(|(name, _)| *name == "endpointslice").unwrap();
    assert_eq!(together.1, ["endpointslice", "endpoints", "endpointslice-mirroring"]);
}

#[tokio::test(start_paused = true)]
async fn a_job_takes_pods_that_nobody_controls() {
    let mut job = set(0);
    job["spec"] = json!({"parallelism": 2, "completions": 2, "selector": job["spec"]["selector"],
        "template": job["spec"]["template"]});
    let mut others = pods("b@n1=Running").remove(0);
    others["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job",
        "name": "other", "uid": "other", "controller": true}]);
    let mut all = pods("a@n1=Running");
    all.push(others);
    let api = FakeApi::default().with("/apis/batch/v1/jobs", &[job]).with(PODS, &all);
    let written = api.run("job", 10).await;
    let lines: Vec<_> = written.lines().collect();
    assert_eq!(
        lines[0], "PATCH /api/v1/namespaces/default/pods/a",
        "before any is made: {written}"
    );
    let made = lines.iter().filter(|line| **line == "POST /api/v1/namespaces/default/pods");
    assert_eq!(made.count(), 1, "{written}");
    assert!(!written.contains("pods/b"), "{written}");
}

/// Whoever manages a Job writes its status and makes its pods; nobody else adopts or counts them.
#[tokio::test(start_paused = true)]
async fn jobs_of_other_managers_are_left_alone() {
    for (manager, ours) in [
        (json!(null), true),
        (json!("kubernetes.io/job-controller"), true),
        (json!("kueue.x-k8s.io/multikueue"), false),
    ] {
        let mut job = set(0);
        job["spec"] = json!({"parallelism": 2, "completions": 2, "managedBy": manager,
            "selector": job["spec"]["selector"], "template": job["spec"]["template"]});
        let mut own = pods("done@n1=Succeeded").remove(0);
        own["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
        own["metadata"]["ownerReferences"] = json!([{"apiVersion": "batch/v1", "kind": "Job",
            "name": "web", "uid": "set", "controller": true}]);
        let mut all = pods("stray@n1=Running");
        all.push(own);
        let api = FakeApi::default().with("/apis/batch/v1/jobs", &[job]).with(PODS, &all);
        let written = api.run("job", 60).await;
        assert_eq!(!written.is_empty(), ours, "{manager}: {written}");
    }
}
