//! EndpointSlice: a part of where a Service leads.

use std::collections::BTreeSet;

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, children, default_to};
use serde_json::{Value, json};

use crate::ip::{self, Family};
use crate::kind::{Info, Kind};
use crate::kinds::port_fields;
use crate::names::{self, Rule};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

pub(super) struct EndpointSlice;

static INFO: Info = Info {
    generation: true,
    counted: &["labels"],
    ..Info::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "endpointslice")
};

const FAMILIES: [&str; 3] = ["FQDN", "IPv4", "IPv6"];
const MOST_ENDPOINTS: usize = 1000;
const MOST_ADDRESSES: usize = 100;
const MOST_PORTS: usize = 20_000;
const MOST_HINTS: usize = 8;

impl Kind for EndpointSlice {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        for port in children(object, "ports") {
            default_to(port, "name", "");
            default_to(port, "protocol", "TCP");
        }
        for endpoint in children(object, "endpoints") {
            default_to(endpoint, "conditions", json!({}));
        }
        // Both are always there, and upstream's storage cannot tell an empty list from none.
        for list in ["endpoints", "ports"] {
            if object.list(&format!("/{list}")).is_empty()
                && let Value::Object(fields) = object
            {
                fields.insert(list.to_owned(), Value::Null);
            }
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        drop_topology(object);
    }

    fn prepare_update(&self, old: &Value, new: &mut Value) {
        if old.list("/endpoints") != new.list("/endpoints") {
            drop_topology(new);
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        validate_ports(object.list("/ports"), causes);
        // What was accepted once and is left as it is stays good.
        if old.is_none_or(|old| old.list("/endpoints") != object.list("/endpoints")) {
            validate_endpoints(object, causes);
        }
        let family = object.text("/addressType");
        match family {
            _ if !FAMILIES.contains(&family) && !family.is_empty() => {
                causes.unsupported("addressType", &object["addressType"], &FAMILIES);
            }
            "" => causes.required("addressType", ""),
            _ => {}
        }
        if old.is_some_and(|old| old.text("/addressType") != family) {
            causes.invalid("addressType", &Value::Null, "field is immutable");
        }
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        // Our controllers write addresses in canonical form.
        let controllers =
            ["endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"];
        let manager = &object["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"];
        match manager.as_str() {
            Some(manager) if controllers.contains(&manager) => Vec::new(),
            _ => spellings(object),
        }
    }

    fn warnings_on_create(&self, object: &Value) -> Vec<String> {
        let mut all = self.warnings(object);
        if object.text("/addressType") == "FQDN" {
            all.insert(0, "spec.addressType: FQDN endpoints are deprecated".into());
        }
        all
    }

    fn table(&self) -> &'static [ColumnCell] {
        const {
            &[
                NAME,
                (Column::text("AddressType"), Cell::Value("/addressType")),
                (Column::text("Ports"), Cell::Made(shown_ports)),
                (Column::text("Endpoints"), Cell::Made(shown_addresses)),
                AGE,
            ]
        }
    }
}

fn shown_ports(slice: &Value) -> String {
    let ports = slice.list("/ports").iter().map(|port| match &port["port"] {
        Value::Number(number) => number.to_string(),
        _ if port.text("/name").is_empty() => "*".into(),
        _ => port.text("/name").into(),
    });
    first_three(ports.collect())
}

fn shown_addresses(slice: &Value) -> String {
    let addresses = slice.list("/endpoints").iter().flat_map(|e| e.list("/addresses"));
    first_three(addresses.map(|a| a.as_str().unwrap_or("").to_owned()).collect())
}

/// Only v1beta1 could write this.
fn drop_topology(object: &mut Value) {
    for endpoint in children(object, "endpoints").filter_map(Value::as_object_mut) {
        endpoint.remove("deprecatedTopology");
    }
}

fn first_three(all: Vec<String>) -> String {
    match all.len() {
        0 => "<unset>".into(),
        1..=3 => all.join(","),
        n => format!("{} + {} more...", all[..3].join(","), n - 3),
    }
}

fn validate_endpoints(object: &Value, causes: &mut Causes) {
    let all = object.list("/endpoints");
    if all.len() > MOST_ENDPOINTS {
        causes.too_many("endpoints", all.len(), MOST_ENDPOINTS as u64);
        return;
    }
    for (index, endpoint) in all.iter().enumerate() {
        let field = format!("endpoints[{index}]");
        validate_addresses(endpoint, object.text("/addressType"), &field, causes);
        if let Some(node) = endpoint["nodeName"].as_str() {
            names::check(names::subdomain, format!("{field}.nodeName"), node, causes);
        }
        if let Some(host) = endpoint["hostname"].as_str() {
            names::check(names::label, format!("{field}.hostname"), host, causes);
        }
        let rules: [(_, Rule); 2] =
            [("forZones", names::label_value), ("forNodes", names::subdomain)];
        for (list, rule) in rules {
            let hints = endpoint["hints"][list].as_array().map_or(&[][..], Vec::as_slice);
            validate_hints(hints, format!("{field}.hints.{list}"), rule, causes);
        }
    }
}

fn validate_addresses(endpoint: &Value, family: &str, field: &str, causes: &mut Causes) {
    let field = format!("{field}.addresses");
    let addresses = endpoint.list("/addresses");
    if addresses.is_empty() {
        causes.required(field.clone(), "");
    } else if addresses.len() > MOST_ADDRESSES {
        causes.too_many(field.clone(), addresses.len(), MOST_ADDRESSES as u64);
    }
    for (index, address) in addresses.iter().enumerate() {
        let (place, text) = (format!("{field}[{index}]"), address.as_str().unwrap_or(""));
        match family {
            "IPv4" if !ip::check(&place, text, &[], causes) => {}
            "IPv6" if !ip::check_canonical(&place, text, causes) => {}
            "IPv4" | "IPv6" => {
                if ip::parse(text).map(|address| Family::of(address).name()) != Some(family) {
                    // Upstream leaves the index out here.
                    causes.invalid(
                        field.clone(),
                        address,
                        format_args!("must be an {family} address"),
                    );
                }
                ip::check_reachable(&place, text, causes);
            }
            "FQDN" => validate_domain(&place, text, causes),
            _ => {}
        }
    }
}

/// At least two labels; a dot at the end is welcome.
fn validate_domain(field: &str, name: &str, causes: &mut Causes) {
    if name.is_empty() {
        causes.required(field, "");
        return;
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    let wrong = names::subdomain(name);
    if !wrong.is_empty() {
        causes.invalid(field, &json!(name), wrong.join(","));
    } else if !name.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        causes.invalid(field, &json!(name), detail);
    } else if let Some((label, wrong)) =
        name.split('.').map(|label| (label, names::label(label))).find(|(_, w)| !w.is_empty())
    {
        causes.invalid(field, &json!(label), wrong.join(","));
    }
}

fn validate_hints(hints: &[Value], field: String, rule: Rule, causes: &mut Causes) {
    if hints.len() > MOST_HINTS {
        causes.too_many(field, hints.len(), MOST_HINTS as u64);
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, hint) in hints.iter().enumerate() {
        let (place, name) = (format!("{field}[{index}].name"), hint.text("/name"));
        if !seen.insert(name) {
            causes.duplicate(place.clone(), &json!(name));
        }
        names::check(rule, place.clone(), name, causes);
    }
}

fn validate_ports(ports: &[Value], causes: &mut Causes) {
    if ports.len() > MOST_PORTS {
        causes.too_many("ports", ports.len(), MOST_PORTS as u64);
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let (field, name) = (format!("ports[{index}]"), port.text("/name"));
        if !name.is_empty() {
            names::check(names::label, format!("{field}.name"), name, causes);
        }
        if !seen.insert(name) {
            causes.duplicate(format!("{field}.name"), &json!(name));
        }
        port_fields::protocol(port, &field, causes);
        port_fields::app_protocol(port, &field, causes);
    }
}

fn spellings(object: &Value) -> Vec<String> {
    let mut all = Vec::new();
    for (index, endpoint) in object.list("/endpoints").iter().enumerate() {
        for (place, address) in endpoint.list("/addresses").iter().enumerate() {
            let field = format!("endpoints[{index}].addresses[{place}]");
            all.extend(ip::warning(&field, address.as_str().unwrap_or("")));
        }
    }
    all
}

#[cfg(test)]
mod tests;
