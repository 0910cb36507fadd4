//! When a container is started again, by its own rules: when it has ended, and when what it may use changes.

use std::collections::BTreeSet;

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

const POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
const ACTIONS: [&str; 2] = ["Restart", "RestartAllContainers"];
const OPERATORS: [&str; 2] = ["In", "NotIn"];
const RESIZED: [&str; 2] = ["cpu", "memory"];
const RESIZE_POLICIES: [&str; 2] = ["NotRequired", "RestartContainer"];
/// So many rules may a container have, and a rule so many exit codes.
const MOST_RULES: usize = 20;
const MOST_CODES: usize = 255;

/// Says what is wrong with the policies and rules of one container, of a pod with this policy.
pub(super) fn validate(container: &Value, field: &str, of_pod: &Value, causes: &mut Causes) {
    let rules = container.list("/restartPolicyRules");
    let policy = &container["restartPolicy"];
    match policy.as_str() {
        None if !rules.is_empty() => {
            let detail = "must specify restartPolicy when restart rules are used";
            causes.required(format!("{field}.restartPolicy"), detail);
        }
        Some(name) if !POLICIES.contains(&name) => {
            causes.unsupported(format!("{field}.restartPolicy"), policy, &POLICIES);
        }
        _ => {}
    }
    if rules.len() > MOST_RULES {
        causes.too_many(format!("{field}.restartPolicyRules"), rules.len(), MOST_RULES as u64);
    }
    for (number, rule) in rules.iter().enumerate() {
        validate_rule(rule, &format!("{field}.restartPolicyRules[{number}]"), causes);
    }
    validate_resizes(
        container.list("/resizePolicy"),
        &format!("{field}.resizePolicy"),
        of_pod,
        causes,
    );
}

fn validate_rule(rule: &Value, field: &str, causes: &mut Causes) {
    if !ACTIONS.contains(&rule.text("/action")) {
        causes.unsupported(format!("{field}.action"), &json!(rule.text("/action")), &ACTIONS);
    }
    let codes = &rule["exitCodes"];
    let field = format!("{field}.exitCodes");
    if !codes.is_object() {
        return causes.required(field, "must be specified");
    }
    if !OPERATORS.contains(&codes.text("/operator")) {
        causes.unsupported(
            format!("{field}.operator"),
            &json!(codes.text("/operator")),
            &OPERATORS,
        );
    }
    let count = codes.list("/values").len();
    if count > MOST_CODES {
        causes.too_many(format!("{field}.values"), count, MOST_CODES as u64);
    }
}

fn validate_resizes(policies: &[Value], field: &str, of_pod: &Value, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for (number, policy) in policies.iter().enumerate() {
        let name = policy.text("/resourceName");
        if !seen.insert(name) {
            causes.duplicate(format!("{field}[{number}]"), &json!(name));
        }
        for (value, known) in [(name, &RESIZED), (policy.text("/restartPolicy"), &RESIZE_POLICIES)]
        {
            match value {
                "" => causes.required(field, ""),
                value if !known.contains(&value) => {
                    causes.unsupported(field, &json!(value), known);
                }
                _ => {}
            }
        }
        if of_pod == "Never" && policy["restartPolicy"] != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            causes.invalid(field, &policy["restartPolicy"], detail);
        }
    }
}

#[test]
fn rules_of_containers() {
    let rule = |action: &str, operator: &str, count: i32| {
        let values: Vec<_> = (0..count).collect();
        json!({"restartPolicy": "Never", "restartPolicyRules": [
            {"action": action, "exitCodes": {"operator": operator, "values": values}}]})
    };
    let resize = |name: &str, policy: &str| json!({"resizePolicy": [{"resourceName": name, "restartPolicy": policy}]});
    let mut many = rule("Restart", "In", 1);
    many["restartPolicyRules"] = vec![many["restartPolicyRules"][0].clone(); 21].into();
    for (container, want) in [
        (json!({}), ""),
        (json!({"restartPolicy": "OnFailure"}), ""),
        (json!({"restartPolicy": "Sometimes"}), "restartPolicy"),
        (rule("Restart", "In", 255), ""),
        (rule("RestartAllContainers", "NotIn", 1), ""),
        (rule("Reboot", "In", 1), "restartPolicyRules[0].action"),
        (rule("Restart", "Above", 1), "restartPolicyRules[0].exitCodes.operator"),
        (rule("Restart", "In", 256), "restartPolicyRules[0].exitCodes.values"),
        (many, "restartPolicyRules"),
        (
            json!({"restartPolicyRules": [{"action": "Restart"}]}),
            "restartPolicy restartPolicyRules[0].exitCodes",
        ),
        (resize("cpu", "NotRequired"), ""),
        (resize("memory", "RestartContainer"), "resizePolicy"),
        (resize("gpu", "NotRequired"), "resizePolicy"),
        (resize("", "NotRequired"), "resizePolicy"),
    ] {
        let mut causes = Causes::default();
        validate(&container, "c", &json!("Never"), &mut causes);
        let found: Vec<_> = causes.0.iter().map(|cause| cause.field.as_str()).collect();
        let want: Vec<_> = want.split_whitespace().map(|one| format!("c.{one}")).collect();
        assert_eq!(found, want, "{container}");
    }
    let mut causes = Causes::default();
    validate(&resize("memory", "RestartContainer"), "c", &json!("Always"), &mut causes);
    assert!(causes.0.is_empty());
}
