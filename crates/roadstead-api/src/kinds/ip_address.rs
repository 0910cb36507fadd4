//! IPAddress: a cluster address and the Service that holds it. Creating it is taking the address.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kind::{Column, Info, Kind, name_cell};
use crate::look::Look;

pub struct IpAddress;

static INFO: Info = Info {
    short_names: &["ip"],
    namespaced: false,
    ..Info::new("networking.k8s.io", "v1", "IPAddress", "ipaddresses", "ipaddress")
};

impl Kind for IpAddress {
    fn info(&self) -> &'static Info {
        &INFO
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
