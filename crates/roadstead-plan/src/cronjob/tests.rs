use k8s_openapi::api::batch::v1::{JobCondition, JobStatus};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// All CronJobs of the tests were made at this second: a whole hour.
const START: i64 = 1_767_225_600;

fn cron(more: Value) -> CronJob {
    let mut spec = json!({"schedule": "0 * * * *", "concurrencyPolicy": "Allow", "suspend": false,
        "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1,
        "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}}});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "cron",
        "creationTimestamp": Time(Timestamp::from_second(START).unwrap())}, "spec": spec}))
    .unwrap()
}

struct Cluster {
    cron: CronJob,
    jobs: Vec<Job>,
    now: i64,
    zone: TimeZone,
    told: Vec<String>,
}

impl Cluster {
    fn new(more: Value) -> Self {
        let told = Vec::new();
        Self { cron: cron(more), jobs: Vec::new(), now: START, zone: TimeZone::UTC, told }
    }

    /// Carries out a plan, or as many of its writes as it lives to see.
    fn sync(&mut self, lives: usize) -> String {
        let jobs = self.jobs.clone();
        let jobs: Vec<_> = jobs.iter().collect();
        let is_taken = |name: &str| jobs.iter().any(|job| job::name(job) == name);
        let now = Timestamp::from_second(self.now).unwrap();
        let zone = Ok(self.zone.clone());
        let around = Around { jobs: &jobs, zone, is_taken: &is_taken, now };
        let plan = plan(&self.cron, &around);
        let mut deeds = Vec::new();
        if self.cron.status.as_ref().unwrap_or(&CronJobStatus::default()) != &plan.status
            && deeds.len() < lives
        {
            deeds.push("status".to_owned());
            self.cron.status = Some(plan.status);
        }
        for gone in &plan.delete {
            if deeds.len() < lives {
                deeds.push(format!("-{}", self.short(job::name(gone))));
                self.jobs.retain(|job| job.metadata.uid != gone.metadata.uid);
            }
        }
        if let Some(mut job) = plan.create.filter(|_| deeds.len() < lives) {
            deeds.push(format!("+{}", self.short(job::name(&job))));
            assert!(!self.jobs.iter().any(|own| own.metadata.name == job.metadata.name), "twice");
            job.metadata.uid = Some(format!("{}-{}", job::name(&job), self.now));
            job.metadata.creation_timestamp = Some(Time(now));
            self.jobs.push(job);
        }
        self.told.extend(plan.notes.iter().map(|(_, reason, _)| (*reason).to_owned()));
        deeds.join(" ")
    }

    /// Minutes since the start instead of minutes since 1970.
    fn short(&self, name: &str) -> String {
        let minutes = name.strip_prefix("c-").and_then(|minutes| minutes.parse::<i64>().ok());
        minutes.map_or(name.to_owned(), |minutes| (minutes - START / 60).to_string())
    }

    /// Syncs until nothing is to be done.
    fn settle(&mut self) -> String {
        let mut all = Vec::new();
        for _ in 0..5 {
            match self.sync(usize::MAX).as_str() {
                "" => return all.join(", "),
                deeds => all.push(deeds.to_owned()),
            }
        }
        panic!("it finds no end: {all:?}");
    }

    fn after(&mut self, minutes: i64) -> String {
        self.now += minutes * 60;
        self.settle()
    }

    fn end(&mut self, which: usize, outcome: &str) {
        let now = Timestamp::from_second(self.now).unwrap();
        let mut open: Vec<_> =
            self.jobs.iter_mut().filter(|job| job::outcome(job).is_none()).collect();
        let count = open.len().max(1);
        let Some(job) = open.get_mut(which % count) else { return };
        let condition = JobCondition {
            type_: outcome.to_owned(),
            status: "True".to_owned(),
            ..Default::default()
        };
        job.status = Some(JobStatus {
            conditions: Some(vec![condition]),
            completion_time: (outcome == "Complete").then_some(Time(now)),
            ..Default::default()
        });
    }

    fn active(&self) -> usize {
        self.cron.status.as_ref().and_then(|own| own.active.as_ref()).map_or(0, Vec::len)
    }

    fn last(&self) -> Option<i64> {
        let last = self.cron.status.as_ref()?.last_schedule_time.as_ref()?;
        Some((last.0.as_second() - START) / 60)
    }
}

#[test]
fn jobs_begin_when_it_is_time() {
    let mut cluster = Cluster::new(json!({}));
    assert_eq!(cluster.settle(), "", "it was not due when it was made");
    assert_eq!(cluster.after(59), "");
    assert_eq!(cluster.after(1), "+60, status");
    assert_eq!((cluster.active(), cluster.last()), (1, Some(60)));
    let job = &cluster.jobs[0];
    assert_eq!(job.metadata.annotations.as_ref().unwrap()[SCHEDULED], "2026-01-01T01:00:00Z");
    assert_eq!(job.metadata.labels.as_ref().unwrap()["a"], "b");
    assert_eq!(job.metadata.owner_references.as_ref().unwrap()[0].kind, "CronJob");
    cluster.end(0, "Complete");
    assert_eq!(cluster.settle(), "status");
    let status = cluster.cron.status.clone().unwrap();
    assert_eq!(status.active, None);
    assert_eq!(status.last_successful_time.unwrap().0.as_second(), cluster.now);
    assert_eq!(cluster.told, ["SawCompletedJob"]);
}

#[test]
fn one_beside_the_other() {
    let cases = [
        ("Allow", "+60, status", "+120, status", 2, ""),
        ("Forbid", "+60, status", "", 1, "JobAlreadyActive"),
        ("Replace", "+60, status", "status -60 +120, status", 1, "SuccessfulDelete"),
    ];
    for (policy, first, second, active, told) in cases {
        let mut cluster = Cluster::new(json!({"concurrencyPolicy": policy}));
        assert_eq!(cluster.after(60), first, "{policy}");
        assert_eq!(cluster.after(60), second, "{policy}");
        assert_eq!(cluster.active(), active, "{policy}");
        assert_eq!(cluster.told.join(" "), told, "{policy}");
        // Who had to wait begins as soon as nobody is in the way.
        cluster.end(0, "Failed");
        let late = if policy == "Forbid" { "status +120, status" } else { "status" };
        assert_eq!(cluster.settle(), late, "{policy}");
    }
}

#[test]
fn times_that_passed() {
    let cases = [
        ("only the latest counts", json!({}), 300, "+300, status", ""),
        ("a bit late", json!({"startingDeadlineSeconds": 600}), 309, "+300, status", ""),
        ("too late", json!({"startingDeadlineSeconds": 600}), 311, "", "MissSchedule"),
        ("many are missed", json!({}), 60 * 101, "+6060, status", "TooManyMissedTimes"),
        ("just not many", json!({}), 60 * 100, "+6000, status", ""),
        (
            "those before the deadline do not count",
            json!({"startingDeadlineSeconds": 7200}),
            60 * 200,
            "+12000, status",
            "",
        ),
        ("it sleeps", json!({"suspend": true}), 300, "", ""),
        ("no such date", json!({"schedule": "0 0 31 2 *"}), 300, "", "InvalidSchedule"),
        ("nonsense", json!({"schedule": "x"}), 300, "", "UnparseableSchedule"),
        (
            "zones of old",
            json!({"schedule": "TZ=UTC 0 * * * *"}),
            300,
            "",
            "UnsupportedSchedule UnparseableSchedule",
        ),
        ("every while", json!({"schedule": "@every 7m"}), 20, "+14, status", ""),
    ];
    for (name, more, minutes, want, told) in cases {
        let mut cluster = Cluster::new(more);
        assert_eq!(cluster.after(minutes), want, "{name}");
        cluster.told.dedup();
        assert_eq!(cluster.told.join(" "), told, "{name}");
    }
}

#[test]
fn words() {
    let cluster = Cluster::new(json!({"schedule": "* * *", "timeZone": "Nowhere/Else"}));
    let said = |cron: &CronJob, zone, minutes: i64| {
        let now = Timestamp::from_second(START + minutes * 60).unwrap();
        let notes = plan(cron, &Around { jobs: &[], zone, is_taken: &|_| false, now }).notes;
        notes.into_iter().map(|(_, reason, text)| format!("{reason}: {text}")).collect::<Vec<_>>()
    };
    let unknown = Err("unknown time zone Nowhere/Else".to_owned());
    assert_eq!(
        said(&cluster.cron, unknown, 60),
        ["UnknownTimeZone: invalid timeZone: \"Nowhere/Else\": unknown time zone Nowhere/Else"]
    );
    assert_eq!(
        said(&cluster.cron, Ok(TimeZone::UTC), 60),
        [
            "UnparseableSchedule: unparseable schedule: \"* * *\" : expected exactly 5 fields, found 3: \
          [* * *]"
        ]
    );
    let late = cron(json!({"startingDeadlineSeconds": 10}));
    assert_eq!(
        said(&late, Ok(TimeZone::UTC), 61),
        ["MissSchedule: Missed scheduled time to start a job: Thu, 01 Jan 2026 01:00:00 +0000"]
    );
}

#[test]
fn the_zone_decides() {
    let mut cluster = Cluster::new(json!({"schedule": "30 9 * * *", "timeZone": "Asia/Kolkata"}));
    cluster.zone = TimeZone::posix("IST-5:30").unwrap();
    assert_eq!(cluster.after(239), "");
    assert_eq!(cluster.after(1), "+240, status");
    let annotations = cluster.jobs[0].metadata.annotations.clone().unwrap();
    assert_eq!(annotations[SCHEDULED], "2026-01-01T09:30:00+05:30");
    assert_eq!(cluster.settle(), "", "it is known again by its annotation");
}

#[test]
fn jobs_of_others() {
    let mut cluster = Cluster::new(json!({"concurrencyPolicy": "Forbid"}));
    // `kubectl create job --from` gives it this owner.
    let owner = crate::owner::controlled_by(&cluster.cron);
    let manual: Job = serde_json::from_value(json!({"metadata": {"name": "by-hand", "uid": "m",
        "annotations": {"cronjob.kubernetes.io/instantiate": "manual"},
        "ownerReferences": [owner]}}))
    .unwrap();
    cluster.jobs.push(manual);
    assert_eq!(cluster.settle(), "");
    assert_eq!(cluster.told, ["UnexpectedJob"]);
    assert_eq!(cluster.after(60), "+60, status", "it is not in the way");
    cluster.end(0, "Complete");
    cluster.settle();
    let status = cluster.cron.status.clone().unwrap();
    assert!(status.last_successful_time.is_some(), "but it counts");
    assert_eq!(cluster.active(), 1);
    // Somebody deletes the one that runs.
    cluster.jobs.retain(|job| job::name(job) == "by-hand");
    assert_eq!(cluster.settle(), "status");
    assert_eq!(cluster.told.last().unwrap(), "MissingJob");
    // A stranger has the name of the next one: it is left alone, and nothing is said to have run.
    let stranger = format!("c-{}", START / 60 + 120);
    let taken = |name: &str| name == stranger;
    let now = Timestamp::from_second(START + 7200).unwrap();
    let around = Around { jobs: &[], zone: Ok(TimeZone::UTC), is_taken: &taken, now };
    let plan = plan(&cluster.cron, &around);
    assert!(plan.create.is_none());
    assert_eq!(plan.status.last_schedule_time, status.last_schedule_time);
}

proptest! {
    /// Whatever happens (Jobs end, time passes, the process dies between two writes): no time
    /// has two Jobs, no more run at once than the policy allows, no more stay than the limits allow,
    /// the last time only grows, and once all is done nothing is written.
    #[test]
    fn random_histories(
        policy in prop_oneof![Just("Allow"), Just("Forbid"), Just("Replace")],
        schedule in prop_oneof![Just("*/5 * * * *"), Just("@every 90s"), Just("0 * * * *")],
        (good, bad) in (0usize..3, 0usize..3),
        events in proptest::collection::vec((0u8..6, 0usize..5, 0i64..1000), 1..60),
    ) {
        let mut cluster = Cluster::new(json!({"schedule": schedule, "concurrencyPolicy": policy,
            "successfulJobsHistoryLimit": good, "failedJobsHistoryLimit": bad}));
        let mut made = std::collections::BTreeSet::new();
        let mut last = None;
        for (what, which, seconds) in events {
            match what {
                0 | 1 => cluster.now += seconds,
                2 => cluster.end(which, "Complete"),
                3 => cluster.end(which, "Failed"),
                4 => drop(cluster.sync(which)),
                _ => drop(cluster.settle()),
            }
            let running = cluster.jobs.iter().filter(|job| job::outcome(job).is_none()).count();
            prop_assert!(policy == "Allow" || running <= 1, "{running} run at once");
            for job in &cluster.jobs {
                made.insert((job.metadata.name.clone(), job.metadata.uid.clone()));
            }
            prop_assert!(cluster.last() >= last);
            last = cluster.last();
        }
        cluster.settle();
        prop_assert_eq!(cluster.sync(usize::MAX), "");
        let names: std::collections::BTreeSet<_> = made.iter().map(|(name, _)| name).collect();
        prop_assert_eq!(names.len(), made.len(), "a time had two Jobs");
        let count = |outcome| {
            cluster.jobs.iter().filter(|job| job::outcome(job) == Some(outcome)).count()
        };
        prop_assert!(count("Complete") <= good && count("Failed") <= bad);
    }
}
