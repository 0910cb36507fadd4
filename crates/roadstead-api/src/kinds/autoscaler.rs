//! HorizontalPodAutoscaler: how many replicas, depending on how busy they are. `autoscaling/v1` is
//! a view of `v2`: what the older version has no field for, it carries in annotations, with the
//! names and the JSON that upstream uses.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, default_to};
use serde_json::{Map, Value, json};

use crate::kind::{Info, Kind};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

mod metrics;
mod rules;
#[cfg(test)]
mod tests;

/// Version 2, in which autoscalers are kept.
pub(super) struct Autoscaler;

/// Version 1, of which `kubectl autoscale` is the best known user.
pub(super) struct OldAutoscaler;

const fn info(version: &'static str) -> Info {
    Info {
        stored_version: "v2",
        ..Info::new(
            "autoscaling",
            version,
            "HorizontalPodAutoscaler",
            "horizontalpodautoscalers",
            "horizontalpodautoscaler",
        )
    }
    .short(&["hpa"])
    .with_status()
    .in_all()
}

static INFO: Info = info("v2");
static OLD_INFO: Info = info("v1");

/// What version 1 has no field for, and the annotation that carries it.
const ANNOTATIONS: [(&str, &str, metrics::Convert); 4] = [
    ("/spec/metrics", "autoscaling.alpha.kubernetes.io/metrics", metrics::SPECS),
    (
        "/status/currentMetrics",
        "autoscaling.alpha.kubernetes.io/current-metrics",
        metrics::STATUSES,
    ),
    ("/status/conditions", "autoscaling.alpha.kubernetes.io/conditions", metrics::AS_IT_IS),
    ("/spec/behavior", "autoscaling.alpha.kubernetes.io/behavior", metrics::AS_IT_IS),
];

impl Kind for Autoscaler {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        let spec = child(object, "spec");
        default_to(spec, "minReplicas", 1);
        default_metrics(spec);
        rules::default(spec);
    }

    fn validate(&self, object: &Value, _: Option<&Value>, causes: &mut Causes) {
        validate(object, causes);
    }

    /// A status says nothing about what was asked for.
    fn validate_status(&self, _: &Value, _: &Value, _: &mut Causes) {}

    fn table(&self) -> &'static [ColumnCell] {
        const {
            &[
                NAME,
                (Column::text("Reference"), Cell::Made(reference)),
                (Column::text("Targets"), Cell::MadeOrNone(metrics::targets)),
                (Column::text("MinPods"), Cell::Made(least)),
                (
                    Column::text("MaxPods"),
                    Cell::Made(|scaler| scaler.int("/spec/maxReplicas").to_string()),
                ),
                (
                    Column::text("Replicas"),
                    Cell::Made(|scaler| scaler.int("/status/currentReplicas").to_string()),
                ),
                AGE,
            ]
        }
    }
}

/// What is scaled.
fn reference(scaler: &Value) -> String {
    let target = &scaler["spec"]["scaleTargetRef"];
    format!("{}/{}", target.text("/kind"), target.text("/name"))
}

fn least(scaler: &Value) -> String {
    scaler["spec"]["minReplicas"].as_i64().map_or("<unset>".into(), |least| least.to_string())
}

impl Kind for OldAutoscaler {
    fn info(&self) -> &'static Info {
        &OLD_INFO
    }

    fn default(&self, object: &mut Value) {
        default_to(child(object, "spec"), "minReplicas", 1);
    }

    fn validate_status(&self, _: &Value, _: &Value, _: &mut Causes) {}

    /// What the annotations carry is checked, too.
    fn validate(&self, object: &Value, _: Option<&Value>, causes: &mut Causes) {
        let mut stored = object.clone();
        self.store(&mut stored);
        validate(&stored, causes);
    }

    fn show(&self, object: &mut Value) {
        let specs = take(object, "spec", "metrics");
        let (cpu, others) =
            apart(&specs, |metric| metric.int("/resource/target/averageUtilization"));
        put(object, "/spec/metrics", others);
        if let Some(percent) = cpu {
            child(object, "spec")["targetCPUUtilizationPercentage"] = percent.into();
        }
        let statuses = take(object, "status", "currentMetrics");
        let (cpu, others) =
            apart(&statuses, |metric| metric.int("/resource/current/averageUtilization"));
        put(object, "/status/currentMetrics", others);
        if let Some(percent) = cpu {
            child(object, "status")["currentCPUUtilizationPercentage"] = percent.into();
        }
        for (pointer, annotation, convert) in ANNOTATIONS {
            let Some(value) = remove(object, pointer) else { continue };
            let text = (convert.down)(&value).to_string();
            child(child(object, "metadata"), "annotations")[annotation] = text.into();
        }
    }

    fn store(&self, object: &mut Value) {
        for (pointer, annotation, convert) in ANNOTATIONS {
            let annotations = object.pointer_mut("/metadata/annotations");
            let annotations = annotations.and_then(Value::as_object_mut);
            let text = annotations.and_then(|map| map.remove(annotation));
            let text = text.as_ref().and_then(Value::as_str).unwrap_or("");
            let value = serde_json::from_str(text).map(|value| (convert.up)(&value));
            // What is of another type would be read by nobody.
            if let Ok(value) = value.and_then(|value| metrics::typed(pointer, value)) {
                put(object, pointer, value);
            }
        }
        if object.pointer("/metadata/annotations").is_some_and(|map| *map == json!({})) {
            object["metadata"].as_object_mut().map(|metadata| metadata.remove("annotations"));
        }
        if let Value::Number(percent) = take(object, "spec", "targetCPUUtilizationPercentage") {
            let mut all = vec![cpu_target(percent.as_i64().unwrap_or(0))];
            all.extend(object.list("/spec/metrics").iter().cloned());
            put(object, "/spec/metrics", all.into());
        }
        if let Value::Number(percent) = take(object, "status", "currentCPUUtilizationPercentage") {
            let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
                "current": {"averageUtilization": percent, "averageValue": "0"}}});
            let mut all = vec![cpu];
            all.extend(object.list("/status/currentMetrics").iter().cloned());
            put(object, "/status/currentMetrics", all.into());
        }
        default_metrics(child(object, "spec"));
    }

    fn table(&self) -> &'static [ColumnCell] {
        Autoscaler.table()
    }
}

fn validate(object: &Value, causes: &mut Causes) {
    let spec = &object["spec"];
    for field in ["kind", "name"] {
        if spec["scaleTargetRef"].text(&format!("/{field}")).is_empty() {
            causes.required(format!("spec.scaleTargetRef.{field}"), "");
        }
        rules::check_segment(&spec["scaleTargetRef"], field, causes);
    }
    let (least, most) = (spec.int("/minReplicas"), spec.int("/maxReplicas"));
    if least < 1 {
        let detail = "must be greater than or equal to 1";
        causes.invalid("spec.minReplicas", &json!(least), detail);
    }
    if most < 1 {
        causes.invalid("spec.maxReplicas", &json!(most), "must be greater than 0");
    } else if most < least {
        let detail = "must be greater than or equal to `minReplicas`";
        causes.invalid("spec.maxReplicas", &json!(most), detail);
    }
    rules::check_metrics(spec, causes);
    rules::check_behavior(&spec["behavior"], causes);
}

/// Who names no metric means the processor; also in version 1, as what is kept is of version 2.
fn default_metrics(spec: &mut Value) {
    if spec.list("/metrics").is_empty() {
        spec["metrics"] = json!([cpu_target(80)]);
    }
}

fn cpu_target(percent: i64) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percent}}})
}

/// The utilisation of the processor, if there is a metric for it, and all other metrics.
fn apart(metrics: &Value, percent: impl Fn(&Value) -> i64) -> (Option<i64>, Value) {
    let is_cpu = |metric: &&Value| {
        metric.text("/type") == "Resource"
            && metric.text("/resource/name") == "cpu"
            && percent(metric) != 0
    };
    let all = metrics.as_array().map_or(&[][..], Vec::as_slice);
    let at = all.iter().position(|metric| is_cpu(&metric));
    let others = all.iter().enumerate().filter(|(index, _)| Some(*index) != at);
    let others: Vec<_> = others.map(|(_, metric)| metric.clone()).collect();
    (at.map(|at| percent(&all[at])), others.into())
}

/// Removes and returns a field of `spec` or `status`.
fn take(object: &mut Value, part: &str, field: &str) -> Value {
    remove(object, &format!("/{part}/{field}")).unwrap_or_default()
}

fn remove(object: &mut Value, pointer: &str) -> Option<Value> {
    let (parent, field) = pointer.rsplit_once('/')?;
    object.pointer_mut(parent)?.as_object_mut()?.remove(field)
}

/// Sets a field of `spec` or `status`, unless there is nothing to set.
fn put(object: &mut Value, pointer: &str, value: Value) {
    let nothing = match &value {
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => *fields == Map::new(),
        other => other.is_null(),
    };
    let parts: Vec<_> = pointer.trim_start_matches('/').split('/').collect();
    if let ([part, field], false) = (&parts[..], nothing) {
        child(object, part)[*field] = value;
    }
}
