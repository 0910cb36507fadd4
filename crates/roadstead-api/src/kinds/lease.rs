//! Lease: a sign of life, and the lock of a leader.

use jiff::Timestamp;
use serde_json::Value;

use crate::kind::{Column, Info, Kind, age_cell, name_cell};

pub struct Lease;

static INFO: Info = Info {
    create_on_update: true,
    ..Info::new("coordination.k8s.io", "v1", "Lease", "leases", "lease")
};

impl Kind for Lease {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn columns(&self) -> &'static [Column] {
        const { &[Column::text("Name"), Column::text("Holder"), Column::text("Age")] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name_cell(object), object["spec"]["holderIdentity"].clone(), age_cell(object, now)]
    }
}
