//! LimitRange: what pods may have.

use std::collections::BTreeSet;

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, children, default_to};
use serde_json::Value;

use crate::kinds::plain::{PlainKind, namespaced, plain};
use crate::quantity::exact::{Quantity, amounts};

pub(super) static KIND: PlainKind = PlainKind {
    default,
    check: validate,
    ..plain(namespaced("", "LimitRange", "limitranges", "limitrange").short(&["limits"]))
};

/// Limits that follow from other limits.
fn default(range: &mut Value) {
    let of_container = |item: &&mut Value| item.text("/type") == "Container";
    for item in children(child(range, "spec"), "limits").filter(of_container) {
        for (from, to) in
            [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")]
        {
            let known = item[from].as_object().cloned().unwrap_or_default();
            for (name, amount) in known {
                default_to(child(item, to), &name, amount);
            }
        }
    }
}

fn validate(range: &Value, _: Option<&Value>, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for (index, item) in range.list("/spec/limits").iter().enumerate() {
        let (field, kind) = (format!("spec.limits[{index}]"), item.text("/type"));
        if !seen.insert(kind) {
            causes.duplicate(format!("{field}.type"), &item["type"]);
        }
        if kind == "Pod" {
            for forbidden in ["default", "defaultRequest"] {
                if item[forbidden].as_object().is_some_and(|own| !own.is_empty()) {
                    let why = "may not be specified when `type` is 'Pod'";
                    causes.forbidden(format!("{field}.{forbidden}"), why);
                }
            }
        }
        let storage = ["min", "max"].iter().any(|side| item[side].get("storage").is_some());
        if kind == "PersistentVolumeClaim" && !storage {
            let why =
                "either minimum or maximum storage value is required, but neither was provided";
            causes.required(format!("{field}.limits"), why);
        }
        validate_order(item, &field, causes);
    }
}

/// What must not be more than something else: two fields, where that is said, of which it shows, and
/// the words for both.
const ORDER: [(&str, &str, &str, &str); 6] = [
    ("min", "max", "min", "min value {} is greater than max value {}"),
    (
        "min",
        "defaultRequest",
        "defaultRequest",
        "min value {} is greater than default request value {}",
    ),
    (
        "defaultRequest",
        "max",
        "defaultRequest",
        "default request value {} is greater than max value {}",
    ),
    (
        "defaultRequest",
        "default",
        "defaultRequest",
        "default request value {} is greater than default limit value {}",
    ),
    ("min", "default", "default", "min value {} is greater than default value {}"),
    ("default", "max", "default", "default value {} is greater than max value {}"),
];

fn validate_order(item: &Value, field: &str, causes: &mut Causes) {
    for (less, more, at, words) in ORDER {
        let more = amounts(&item[more]);
        for (name, least) in amounts(&item[less]) {
            if let Some(most) = more.get(&name).filter(|most| **most < least) {
                let why = words.replacen("{}", &least.to_string(), 1);
                let why = why.replacen("{}", &most.to_string(), 1);
                causes.invalid(format!("{field}.{at}[{name}]"), &item[at][&name], why);
            }
        }
    }
    for (name, ratio) in amounts(&item["maxLimitRequestRatio"]) {
        let (at, shown) =
            (format!("{field}.maxLimitRequestRatio[{name}]"), &item["maxLimitRequestRatio"][&name]);
        if ratio < Quantity::count(1) {
            causes.invalid(&at, shown, format!("ratio {ratio} is less than 1"));
        }
        let side =
            |side: &str| amounts(&item[side]).get(&name).copied().filter(|own| !own.is_zero());
        if let (Some(least), Some(most)) = (side("min"), side("max")) {
            let widest = most.approximate() / least.approximate();
            if ratio.approximate() > widest {
                let why = format!("ratio {ratio} is greater than max/min = {widest:.6}");
                causes.invalid(&at, shown, why);
            }
        }
    }
}

#[test]
fn limits_that_contradict_each_other() {
    use serde_json::json;
    let cases = [
        (json!([{"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2"}}]), ""),
        (
            json!([{"type": "Pod", "min": {"cpu": "3"}, "max": {"cpu": "2"}}]),
            "spec.limits[0].min[cpu]: Invalid value: \"3\": min value 3 is greater than max value 2",
        ),
        (
            json!([{"type": "Container", "default": {"cpu": "3"}, "max": {"cpu": "2"}}]),
            "spec.limits[0].default[cpu]: Invalid value: \"3\": default value 3 is greater than max value 2",
        ),
        (
            json!([{"type": "Pod", "default": {"cpu": "3"}}]),
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
        ),
        (
            json!([{"type": "Pod"}, {"type": "Pod"}]),
            "spec.limits[1].type: Duplicate value: \"Pod\"",
        ),
        (
            json!([{"type": "PersistentVolumeClaim"}]),
            "spec.limits[0].limits: Required value: either minimum or maximum storage value is \
             required, but neither was provided",
        ),
        (
            json!([{"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}}]),
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1",
        ),
    ];
    for (limits, want) in cases {
        let mut causes = Causes::default();
        validate(&json!({"spec": {"limits": limits}}), None, &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(found.join("; "), want, "{limits}");
    }
}

#[test]
fn limits_follow_from_limits() {
    use serde_json::json;
    let mut range = json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"},
        "default": {"memory": "1Gi"}, "min": {"pids": "1", "cpu": "1"}}, {"type": "Pod",
        "max": {"cpu": "2"}}]}});
    default(&mut range);
    let item = &range["spec"]["limits"][0];
    assert_eq!(item["default"], json!({"cpu": "2", "memory": "1Gi"}));
    assert_eq!(item["defaultRequest"], json!({"cpu": "2", "memory": "1Gi", "pids": "1"}));
    assert_eq!(range["spec"]["limits"][1].get("default"), None);
}
