//! What is accepted in a Service, but will not do what its author hopes.

use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::ip;

const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
const MODE: &str = "service.kubernetes.io/topology-mode";

/// Each becomes a line on the user's terminal.
pub(super) fn of(object: &Value) -> Vec<String> {
    let spec = &object["spec"];
    let kind = spec.text("/type");
    let headless = kind == "ClusterIP" && spec.text("/clusterIP") == "None";
    let mut all = Vec::new();
    if object["metadata"]["annotations"].get(HINTS).is_some() {
        all.push(format!("annotation {HINTS} is deprecated, please use {MODE} instead"));
    }
    if !spec.text("/clusterIP").is_empty() && !headless {
        all.extend(spellings(spec, "clusterIPs"));
    }
    if headless {
        let ignored = [
            ("loadBalancerIP", !spec.text("/loadBalancerIP").is_empty()),
            ("externalIPs", !spec.list("/externalIPs").is_empty()),
            ("SessionAffinity", spec.text("/sessionAffinity") != "None"),
        ];
        let ignored = ignored.into_iter().filter(|(_, set)| *set);
        all.extend(ignored.map(|(f, _)| format!("spec.{f} is ignored for headless services")));
    }
    all.extend(spellings(spec, "externalIPs"));
    let external = !spec.list("/externalIPs").is_empty();
    if external && !headless && kind != "ExternalName" {
        let text =
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters";
        all.push(text.to_owned());
    }
    all.extend(ip::warning("spec.loadBalancerIP", spec.text("/loadBalancerIP")));
    for (index, range) in spec.list("/loadBalancerSourceRanges").iter().enumerate() {
        let field = format!("spec.loadBalancerSourceRanges[{index}]");
        all.extend(ip::network_warnings(&field, range.as_str().unwrap_or("")));
    }
    if kind == "ExternalName" && external {
        all.push("spec.externalIPs is ignored when spec.type is \"ExternalName\"".to_owned());
    }
    if kind != "ExternalName" && !spec.text("/externalName").is_empty() {
        let text = "spec.externalName is ignored when spec.type is not \"ExternalName\"";
        all.push(text.to_owned());
    }
    if spec.text("/trafficDistribution") == "PreferClose" {
        let text =
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"";
        all.push(text.to_owned());
    }
    all
}

fn spellings(spec: &Value, field: &str) -> Vec<String> {
    let all = spec.list(&format!("/{field}")).iter().enumerate();
    all.filter_map(|(index, address)| {
        ip::warning(&format!("spec.{field}[{index}]"), address.as_str()?)
    })
    .collect()
}
