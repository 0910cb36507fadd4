//! How traffic is spread: affinity, traffic policies, distribution, and what only load balancers
//! have.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use super::{is_reachable_from_outside, needs_health_check};
use crate::ip;
use crate::names;

const ONLY_BALANCERS: &str = "may only be used when `type` is 'LoadBalancer'";
const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// Checks that two annotations for the same thing agree.
pub(super) fn validate_annotations(object: &Value, causes: &mut Causes) {
    let annotation = |key: &str| object["metadata"]["annotations"].get(key);
    if let (Some(hints), Some(mode)) = (annotation(HINTS), annotation(MODE))
        && hints != mode
    {
        let detail = format!("must match annotations[{HINTS}] when both are specified");
        causes.invalid(format!("metadata.annotations[{MODE}]"), mode, detail);
    }
}

/// Checks session affinity.
pub(super) fn validate_affinity(spec: &Value, causes: &mut Causes) {
    match spec.text("/sessionAffinity") {
        "None" => {}
        "ClientIP" => {
            let timeout = spec.int("/sessionAffinityConfig/clientIP/timeoutSeconds");
            if !(1..=86_400).contains(&timeout) {
                causes.invalid(
                    "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                    &json!(timeout),
                    "must be greater than 0 and less than 86400",
                );
            }
        }
        _ => {
            let supported = ["ClientIP", "None"];
            causes.unsupported("spec.sessionAffinity", &spec["sessionAffinity"], &supported);
        }
    }
}

/// Checks what must not change.
pub(super) fn validate_change(old: &Value, new: &Value, causes: &mut Causes) {
    let balanced = |spec: &Value| spec.text("/type") == "LoadBalancer";
    if balanced(old) && balanced(new) && old["loadBalancerClass"] != new["loadBalancerClass"] {
        let value = &new["loadBalancerClass"];
        causes.invalid("spec.loadBalancerClass", value, "may not change once set");
    }
    if needs_health_check(old)
        && needs_health_check(new)
        && old.int("/healthCheckNodePort") != new.int("/healthCheckNodePort")
    {
        causes.forbidden("spec.healthCheckNodePort", "field is immutable");
    }
}

/// Checks the fields that only load balancers have.
pub(super) fn validate_load_balancer(object: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &object["spec"];
    let balanced = spec.text("/type") == "LoadBalancer";
    if spec.list("/loadBalancerSourceRanges").is_empty() {
        validate_source_annotation(object, old, balanced, causes);
    } else {
        validate_sources(spec, old, balanced, causes);
    }
    if spec.has("/allocateLoadBalancerNodePorts") && !balanced {
        causes.forbidden("spec.allocateLoadBalancerNodePorts", ONLY_BALANCERS);
    }
    match spec["loadBalancerClass"].as_str() {
        Some(_) if !balanced => causes.forbidden("spec.loadBalancerClass", ONLY_BALANCERS),
        Some(class) => {
            names::check(names::key, "spec.loadBalancerClass", class, causes);
        }
        None => {}
    }
}

fn validate_sources(spec: &Value, old: Option<&Value>, balanced: bool, causes: &mut Causes) {
    // The capital letter is upstream's.
    let field = "spec.LoadBalancerSourceRanges";
    if !balanced {
        causes.forbidden(field, ONLY_BALANCERS);
    }
    let trimmed = |value: &'_ Value| value.as_str().unwrap_or("").trim().to_owned();
    let known = old.map(|old| old.list("/spec/loadBalancerSourceRanges")).unwrap_or_default();
    let known: Vec<_> = known.iter().map(trimmed).collect();
    let known: Vec<_> = known.iter().map(String::as_str).collect();
    for (index, range) in spec.list("/loadBalancerSourceRanges").iter().enumerate() {
        ip::check_network(&format!("{field}[{index}]"), &trimmed(range), &known, causes);
    }
}

fn validate_source_annotation(
    object: &Value,
    old: Option<&Value>,
    balanced: bool,
    causes: &mut Causes,
) {
    let of = |object: &Value| object["metadata"]["annotations"][RANGES].as_str().map(str::to_owned);
    let Some(value) = of(object) else { return };
    let field = format!("metadata.annotations[{RANGES}]");
    if !balanced {
        causes.forbidden(field.clone(), ONLY_BALANCERS);
    }
    if old.is_some_and(|old| of(old).as_ref() == Some(&value)) || value.trim().is_empty() {
        return;
    }
    for range in value.split(',') {
        ip::check_network(&field, range.trim(), &[], causes);
    }
}

/// Checks traffic policies, the health check port and the distribution.
pub(super) fn validate_traffic(spec: &Value, causes: &mut Causes) {
    let policies = ["Cluster", "Local"];
    let outside = spec.text("/externalTrafficPolicy");
    let reachable = is_reachable_from_outside(spec);
    if !reachable && !outside.is_empty() {
        let detail = "may only be set for externally-accessible services";
        causes.invalid("spec.externalTrafficPolicy", &json!(outside), detail);
    } else if reachable && !policies.contains(&outside) {
        causes.unsupported("spec.externalTrafficPolicy", &json!(outside), &policies);
    }
    validate_health_check(spec, causes);
    let inside = &spec["internalTrafficPolicy"];
    if !inside.is_null() && !policies.contains(&inside.as_str().unwrap_or("")) {
        causes.unsupported("spec.internalTrafficPolicy", inside, &policies);
    }
    let distribution = &spec["trafficDistribution"];
    let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    if !distribution.is_null() && !known.contains(&distribution.as_str().unwrap_or("")) {
        causes.unsupported("spec.trafficDistribution", distribution, &known);
    }
}

fn validate_health_check(spec: &Value, causes: &mut Causes) {
    let field = "spec.healthCheckNodePort";
    let port = spec.int("/healthCheckNodePort");
    match (needs_health_check(spec), port) {
        (false, 0) | (true, 1..=65535) => {}
        (false, _) => {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is \
                 'Local'";
            causes.invalid(field, &json!(port), detail);
        }
        (true, 0) => causes.required(field, ""),
        (true, _) => {
            causes.invalid(field, &json!(port), "must be between 1 and 65535, inclusive");
        }
    }
}
