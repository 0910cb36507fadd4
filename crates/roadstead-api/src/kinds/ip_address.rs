//! IPAddress: a cluster address and the Service that holds it. Creating it is taking the address.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::kind::{Info, Kind, NameRule};
use crate::names;
use crate::table::{Cell, Column, ColumnCell, NAME};

pub(super) struct IpAddress;

static INFO: Info = Info {
    short_names: &["ip"],
    namespaced: false,
    name_rule: NameRule::Address,
    ..Info::new("networking.k8s.io", "v1", "IPAddress", "ipaddresses", "ipaddress")
};

impl Kind for IpAddress {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        let parent = &object["spec"]["parentRef"];
        if parent.is_null() {
            causes.required("spec.parentRef", "");
        } else {
            validate_parent(parent, causes);
        }
        if old.is_some_and(|old| old["spec"]["parentRef"] != *parent) {
            causes.invalid("spec.parentRef", &Value::Null, "field is immutable");
        }
    }

    fn table(&self) -> &'static [ColumnCell] {
        const { &[NAME, (Column::text("ParentRef"), Cell::Made(parent))] }
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("spec.parentRef.name", "/spec/parentRef/name")]
    }
}

/// `services/shop/web`.
fn parent(address: &Value) -> String {
    let parent = &address["spec"]["parentRef"];
    [parent.text("/resource"), parent.text("/namespace"), parent.text("/name")].join("/")
}

fn validate_parent(parent: &Value, causes: &mut Causes) {
    let group = parent.text("/group");
    if !group.is_empty() {
        names::check(names::subdomain, "spec.parentRef.group", group, causes);
    }
    for (field, required) in [("resource", true), ("name", true), ("namespace", false)] {
        let (place, text) = (format!("spec.parentRef.{field}"), parent[field].as_str());
        match text.unwrap_or("") {
            "" if required => causes.required(place, ""),
            text => {
                names::check(names::path_segment, place.clone(), text, causes);
            }
        }
    }
}

#[cfg(test)]
mod tests;
