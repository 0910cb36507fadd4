//! ServiceCIDR: a range from which Services get their addresses.
//!
//! A range can be used from the moment it exists, so it is born ready, and held by a finalizer
//! until nobody has an address that only this range contains.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::ip::{self, Family};
use crate::kind::{Info, Kind, METADATA};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

/// What keeps a range until its addresses are given back.
pub const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

/// The kind itself.
pub(super) struct ServiceCidr;

static INFO: Info = Info {
    namespaced: false,
    status: true,
    status_keeps: METADATA,
    ..Info::new("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", "servicecidr")
};

const CIDRS: &str = "spec.cidrs";
const IMMUTABLE: &str = "field is immutable";

impl Kind for ServiceCidr {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn prepare_create(&self, object: &mut Value) {
        let mut held = object.list("/metadata/finalizers").to_vec();
        if !held.iter().any(|name| name == FINALIZER) {
            held.push(FINALIZER.into());
        }
        object["metadata"]["finalizers"] = held.into();
        let since = object.text("/metadata/creationTimestamp").to_owned();
        object["status"] = json!({"conditions": [ready(&since)]});
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        let is = object.list("/spec/cidrs");
        let Some(was) = old.map(|old| old.list("/spec/cidrs")) else {
            return validate_ranges(object, causes);
        };
        match (was, is) {
            _ if was.len() == is.len() => {
                for index in (0..was.len()).filter(|&index| was[index] != is[index]) {
                    causes.invalid(format!("{CIDRS}[{index}]"), &is[index], IMMUTABLE);
                }
            }
            // A cluster may learn a second family.
            ([before], [first, _]) => {
                if before != first {
                    causes.invalid(format!("{CIDRS}[0]"), first, IMMUTABLE);
                }
                validate_ranges(object, causes);
            }
            _ => causes.invalid(CIDRS, &object["spec"]["cidrs"], IMMUTABLE),
        }
    }

    fn validate_status(&self, _: &Value, _: &Value, _: &mut Causes) {}

    fn table(&self) -> &'static [ColumnCell] {
        const { &[NAME, (Column::text("CIDRs"), Cell::Made(ranges)), AGE] }
    }
}

fn ranges(object: &Value) -> String {
    let ranges = object.list("/spec/cidrs").iter().filter_map(Value::as_str);
    ranges.collect::<Vec<_>>().join(",")
}

/// The condition of a range that can be used.
pub fn ready(since: &str) -> Value {
    json!({"type": "Ready", "status": "True", "reason": "", "lastTransitionTime": since,
        "message": "Kubernetes Service CIDR is ready"})
}

/// The condition of a range that waits for its last addresses.
pub fn terminating(since: &str) -> Value {
    json!({"type": "Ready", "status": "False", "reason": "Terminating",
        "lastTransitionTime": since, "message": "There are still IPAddresses referencing the \
        ServiceCIDR, please remove them or create a new ServiceCIDR"})
}

fn validate_ranges(object: &Value, causes: &mut Causes) {
    let all = object.list("/spec/cidrs");
    if all.is_empty() {
        causes.required(CIDRS, "at least one CIDR required");
        return;
    }
    if all.len() > 2 {
        // Upstream shows the whole spec here, under the names of its fields in Go.
        let shown = json!({"CIDRs": all});
        causes.invalid(CIDRS, &shown, "may only hold up to 2 values");
        return;
    }
    for (index, range) in all.iter().enumerate() {
        let text = range.as_str().unwrap_or("");
        ip::check_canonical_network(&format!("{CIDRS}[{index}]"), text, causes);
    }
    let family = |range: &Value| {
        let (address, _) = range.as_str()?.split_once('/')?;
        ip::parse(address).map(Family::of)
    };
    if let [first, second] = all
        && family(first).is_some()
        && family(first) == family(second)
    {
        let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and \
            2001:db8::/64";
        causes.invalid(CIDRS, &object["spec"]["cidrs"], detail);
    }
}

#[cfg(test)]
mod tests;
