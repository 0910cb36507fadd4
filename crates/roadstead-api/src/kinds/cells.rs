//! Cells of tables that need more than one field of an object.

use jiff::Timestamp;
use roadstead_schema::age::age_of;
use roadstead_schema::json::Pointer;
use serde_json::Value;

/// `RWO,RWX`.
pub(super) fn access_modes(object: &Value, pointer: &str) -> String {
    let short = |mode: &str| match mode {
        "ReadWriteOnce" => "RWO".to_owned(),
        "ReadOnlyMany" => "ROX".to_owned(),
        "ReadWriteMany" => "RWX".to_owned(),
        "ReadWriteOncePod" => "RWOP".to_owned(),
        other => other.to_owned(),
    };
    let modes = object.list(pointer).iter().filter_map(Value::as_str).map(short);
    modes.collect::<Vec<_>>().join(",")
}

/// Who has claimed a volume.
pub(super) fn claim(volume: &Value) -> String {
    let claim = &volume["spec"]["claimRef"];
    match claim.text("/name") {
        "" => String::new(),
        name => format!("{}/{name}", claim.text("/namespace")),
    }
}

/// The phase of a claim; one that is being deleted says so.
pub(super) fn claim_phase(claim: &Value) -> String {
    match claim.has("/metadata/deletionTimestamp") {
        true => "Terminating".to_owned(),
        false => claim.text("/status/phase").to_owned(),
    }
}

/// The text there, or `<unset>`.
pub(super) fn or_unset(object: &Value, pointer: &str) -> String {
    match object.text(pointer) {
        "" => "<unset>".to_owned(),
        text => text.to_owned(),
    }
}

/// A number or a percentage, or `N/A`.
pub(super) fn amount(object: &Value, pointer: &str) -> String {
    match object.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => "N/A".to_owned(),
    }
}

/// `pods: 1/2, …`: what a quota counts, either the limits or everything else.
pub(super) fn quota(quota: &Value, limits: bool) -> String {
    let hard = quota.fields("/status/hard");
    let hard = hard.filter(|(name, _)| name.starts_with("limits.") == limits);
    let parts = hard.map(|(name, most)| {
        let used = quota["status"]["used"][name].as_str().unwrap_or("0");
        format!("{name}: {used}/{}", most.as_str().unwrap_or(""))
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// The hosts of an Ingress, three at most; `*` for any.
pub(super) fn hosts(ingress: &Value) -> String {
    let rules = ingress.list("/spec/rules").iter();
    let hosts: Vec<_> = rules.map(|rule| rule.text("/host")).filter(|h| !h.is_empty()).collect();
    match hosts.len() {
        0 => "*".to_owned(),
        1..=3 => hosts.join(","),
        all => format!("{} + {} more...", hosts[..3].join(","), all - 3),
    }
}

/// Where an Ingress can be reached.
pub(super) fn addresses(ingress: &Value) -> String {
    let points = ingress.list("/status/loadBalancer/ingress").iter();
    let texts = points.map(|point| match point.text("/ip") {
        "" => point.text("/hostname"),
        ip => ip,
    });
    texts.collect::<Vec<_>>().join(",")
}

/// What an IngressClass refers to.
pub(super) fn parameters(class: &Value) -> String {
    let parameters = &class["spec"]["parameters"];
    match (parameters.text("/apiGroup"), parameters.text("/kind"), parameters.text("/name")) {
        (_, _, "") => "<none>".to_owned(),
        ("", kind, name) => format!("{kind}/{name}"),
        (group, kind, name) => format!("{kind}.{group}/{name}"),
    }
}

/// Whom a binding gives a role: users, groups or service accounts.
pub(super) fn subjects(binding: &Value, kind: &str) -> String {
    let subjects = binding.list("/subjects").iter();
    let subjects = subjects.filter(|subject| subject.text("/kind") == kind);
    let names = subjects.map(|subject| match (kind, subject.text("/namespace")) {
        ("ServiceAccount", space) => format!("{space}/{}", subject.text("/name")),
        _ => subject.text("/name").to_owned(),
    });
    names.collect::<Vec<_>>().join(", ")
}

/// The name of a StorageClass, marked if it is the default.
pub(super) fn class_name(class: &Value) -> String {
    let name = class.text("/metadata/name");
    let mark = &class["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"];
    if *mark == "true" { format!("{name} (default)") } else { name.to_owned() }
}

/// What became of a Job.
pub(super) fn job_status(job: &Value) -> String {
    let holds = |kind: &str| {
        let mut conditions = job.list("/status/conditions").iter();
        conditions.any(|c| c.text("/type") == kind && c.text("/status") == "True")
    };
    let states = [
        ("Complete", holds("Complete")),
        ("Failed", holds("Failed")),
        ("Terminating", job.has("/metadata/deletionTimestamp")),
        ("Suspended", holds("Suspended")),
        ("FailureTarget", holds("FailureTarget")),
        ("SuccessCriteriaMet", holds("SuccessCriteriaMet")),
    ];
    states.iter().find(|(_, holds)| *holds).map_or("Running", |(name, _)| name).to_owned()
}

/// `0/1`, or `0/1 of 3` for a work queue.
pub(super) fn completions(job: &Value) -> String {
    let done = job.int("/status/succeeded");
    match (job["spec"]["completions"].as_i64(), job.int("/spec/parallelism")) {
        (Some(all), _) => format!("{done}/{all}"),
        (None, parallel) if parallel > 1 => format!("{done}/1 of {parallel}"),
        (None, _) => format!("{done}/1"),
    }
}

/// How long a Job took, or has taken so far.
pub(super) fn duration(job: &Value, now: Timestamp) -> String {
    let end = job.text("/status/completionTime").parse().unwrap_or(now);
    match job.text("/status/startTime") {
        "" => String::new(),
        start => age_of(start, end),
    }
}

/// When a CronJob last started a Job.
pub(super) fn last_schedule(job: &Value, now: Timestamp) -> String {
    match job.text("/status/lastScheduleTime") {
        "" => "<none>".to_owned(),
        time => age_of(time, now),
    }
}

/// The names or images of the containers of a template, joined.
pub(super) fn containers(object: &Value, template: &str, field: &str) -> String {
    let containers = object.list(&format!("{template}/spec/containers")).iter();
    containers.filter_map(|c| c[field].as_str()).collect::<Vec<_>>().join(",")
}

#[test]
fn cells() {
    use serde_json::json;
    let at: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
    let job = |status: Value| json!({"spec": {"completions": 2}, "status": status});
    let ended = job(json!({"startTime": "2026-01-01T00:00:00Z", "succeeded": 2,
        "completionTime": "2026-01-01T00:01:05Z",
        "conditions": [{"type": "Complete", "status": "True"}]}));
    let ingress = |hosts: &[&str]| {
        let rules: Vec<_> = hosts.iter().map(|host| json!({"host": host})).collect();
        json!({"spec": {"rules": rules}})
    };
    let cases = [
        ("no host", hosts(&ingress(&[""])), "*"),
        ("many hosts", hosts(&ingress(&["a", "b", "c", "d"])), "a,b,c + 1 more..."),
        ("a job that ended", job_status(&ended), "Complete"),
        ("its pods", completions(&ended), "2/2"),
        ("its time", duration(&ended, at), "65s"),
        ("a job that waits", duration(&job(json!({})), at), ""),
        ("a percentage", amount(&json!({"a": "50%"}), "/a"), "50%"),
        ("no amount", amount(&json!({}), "/a"), "N/A"),
        ("modes", access_modes(&json!({"m": ["ReadWriteOnce", "ReadOnlyMany"]}), "/m"), "RWO,ROX"),
    ];
    for (name, got, want) in cases {
        assert_eq!(got, want, "{name}");
    }
}
