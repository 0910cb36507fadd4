//! ConfigMap: configuration as named texts.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::kind::{Info, Kind};
use crate::kinds::contents;
use crate::table::{AGE, Cell, Column, ColumnCell, NAME};

pub(super) struct ConfigMap;

static INFO: Info =
    Info { short_names: &["cm"], ..Info::new("", "v1", "ConfigMap", "configmaps", "configmap") };

impl Kind for ConfigMap {
    fn info(&self) -> &'static Info {
        &INFO
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        if let Some(old) = old {
            contents::validate_frozen(object, old, &["data", "binaryData"], causes);
        }
        for field in ["data", "binaryData"] {
            contents::validate_keys(object, field, causes);
        }
        for (key, _) in object.fields("/data") {
            if object["binaryData"].get(key).is_some() {
                let detail = "duplicate of key present in binaryData";
                causes.invalid(format!("data[{key}]"), &json!(key), detail);
            }
        }
        let size = contents::text_size(object, "data") + contents::byte_size(object, "binaryData");
        // Upstream's name for all of it.
        contents::validate_size(size, "[]", causes);
    }

    fn table(&self) -> &'static [ColumnCell] {
        const { &[NAME, (Column::int("Data"), Cell::CountIn(&["/data", "/binaryData"])), AGE] }
    }
}

#[test]
fn mistakes() {
    let frozen = json!({"immutable": true, "data": {"a": "1"}, "binaryData": {"b": "YQ=="}});
    let cases = [
        (json!({"data": {"a.b_c-D": "1"}}), None, ""),
        (json!({"data": {"..": "1"}}), None, "data[..]: Invalid value: \"..\": must not be '..'"),
        (
            json!({"data": {"a": "1"}, "binaryData": {"a": "YQ=="}}),
            None,
            "data[a]: Invalid value: \"a\": duplicate of key present in binaryData",
        ),
        (json!({"data": {"a": "x".repeat(1 << 20)}}), None, ""),
        (
            json!({"data": {"a": "x".repeat(1 << 20)}, "binaryData": {"b": "YQ=="}}),
            None,
            "[]: Too long: may not be more than 1048576 bytes",
        ),
        (frozen.clone(), Some(&frozen), ""),
        (
            json!({"data": {"a": "1"}, "binaryData": {"b": "YQ=="}}),
            Some(&frozen),
            "immutable: Forbidden: field is immutable when `immutable` is set",
        ),
        (
            json!({"immutable": true, "data": {"a": "1"}}),
            Some(&frozen),
            "binaryData: Forbidden: field is immutable when `immutable` is set",
        ),
    ];
    for (object, old, want) in cases {
        let mut causes = Causes::default();
        ConfigMap.validate(&object, old, &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(found.join("; "), want);
    }
}
