//! ResourceQuota: how much of everything a namespace may have.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::kinds::plain::{PlainKind, namespaced, shown};
use crate::kinds::{cells, resource_names};
use crate::table::{AGE, Cell, Column, NAME};

pub(super) static KIND: PlainKind = PlainKind {
    check: validate,
    ..shown(
        namespaced("", "ResourceQuota", "resourcequotas", "resourcequota")
            .short(&["quota"])
            .with_status(),
        &[
            NAME,
            (Column::text("Request"), Cell::Made(|quota| cells::quota(quota, false))),
            (Column::text("Limit"), Cell::Made(|quota| cells::quota(quota, true))),
            AGE,
        ],
    )
};

const SCOPES: [&str; 6] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
];

fn validate(quota: &Value, old: Option<&Value>, causes: &mut Causes) {
    for (name, amount) in quota.fields("/spec/hard") {
        let field = format!("spec.hard[{name}]");
        if !resource_names::is_quota(name) {
            let why = "must be a standard resource for quota";
            causes.invalid(&field, &name.into(), why);
        }
        resource_names::validate_amount(name, amount, &field, causes);
    }
    validate_scopes(quota, causes);
    let Some(old) = old else { return };
    if old.list("/spec/scopes") != quota.list("/spec/scopes") {
        causes.invalid("spec.scopes", &quota["spec"]["scopes"], "field is immutable");
    }
}

fn validate_scopes(quota: &Value, causes: &mut Causes) {
    let scopes = quota.list("/spec/scopes");
    let named: Vec<_> = scopes.iter().filter_map(Value::as_str).collect();
    for scope in &named {
        if !SCOPES.contains(scope) {
            causes.invalid("spec.scopes", &quota["spec"]["scopes"], "unsupported scope");
        }
        for (limit, _) in quota.fields("/spec/hard") {
            if *scope == "BestEffort" && limit != "pods" && limit != "count/pods"
                || !resource_names::is_of_pods(limit)
            {
                let why = "unsupported scope applied to resource";
                causes.invalid("spec.scopes", &quota["spec"]["scopes"], why);
            }
        }
    }
    for pair in [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]] {
        if pair.iter().all(|one| named.contains(one)) {
            causes.invalid("spec.scopes", &quota["spec"]["scopes"], "conflicting scopes");
        }
    }
    let expressions = quota.list("/spec/scopeSelector/matchExpressions");
    for (index, one) in expressions.iter().enumerate() {
        let field = format!("spec.scopeSelector.matchExpressions[{index}]");
        let (scope, operator) = (one.text("/scopeName"), one.text("/operator"));
        if !SCOPES.contains(&scope) {
            causes.invalid(format!("{field}.scopeName"), &one["scopeName"], "unsupported scope");
        }
        if scope != "PriorityClass" && operator != "Exists" {
            let why = "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, \
                ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, \
                ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            causes.invalid(format!("{field}.operator"), &one["operator"], why);
        }
        let values = one.list("/values");
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                causes.required(format!("{field}.values"), why);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                causes.invalid(format!("{field}.values"), &one["values"], why);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => causes.invalid(
                format!("{field}.operator"),
                &one["operator"],
                "not a valid selector operator",
            ),
        }
    }
}

#[test]
fn what_is_refused() {
    use serde_json::json;
    let quota = |spec: Value| json!({"spec": spec});
    let old = quota(json!({"scopes": ["Terminating"]}));
    let cases = [
        (
            json!({"hard": {"pods": "1", "count/things.example.com": "2", "requests.nvidia.com/gpu": 1}}),
            None,
            "",
        ),
        (
            json!({"hard": {"pods": "1.5"}}),
            None,
            "spec.hard[pods]: Invalid value: \"1500m\": must be an integer",
        ),
        (
            json!({"hard": {"pods": "-1"}}),
            None,
            "spec.hard[pods]: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            json!({"hard": {"pod": "1"}}),
            None,
            "spec.hard[pod]: Invalid value: \"pod\": must be a standard resource for quota",
        ),
        (
            json!({"scopes": ["Odd"]}),
            None,
            "spec.scopes: Invalid value: [\"Odd\"]: unsupported scope",
        ),
        (
            json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}),
            None,
            "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource",
        ),
        (
            json!({"scopes": ["Terminating", "NotTerminating"]}),
            None,
            "spec.scopes: Invalid value: [\"Terminating\",\"NotTerminating\"]: conflicting scopes",
        ),
        (json!({}), Some(&old), "spec.scopes: Invalid value: null: field is immutable"),
        (
            json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}),
            None,
            "spec.scopeSelector.matchExpressions[0].values: Required value: must be at least one value",
        ),
    ];
    for (spec, old, want) in cases {
        let mut causes = Causes::default();
        validate(&quota(spec.clone()), old, &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        let found = found.join("; ");
        assert!(found.starts_with(want) && found.is_empty() == want.is_empty(), "{spec}: {found}");
    }
}
