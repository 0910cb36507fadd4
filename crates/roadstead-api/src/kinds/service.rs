//! Service: one address for many pods.
//!
//! What a client may leave out is filled in by [`Kind::default`]; what only the cluster knows, by
//! [`families`] and then by the allocators of the API server; what an update means for fields that
//! the client does not mention, by [`transition`].

use std::collections::BTreeSet;

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, children, default_to};
use serde_json::{Value, json};

use crate::kind::{Info, Kind, NameRule};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};
use crate::{metadata, names};

mod addresses;
pub mod families;
mod policies;
mod ports;
mod status;
pub mod transition;
mod warnings;

/// The kind itself.
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

impl Kind for Service {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        default_spec(child(object, "spec"));
        if object.text("/spec/type") == "LoadBalancer" {
            status::default(object);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["status"] = json!({"loadBalancer": {}});
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        let spec = &object["spec"];
        if let Some(old) = old {
            addresses::validate_change(&old["spec"], spec, causes);
            policies::validate_change(&old["spec"], spec, causes);
        }
        policies::validate_annotations(object, causes);
        validate_type(spec, causes);
        ports::validate(spec, causes);
        metadata::labels(spec.get("selector"), "spec.selector", causes);
        policies::validate_affinity(spec, causes);
        addresses::validate(spec, old.map(|old| &old["spec"]), causes);
        addresses::validate_external(spec, old.map(|old| &old["spec"]), causes);
        if !TYPES.contains(&spec.text("/type")) {
            causes.unsupported("spec.type", &spec["type"], &TYPES);
        }
        ports::validate_together(spec, causes);
        policies::validate_load_balancer(object, old, causes);
        policies::validate_traffic(spec, causes);
    }

    fn validate_status(&self, object: &Value, old: &Value, causes: &mut Causes) {
        status::validate(object, old, causes);
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        warnings::of(object)
    }

    fn status_warnings(&self, object: &Value) -> Vec<String> {
        status::warnings(object)
    }

    fn table(&self) -> &'static [ColumnCell] {
        const {
            &[
                NAME,
                (Column::text("Type"), Cell::Value("/spec/type")),
                (Column::text("Cluster-IP"), Cell::Text("/spec/clusterIP")),
                (Column::text("External-IP"), Cell::Made(external_address)),
                (Column::text("Port(s)"), Cell::MadeOrNone(ports_cell)),
                AGE,
                (Column::wide("Selector"), Cell::Labels("/spec/selector")),
            ]
        }
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("spec.clusterIP", "/spec/clusterIP"), ("spec.type", "/spec/type")]
    }
}

/// Whether the Service has no address of its own.
pub fn is_headless(spec: &Value) -> bool {
    matches!(spec.list("/clusterIPs"), [only] if only == "None")
}

/// Whether the Service gets node ports.
pub fn is_on_nodes(spec: &Value) -> bool {
    matches!(spec.text("/type"), "NodePort" | "LoadBalancer")
}

/// Whether something outside the cluster may come in through the Service.
pub(crate) fn is_reachable_from_outside(spec: &Value) -> bool {
    is_on_nodes(spec)
        || (spec.text("/type") == "ClusterIP" && !spec.list("/externalIPs").is_empty())
}

/// Whether each node answers on a port of its own whether it has endpoints.
pub fn needs_health_check(spec: &Value) -> bool {
    spec.text("/type") == "LoadBalancer" && spec.text("/externalTrafficPolicy") == "Local"
}

/// Whether node ports are picked for ports that name none.
pub fn wants_node_ports(spec: &Value) -> bool {
    match spec.text("/type") {
        "NodePort" => true,
        "LoadBalancer" => spec["allocateLoadBalancerNodePorts"] != json!(false),
        _ => false,
    }
}

fn default_spec(spec: &mut Value) {
    for (field, value) in [("sessionAffinity", "None"), ("type", "ClusterIP")] {
        if spec[field] == "" {
            spec[field] = Value::Null;
        }
        default_to(spec, field, value);
    }
    match spec.text("/sessionAffinity") {
        "ClientIP" if !spec.has("/sessionAffinityConfig/clientIP/timeoutSeconds") => {
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 10_800}});
        }
        "None" => remove(spec, "sessionAffinityConfig"),
        _ => {}
    }
    for port in children(spec, "ports") {
        if port["protocol"] == "" {
            port["protocol"] = Value::Null;
        }
        default_to(port, "protocol", "TCP");
        if port["targetPort"] == 0 || port["targetPort"] == "" {
            port["targetPort"] = Value::Null;
        }
        let number = port["port"].clone();
        default_to(port, "targetPort", if number.is_null() { 0.into() } else { number });
    }
    if is_reachable_from_outside(spec) {
        if spec["externalTrafficPolicy"] == "" {
            spec["externalTrafficPolicy"] = Value::Null;
        }
        default_to(spec, "externalTrafficPolicy", "Cluster");
    }
    let kind = spec.text("/type").to_owned();
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        default_to(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        default_to(spec, "allocateLoadBalancerNodePorts", true);
    }
    // An empty selector is none.
    if spec.pointer("/selector").and_then(Value::as_object).is_some_and(|s| s.is_empty()) {
        remove(spec, "selector");
    }
}

fn validate_type(spec: &Value, causes: &mut Causes) {
    let kind = spec.text("/type");
    let headless = is_headless(spec);
    if spec.list("/ports").is_empty() && !headless && kind != "ExternalName" {
        causes.required("spec.ports", "");
    }
    if is_on_nodes(spec) && headless {
        let detail = format!("may not be set to 'None' for {kind} services");
        causes.invalid("spec.clusterIPs[0]", &json!("None"), detail);
    }
    if kind != "ExternalName" {
        return;
    }
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let set = spec.has(&format!("/{field}")) && spec[field] != json!([]);
        if set {
            let detail = "may not be set for ExternalName services";
            causes.forbidden(format!("spec.{field}"), detail);
        }
    }
    let name = spec.text("/externalName");
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        causes.required("spec.externalName", "");
    } else {
        names::check(names::subdomain, "spec.externalName", name, causes);
    }
}

fn remove(spec: &mut Value, field: &str) {
    spec.as_object_mut().map(|fields| fields.remove(field));
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
