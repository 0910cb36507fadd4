//! Endpoints: where a Service leads, as one object. Deprecated in favour of EndpointSlice.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, age_cell, name_cell};
use crate::look::{Look, children, default_to};
use crate::{ip, names};

pub struct Endpoints;

static INFO: Info = Info {
    short_names: &["ep"],
    create_on_update: true,
    deprecated: "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ..Info::new("", "v1", "Endpoints", "endpoints", "endpoints")
};

impl Kind for Endpoints {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        for subset in children(object, "subsets") {
            children(subset, "ports").for_each(|port| default_to(port, "protocol", "TCP"));
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        // What was accepted once and is left as it is stays good.
        if old.is_some_and(|old| old.list("/subsets") == object.list("/subsets")) {
            return;
        }
        for (index, subset) in object.list("/subsets").iter().enumerate() {
            validate_subset(subset, &format!("subsets[{index}]"), causes);
        }
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        // The controller writes addresses in canonical form.
        let own = object["metadata"]["labels"]["endpoints.kubernetes.io/managed-by"]
            == "endpoint-controller";
        if own { Vec::new() } else { spellings(object) }
    }

    fn columns(&self) -> &'static [Column] {
        const { &[Column::text("Name"), Column::text("Endpoints"), Column::text("Age")] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_cell(object), json!(shown(object)), age_cell(object, now)]
    }
}

fn validate_subset(subset: &Value, field: &str, causes: &mut Causes) {
    if subset.list("/addresses").is_empty() && subset.list("/notReadyAddresses").is_empty() {
        causes.required(field, "must specify `addresses` or `notReadyAddresses`");
    }
    for list in ["addresses", "notReadyAddresses"] {
        for (index, address) in subset.list(&format!("/{list}")).iter().enumerate() {
            validate_address(address, &format!("{field}.{list}[{index}]"), causes);
        }
    }
    let ports = subset.list("/ports");
    for (index, port) in ports.iter().enumerate() {
        validate_port(port, ports.len() > 1, &format!("{field}.ports[{index}]"), causes);
    }
}

fn validate_address(address: &Value, field: &str, causes: &mut Causes) {
    ip::check(&format!("{field}.ip"), address.text("/ip"), &[], causes);
    let host = address.text("/hostname");
    if !host.is_empty() {
        for wrong in names::label(host) {
            causes.invalid(format!("{field}.hostname"), &json!(host), wrong);
        }
    }
    if let Some(node) = address["nodeName"].as_str() {
        for wrong in names::subdomain(node) {
            causes.invalid(format!("{field}.nodeName"), &json!(node), wrong);
        }
    }
    ip::check_reachable(&format!("{field}.ip"), address.text("/ip"), causes);
}

fn validate_port(port: &Value, named: bool, field: &str, causes: &mut Causes) {
    let name = port.text("/name");
    if name.is_empty() {
        if named {
            causes.required(format!("{field}.name"), "");
        }
    } else {
        for wrong in names::label(name) {
            causes.invalid(format!("{field}.name"), &json!(name), wrong);
        }
    }
    let number = port.int("/port");
    if !(1..=65535).contains(&number) {
        let range = "must be between 1 and 65535, inclusive";
        causes.invalid(format!("{field}.port"), &json!(number), range);
    }
    let supported = ["SCTP", "TCP", "UDP"];
    if !supported.contains(&port.text("/protocol")) {
        causes.unsupported(format!("{field}.protocol"), &port["protocol"], &supported);
    }
    if let Some(protocol) = port["appProtocol"].as_str() {
        for wrong in names::qualified(protocol) {
            causes.invalid(format!("{field}.appProtocol"), &json!(protocol), wrong);
        }
    }
}

fn spellings(object: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for (subset_index, subset) in object.list("/subsets").iter().enumerate() {
        for list in ["addresses", "notReadyAddresses"] {
            for (index, address) in subset.list(&format!("/{list}")).iter().enumerate() {
                let field = format!("subsets[{subset_index}].{list}[{index}].ip");
                all.extend(ip::warning(&field, address.text("/ip")));
            }
        }
    }
    all
}

/// Up to three `ip:port`, then how many more there are.
fn shown(endpoints: &Value) -> String {
    let mut all = Vec::new();
    for subset in endpoints.list("/subsets") {
        let ports = subset.list("/ports");
        for port in ports.iter().map(Some).chain(ports.is_empty().then_some(None)) {
            for address in subset.list("/addresses") {
                let ip = address.text("/ip");
                all.push(match port {
                    None => ip.to_owned(),
                    Some(port) if ip.contains(':') => format!("[{ip}]:{}", port.int("/port")),
                    Some(port) => format!("{ip}:{}", port.int("/port")),
                });
            }
        }
    }
    match all.len() {
        0 => "<none>".into(),
        1..=3 => all.join(","),
        n => format!("{} + {} more...", all[..3].join(","), n - 3),
    }
}

#[cfg(test)]
mod tests;
