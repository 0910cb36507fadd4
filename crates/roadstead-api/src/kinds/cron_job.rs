//! CronJob: Jobs by the clock.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, default_to};
use serde_json::{Value, json};

use crate::kinds::plain::{PlainKind, namespaced};
use crate::kinds::workload::workload;
use crate::kinds::{cells, pod_spec, workload};
use crate::schedule::CronSchedule;
use crate::table::{AGE, Cell, Column, NAME};
use crate::time_zone;

const JOB_TEMPLATE: &str = "/spec/jobTemplate/spec/template";

pub(super) static KIND: PlainKind = PlainKind {
    template: JOB_TEMPLATE,
    check,
    ..workload(
        namespaced("batch", "CronJob", "cronjobs", "cronjob").short(&["cj"]).with_status().in_all(),
        &[
            NAME,
            (Column::text("Schedule"), Cell::Text("/spec/schedule")),
            (Column::text("Timezone"), Cell::Text("/spec/timeZone")),
            (
                Column::text("Suspend"),
                Cell::Made(|job| if job.flag("/spec/suspend") { "True" } else { "False" }.into()),
            ),
            (Column::int("Active"), Cell::Count("/status/active")),
            (Column::text("Last Schedule"), Cell::Timed(cells::last_schedule)),
            AGE,
            (
                Column::wide("Containers"),
                Cell::Made(|job| cells::containers(job, JOB_TEMPLATE, "name")),
            ),
            (
                Column::wide("Images"),
                Cell::Made(|job| cells::containers(job, JOB_TEMPLATE, "image")),
            ),
            (Column::wide("Selector"), Cell::Labels("/spec/jobTemplate/spec/selector/matchLabels")),
        ],
        default,
    )
};

fn default(object: &mut Value) {
    let spec = child(object, "spec");
    default_to(spec, "concurrencyPolicy", "Allow");
    default_to(spec, "suspend", false);
    default_to(spec, "successfulJobsHistoryLimit", 3);
    default_to(spec, "failedJobsHistoryLimit", 1);
}

/// The names of its Jobs have eleven characters more, and those of their pods as many again.
const LONGEST_NAME: usize = 52;

fn check(object: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &object["spec"];
    let name = object.text("/metadata/name");
    if old.is_none() && name.len() > LONGEST_NAME {
        let detail = format!("must be no more than {LONGEST_NAME} characters");
        causes.invalid("metadata.name", &json!(name), detail);
    }
    if old.is_some_and(|old| old["spec"] == *spec) {
        return;
    }
    let is_new = |field: &str| old.is_none_or(|old| old["spec"][field] != spec[field]);
    if is_new("schedule") {
        check_schedule(&spec["schedule"], causes);
    }
    if is_new("timeZone") && !spec["timeZone"].is_null() {
        check_zone(&spec["timeZone"], causes);
    }
    let policy = &spec["concurrencyPolicy"];
    let policies = ["Allow", "Forbid", "Replace"];
    if !policies.contains(&policy.as_str().unwrap_or("")) {
        causes.unsupported("spec.concurrencyPolicy", policy, &policies);
    }
    for field in ["startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"]
    {
        if spec[field].as_i64().is_some_and(|number| number < 0) {
            let detail = "must be greater than or equal to 0";
            causes.invalid(format!("spec.{field}"), &spec[field], detail);
        }
    }
    let template = "spec.jobTemplate.spec.template.spec";
    let pod = object.pointer("/spec/jobTemplate/spec/template/spec").unwrap_or(&Value::Null);
    pod_spec::validate(pod, template, causes);
    if is_new("jobTemplate") {
        workload::check_ends(pod, template, causes);
    }
}

fn check_schedule(schedule: &Value, causes: &mut Causes) {
    let (field, text) = ("spec.schedule", schedule.as_str().unwrap_or(""));
    if text.is_empty() {
        causes.required(field, "");
    } else if text.contains("TZ") {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        causes.invalid(field, schedule, detail);
    } else if let Err(why) = CronSchedule::parse(text) {
        causes.invalid(field, schedule, why);
    }
}

/// Whether there is a zone of that name, only a machine knows.
fn check_zone(zone: &Value, causes: &mut Causes) {
    let (field, name) = ("spec.timeZone", zone.as_str().unwrap_or(""));
    if name.is_empty() {
        return causes.invalid(field, zone, "timeZone must be nil or non-empty string");
    }
    if name.eq_ignore_ascii_case("Local") {
        let detail = "timeZone must be an explicit time zone as defined in \
            https://www.iana.org/time-zones";
        causes.invalid(field, zone, detail);
    }
    if let Err(why) = time_zone::check_name(name) {
        causes.invalid(field, zone, why);
    }
}

#[test]
fn what_is_wrong_with_one() {
    use crate::kind::Kind;
    let object = |more: Value| {
        let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
        let mut object = json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *",
            "jobTemplate": {"spec": {"template": {"spec": pod}}}}});
        for (path, value) in more.as_object().unwrap() {
            *object.pointer_mut(path).unwrap() = value.clone();
        }
        KIND.default(&mut object);
        object
    };
    let field = |name: &str, value: Value| {
        let mut new = object(json!({}));
        new["spec"][name] = value;
        new
    };
    let policy = "/spec/jobTemplate/spec/template/spec/restartPolicy";
    let cases = [
        (object(json!({})), ""),
        (object(json!({"/spec/schedule": ""})), "spec.schedule: Required value"),
        (
            object(json!({"/spec/schedule": "* * *"})),
            "spec.schedule: Invalid value: \"* * *\": expected exactly 5 fields, found 3: [* * *]",
        ),
        (
            object(json!({"/spec/schedule": "TZ=UTC * * * * *"})),
            "spec.schedule: Invalid value: \"TZ=UTC * * * * *\": cannot use TZ or CRON_TZ in schedule, \
             use timeZone field instead",
        ),
        (
            field("timeZone", json!("")),
            "spec.timeZone: Invalid value: \"\": timeZone must be nil or non-empty string",
        ),
        (
            field("timeZone", json!("local")),
            "spec.timeZone: Invalid value: \"local\": timeZone must be an explicit time zone as \
             defined in https://www.iana.org/time-zones",
        ),
        (
            field("timeZone", json!("../x")),
            "spec.timeZone: Invalid value: \"../x\": time: invalid location name",
        ),
        (
            field("concurrencyPolicy", json!("Never")),
            "spec.concurrencyPolicy: Unsupported value: \"Never\": supported values: \"Allow\", \
             \"Forbid\", \"Replace\"",
        ),
        (
            field("failedJobsHistoryLimit", json!(-1)),
            "spec.failedJobsHistoryLimit: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            object(json!({policy: "Always"})),
            "spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: \
             \"OnFailure\", \"Never\"",
        ),
        (
            object(json!({"/metadata/name": "n".repeat(53)})),
            "metadata.name: Invalid value: \"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn\": must \
             be no more than 52 characters",
        ),
    ];
    for (object, want) in cases {
        let mut causes = Causes::default();
        KIND.validate(&object, None, &mut causes);
        let all: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(all.join("\n"), want);
        let mut causes = Causes::default();
        KIND.validate(&object, Some(&object), &mut causes);
        assert!(causes.0.is_empty(), "what was there before may stay: {:?}", causes.0);
    }
}
