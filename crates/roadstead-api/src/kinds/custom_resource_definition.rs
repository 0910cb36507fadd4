//! CustomResourceDefinition: a kind that a user defines.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::kind::{Column, Info, Kind, name_cell};
use crate::look::{Look, child, children, default_to};
use crate::names;
use crate::structural::Structural;
use crate::structural::columns::PrinterColumn;

pub struct CustomResourceDefinition;

static INFO: Info = Info {
    namespaced: false,
    status: true,
    generation: true,
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    ..Info::new(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "customresourcedefinition",
    )
};

impl Kind for CustomResourceDefinition {
    fn info(&self) -> &Info {
        &INFO
    }

    fn default(&self, object: &mut Value) {
        let spec = child(object, "spec");
        let conversion = child(spec, "conversion");
        default_to(conversion, "strategy", "None");
        let names = child(spec, "names");
        let kind = names.text("/kind").to_owned();
        default_to(names, "singular", kind.to_lowercase());
        default_to(names, "listKind", format!("{kind}List"));
        for version in children(spec, "versions") {
            default_to(version, "served", false);
            default_to(version, "storage", false);
        }
    }

    fn prepare_create(&self, object: &mut Value) {
        let now = object["metadata"]["creationTimestamp"].clone();
        let condition = |kind: &str, reason: &str, message: &str| {
            json!({"type": kind, "status": "True", "reason": reason, "message": message,
                "lastTransitionTime": now})
        };
        let versions = object.list("/spec/versions").iter();
        let stored = versions.filter(|v| v.flag("/storage")).map(|v| v["name"].clone());
        object["status"] = json!({
            "acceptedNames": object["spec"]["names"],
            "storedVersions": stored.collect::<Vec<_>>(),
            "conditions": [
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ],
        });
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        let spec = &object["spec"];
        let (group, plural) = (spec.text("/group"), spec.text("/names/plural"));
        if object.text("/metadata/name") != format!("{plural}.{group}") {
            let detail = "must be spec.names.plural+\".\"+spec.group";
            causes.invalid("metadata.name", &object["metadata"]["name"], detail);
        }
        if group.is_empty() {
            causes.required("spec.group", "");
        } else if !group.contains('.') {
            causes.invalid("spec.group", &json!(group), "should be a domain with at least one dot");
        }
        for (field, text) in [("plural", plural), ("singular", spec.text("/names/singular"))] {
            for wrong in names::label(text) {
                causes.invalid(format!("spec.names.{field}"), &json!(text), wrong);
            }
        }
        if spec.text("/names/kind").is_empty() {
            causes.required("spec.names.kind", "");
        }
        if !["Namespaced", "Cluster"].contains(&spec.text("/scope")) {
            causes.unsupported("spec.scope", &spec["scope"], &["Cluster", "Namespaced"]);
        }
        let stored = spec.list("/versions").iter().filter(|version| version.flag("/storage"));
        if stored.count() != 1 {
            let detail = "must have exactly one version marked as storage version";
            causes.invalid("spec.versions", &json!(spec.list("/versions").len()), detail);
        }
        for (index, version) in spec.list("/versions").iter().enumerate() {
            let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
            match version.pointer("/schema/openAPIV3Schema") {
                None => causes.required(field, "schemas are required"),
                Some(schema) => {
                    if let Err(wrong) = Structural::parse(schema, &field) {
                        causes.0.extend(wrong.0);
                    }
                }
            }
            let field = format!("spec.versions[{index}].additionalPrinterColumns");
            PrinterColumn::read(version.list("/additionalPrinterColumns"), &field, causes);
        }
        for field in ["group", "scope"] {
            if old.is_some_and(|old| old["spec"][field] != spec[field]) {
                causes.invalid(format!("spec.{field}"), &spec[field], "field is immutable");
            }
        }
    }

    fn columns(&self) -> &[Column] {
        const { &[Column::text("Name"), Column::text("Created At")] }
    }

    fn cells(&self, object: &Value, _: Timestamp) -> Vec<Value> {
        vec![name_cell(object), object["metadata"]["creationTimestamp"].clone()]
    }
}
