//! What Prometheus is told to make of the labels that discovery gives to a target: which targets are meant,
//! and how they are called afterwards.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::endpoint::Endpoint;
use super::scrape::ServiceMonitor;

/// What discovery puts before the names of its labels.
pub(super) const META: &str = "__meta_kubernetes_";

/// One after the other.
#[derive(Debug, Default)]
pub(super) struct Rules(pub(super) Vec<Value>);

impl Rules {
    fn keep(&mut self, sources: &[String], regex: &str) {
        self.0.push(json!({"action": "keep", "source_labels": sources, "regex": regex}));
    }

    fn drop(&mut self, sources: &[String], regex: &str) {
        self.0.push(json!({"action": "drop", "source_labels": sources, "regex": regex}));
    }

    fn copy(&mut self, source: &str, target: &str) {
        let from = [format!("{META}{source}")];
        self.0.push(json!({"source_labels": from, "regex": "(.+)", "target_label": target}));
    }

    fn set(&mut self, target: &str, value: &str) {
        self.0.push(json!({"target_label": target, "replacement": value}));
    }
}

/// The name of a label as Prometheus can write it.
pub(super) fn sanitized(name: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
    name.chars().map(plain).collect()
}

/// A text as a regular expression that means itself.
fn literal(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if ".+*?()[]{}|^$\\".contains(letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

/// Only Services with these labels.
pub(super) fn of_selector(selector: &LabelSelector, rules: &mut Rules) {
    let label = |name: &str| format!("{META}service_label_{}", sanitized(name));
    let present = |name: &str| format!("{META}service_labelpresent_{}", sanitized(name));
    for (name, value) in selector.match_labels.iter().flatten() {
        rules.keep(&[label(name), present(name)], &format!("({});true", literal(value)));
    }
    for expression in selector.match_expressions.iter().flatten() {
        let name = &expression.key;
        let values = expression.values.iter().flatten().map(|value| literal(value));
        let among = format!("({});true", values.collect::<Vec<_>>().join("|"));
        match expression.operator.as_str() {
            "In" => rules.keep(&[label(name), present(name)], &among),
            "NotIn" => rules.drop(&[label(name), present(name)], &among),
            "Exists" => rules.keep(&[present(name)], "true"),
            "DoesNotExist" => rules.drop(&[present(name)], "true"),
            _ => {}
        }
    }
}

/// Only that port, of pods that have not ended.
pub(super) fn of_endpoint(endpoint: &Endpoint, rules: &mut Rules) {
    let meta = |name: &str| [format!("{META}{name}")];
    match (endpoint.port(), endpoint.target_port()) {
        (Some(name), _) => rules.keep(&meta("endpointslice_port_name"), &literal(name)),
        (None, Some(IntOrString::String(name))) => {
            rules.keep(&meta("pod_container_port_name"), &literal(&name));
        }
        (None, Some(IntOrString::Int(number))) => {
            rules.keep(&meta("pod_container_port_number"), &number.to_string());
        }
        (None, None) => {}
    }
    if endpoint.only_running() {
        rules.drop(&meta("pod_phase"), "(Failed|Succeeded)");
    }
}

/// How a target is called.
pub(super) fn of_labels(monitor: &ServiceMonitor, endpoint: &Endpoint, rules: &mut Rules) {
    rules.copy("pod_node_name", "node");
    rules.copy("namespace", "namespace");
    rules.copy("service_name", "service");
    rules.copy("pod_name", "pod");
    rules.copy("pod_container_name", "container");
    for label in &monitor.spec.target_labels {
        rules.copy(&format!("service_label_{}", sanitized(label)), &sanitized(label));
    }
    for label in &monitor.spec.pod_target_labels {
        rules.copy(&format!("pod_label_{}", sanitized(label)), &sanitized(label));
    }
    rules.copy("service_name", "job");
    if let Some(label) = &monitor.spec.job_label {
        rules.copy(&format!("service_label_{}", sanitized(label)), "job");
    }
    match (endpoint.port(), endpoint.target_port()) {
        (Some(name), _) => rules.set("endpoint", name),
        (None, Some(IntOrString::String(name))) => rules.set("endpoint", &name),
        (None, Some(IntOrString::Int(number))) => rules.set("endpoint", &number.to_string()),
        (None, None) => {}
    }
}
