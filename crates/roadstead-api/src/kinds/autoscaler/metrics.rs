//! Metrics between the shape of version 2 (`target: {type, averageValue}`) and the flat one that
//! version 1 keeps in annotations (`targetAverageValue`).

use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscalerBehavior, HorizontalPodAutoscalerCondition, MetricSpec, MetricStatus,
};
use roadstead_schema::json::Pointer;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// How a value is written into an annotation and read from it.
#[derive(Clone, Copy)]
pub(super) struct Convert {
    pub down: fn(&Value) -> Value,
    pub up: fn(&Value) -> Value,
}

pub(super) const AS_IT_IS: Convert = Convert { down: Value::clone, up: Value::clone };
pub(super) const SPECS: Convert = Convert {
    down: |list| each(list, |metric| flatten(metric, "target")),
    up: |list| each(list, |metric| deepen(metric, "target")),
};
pub(super) const STATUSES: Convert = Convert {
    down: |list| each(list, |metric| flatten(metric, "current")),
    up: |list| each(list, |metric| deepen(metric, "current")),
};

/// The value, if it is what there must be under that pointer.
pub(super) fn typed(pointer: &str, value: Value) -> serde_json::Result<Value> {
    fn is<T: DeserializeOwned>(value: Value) -> serde_json::Result<Value> {
        serde_json::from_value::<T>(value.clone()).map(|_| value)
    }
    match pointer {
        "/spec/metrics" => is::<Vec<MetricSpec>>(value),
        "/status/currentMetrics" => is::<Vec<MetricStatus>>(value),
        "/status/conditions" => is::<Vec<HorizontalPodAutoscalerCondition>>(value),
        _ => is::<HorizontalPodAutoscalerBehavior>(value),
    }
}

/// Every source has a name of its own in a metric.
pub(super) const SOURCES: [(&str, &str); 5] = [
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
    ("Pods", "pods"),
    ("Object", "object"),
    ("External", "external"),
];

/// The values of a target, and what they are called without one: `averageValue` is
/// `targetAverageValue`, and so on.
const VALUES: [(&str, &str); 3] = [
    ("averageUtilization", "AverageUtilization"),
    ("averageValue", "AverageValue"),
    ("value", "Value"),
];

fn each(list: &Value, convert: impl Fn(&Value) -> Value) -> Value {
    list.as_array().into_iter().flatten().map(convert).collect::<Vec<_>>().into()
}

fn source(metric: &Value) -> &'static str {
    let kind = metric.text("/type");
    SOURCES.iter().find(|(name, _)| *name == kind).map_or("", |(_, field)| field)
}

fn flatten(metric: &Value, prefix: &str) -> Value {
    let field = source(metric);
    let Some(Value::Object(deep)) = metric.get(field) else { return metric.clone() };
    let mut flat = Map::new();
    for (name, value) in deep {
        match name.as_str() {
            "metric" => {
                flat.insert("metricName".into(), value["name"].clone());
                if value.has("/selector") {
                    let name = if field == "external" { "metricSelector" } else { "selector" };
                    flat.insert(name.into(), value["selector"].clone());
                }
            }
            "describedObject" => {
                flat.insert("target".into(), value.clone());
            }
            name if name == prefix => {
                for (deep, short) in VALUES {
                    if let Some(value) = value.get(deep) {
                        flat.insert(short_name(field, prefix, short), value.clone());
                    }
                }
            }
            other => {
                flat.insert(other.into(), value.clone());
            }
        }
    }
    json!({"type": metric["type"], field: flat})
}

fn deepen(metric: &Value, prefix: &str) -> Value {
    let field = source(metric);
    let Some(Value::Object(flat)) = metric.get(field) else { return metric.clone() };
    let mut flat = flat.clone();
    let mut deep = Map::new();
    if let Some(name) = flat.remove("metricName") {
        let mut metric = json!({"name": name});
        let selector = flat.remove("metricSelector").or_else(|| flat.remove("selector"));
        if let Some(selector) = selector {
            metric["selector"] = selector;
        }
        deep.insert("metric".into(), metric);
    }
    let mut amount = Map::new();
    for (long, short) in VALUES {
        if let Some(value) = flat.remove(&short_name(field, prefix, short)) {
            amount.insert(long.into(), value);
        }
    }
    if field == "object"
        && let Some(target) = flat.remove("target")
    {
        deep.insert("describedObject".into(), target);
    }
    if prefix == "target" {
        let kind = match (amount.contains_key("averageUtilization"), amount.contains_key("value")) {
            (true, _) => "Utilization",
            (_, true) => "Value",
            _ => "AverageValue",
        };
        amount.insert("type".into(), kind.into());
    }
    deep.insert(prefix.into(), amount.into());
    deep.extend(flat);
    json!({"type": metric["type"], field: deep})
}

/// `targetAverageValue`; but the average of an object's metric is just `averageValue`.
fn short_name(field: &str, prefix: &str, short: &str) -> String {
    match (field, short) {
        ("object", "AverageValue") => "averageValue".to_owned(),
        _ => format!("{prefix}{short}"),
    }
}

/// The column `Targets`: `cpu: 12%/80%` for each metric, with what is not yet known.
pub(super) fn targets(object: &Value) -> String {
    let current = object.list("/status/currentMetrics");
    let specs = object.list("/spec/metrics");
    let shown = specs.iter().take(2).enumerate().map(|(index, metric)| {
        let field = source(metric);
        let target = &metric[field]["target"];
        let now = current.get(index).map_or(&Value::Null, |metric| &metric[field]["current"]);
        let name = match metric[field].text("/name") {
            "" => String::new(),
            name => format!("{name}: "),
        };
        let amount =
            |value: &Value| match VALUES.iter().find(|(long, _)| target.has(&format!("/{long}"))) {
                Some(("averageUtilization", _)) => {
                    value["averageUtilization"].as_i64().map(|percent| format!("{percent}%"))
                }
                Some((long, _)) => value[*long].as_str().map(str::to_owned),
                None => None,
            };
        let unknown = || "<unknown>".to_owned();
        let average =
            if target.text("/type") == "AverageValue" && field == "object" { " (avg)" } else { "" };
        let now = amount(now).unwrap_or_else(unknown);
        format!("{name}{now}/{}{average}", amount(target).unwrap_or_else(unknown))
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match specs.len() {
        0..=2 => shown,
        all => format!("{shown} + {} more...", all - 2),
    }
}
