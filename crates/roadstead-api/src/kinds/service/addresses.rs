//! Cluster addresses with their families, and external addresses: what fits together, and what
//! may change.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use super::is_headless;
use crate::ip::{self, Family};

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];
const POLICIES: [&str; 3] = ["PreferDualStack", "RequireDualStack", "SingleStack"];
const CLUSTER_IPS: &str = "spec.clusterIPs";
const ONCE_SET: &str = "may not change once set";

/// Checks addresses, families and policy of one object.
pub(super) fn validate(spec: &Value, old: Option<&Value>, causes: &mut Causes) {
    if spec.text("/type") == "ExternalName" {
        return;
    }
    let all = spec.list("/clusterIPs");
    match (spec.text("/clusterIP"), all) {
        ("", []) => {}
        ("", _) => {
            let detail = "must be empty when `clusterIP` is not specified";
            causes.invalid(CLUSTER_IPS, &spec["clusterIPs"], detail);
        }
        (_, []) => causes.required(CLUSTER_IPS, ""),
        (one, [first, ..]) if first != one => {
            let detail = "first value must match `clusterIP`";
            causes.invalid(CLUSTER_IPS, &spec["clusterIPs"], detail);
        }
        _ => {}
    }
    validate_families(spec, causes);
    let known = old.map(|old| old.list("/clusterIPs")).unwrap_or_default();
    let good = validate_each(spec, all, known, causes);
    if all.len() > 2 {
        causes.invalid(CLUSTER_IPS, &spec["clusterIPs"], "may only hold up to 2 values");
    }
    if !good {
        return;
    }
    let families: Vec<_> = all.iter().map(family_of).collect();
    if all.len() > 1 && families.iter().all(|family| *family == families[0]) {
        let detail = "may specify no more than one IP for each IP family";
        causes.invalid(CLUSTER_IPS, &spec["clusterIPs"], detail);
    }
    if is_headless(spec) {
        return;
    }
    let wanted = spec.list("/ipFamilies").iter().map(|name| name.as_str().and_then(Family::named));
    for (index, (found, wanted)) in families.iter().zip(wanted).enumerate() {
        if let Some(wanted) = wanted
            && *found != Some(wanted)
        {
            let detail = format!(
                "expected an {} value as indicated by `ipFamilies[{index}]`",
                wanted.name()
            );
            causes.invalid(format!("{CLUSTER_IPS}[{index}]"), &all[index], detail);
        }
    }
}

fn validate_families(spec: &Value, causes: &mut Causes) {
    let families = spec.list("/ipFamilies");
    for (index, family) in families.iter().enumerate() {
        let field = format!("spec.ipFamilies[{index}]");
        if !FAMILIES.contains(&family.as_str().unwrap_or("")) {
            causes.unsupported(field.clone(), family, &FAMILIES);
        }
        if families[..index].contains(family) {
            causes.duplicate(field, family);
        }
    }
    if spec.has("/ipFamilyPolicy") && !POLICIES.contains(&spec.text("/ipFamilyPolicy")) {
        causes.unsupported("spec.ipFamilyPolicy", &spec["ipFamilyPolicy"], &POLICIES);
    }
}

/// Whether every address can be read, and `None` stands alone.
fn validate_each(spec: &Value, all: &[Value], known: &[Value], causes: &mut Causes) -> bool {
    let mut good = true;
    for (index, address) in all.iter().enumerate() {
        if index == 0 && address == "None" {
            if all.len() > 1 {
                good = false;
                let detail = "'None' must be the first and only value";
                causes.invalid(CLUSTER_IPS, &spec["clusterIPs"], detail);
            }
            continue;
        }
        let field = format!("{CLUSTER_IPS}[{index}]");
        good &= ip::check(&field, address.as_str().unwrap_or(""), known, causes);
    }
    good
}

/// Checks what an update does to addresses and families. The first of each stays; a second may
/// come and go.
pub(super) fn validate_change(old: &Value, new: &Value, causes: &mut Causes) {
    if [old, new].iter().any(|spec| spec.text("/type") == "ExternalName") {
        return;
    }
    let headless = (is_headless(old), is_headless(new));
    if headless == (true, true) {
        return;
    }
    validate_changed_addresses(old, new, causes);
    if headless == (false, false) {
        validate_changed_families(old, new, causes);
    }
}

fn validate_changed_addresses(old: &Value, new: &Value, causes: &mut Causes) {
    let (was, is) = (old.list("/clusterIPs"), new.list("/clusterIPs"));
    let shown = new.get("clusterIPs").unwrap_or(&Value::Null);
    let mut changed = |index: usize| {
        causes.invalid(format!("{CLUSTER_IPS}[{index}]"), shown, ONCE_SET);
    };
    if was.len() == is.len() {
        let differing = (0..was.len()).filter(|&index| was[index] != is[index]);
        differing.for_each(&mut changed);
        return;
    }
    if let (Some(before), Some(after)) = (was.first(), is.first())
        && before != after
    {
        changed(0);
    }
    if is.is_empty() {
        causes.invalid("spec.clusterIPs[0]", shown, "primary clusterIP can not be unset");
    }
    if was.len() > is.len() && is.len() == 1 && new.text("/ipFamilyPolicy") != "SingleStack" {
        let detail = "must be set to 'SingleStack' when releasing the secondary clusterIP";
        causes.invalid("spec.ipFamilyPolicy", &new["ipFamilyPolicy"], detail);
    }
}

fn validate_changed_families(old: &Value, new: &Value, causes: &mut Causes) {
    let (was, is) = (old.list("/ipFamilies"), new.list("/ipFamilies"));
    let field = "spec.ipFamilies[0]";
    let shown = new.get("ipFamilies").unwrap_or(&Value::Null);
    if was.len() == is.len() {
        for _ in (0..was.len()).filter(|&index| was[index] != is[index]) {
            causes.invalid(field, shown, ONCE_SET);
        }
        return;
    }
    if let (Some(before), Some(after)) = (was.first(), is.first())
        && before != after
    {
        // Upstream shows the addresses here.
        causes.invalid(field, new.get("clusterIPs").unwrap_or(&Value::Null), ONCE_SET);
    }
    if was.len() > is.len() && is.len() == 1 && new.text("/ipFamilyPolicy") != "SingleStack" {
        let detail = "must be set to 'SingleStack' when releasing the secondary ipFamily";
        causes.invalid("spec.ipFamilyPolicy", &new["ipFamilyPolicy"], detail);
    }
}

/// Checks the addresses that others route to the nodes.
pub(super) fn validate_external(spec: &Value, old: Option<&Value>, causes: &mut Causes) {
    let known = old.map(|old| old.list("/externalIPs")).unwrap_or_default();
    for (index, address) in spec.list("/externalIPs").iter().enumerate() {
        let (field, text) = (format!("spec.externalIPs[{index}]"), address.as_str().unwrap_or(""));
        if ip::check(&field, text, known, causes) {
            ip::check_reachable(&field, text, causes);
        }
    }
}

fn family_of(address: &Value) -> Option<Family> {
    address.as_str().and_then(ip::parse).map(Family::of)
}
