//! Service: one address for many pods.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, NameRule, age_cell, labels_cell, name_cell, or_none};
use crate::kinds::endpoint_slice::special_ranges;
use crate::look::{Look, child, children, default_to};
use crate::{metadata, names};

pub struct Service;

static INFO: Info = Info {
    short_names: &["svc"],
    categories: &["all"],
    name_rule: NameRule::Label,
    status: true,
    create_on_update: true,
    delete_returns_object: true,
    ..Info::new("", "v1", "Service", "services", "service")
};

const TYPES: [&str; 4] = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PORT_RANGE: &str = "must be between 1 and 65535, inclusive";

impl Kind for Service {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        let spec = child(object, "spec");
        default_to(spec, "sessionAffinity", "None");
        default_to(spec, "type", "ClusterIP");
        match spec.text("/sessionAffinity") {
            "ClientIP" => {
                let config = child(child(spec, "sessionAffinityConfig"), "clientIP");
                default_to(config, "timeoutSeconds", 10_800);
            }
            "None" => {
                spec.as_object_mut().map(|fields| fields.remove("sessionAffinityConfig"));
            }
            _ => {}
        }
        for port in children(spec, "ports") {
            default_to(port, "protocol", "TCP");
            let number = port["port"].clone();
            if port["targetPort"] == json!(0) || port["targetPort"] == json!("") {
                port["targetPort"] = Value::Null;
            }
            default_to(port, "targetPort", number);
        }
        let kind = spec.text("/type").to_owned();
        let outside = ["NodePort", "LoadBalancer"].contains(&kind.as_str());
        if outside || !spec.list("/externalIPs").is_empty() {
            default_to(spec, "externalTrafficPolicy", "Cluster");
        }
        if kind != "ExternalName" {
            default_to(spec, "internalTrafficPolicy", "Cluster");
        }
        if kind == "LoadBalancer" {
            default_to(spec, "allocateLoadBalancerNodePorts", true);
        }
        // An empty selector is none.
        if spec.pointer("/selector").and_then(Value::as_object).is_some_and(|s| s.is_empty()) {
            spec.as_object_mut().map(|fields| fields.remove("selector"));
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({"loadBalancer": {}});
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        let spec = &object["spec"];
        let kind = spec.text("/type");
        if !TYPES.contains(&kind) {
            causes.unsupported("spec.type", &spec["type"], &TYPES);
        }
        validate_ports(spec, kind, causes);
        validate_addresses(spec, kind, old, causes);
        if kind == "ExternalName" {
            validate_external_name(spec, causes);
        }
        metadata::labels(spec.get("selector"), "spec.selector", causes);
        validate_affinity(spec, causes);
        validate_policies(spec, kind, causes);
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        let spec = &object["spec"];
        let mut all = Vec::new();
        if spec.text("/type") != "ExternalName" && spec.has("/externalName") {
            let text = "spec.externalName is ignored when spec.type is not \"ExternalName\"";
            all.push(text.to_owned());
        }
        if spec.text("/clusterIP") == "None" && spec.text("/sessionAffinity") == "ClientIP" {
            all.push("spec.SessionAffinity is ignored for headless services".to_owned());
        }
        all
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                Column::text("Name"),
                Column::text("Type"),
                Column::text("Cluster-IP"),
                Column::text("External-IP"),
                Column::text("Port(s)"),
                Column::text("Age"),
                Column::wide("Selector"),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![
            name_cell(object),
            object["spec"]["type"].clone(),
            or_none(object.text("/spec/clusterIP")),
            json!(external_address(object)),
            or_none(ports_cell(object)),
            age_cell(object, now),
            labels_cell(object, "/spec/selector"),
        ]
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("spec.clusterIP", "/spec/clusterIP"), ("spec.type", "/spec/type")]
    }
}

fn validate_ports(spec: &Value, kind: &str, causes: &mut Causes) {
    let ports = spec.list("/ports");
    let headless = spec.text("/clusterIP") == "None";
    if ports.is_empty() && !headless && kind != "ExternalName" {
        causes.required("spec.ports", "");
    }
    let (mut names_seen, mut numbers_seen) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        let name = port.text("/name");
        if name.is_empty() {
            if ports.len() > 1 {
                causes.required(format!("{field}.name"), "");
            }
        } else {
            for wrong in names::label(name) {
                causes.invalid(format!("{field}.name"), &json!(name), wrong);
            }
            if !names_seen.insert(name) {
                causes.duplicate(format!("{field}.name"), &json!(name));
            }
        }
        let number = port.int("/port");
        if !(1..=65535).contains(&number) {
            causes.invalid(format!("{field}.port"), &json!(number), PORT_RANGE);
        }
        let protocol = port.text("/protocol");
        if !["TCP", "UDP", "SCTP"].contains(&protocol) {
            let supported = ["SCTP", "TCP", "UDP"];
            causes.unsupported(format!("{field}.protocol"), &port["protocol"], &supported);
        }
        validate_target(&port["targetPort"], &format!("{field}.targetPort"), causes);
        if port.int("/nodePort") != 0 && kind == "ClusterIP" {
            let detail = "may not be used when `type` is 'ClusterIP'";
            causes.forbidden(format!("{field}.nodePort"), detail);
        }
        if !numbers_seen.insert((protocol, number)) {
            let shown = json!({"Name": name, "Protocol": protocol, "Port": number});
            causes.duplicate(field, &shown);
        }
    }
}

fn validate_target(target: &Value, field: &str, causes: &mut Causes) {
    match target {
        Value::Number(number) if (1..=65535).contains(&number.as_i64().unwrap_or(0)) => {}
        Value::String(name) => {
            names::port(name).iter().for_each(|wrong| causes.invalid(field, target, wrong));
        }
        _ => causes.invalid(field, target, PORT_RANGE),
    }
}

fn validate_addresses(spec: &Value, kind: &str, old: Option<&Value>, causes: &mut Causes) {
    let addresses = spec.list("/clusterIPs");
    if kind == "ExternalName" && !addresses.is_empty() {
        causes.forbidden("spec.clusterIPs", "may not be set for ExternalName services");
        return;
    }
    for (index, address) in addresses.iter().enumerate() {
        let (field, text) = (format!("spec.clusterIPs[{index}]"), address.as_str().unwrap_or(""));
        if text == "None" {
            if ["NodePort", "LoadBalancer"].contains(&kind) {
                let detail = format!("may not be set to 'None' for {kind} services");
                causes.invalid(field, address, detail);
            }
        } else if text.parse::<IpAddr>().is_err() {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            causes.invalid(field, address, detail);
        }
    }
    let before = old.map(|old| old.list("/spec/clusterIPs")).unwrap_or_default();
    let stays = old.is_some_and(|old| old.text("/spec/type") != "ExternalName");
    if let (Some(was), Some(is)) = (before.first(), addresses.first())
        && stays
        && was != is
    {
        causes.invalid("spec.clusterIPs[0]", &json!(addresses), "may not change once set");
    }
    for (index, address) in spec.list("/externalIPs").iter().enumerate() {
        address_causes(address, &format!("spec.externalIPs[{index}]"), causes);
    }
}

fn validate_external_name(spec: &Value, causes: &mut Causes) {
    let name = spec.text("/externalName").trim_end_matches('.');
    if name.is_empty() {
        causes.required("spec.externalName", "");
    } else {
        for wrong in names::subdomain(name) {
            causes.invalid("spec.externalName", &json!(name), wrong);
        }
    }
}

fn validate_affinity(spec: &Value, causes: &mut Causes) {
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

fn validate_policies(spec: &Value, kind: &str, causes: &mut Causes) {
    let outside = ["NodePort", "LoadBalancer"].contains(&kind);
    let reachable = outside || !spec.list("/externalIPs").is_empty();
    for (field, required) in
        [("externalTrafficPolicy", reachable), ("internalTrafficPolicy", kind != "ExternalName")]
    {
        let value = &spec[field];
        match value.as_str().unwrap_or("") {
            "" if !required => {}
            "Cluster" | "Local" if field == "externalTrafficPolicy" && !reachable => {
                let detail = "may only be set for externally-accessible services";
                causes.invalid(format!("spec.{field}"), value, detail);
            }
            "Cluster" | "Local" => {}
            _ => causes.unsupported(format!("spec.{field}"), value, &["Cluster", "Local"]),
        }
    }
}

/// Checks one address that a client must be able to reach.
pub fn address_causes(address: &Value, field: &str, causes: &mut Causes) {
    let text = address.as_str().unwrap_or("");
    match text.parse::<IpAddr>() {
        Ok(parsed) => special_ranges(Some(parsed), field, address, causes),
        Err(_) => {
            let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
            causes.invalid(field, address, detail);
        }
    }
}

fn external_address(service: &Value) -> String {
    let ingress = service.list("/status/loadBalancer/ingress").iter();
    let ingress = ingress.map(|i| if i.has("/ip") { i.text("/ip") } else { i.text("/hostname") });
    let extra = service.list("/spec/externalIPs").iter().filter_map(Value::as_str);
    match service.text("/spec/type") {
        "ExternalName" => service.text("/spec/externalName").into(),
        "LoadBalancer" => {
            let all: BTreeSet<_> = ingress.collect();
            let all: Vec<_> = all.into_iter().chain(extra).collect();
            if all.is_empty() { "<pending>".into() } else { all.join(",") }
        }
        _ => {
            let all = extra.collect::<Vec<_>>().join(",");
            if all.is_empty() { "<none>".into() } else { all }
        }
    }
}

/// `80/TCP,443:30443/TCP`.
fn ports_cell(service: &Value) -> String {
    let ports = service.list("/spec/ports").iter().map(|port| {
        let (number, protocol) = (port.int("/port"), port.text("/protocol"));
        match port.int("/nodePort") {
            0 => format!("{number}/{protocol}"),
            node => format!("{number}:{node}/{protocol}"),
        }
    });
    ports.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests;
