//! Endpoints: where a Service leads, as one object. Deprecated in favour of EndpointSlice.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, children, default_to};
use serde_json::Value;

use crate::kind::{Info, Kind};
use crate::kinds::port_fields;
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};
use crate::{ip, names};

pub(super) struct Endpoints;

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

    fn table(&self) -> &'static [ColumnCell] {
        const { &[NAME, (Column::text("Endpoints"), Cell::Made(shown)), AGE] }
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
        names::check(names::label, format!("{field}.hostname"), host, causes);
    }
    if let Some(node) = address["nodeName"].as_str() {
        names::check(names::subdomain, format!("{field}.nodeName"), node, causes);
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
        names::check(names::label, format!("{field}.name"), name, causes);
    }
    port_fields::number(port, "port", field, causes);
    port_fields::protocol(port, field, causes);
    port_fields::app_protocol(port, field, causes);
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
