//! Which families of addresses a Service has: what the client says about policy, families and
//! addresses, completed by what the cluster has. Comes before allocation, so its refusals win.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use super::addresses;
use crate::ip::{self, Family};

/// The families in which a cluster has addresses for Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The one that Services get unless they ask for another.
    pub primary: Family,
    /// Whether there is the other one too.
    pub dual: bool,
}

impl Cluster {
    fn has(self, family: Family) -> bool {
        self.dual || family == self.primary
    }
}

/// Completes policy and families of a Service that needs addresses. `old` is what it replaces.
pub fn settle(cluster: Cluster, old: Option<&Value>, spec: &mut Value, causes: &mut Causes) {
    if spec.text("/type") == "ExternalName" || is_left_alone(old, spec) {
        return;
    }
    let free = spec.text("/clusterIP") == "None" && !spec.has("/selector");
    if !spec.has("/ipFamilyPolicy") {
        let before =
            old.map(|old| old["ipFamilyPolicy"].clone()).filter(|policy| !policy.is_null());
        let otherwise = if free { "RequireDualStack" } else { "SingleStack" };
        spec["ipFamilyPolicy"] = before.unwrap_or_else(|| otherwise.into());
    }
    addresses::validate(spec, old, causes);
    if !causes.0.is_empty() {
        return;
    }
    if let Some(old) = old {
        release_second(old, spec, causes);
    }
    check_single(spec, causes);
    infer_from_addresses(cluster, spec, causes);
    if !causes.0.is_empty() {
        return;
    }
    if !free {
        check_available(cluster, spec, causes);
    }
    if !causes.0.is_empty() {
        return;
    }
    let single = spec.text("/ipFamilyPolicy") == "SingleStack";
    let mut families = families_of(spec);
    if families.is_empty() {
        families.push(cluster.primary);
    }
    // Endpoints of a headless Service without selector are made by hand, in any family.
    if families.len() == 1 && !single && (cluster.dual || free) {
        families.push(families[0].other());
    }
    spec["ipFamilies"] = families.iter().map(|family| family.name()).collect();
}

/// A Service that prefers two families keeps what it has when the cluster changes, until someone
/// changes the Service.
pub fn is_left_alone(old: Option<&Value>, new: &Value) -> bool {
    let Some(old) = old else { return false };
    let prefers = |spec: &Value| spec.text("/ipFamilyPolicy") == "PreferDualStack";
    prefers(new)
        && (prefers(old) || !old.has("/ipFamilyPolicy"))
        && old["type"] == new["type"]
        && ["ClusterIP", "NodePort", "LoadBalancer"].contains(&new.text("/type"))
        && old.list("/clusterIPs") == new.list("/clusterIPs")
        && old.list("/ipFamilies") == new.list("/ipFamilies")
}

/// Asking for one family gives the second address back; anything else may not lose it.
fn release_second(old: &Value, spec: &mut Value, causes: &mut Causes) {
    let fields = [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")];
    for (field, what) in fields {
        let pointer = format!("/{field}");
        let (was, is) = (old.list(&pointer), spec.list(&pointer));
        if spec.text("/ipFamilyPolicy") == "SingleStack" {
            if was == is && is.len() > 1 {
                spec[field] = json!([is[0]]);
            }
        } else if !is.is_empty() && is.len() < was.len() {
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            causes.invalid("spec.ipFamilyPolicy", &spec["ipFamilyPolicy"], detail);
        }
    }
}

fn check_single(spec: &Value, causes: &mut Causes) {
    if spec.text("/ipFamilyPolicy") != "SingleStack" {
        return;
    }
    for (field, what) in [("/clusterIPs", "cluster IPs"), ("/ipFamilies", "IP families")] {
        if spec.list(field).len() == 2 {
            let detail = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            );
            causes.invalid("spec.ipFamilyPolicy", &spec["ipFamilyPolicy"], detail);
        }
    }
}

/// Addresses that the client names say which families it means.
fn infer_from_addresses(cluster: Cluster, spec: &mut Value, causes: &mut Causes) {
    let named = spec.list("/clusterIPs").to_vec();
    let known = spec.list("/ipFamilies").len();
    let mut families = spec.list("/ipFamilies").to_vec();
    for (index, address) in named.iter().enumerate().skip(known) {
        let Some(address) = address.as_str().and_then(ip::parse) else { break };
        let family = Family::of(address);
        if cluster.has(family) {
            families.push(family.name().into());
        } else {
            let detail = format!("{} is not configured on this cluster", family.name());
            let field = format!("spec.clusterIPs[{index}]");
            causes.invalid(field, &json!(named), detail);
        }
    }
    if families.len() > known {
        spec["ipFamilies"] = families.into();
    }
}

fn check_available(cluster: Cluster, spec: &Value, causes: &mut Causes) {
    if spec.text("/ipFamilyPolicy") == "RequireDualStack" && !cluster.dual {
        let detail = "this cluster is not configured for dual-stack services";
        causes.invalid("spec.ipFamilyPolicy", &spec["ipFamilyPolicy"], detail);
    }
    for (index, family) in families_of(spec).into_iter().enumerate() {
        if !cluster.has(family) {
            let field = format!("spec.ipFamilies[{index}]");
            causes.invalid(field, &json!(family.name()), "not configured on this cluster");
        }
    }
}

/// The families that the Service has or asks for.
pub fn families_of(spec: &Value) -> Vec<Family> {
    let names = spec.list("/ipFamilies").iter();
    names.filter_map(|name| Family::named(name.as_str()?)).collect()
}
