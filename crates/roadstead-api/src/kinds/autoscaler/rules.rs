//! What must be true of an autoscaler's metrics and of its rules of speed, and what is filled in there.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, default_to};
use serde_json::{Value, json};

use super::metrics::SOURCES;
use crate::quantity::exact::Quantity;

/// The rules of either direction, whole once there is anything about speed at all.
pub(super) fn default(spec: &mut Value) {
    let Some(behavior) = spec.get_mut("behavior").filter(|own| own.is_object()) else { return };
    let percent = json!({"type": "Percent", "value": 100, "periodSeconds": 15});
    let pods = json!({"type": "Pods", "value": 4, "periodSeconds": 15});
    let up = child(behavior, "scaleUp");
    default_to(up, "stabilizationWindowSeconds", 0);
    default_to(up, "selectPolicy", "Max");
    default_to(up, "policies", json!([pods, percent]));
    let down = child(behavior, "scaleDown");
    default_to(down, "selectPolicy", "Max");
    default_to(down, "policies", json!([percent]));
}

/// A kind or a name becomes a part of an address.
pub(super) fn check_segment(reference: &Value, field: &str, causes: &mut Causes) {
    let text = reference.text(&format!("/{field}"));
    let path = format!("spec.scaleTargetRef.{field}");
    if matches!(text, "." | "..") {
        causes.invalid(path, &json!(text), format!("may not be '{text}'"));
        return;
    }
    for letter in ["/", "%"] {
        if text.contains(letter) {
            causes.invalid(&path, &json!(text), format!("may not contain '{letter}'"));
        }
    }
}

pub(super) fn check_metrics(spec: &Value, causes: &mut Causes) {
    for (index, metric) in spec.list("/metrics").iter().enumerate() {
        let field = format!("spec.metrics[{index}]");
        let kind = metric.text("/type");
        if kind.is_empty() {
            causes.required(format!("{field}.type"), "must specify a metric source type");
            continue;
        }
        let Some((_, source)) = SOURCES.iter().find(|(name, _)| *name == kind) else {
            let mut known: Vec<_> = SOURCES.iter().map(|(name, _)| *name).collect();
            known.sort_unstable();
            causes.unsupported(format!("{field}.type"), &metric["type"], &known);
            continue;
        };
        let field = format!("{field}.{source}");
        let own = &metric[*source];
        if !own.is_object() {
            causes.required(field, "must populate information for the given metric source");
            continue;
        }
        check_source(kind, own, &field, causes);
    }
}

fn check_source(kind: &str, own: &Value, field: &str, causes: &mut Causes) {
    let target = &own["target"];
    let is_of_resource = matches!(kind, "Resource" | "ContainerResource");
    if is_of_resource && own.text("/name").is_empty() {
        causes.required(format!("{field}.name"), "must specify a resource name");
    }
    if kind == "ContainerResource" && own.text("/container").is_empty() {
        causes.required(format!("{field}.container"), "must specify a container");
    }
    if !is_of_resource && own.text("/metric/name").is_empty() {
        causes.required(format!("{field}.metric.name"), "must specify a metric name");
    }
    check_target(target, &format!("{field}.target"), causes);
    let (percent, average) = (target.has("/averageUtilization"), target.has("/averageValue"));
    match (is_of_resource, percent, average, target.has("/value")) {
        (true, false, false, _) => {
            let detail = "must set either a target raw value or a target utilization";
            causes.required(format!("{field}.target.averageUtilization"), detail);
        }
        (true, true, true, _) => {
            let detail = "may not set both a target raw value and a target utilization";
            causes.forbidden(format!("{field}.target.averageValue"), detail);
        }
        (false, _, false, false) => {
            let detail = match kind {
                "Pods" => "must specify a positive target averageValue",
                _ => "must set either a target value for metric or a per-pod target",
            };
            causes.required(format!("{field}.target.averageValue"), detail);
        }
        _ => {}
    }
}

fn check_target(target: &Value, field: &str, causes: &mut Causes) {
    match target.text("/type") {
        "Utilization" | "Value" | "AverageValue" => {}
        "" => causes.required(format!("{field}.type"), "must specify a metric target type"),
        _ => {
            let detail = "must be either Utilization, Value, or AverageValue";
            causes.invalid(format!("{field}.type"), &target["type"], detail);
        }
    }
    let percent = &target["averageUtilization"];
    if percent.as_i64().is_some_and(|percent| percent < 1) {
        causes.invalid(format!("{field}.averageUtilization"), percent, "must be greater than 0");
    }
    for amount in ["averageValue", "value"] {
        let text = target[amount].as_str().and_then(Quantity::parse);
        if text.is_some_and(|amount| amount.is_negative() || amount.is_zero()) {
            causes.invalid(format!("{field}.{amount}"), &target[amount], "must be positive");
        }
    }
}

pub(super) fn check_behavior(behavior: &Value, causes: &mut Causes) {
    for way in ["scaleUp", "scaleDown"] {
        let rules = &behavior[way];
        if !rules.is_object() {
            continue;
        }
        let field = format!("spec.behavior.{way}");
        let window = "stabilizationWindowSeconds";
        check_number(&rules[window], (0, 3600), format!("{field}.{window}"), causes);
        let select = &rules["selectPolicy"];
        let ways = ["Disabled", "Max", "Min"];
        if !select.is_null() && !ways.contains(&select.as_str().unwrap_or("")) {
            causes.unsupported(format!("{field}.selectPolicy"), select, &ways);
        }
        let tolerance = rules["tolerance"].as_str().and_then(Quantity::parse);
        if tolerance.is_some_and(Quantity::is_negative) {
            let detail = "must be greater than or equal to 0";
            causes.invalid(format!("{field}.tolerance"), &rules["tolerance"], detail);
        }
        let policies = rules.list("/policies");
        if policies.is_empty() {
            causes.required(format!("{field}.policies"), "must specify at least one Policy");
        }
        for (index, policy) in policies.iter().enumerate() {
            let field = format!("{field}.policies[{index}]");
            let kinds = ["Percent", "Pods"];
            if !kinds.contains(&policy.text("/type")) {
                causes.unsupported(format!("{field}.type"), &policy["type"], &kinds);
            }
            check_number(&policy["value"], (1, i64::MAX), format!("{field}.value"), causes);
            let period = "periodSeconds";
            check_number(&policy[period], (1, 1800), format!("{field}.{period}"), causes);
        }
    }
}

fn check_number(value: &Value, (least, most): (i64, i64), field: String, causes: &mut Causes) {
    let Some(number) = value.as_i64() else { return };
    if number < least {
        let detail = match least {
            0 => "must be greater than or equal to zero",
            _ => "must be greater than zero",
        };
        causes.invalid(field, value, detail);
    } else if number > most {
        causes.invalid(field, value, format!("must be less than or equal to {most}"));
    }
}

#[test]
fn what_is_wrong_with_one() {
    let policies = json!([{"type": "Pods", "value": 0, "periodSeconds": 1801}]);
    let cases = [
        (json!({}), ""),
        (
            json!({"metrics": [{}]}),
            "spec.metrics[0].type: Required value: must specify a metric source type",
        ),
        (
            json!({"metrics": [{"type": "Resource"}]}),
            "spec.metrics[0].resource: Required value: must populate information for the given metric source",
        ),
        (
            json!({"metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 0}}}]}),
            "spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0",
        ),
        (
            json!({"metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization"}}}]}),
            "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target \
             raw value or a target utilization",
        ),
        (
            json!({"metrics": [{"type": "Magic"}]}),
            "spec.metrics[0].type: Unsupported value: \"Magic\": supported values: \"ContainerResource\", \
             \"External\", \"Object\", \"Pods\", \"Resource\"",
        ),
        (json!({"behavior": {}}), ""),
        (
            json!({"behavior": {"scaleUp": {"policies": policies, "selectPolicy": "Max",
                "stabilizationWindowSeconds": 3601}}}),
            "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 3601: must be less than or \
             equal to 3600\n\
             spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero\n\
             spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or \
             equal to 1800",
        ),
        (
            json!({"scaleTargetRef": {"name": "../x"}}),
            "spec.scaleTargetRef.name: Invalid value: \"../x\": may not contain '/'",
        ),
    ];
    for (mut spec, want) in cases {
        default(&mut spec);
        let mut causes = Causes::default();
        check_segment(&spec["scaleTargetRef"], "name", &mut causes);
        check_metrics(&spec, &mut causes);
        check_behavior(&spec["behavior"], &mut causes);
        let all: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(all.join("\n"), want, "{spec}");
    }
}
