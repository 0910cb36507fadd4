//! Namespace: a place for names.

use roadstead_schema::json::child;
use serde_json::{Value, json};

use crate::kind::{Info, Kind, NameRule};
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

pub(super) struct Namespace;

static INFO: Info = Info {
    short_names: &["ns"],
    namespaced: false,
    name_rule: NameRule::Label,
    status: true,
    delete_returns_object: true,
    ..Info::new("", "v1", "Namespace", "namespaces", "namespace")
};

impl Kind for Namespace {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        // Network policies and the like select namespaces by this label.
        let name = object["metadata"]["name"].clone();
        if name.is_string() {
            child(child(object, "metadata"), "labels")["kubernetes.io/metadata.name"] = name;
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        object["spec"] = json!({"finalizers": ["kubernetes"]});
        object["status"] = json!({"phase": "Active"});
    }

    fn prepare_update(&self, old: &Value, new: &mut Value) {
        // Only /finalize may change them.
        new["spec"] = old["spec"].clone();
    }

    fn table(&self) -> &'static [ColumnCell] {
        const { &[NAME, (Column::text("Status"), Cell::Value("/status/phase")), AGE] }
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("status.phase", "/status/phase")]
    }
}
