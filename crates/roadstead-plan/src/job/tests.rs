use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn job(more: Value) -> Job {
    let mut spec = json!({
        "parallelism": 1, "completions": 1, "backoffLimit": 6, "completionMode": "NonIndexed",
        "podReplacementPolicy": "TerminatingOrFailed",
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}},
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"name": "j", "namespace": "ns", "uid": "uid"},
        "spec": spec}))
    .unwrap()
}

#[derive(Default)]
struct Cluster {
    pods: Vec<Pod>,
    status: Option<JobStatus>,
    now: i64,
    made: usize,
    told: Vec<&'static str>,
}

impl Cluster {
    fn sync(&mut self, job: &Job) -> String {
        let mut job = job.clone();
        job.status = self.status.clone();
        let pods = self.pods.clone();
        let now = Timestamp::from_second(self.now).unwrap();
        let plan = plan(&job, &pods.iter().collect::<Vec<_>>(), now);
        let mut deeds = Vec::new();
        let name = |pod: &Pod| pod.metadata.name.clone().unwrap();
        for pod in &plan.release {
            let own = self.pods.iter_mut().find(|own| name(own) == name(pod)).unwrap();
            own.metadata.finalizers = None;
            deeds.push(format!("free {}", name(pod)));
        }
        for pod in &plan.delete {
            let own = self.pods.iter_mut().find(|own| name(own) == name(pod)).unwrap();
            own.metadata.deletion_timestamp = Some(Time(now));
            deeds.push(format!("-{}", name(pod)));
        }
        for pod in &plan.create {
            let mut pod = pod.clone();
            pod.metadata.name = Some(format!("p{}", self.made));
            pod.metadata.uid = pod.metadata.name.clone();
            pod.metadata.creation_timestamp = Some(Time(now));
            deeds.push(format!("+p{}", self.made));
            self.made += 1;
            self.pods.push(pod);
        }
        let active = |pod: &&Pod| !pod::is_terminal(pod) && !pod::is_leaving(pod);
        let (before, after) =
            (pods.iter().filter(active).count(), self.pods.iter().filter(active).count());
        let spec = job.spec.as_ref().unwrap();
        let most = if spec.suspend == Some(true) { 0 } else { spec.parallelism.unwrap() };
        assert!(after <= before.max(most as usize), "{before}, then {after} of {most}");
        let indexes: Vec<_> = self.pods.iter().filter(active).filter_map(pod::index).collect();
        let different: BTreeSet<_> = indexes.iter().collect();
        assert_eq!(different.len(), indexes.len(), "an index runs twice: {indexes:?}");
        self.told.extend(plan.notes.iter().map(|(_, reason, _)| *reason));
        if self.status.as_ref() != Some(&plan.status) {
            deeds.push("status".to_owned());
        }
        self.status = Some(plan.status);
        deeds.join(" ")
    }

    /// A pod ends with this code; one below zero is that of a pod that was in the way of somebody.
    fn end(&mut self, which: usize, code: i32) {
        let now = Timestamp::from_second(self.now).unwrap();
        let alive: Vec<_> =
            (0..self.pods.len()).filter(|index| !pod::is_terminal(&self.pods[*index])).collect();
        let Some(index) = alive.get(which % alive.len().max(1)) else { return };
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
        let conditions = if code < 0 { disrupted } else { json!([]) };
        let code = code.abs();
        self.pods[*index].status = serde_json::from_value(json!({"phase": phase,
            "conditions": conditions,
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
                "restartCount": 0,
                "state": {"terminated": {"exitCode": code, "finishedAt": Time(now)}}}]}))
        .unwrap();
    }

    /// A pod fails, if there is one that can.
    fn fail(&mut self, which: usize) -> bool {
        let ended =
            |cluster: &Self| cluster.pods.iter().filter(|pod| pod::is_terminal(pod)).count();
        let before = ended(self);
        self.end(which, 1);
        ended(self) > before
    }

    /// What was said of the end, and which indexes failed.
    fn last_words(&self) -> (String, String) {
        let status = self.status.clone().unwrap_or_default();
        let end = status.conditions.unwrap_or_default().pop();
        let words = end.and_then(|end| end.message).unwrap_or_default();
        (words, status.failed_indexes.unwrap_or_default())
    }

    /// Somebody asks a pod to go, if there is one that can.
    fn remove(&mut self, which: usize) -> bool {
        let now = Time(Timestamp::from_second(self.now).unwrap());
        let active = |pod: &&mut Pod| !pod::is_terminal(pod) && !pod::is_leaving(pod);
        let mut active: Vec<_> = self.pods.iter_mut().filter(active).collect();
        let count = active.len().max(1);
        let Some(pod) = active.get_mut(which % count) else { return false };
        pod.metadata.deletion_timestamp = Some(now);
        true
    }

    /// Pods that were asked to go have gone, as far as nobody keeps them.
    fn collect(&mut self) {
        for pod in self.pods.iter_mut().filter(|pod| pod::is_leaving(pod)) {
            pod.status.get_or_insert_default().phase.get_or_insert("Failed".to_owned());
        }
        self.pods.retain(|pod| !pod::is_leaving(pod) || pod::is_tracked(pod));
    }

    fn settle(&mut self, job: &Job) {
        for _ in 0..100 {
            self.collect();
            if self.sync(job).is_empty() {
                return;
            }
        }
        panic!("it never ends: {:?}", self.status);
    }

    /// `Complete: CompletionsReached`, or nothing.
    fn outcome(&self) -> String {
        let status = self.status.clone().unwrap_or_default();
        let mut all = status.conditions.into_iter().flatten();
        let over = all.find(|own| matches!(own.type_.as_str(), "Complete" | "Failed"));
        over.map(|own| format!("{}: {}", own.type_, own.reason.unwrap_or_default()))
            .unwrap_or_default()
    }

    fn numbers(&self) -> (i32, i32) {
        let status = self.status.clone().unwrap_or_default();
        (status.succeeded.unwrap_or(0), status.failed.unwrap_or(0))
    }
}

/// Runs a Job whose pods end with these codes, one after the other.
fn run(job: &Job, codes: &[i32]) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.settle(job);
    for code in codes {
        cluster.end(0, *code);
        cluster.settle(job);
        cluster.now += 1000;
        cluster.settle(job);
    }
    cluster
}

#[test]
fn how_jobs_end() {
    let policy = json!({"rules": [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [7]}}]});
    let indexed = |more: Value| {
        let mut all = json!({"completionMode": "Indexed", "completions": 3});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let per_index = indexed(json!({"backoffLimitPerIndex": 0, "backoffLimit": 100}));
    let early = indexed(json!({"successPolicy": {"rules": [{"succeededIndexes": "0-1"}]}}));
    let cases = [
        ("one", json!({}), vec![0], "Complete: CompletionsReached", (1, 0)),
        ("a second try", json!({}), vec![1, 0], "Complete: CompletionsReached", (1, 1)),
        ("three", json!({"completions": 3}), vec![0, 0, 0], "Complete: CompletionsReached", (3, 0)),
        ("not yet", json!({"completions": 3}), vec![0, 0], "", (2, 0)),
        ("a queue", json!({"completions": null}), vec![0], "Complete: CompletionsReached", (1, 0)),
        (
            "too often",
            json!({"backoffLimit": 1}),
            vec![1, 1],
            "Failed: BackoffLimitExceeded",
            (0, 2),
        ),
        (
            "by policy",
            json!({"podFailurePolicy": policy}),
            vec![42],
            "Failed: PodFailurePolicy",
            (0, 1),
        ),
        (
            "never mind",
            json!({"podFailurePolicy": policy, "backoffLimit": 0}),
            vec![7, 7, 0],
            "Complete: CompletionsReached",
            (1, 0),
        ),
        (
            "too long",
            json!({"activeDeadlineSeconds": 500}),
            vec![1],
            "Failed: DeadlineExceeded",
            (0, 1),
        ),
        ("indexes", indexed(json!({})), vec![0, 0, 0], "Complete: CompletionsReached", (3, 0)),
        ("an index fails", per_index, vec![0, 1, 0], "Failed: FailedIndexes", (2, 1)),
        ("enough indexes", early, vec![0, 0], "Complete: SuccessPolicy", (2, 0)),
    ];
    for (name, more, codes, want, numbers) in cases {
        let cluster = run(&job(more), &codes);
        assert_eq!(cluster.outcome(), want, "{name}");
        let (succeeded, failed) = cluster.numbers();
        let is_cut = want.contains("Deadline");
        assert_eq!(succeeded, numbers.0, "{name}");
        assert!(failed == numbers.1 || is_cut, "{name}: {failed} failed");
        if !want.is_empty() {
            let left = cluster.pods.iter().filter(|pod| pod::is_tracked(pod)).count();
            assert_eq!(left, 0, "{name}: nobody is kept");
            assert_eq!(cluster.told.len(), 1, "{name}: {:?}", cluster.told);
        }
    }
}

/// What rules about single indexes, and about pods that were in the way of somebody, come to.
#[test]
fn policies_of_indexes_and_conditions() {
    let indexed = |patience: i32, most: Value, rules: Value| {
        json!({"completionMode": "Indexed", "completions": 3, "backoffLimit": 100,
            "backoffLimitPerIndex": patience, "maxFailedIndexes": most,
            "podFailurePolicy": {"rules": rules}})
    };
    let rule = |action: &str| json!([{"action": action, "onPodConditions": [{"type": "DisruptionTarget"}]}]);
    let other = json!([{"action": "FailJob",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}]);
    let code = json!([{"action": "FailIndex",
        "onExitCodes": {"operator": "In", "values": [42]}}]);
    let plain = |rules: Value| json!({"backoffLimit": 0, "podFailurePolicy": {"rules": rules}});
    let (done, none) = ("Complete: CompletionsReached", json!(null));
    let too_many = "Job has exceeded the specified maximal number of failed indexes";
    let cases = [
        // Name, Job, how its pods end, outcome, (succeeded, failed), words, failed indexes.
        (
            "one index too many",
            indexed(0, json!(0), json!([])),
            vec![1],
            "Failed: MaxFailedIndexesExceeded",
            (0, 1),
            (too_many, "0"),
        ),
        (
            "two where one may fail",
            indexed(0, json!(1), json!([])),
            vec![0, 1, 1],
            "Failed: MaxFailedIndexesExceeded",
            (1, 2),
            (too_many, "1,2"),
        ),
        (
            "one where one may fail",
            indexed(0, json!(1), json!([])),
            vec![1, 0, 0],
            "Failed: FailedIndexes",
            (2, 1),
            ("Job has failed indexes", "0"),
        ),
        ("a second try", indexed(1, json!(0), json!([])), vec![1, 0, 0, 0], done, (3, 1), ("", "")),
        (
            "this code ends its index, whatever patience is left",
            indexed(5, none.clone(), code.clone()),
            vec![42, 0, 0],
            "Failed: FailedIndexes",
            (2, 1),
            ("Job has failed indexes", "0"),
        ),
        (
            "another code does not",
            indexed(5, none, code),
            vec![41, 0, 0, 0],
            done,
            (3, 1),
            ("", ""),
        ),
        (
            "never mind who had to go",
            plain(rule("Ignore")),
            vec![-137, -137, 0],
            done,
            (1, 0),
            ("", ""),
        ),
        (
            "others are minded",
            plain(rule("Ignore")),
            vec![137],
            "Failed: BackoffLimitExceeded",
            (0, 1),
            ("Job has reached the specified backoff limit", ""),
        ),
        (
            "who had to go ends it all",
            plain(rule("FailJob")),
            vec![-137],
            "Failed: PodFailurePolicy",
            (0, 1),
            ("Pod ns/p0 has condition DisruptionTarget matching FailJob rule at index 0", ""),
        ),
        (
            "a condition that is not so",
            json!({"podFailurePolicy": {"rules": other}}),
            vec![-137, 0],
            done,
            (1, 1),
            ("", ""),
        ),
    ];
    for (name, more, codes, want, numbers, (words, indexes)) in cases {
        let cluster = run(&job(more), &codes);
        assert_eq!(cluster.outcome(), want, "{name}");
        assert_eq!(cluster.numbers(), numbers, "{name}");
        let told = cluster.last_words();
        assert_eq!(told.1, indexes, "{name}");
        assert!(words.is_empty() || told.0 == words, "{name}: {}", told.0);
    }
}

#[test]
fn a_failed_pod_is_not_replaced_at_once() {
    let job = job(json!({}));
    let mut cluster = Cluster::default();
    cluster.settle(&job);
    cluster.end(0, 1);
    cluster.settle(&job);
    assert_eq!(cluster.made, 1);
    cluster.now += 10;
    cluster.settle(&job);
    assert_eq!(cluster.made, 2);
}

#[test]
fn jobs_rest_and_go_on() {
    let (awake, asleep) = (json!({"suspend": false}), json!({"suspend": true}));
    let mut cluster = Cluster::default();
    cluster.settle(&job(asleep.clone()));
    assert_eq!((cluster.made, cluster.status.clone().unwrap().start_time), (0, None));
    cluster.settle(&job(awake));
    assert_eq!(cluster.made, 1);
    cluster.settle(&job(asleep));
    assert_eq!(cluster.status.clone().unwrap().active, None);
    assert_eq!(cluster.told, ["Suspended", "Resumed", "Suspended"]);
}

#[test]
fn pods_that_are_let_go_are_no_failures() {
    let four = |more: Value| {
        let mut all = json!({"parallelism": 4, "completions": 8, "backoffLimit": 0});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        job(all)
    };
    for replacement in ["TerminatingOrFailed", "Failed"] {
        let four = |more: &str, value: Value| {
            four(json!({"podReplacementPolicy": replacement, more: value}))
        };
        for (name, fewer, left) in [
            ("suspended", four("suspend", json!(true)), 0),
            ("less at a time", four("parallelism", json!(1)), 1),
        ] {
            let mut cluster = Cluster::default();
            let all = four("suspend", json!(false));
            cluster.settle(&all);
            cluster.settle(&fewer);
            assert_eq!(cluster.numbers(), (0, 0), "{name}, {replacement}");
            assert_eq!(cluster.pods.len(), left, "{name}, {replacement}");
            cluster.settle(&all);
            assert_eq!(cluster.pods.len(), 4, "{name}, {replacement}: and nobody waits");
            assert_eq!(cluster.outcome(), "", "{name}, {replacement}");
        }
    }
}

/// Somebody deletes a pod that runs.
#[test]
fn when_a_deleted_pod_is_replaced() {
    for (replacement, mode, at_once) in [
        ("TerminatingOrFailed", "NonIndexed", true),
        ("TerminatingOrFailed", "Indexed", true),
        ("Failed", "NonIndexed", false),
        ("Failed", "Indexed", false),
    ] {
        let name = format!("{replacement}, {mode}");
        let job = job(json!({"podReplacementPolicy": replacement, "completionMode": mode}));
        let mut cluster = Cluster::default();
        cluster.settle(&job);
        let now = Timestamp::from_second(cluster.now).unwrap();
        cluster.pods[0].status.get_or_insert_default().phase = Some("Running".to_owned());
        cluster.pods[0].metadata.deletion_timestamp = Some(Time(now));
        cluster.sync(&job);
        cluster.sync(&job);
        assert_eq!(cluster.made, if at_once { 2 } else { 1 }, "{name}");
        assert_eq!(cluster.status.clone().unwrap().terminating, Some(1), "{name}");
        cluster.end(0, 143);
        cluster.settle(&job);
        cluster.now += 10;
        cluster.settle(&job);
        assert_eq!((cluster.made, cluster.numbers()), (2, (0, 1)), "{name}");
        cluster.end(0, 0);
        cluster.settle(&job);
        assert_eq!(cluster.outcome(), "Complete: CompletionsReached", "{name}");
    }
}

#[test]
fn jobs_go_when_their_time_has_come() {
    let mut job = job(json!({"ttlSecondsAfterFinished": 60}));
    let cluster = run(&job, &[0]);
    job.status = cluster.status.clone();
    let at = |second: i64| plan(&job, &[], Timestamp::from_second(second).unwrap());
    assert!(!at(59).expired);
    assert_eq!(at(50).again_after, Some(Duration::from_secs(10)));
    assert!(at(60).expired);
}

#[test]
fn a_pod_knows_its_index() {
    let job = job(json!({}));
    let work = Work { job: &job, spec: job.spec.as_ref().unwrap() };
    let pod = serde_json::to_value(pod::pod(work, Some(2), 0)).unwrap();
    assert_eq!(pod["metadata"]["generateName"], "j-2-");
    assert_eq!(pod["spec"]["hostname"], "j-2");
    assert_eq!(pod["spec"]["containers"][0]["env"][0]["name"], "JOB_COMPLETION_INDEX");
    assert_eq!(pod["metadata"]["finalizers"][0], FINALIZER);
}

proptest! {
    /// Whatever happens to pods and to what the Job asks for, every end is counted once, never too many
    /// run, no index runs twice, and in the end the Job is complete and nothing more is written.
    #[test]
    fn random_histories_end(
        history in prop::collection::vec((0..8u8, 0..4usize), 0..40),
        indexed in any::<bool>(),
        waits in any::<bool>(),
    ) {
        let spec = |suspended: bool, parallelism: usize| {
            job(json!({"completions": 4, "parallelism": parallelism, "suspend": suspended,
                "completionMode": if indexed { "Indexed" } else { "NonIndexed" },
                "podReplacementPolicy": if waits { "Failed" } else { "TerminatingOrFailed" },
                "backoffLimit": 1000}))
        };
        let mut cluster = Cluster::default();
        let (mut failures, mut suspended, mut parallelism) = (0, false, 2);
        for (event, which) in history {
            let is_over = !cluster.outcome().is_empty();
            match event {
                0 => cluster.end(which, 0),
                1 => failures += if cluster.fail(which) && !is_over { 1 } else { 0 },
                2 => cluster.collect(),
                3 => cluster.now += 1000,
                4 => suspended = !suspended,
                5 => parallelism = which,
                6 => failures += usize::from(cluster.remove(which)),
                _ => drop(cluster.sync(&spec(suspended, parallelism))),
            }
        }
        let job = spec(false, 2);
        for _ in 0..20 {
            cluster.settle(&job);
            cluster.now += 1000;
            cluster.end(0, 0);
        }
        cluster.settle(&job);
        prop_assert_eq!(cluster.outcome(), "Complete: CompletionsReached");
        let (succeeded, failed) = cluster.numbers();
        prop_assert!((4..8).contains(&succeeded), "{succeeded}");
        // Those that are no longer needed in the end are deleted, and count.
        prop_assert!(usize::try_from(failed).unwrap() <= failures + 4, "{failed} of {failures}");
        prop_assert_eq!(cluster.sync(&job), "");
    }
}
