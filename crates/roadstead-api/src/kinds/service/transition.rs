//! What an update means for fields that the client does not mention: values that were allocated
//! stay, so that the same manifest can be sent again, and values that belong to a type go with it
//! unless the client sets them anew.

use std::collections::{BTreeMap, BTreeSet};

use roadstead_schema::json::{Pointer, children};
use serde_json::{Value, json};

use super::{is_on_nodes, is_reachable_from_outside, needs_health_check, remove, wants_node_ports};

/// Makes addresses, one and many, agree in a Service that is new.
pub fn begin(spec: &mut Value) {
    if !spec.text("/clusterIP").is_empty() && spec.list("/clusterIPs").is_empty() {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
}

/// Completes a new state of a Service by what the present one has.
pub fn carry_over(old: &Value, new: &mut Value) {
    drop_by_type(&old["spec"], &mut new["spec"]);
    if new.text("/spec/type") != "LoadBalancer" {
        new["status"]["loadBalancer"] = json!({});
    }
    let (was, is) = (&old["spec"], &mut new["spec"]);
    keep_allocated(was, is);
    agree(was, is);
}

/// Fields that the new type does not have go, if they are as they were.
fn drop_by_type(old: &Value, new: &mut Value) {
    let internal = |spec: &Value| spec.text("/type") != "ExternalName";
    if internal(old) && !internal(new) {
        if same(old, new, "clusterIP") && same(old, new, "clusterIPs") {
            remove(new, "clusterIP");
            remove(new, "clusterIPs");
        }
        for field in ["ipFamilies", "ipFamilyPolicy"] {
            drop_if_same(old, new, field);
        }
    }
    // Ports may come and go, but none with a node port of its own choice.
    if is_on_nodes(old) && !is_on_nodes(new) && node_ports(new).is_subset(&node_ports(old)) {
        for port in children(new, "ports") {
            remove(port, "nodePort");
        }
    }
    if needs_health_check(old) && !needs_health_check(new) {
        drop_if_same(old, new, "healthCheckNodePort");
    }
    let balanced = |spec: &Value| spec.text("/type") == "LoadBalancer";
    if balanced(old) && !balanced(new) {
        drop_if_same(old, new, "allocateLoadBalancerNodePorts");
        drop_if_same(old, new, "loadBalancerClass");
    }
    if is_reachable_from_outside(old) && !is_reachable_from_outside(new) {
        drop_if_same(old, new, "externalTrafficPolicy");
    }
}

/// What was allocated and is left out now stays.
fn keep_allocated(old: &Value, new: &mut Value) {
    if [old, new].iter().all(|spec| spec.text("/type") != "ExternalName") {
        if new.text("/clusterIP").is_empty() && !old.text("/clusterIP").is_empty() {
            new["clusterIP"] = old["clusterIP"].clone();
        }
        if new.list("/clusterIPs").is_empty() && !old.list("/clusterIPs").is_empty() {
            new["clusterIPs"] = old["clusterIPs"].clone();
        }
    }
    if wants_node_ports(old) && wants_node_ports(new) {
        let used: BTreeSet<_> = node_ports(old).intersection(&node_ports(new)).copied().collect();
        let by_name: BTreeMap<_, _> =
            old.list("/ports").iter().map(|p| (p.text("/name"), p.int("/nodePort"))).collect();
        for port in children(new, "ports") {
            let before = by_name.get(port.text("/name")).copied().unwrap_or(0);
            if port.int("/nodePort") == 0 && before != 0 && !used.contains(&before) {
                port["nodePort"] = before.into();
            }
        }
    }
    if needs_health_check(old)
        && needs_health_check(new)
        && new.int("/healthCheckNodePort") == 0
        && old.has("/healthCheckNodePort")
    {
        new["healthCheckNodePort"] = old["healthCheckNodePort"].clone();
    }
}

/// A client that knows only one of `clusterIP` and `clusterIPs` means the other as well.
fn agree(old: &Value, new: &mut Value) {
    let same_one = old.text("/clusterIP") == new.text("/clusterIP");
    if new.list("/clusterIPs").is_empty() && !old.list("/clusterIPs").is_empty() && same_one {
        new["clusterIPs"] = old["clusterIPs"].clone();
    }
    if same_one || old.list("/clusterIPs") != new.list("/clusterIPs") {
        return;
    }
    if new.text("/clusterIP").is_empty() {
        remove(new, "clusterIPs");
    } else {
        new["clusterIPs"] = json!([new["clusterIP"]]);
    }
}

fn same(old: &Value, new: &Value, field: &str) -> bool {
    old[field] == new[field]
}

fn drop_if_same(old: &Value, new: &mut Value, field: &str) {
    if same(old, new, field) {
        remove(new, field);
    }
}

fn node_ports(spec: &Value) -> BTreeSet<i64> {
    spec.list("/ports").iter().map(|port| port.int("/nodePort")).filter(|&port| port != 0).collect()
}
