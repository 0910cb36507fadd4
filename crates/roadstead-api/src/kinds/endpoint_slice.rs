//! EndpointSlice: a part of where a Service leads.

use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, age_cell, name_cell};
use crate::look::{Look, children, default_to};

pub struct EndpointSlice;

static INFO: Info = Info {
    generation: true,
    ..Info::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "endpointslice")
};

impl Kind for EndpointSlice {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        for port in children(object, "ports") {
            default_to(port, "name", "");
            default_to(port, "protocol", "TCP");
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        let family = object.text("/addressType");
        match family {
            "IPv4" | "IPv6" | "FQDN" => {}
            "" => causes.required("addressType", ""),
            _ => {
                causes.unsupported("addressType", &object["addressType"], &["FQDN", "IPv4", "IPv6"])
            }
        }
        if old.is_some_and(|old| old.text("/addressType") != family) {
            causes.invalid("addressType", &object["addressType"], "field is immutable");
        }
        if object.list("/endpoints").len() > 1000 {
            causes.invalid(
                "endpoints",
                &json!(object.list("/endpoints").len()),
                "must have at most 1000 items",
            );
        }
        for (index, endpoint) in object.list("/endpoints").iter().enumerate() {
            validate_endpoint(endpoint, family, &format!("endpoints[{index}].addresses"), causes);
        }
        validate_ports(object.list("/ports"), causes);
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        match object.text("/addressType") {
            "FQDN" => vec!["spec.addressType: FQDN endpoints are deprecated".into()],
            _ => Vec::new(),
        }
    }

    fn columns(&self) -> &'static [Column] {
        const {
            &[
                Column::text("Name"),
                Column::text("AddressType"),
                Column::text("Ports"),
                Column::text("Endpoints"),
                Column::text("Age"),
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let ports = object.list("/ports").iter().map(|port| match &port["port"] {
            Value::Number(number) => number.to_string(),
            _ if port.text("/name").is_empty() => "*".into(),
            _ => port.text("/name").into(),
        });
        let addresses = object.list("/endpoints").iter().flat_map(|e| e.list("/addresses"));
        let addresses = addresses.map(|a| a.as_str().unwrap_or("").to_owned());
        vec![
            name_cell(object),
            object["addressType"].clone(),
            json!(first_three(ports.collect())),
            json!(first_three(addresses.collect())),
            age_cell(object, now),
        ]
    }
}

fn first_three(all: Vec<String>) -> String {
    match all.len() {
        0 => "<unset>".into(),
        1..=3 => all.join(","),
        n => format!("{} + {} more...", all[..3].join(","), n - 3),
    }
}

fn validate_endpoint(endpoint: &Value, family: &str, field: &str, causes: &mut Causes) {
    let addresses = endpoint.list("/addresses");
    if addresses.is_empty() {
        causes.required(field, "must contain at least 1 and at most 100 addresses");
    }
    for (index, address) in addresses.iter().enumerate() {
        let parsed = address.as_str().and_then(|text| text.parse::<IpAddr>().ok());
        match (family, parsed) {
            ("IPv4", Some(IpAddr::V4(_))) | ("IPv6", Some(IpAddr::V6(_))) | ("FQDN" | "", _) => {
                special_ranges(parsed, &format!("{field}[{index}]"), address, causes);
            }
            (_, None) => causes.invalid(
                format!("{field}[{index}]"),
                address,
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
            _ => causes.invalid(
                format!("{field}[{index}]"),
                address,
                format_args!("must be an {family} address"),
            ),
        }
    }
}

/// Addresses that can never be the way to another machine.
pub fn special_ranges(address: Option<IpAddr>, field: &str, value: &Value, causes: &mut Causes) {
    let Some(address) = address else { return };
    let mut wrong = |text: &str| causes.invalid(field, value, text);
    if address.is_unspecified() {
        wrong(if address.is_ipv4() {
            "may not be unspecified (0.0.0.0)"
        } else {
            "may not be unspecified (::)"
        });
    }
    if address.is_loopback() {
        wrong("may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if link_local {
        wrong("may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    let local_multicast = match address {
        IpAddr::V4(v4) => v4.octets()[..3] == [224, 0, 0],
        IpAddr::V6(v6) => v6.segments()[0] == 0xff02,
    };
    if local_multicast {
        wrong("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

fn validate_ports(ports: &[Value], causes: &mut Causes) {
    let mut names = std::collections::BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        if !names.insert(port.text("/name")) {
            causes.duplicate(format!("ports[{index}].name"), &json!(port.text("/name")));
        }
        if port.has("/port") && !(0..=65535).contains(&port.int("/port")) {
            let range = "must be between 1 and 65535, inclusive";
            causes.invalid(format!("ports[{index}].port"), &port["port"], range);
        }
        if !["TCP", "UDP", "SCTP"].contains(&port.text("/protocol")) {
            let supported = ["SCTP", "TCP", "UDP"];
            causes.unsupported(format!("ports[{index}].protocol"), &port["protocol"], &supported);
        }
    }
}
