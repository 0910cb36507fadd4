//! IPAddress: a cluster address and the Service that holds it. Creating it is taking the address.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, NameRule, name_cell};
use crate::look::Look;
use crate::names;

pub struct IpAddress;

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

    fn columns(&self) -> &'static [Column] {
        const { &[Column::text("Name"), Column::text("ParentRef")] }
    }

    fn cells(&self, object: &Value, _: Timestamp) -> Vec<Value> {
        let parent = |field| object.text(&format!("/spec/parentRef/{field}"));
        let path = [parent("resource"), parent("namespace"), parent("name")].join("/");
        vec![name_cell(object), json!(path)]
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("spec.parentRef.name", "/spec/parentRef/name")]
    }
}

fn validate_parent(parent: &Value, causes: &mut Causes) {
    let group = parent.text("/group");
    if !group.is_empty() {
        for wrong in names::subdomain(group) {
            causes.invalid("spec.parentRef.group", &json!(group), wrong);
        }
    }
    for (field, required) in [("resource", true), ("name", true), ("namespace", false)] {
        let (place, text) = (format!("spec.parentRef.{field}"), parent[field].as_str());
        match text.unwrap_or("") {
            "" if required => causes.required(place, ""),
            text => {
                for wrong in names::path_segment(text) {
                    causes.invalid(place.clone(), &json!(text), wrong);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
