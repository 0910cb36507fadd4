//! The part that pods and the templates of pods share.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::look::{Look, child, children, default_to};
use crate::names;

/// Fills in what a pod's author left out.
pub fn default(spec: &mut Value) {
    default_to(spec, "restartPolicy", "Always");
    default_to(spec, "dnsPolicy", "ClusterFirst");
    default_to(spec, "schedulerName", "default-scheduler");
    default_to(spec, "terminationGracePeriodSeconds", 30);
    child(spec, "securityContext");
    let host_network = spec.flag("/hostNetwork");
    for list in ["initContainers", "containers"] {
        for container in children(spec, list) {
            default_container(container, host_network);
        }
    }
}

fn default_container(container: &mut Value, host_network: bool) {
    child(container, "resources");
    default_to(container, "terminationMessagePath", "/dev/termination-log");
    default_to(container, "terminationMessagePolicy", "File");
    let policy = if is_latest(container.text("/image")) { "Always" } else { "IfNotPresent" };
    default_to(container, "imagePullPolicy", policy);
    for port in children(container, "ports") {
        default_to(port, "protocol", "TCP");
        if host_network {
            let number = port["containerPort"].clone();
            default_to(port, "hostPort", number);
        }
    }
    for probe in ["readinessProbe", "livenessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(probe) else { continue };
        default_to(probe, "timeoutSeconds", 1);
        default_to(probe, "periodSeconds", 10);
        default_to(probe, "successThreshold", 1);
        default_to(probe, "failureThreshold", 3);
        if let Some(http) = probe.get_mut("httpGet") {
            default_to(http, "path", "/");
            default_to(http, "scheme", "HTTP");
        }
    }
}

/// No tag and no digest means `latest`.
fn is_latest(image: &str) -> bool {
    let name = image.rsplit('/').next().unwrap_or("");
    !name.contains('@') && name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Says what is wrong with a pod.
pub fn validate(spec: &Value, field: &str, causes: &mut Causes) {
    if spec.list("/containers").is_empty() {
        causes.required(format!("{field}.containers"), "");
    }
    let policy = &spec["restartPolicy"];
    if !["Always", "OnFailure", "Never"].contains(&policy.as_str().unwrap_or("")) {
        let supported = ["Always", "OnFailure", "Never"];
        causes.unsupported(format!("{field}.restartPolicy"), policy, &supported);
    }
    let mut seen = BTreeSet::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in spec.list(&format!("/{list}")).iter().enumerate() {
            validate_container(container, &format!("{field}.{list}[{index}]"), &mut seen, causes);
        }
    }
}

fn validate_container<'a>(
    container: &'a Value,
    field: &str,
    seen: &mut BTreeSet<&'a str>,
    causes: &mut Causes,
) {
    let name = container.text("/name");
    if name.is_empty() {
        causes.required(format!("{field}.name"), "");
    } else {
        for wrong in names::label(name) {
            causes.invalid(format!("{field}.name"), &json!(name), wrong);
        }
        if !seen.insert(name) {
            causes.duplicate(format!("{field}.name"), &json!(name));
        }
    }
    if container.text("/image").trim().is_empty() {
        causes.required(format!("{field}.image"), "");
    }
    for (index, port) in container.list("/ports").iter().enumerate() {
        let field = format!("{field}.ports[{index}]");
        let number = port.int("/containerPort");
        if number == 0 {
            causes.required(format!("{field}.containerPort"), "");
        } else if !(1..=65535).contains(&number) {
            let range = "must be between 1 and 65535, inclusive";
            causes.invalid(format!("{field}.containerPort"), &json!(number), range);
        }
        if port.has("/name") {
            for wrong in names::port(port.text("/name")) {
                causes.invalid(format!("{field}.name"), &port["name"], wrong);
            }
        }
        if !["TCP", "UDP", "SCTP"].contains(&port.text("/protocol")) {
            let supported = ["SCTP", "TCP", "UDP"];
            causes.unsupported(format!("{field}.protocol"), &port["protocol"], &supported);
        }
    }
}

/// The cells `Containers` and `Images` of everything that has a pod template.
pub fn containers_and_images(object: &Value) -> [Value; 2] {
    ["name", "image"].map(|field| {
        let containers = object.list("/spec/template/spec/containers").iter();
        json!(containers.filter_map(|c| c[field].as_str()).collect::<Vec<_>>().join(","))
    })
}

#[test]
fn latest_means_no_tag() {
    let cases = [
        ("nginx", true),
        ("nginx:latest", true),
        ("nginx:1.19", false),
        ("localhost:5000/nginx", true),
        ("nginx@sha256:abc", false),
    ];
    for (image, want) in cases {
        assert_eq!(is_latest(image), want, "{image}");
    }
}
