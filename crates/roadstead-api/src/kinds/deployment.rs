//! Deployment: pods that are alike, and how to replace them by others.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, default_to};
use serde_json::{Value, json};

use crate::kind::{Info, Kind};
use crate::kinds::workload::{CONTAINERS, IMAGES, SELECTOR};
use crate::kinds::{pod_spec, workload};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

pub(super) struct Deployment;

static INFO: Info = Info {
    short_names: &["deploy"],
    categories: &["all"],
    status: true,
    scale: true,
    generation: true,
    // They are copied to ReplicaSets.
    counted: &["annotations"],
    status_keeps: &["labels"],
    ..Info::new("apps", "v1", "Deployment", "deployments", "deployment")
};

impl Kind for Deployment {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        let spec = child(object, "spec");
        default_to(spec, "replicas", 1);
        default_to(spec, "revisionHistoryLimit", 10);
        default_to(spec, "progressDeadlineSeconds", 600);
        let strategy = child(spec, "strategy");
        default_to(strategy, "type", "RollingUpdate");
        if strategy["type"] == "RollingUpdate" {
            let rolling = child(strategy, "rollingUpdate");
            default_to(rolling, "maxSurge", "25%");
            default_to(rolling, "maxUnavailable", "25%");
        }
        pod_spec::default(child(child(spec, "template"), "spec"));
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        workload::validate(object, old, causes);
        let strategy = &object["spec"]["strategy"]["type"];
        if !["RollingUpdate", "Recreate"].contains(&strategy.as_str().unwrap_or("")) {
            let supported = ["Recreate", "RollingUpdate"];
            causes.unsupported("spec.strategy.type", strategy, &supported);
        }
        if old.is_none_or(|old| old["spec"] != object["spec"]) {
            check_pace(&object["spec"], causes);
        }
    }

    fn table(&self) -> &'static [ColumnCell] {
        const {
            &[
                NAME,
                (Column::text("Ready"), Cell::Ratio("/status/readyReplicas", "/spec/replicas")),
                (Column::text("Up-to-date"), Cell::Int("/status/updatedReplicas")),
                (Column::text("Available"), Cell::Int("/status/availableReplicas")),
                AGE,
                CONTAINERS,
                IMAGES,
                SELECTOR,
            ]
        }
    }
}

/// How fast a rollout may go, and how long it may take.
fn check_pace(spec: &Value, causes: &mut Causes) {
    for field in ["minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"] {
        if spec.int(&format!("/{field}")) < 0 {
            let detail = "must be greater than or equal to 0";
            causes.invalid(format!("spec.{field}"), &spec[field], detail);
        }
    }
    let (ready, deadline) =
        (spec.int("/minReadySeconds"), spec["progressDeadlineSeconds"].as_i64());
    if deadline.is_some_and(|deadline| deadline <= ready) {
        let detail = "must be greater than minReadySeconds";
        causes.invalid("spec.progressDeadlineSeconds", &json!(deadline), detail);
    }
    let strategy = &spec["strategy"];
    let rolling = &strategy["rollingUpdate"];
    if strategy["type"] == "Recreate" && !rolling.is_null() {
        let detail = "may not be specified when strategy `type` is 'Recreate'";
        return causes.forbidden("spec.strategy.rollingUpdate", detail);
    }
    let field = |name: &str| format!("spec.strategy.rollingUpdate.{name}");
    let is_none = |value: &Value| {
        let text = value.as_str().and_then(|text| text.strip_suffix('%'));
        value.as_i64() == Some(0) || text.is_some_and(|text| text.parse::<u32>() == Ok(0))
    };
    for name in ["maxUnavailable", "maxSurge"] {
        let value = &rolling[name];
        let percent = value.as_str().map(|text| text.strip_suffix('%').map(str::parse::<u32>));
        match percent {
            Some(Some(Ok(percent))) if percent > 100 && name == "maxUnavailable" => {
                causes.invalid(field(name), value, "must not be greater than 100%");
            }
            None | Some(Some(Ok(_))) => {}
            _ => {
                let detail = "a valid percent string must be a numeric string followed by an ending \
                    '%' (e.g. '1%', or '93%', regex used for validation is '[0-9]+%')";
                causes.invalid(field(name), value, detail);
            }
        }
        if value.as_i64().is_some_and(|number| number < 0) {
            causes.invalid(field(name), value, "must be greater than or equal to 0");
        }
    }
    if is_none(&rolling["maxUnavailable"]) && is_none(&rolling["maxSurge"]) {
        let detail = "may not be 0 when `maxSurge` is 0";
        causes.invalid(field("maxUnavailable"), &rolling["maxUnavailable"], detail);
    }
}

#[test]
fn what_is_wrong_with_the_pace() {
    let rolling = |surge: Value, unavailable: Value| {
        json!({"strategy": {"type": "RollingUpdate", "rollingUpdate":
            {"maxSurge": surge, "maxUnavailable": unavailable}}})
    };
    let cases = [
        (rolling(json!("25%"), json!(0)), ""),
        (
            rolling(json!(0), json!("0%")),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when \
             `maxSurge` is 0",
        ),
        (
            rolling(json!("200%"), json!("101%")),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"101%\": must not be greater \
             than 100%",
        ),
        (
            rolling(json!(-1), json!(1)),
            "spec.strategy.rollingUpdate.maxSurge: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!({"strategy": {"type": "Recreate", "rollingUpdate": {}}}),
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is \
             'Recreate'",
        ),
        (
            json!({"progressDeadlineSeconds": 5, "minReadySeconds": 5}),
            "spec.progressDeadlineSeconds: Invalid value: 5: must be greater than minReadySeconds",
        ),
    ];
    for (spec, want) in cases {
        let mut causes = Causes::default();
        check_pace(&spec, &mut causes);
        let all: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(all.join("\n"), want, "{spec}");
    }
}
