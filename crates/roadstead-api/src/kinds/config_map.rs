//! ConfigMap: configuration as named texts.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, age_cell, name_cell};
use crate::look::Look;

pub struct ConfigMap;

static INFO: Info =
    Info { short_names: &["cm"], ..Info::new("", "v1", "ConfigMap", "configmaps", "configmap") };

impl Kind for ConfigMap {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        if old.is_some_and(|old| old.flag("/immutable") && old["data"] != object["data"]) {
            causes.forbidden("data", "field is immutable when `immutable` is set");
        }
    }

    fn columns(&self) -> &'static [Column] {
        const { &[Column::text("Name"), Column::int("Data"), Column::text("Age")] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let entries = object.fields("/data").count() + object.fields("/binaryData").count();
        vec![name_cell(object), json!(entries), age_cell(object, now)]
    }
}
