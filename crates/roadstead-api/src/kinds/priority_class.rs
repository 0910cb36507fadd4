//! PriorityClass: who goes first.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, default_to};
use serde_json::Value;

use crate::kinds::plain::{PlainKind, cluster, shown};
use crate::table::{AGE, Cell, Column, NAME};

pub(super) static KIND: PlainKind = PlainKind {
    default: |class| {
        default_to(class, "preemptionPolicy", "PreemptLowerPriority");
    },
    check: validate,
    ..shown(
        cluster("scheduling.k8s.io", "PriorityClass", "priorityclasses", "priorityclass")
            .short(&["pc"]),
        &[
            NAME,
            (Column::int("Value"), Cell::Int("/value")),
            (Column::text("Global-Default"), Cell::Flag("/globalDefault")),
            AGE,
            (Column::text("PreemptionPolicy"), Cell::Plain("/preemptionPolicy")),
        ],
    )
};

/// The highest priority that users can give.
const HIGHEST: i64 = 1_000_000_000;

/// Pods have been placed by what a class says.
fn validate(class: &Value, old: Option<&Value>, causes: &mut Causes) {
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
        validate(&class, old, &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        let found = found.join("; ");
        assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{class}: {found}");
    }
}
