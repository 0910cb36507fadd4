//! The status of a Service: where its load balancer takes connections.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, children, default_to};
use serde_json::{Value, json};

use crate::{ip, names};

/// An address is one that packets are sent to as they are, unless it says otherwise.
pub(super) fn default(object: &mut Value) {
    let Some(balancer) = object.pointer_mut("/status/loadBalancer") else { return };
    for ingress in children(balancer, "ingress") {
        if !ingress.text("/ip").is_empty() {
            default_to(ingress, "ipMode", "VIP");
        }
    }
}

/// Checks a status that was written.
pub(super) fn validate(object: &Value, old: &Value, causes: &mut Causes) {
    let all = object.list("/status/loadBalancer/ingress");
    let field = "status.loadBalancer.ingress";
    if object.text("/spec/type") != "LoadBalancer" {
        if !all.is_empty() {
            causes.forbidden(field, "may only be used when `spec.type` is 'LoadBalancer'");
        }
        return;
    }
    let known = old.list("/status/loadBalancer/ingress").iter().map(|i| i["ip"].clone());
    let known: Vec<_> = known.filter(|ip| *ip != "" && !ip.is_null()).collect();
    for (index, ingress) in all.iter().enumerate() {
        validate_ingress(&format!("{field}[{index}]"), ingress, &known, causes);
    }
}

fn validate_ingress(field: &str, ingress: &Value, known: &[Value], causes: &mut Causes) {
    let (address, mode) = (ingress.text("/ip"), &ingress["ipMode"]);
    if !address.is_empty() {
        ip::check(&format!("{field}.ip"), address, known, causes);
    }
    let place = format!("{field}.ipMode");
    match (mode.is_null(), address.is_empty()) {
        (true, true) => {}
        (true, false) => causes.required(place, "must be specified when `ip` is set"),
        (false, true) => causes.forbidden(place, "may not be specified when `ip` is not set"),
        (false, false) if mode != "VIP" && mode != "Proxy" => {
            causes.unsupported(place, mode, &["Proxy", "VIP"]);
        }
        (false, false) => {}
    }
    let host = ingress.text("/hostname");
    if host.is_empty() {
        return;
    }
    let place = format!("{field}.hostname");
    names::check(names::subdomain, place.clone(), host, causes);
    if ip::parse(host).is_some() {
        causes.invalid(place, &json!(host), "must be a DNS name, not an IP address");
    }
}

/// Addresses in unusual spelling.
pub(super) fn warnings(object: &Value) -> Vec<String> {
    let all = object.list("/status/loadBalancer/ingress").iter().enumerate();
    all.filter_map(|(index, ingress)| {
        ip::warning(&format!("status.loadBalancer.ingress[{index}]"), ingress.text("/ip"))
    })
    .collect()
}
