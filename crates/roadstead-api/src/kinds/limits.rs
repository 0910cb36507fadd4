//! LimitRange and PriorityClass: what pods may have, and who goes first.

use serde_json::Value;

use crate::invalid::Causes;
use crate::look::{Look, child, children, default_to};

/// The highest priority that users can give.
const HIGHEST: i64 = 1_000_000_000;

/// Limits that follow from other limits.
pub fn default(range: &mut Value) {
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

/// Pods have been placed by what a class says.
pub fn validate_priority_class(class: &Value, old: Option<&Value>, causes: &mut Causes) {
    let system = class.text("/metadata/name").starts_with("system-");
    let known =
        [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];
    let own = (class.text("/metadata/name"), class.int("/value"));
    if system && !known.contains(&own) {
        let why = format!(
            "priority class names with 'system-' prefix are reserved for system use only. error: \
             {} is not a known system priority class",
            own.0
        );
        causes.forbidden("metadata.name", &why);
    } else if !system && own.1 > HIGHEST {
        let why = "maximum allowed value of a user defined priority is 1000000000";
        causes.forbidden("value", why);
    }
    let policy = &class["preemptionPolicy"];
    if !["PreemptLowerPriority", "Never"].contains(&policy.as_str().unwrap_or("")) {
        causes.unsupported("preemptionPolicy", policy, &["Never", "PreemptLowerPriority"]);
    }
    let Some(old) = old else { return };
    if old.int("/value") != class.int("/value") {
        causes.forbidden("value", "may not be changed in an update.");
    }
    let before = old["preemptionPolicy"].as_str().unwrap_or("PreemptLowerPriority");
    if before != policy {
        causes.invalid("preemptionPolicy", policy, "field is immutable");
    }
}

#[test]
fn priorities() {
    use serde_json::json;
    let class = |name: &str, value: i64, policy: &str| json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": policy});
    let never = class("a", 1, "Never");
    let cases = [
        (never.clone(), None, ""),
        (class("a", 1_000_000_001, "Never"), None, "value: Forbidden: maximum allowed value"),
        (class("system-node-critical", 2_000_001_000, "Never"), None, ""),
        (class("system-mine", 1, "Never"), None, "metadata.name: Forbidden: priority class names"),
        (class("a", 1, "Odd"), None, "preemptionPolicy: Unsupported value: \"Odd\""),
        (
            class("a", 2, "Never"),
            Some(&never),
            "value: Forbidden: may not be changed in an update.",
        ),
        (class("a", 1, "PreemptLowerPriority"), Some(&never), "preemptionPolicy: Invalid value"),
    ];
    for (class, old, want) in cases {
        let mut causes = Causes::default();
        validate_priority_class(&class, old, &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        let found = found.join("; ");
        assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{class}: {found}");
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
