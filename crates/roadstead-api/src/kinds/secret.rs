//! Secret: a ConfigMap for what nobody should read by accident.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, age_cell, name_cell};
use crate::look::{Look, default_to};

pub struct Secret;

static INFO: Info = Info::new("", "v1", "Secret", "secrets", "secret");

impl Kind for Secret {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        default_to(object, "type", "Opaque");
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        if old.is_some_and(|old| old.text("/type") != object.text("/type")) {
            causes.invalid("type", &object["type"], "field is immutable");
        }
    }

    fn columns(&self) -> &'static [Column] {
        const { &[Column::text("Name"), Column::text("Type"), Column::int("Data"), Column::text("Age")] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let entries = object.fields("/data").count();
        vec![name_cell(object), object["type"].clone(), json!(entries), age_cell(object, now)]
    }

    fn selectable(&self) -> &'static [(&'static str, &'static str)] {
        &[("type", "/type")]
    }
}
