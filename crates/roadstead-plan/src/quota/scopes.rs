//! Which objects a quota is about: only pods have scopes.

use roadstead_api::kinds::pod::service_class;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use super::usage::{ObjectKind, PODS};

/// Whether a quota is about some of its objects only.
pub(super) fn has_some(quota: &Value) -> bool {
    !quota.list("/spec/scopes").is_empty()
        || !quota.list("/spec/scopeSelector/matchExpressions").is_empty()
}

/// Whether a quota is about an object: all its scopes match.
pub(super) fn matches(quota: &Value, kind: &ObjectKind<'_>, object: &Value) -> bool {
    if !has_some(quota) {
        return true;
    }
    let scopes = quota.list("/spec/scopes").iter().filter_map(Value::as_str);
    let mut selectors = quota.list("/spec/scopeSelector/matchExpressions").iter();
    *kind == PODS
        && scopes.into_iter().all(|scope| is_in(object, scope, "Exists", &[]))
        && selectors.all(|one| {
            is_in(object, one.text("/scopeName"), one.text("/operator"), one.list("/values"))
        })
}

fn is_in(pod: &Value, scope: &str, operator: &str, values: &[Value]) -> bool {
    match scope {
        "Terminating" => is_terminating(pod),
        "NotTerminating" => !is_terminating(pod),
        "BestEffort" => service_class(pod) == "BestEffort",
        "NotBestEffort" => service_class(pod) != "BestEffort",
        "CrossNamespacePodAffinity" => looks_across_namespaces(pod),
        "PriorityClass" => {
            let class = pod.text("/spec/priorityClassName");
            let named = values.iter().any(|value| value == class);
            match operator {
                "Exists" => !class.is_empty(),
                "DoesNotExist" => class.is_empty(),
                "In" => !class.is_empty() && named,
                "NotIn" => class.is_empty() || !named,
                _ => false,
            }
        }
        _ => false,
    }
}

/// Whether the pod has a time after which it is ended.
fn is_terminating(pod: &Value) -> bool {
    pod.has("/spec/activeDeadlineSeconds") && pod.int("/spec/activeDeadlineSeconds") >= 0
}

fn looks_across_namespaces(pod: &Value) -> bool {
    let across =
        |term: &Value| !term.list("/namespaces").is_empty() || term.has("/namespaceSelector");
    ["podAffinity", "podAntiAffinity"].iter().any(|side| {
        let own = &pod["spec"]["affinity"][side];
        own.list("/requiredDuringSchedulingIgnoredDuringExecution").iter().any(across)
            || own
                .list("/preferredDuringSchedulingIgnoredDuringExecution")
                .iter()
                .any(|weighted| across(&weighted["podAffinityTerm"]))
    })
}
