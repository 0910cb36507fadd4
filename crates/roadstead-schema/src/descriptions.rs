//! What the fields of the commonest kinds mean, for `kubectl explain`. Read when somebody asks for a
//! document that shows it, and not kept.

use std::borrow::Cow;
use std::collections::BTreeMap;

const TEXTS: &str = include_str!("../data/descriptions.json");

/// What fields that many types have mean, for those that say nothing of their own.
const ANY: &str = "*";

/// All descriptions.
pub struct Descriptions(BTreeMap<&'static str, BTreeMap<&'static str, Cow<'static, str>>>);

impl Descriptions {
    /// Reads them.
    pub fn read() -> Self {
        Self(serde_json::from_str(TEXTS).expect("the built-in descriptions are readable"))
    }

    /// What a type is for.
    pub fn of_type(&self, definition: &str) -> Option<&str> {
        self.0.get(definition)?.get("").map(AsRef::as_ref)
    }

    /// What a field of a type means; `is_object` tells whether the type is served by itself.
    pub fn of_field(&self, definition: &str, field: &str, is_object: bool) -> Option<&str> {
        let own = self.0.get(definition).and_then(|fields| fields.get(field));
        let any = || self.0.get(ANY).filter(|_| is_object).and_then(|fields| fields.get(field));
        own.or_else(any).map(AsRef::as_ref)
    }
}

#[test]
fn every_description_is_of_something() {
    use crate::types::Schema;
    let schema = Schema::kubernetes();
    for (name, fields) in &Descriptions::read().0 {
        if *name == ANY {
            continue;
        }
        let definition = schema.get(schema.named(name).unwrap_or_else(|| panic!("{name}")));
        for field in fields.keys().filter(|field| !field.is_empty()) {
            assert!(definition.fields.contains_key(*field), "{name} has no {field}");
        }
    }
}

#[test]
fn services_are_explained() {
    let descriptions = Descriptions::read();
    let spec = "io.k8s.api.core.v1.ServiceSpec";
    assert!(descriptions.of_field(spec, "type", false).unwrap().contains("NodePort"));
    let service = "io.k8s.api.core.v1.Service";
    assert!(descriptions.of_field(service, "apiVersion", true).is_some());
    assert_eq!(descriptions.of_field(service, "nothing", true), None);
}
