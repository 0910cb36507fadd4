//! What the failure of a pod means, as the Job's policy says.

use k8s_openapi::api::batch::v1::PodFailurePolicyRule;
use k8s_openapi::api::core::v1::Pod;

use super::{Work, pod};

/// What is to be done about a failed pod.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    Count,
    Ignore,
    FailIndex,
    FailJob(String),
}

/// The action of the first rule that matches.
pub(super) fn action(job: Work<'_>, pod: &Pod) -> Action {
    let rules = job.spec.pod_failure_policy.iter().flat_map(|policy| &policy.rules);
    let matched = (0..).zip(rules).find_map(|(number, rule)| {
        Some((number, rule, by_exit_code(rule, pod).or_else(|| by_condition(rule, pod))?))
    });
    let Some((number, rule, why)) = matched else { return Action::Count };
    match rule.action.as_str() {
        "Ignore" => Action::Ignore,
        "FailIndex" => Action::FailIndex,
        "FailJob" => Action::FailJob(format!("{why} matching FailJob rule at index {number}")),
        _ => Action::Count,
    }
}

fn by_exit_code(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let wanted = rule.on_exit_codes.as_ref()?;
    let mut ended = pod::containers(pod).filter_map(|container| {
        let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
        Some((container.name.as_str(), code))
    });
    let (container, code) = ended.find(|(name, code)| {
        let is_meant = wanted.container_name.as_deref().is_none_or(|own| own == *name);
        let listed = wanted.values.contains(code);
        is_meant && *code != 0 && (wanted.operator == "In") == listed
    })?;
    Some(format!("Container {container} for pod {} failed with exit code {code}", title(pod)))
}

fn by_condition(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let wanted = rule.on_pod_conditions.as_ref()?;
    let found = pod.status.as_ref()?.conditions.as_ref()?;
    let matched = wanted.iter().find(|wanted| {
        found.iter().any(|own| {
            own.type_ == wanted.type_ && own.status == wanted.status.as_deref().unwrap_or("True")
        })
    })?;
    Some(format!("Pod {} has condition {}", title(pod), matched.type_))
}

fn title(pod: &Pod) -> String {
    let (namespace, name) = (pod.metadata.namespace.as_deref(), pod.metadata.name.as_deref());
    format!("{}/{}", namespace.unwrap_or(""), name.unwrap_or(""))
}
