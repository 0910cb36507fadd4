//! CustomResourceDefinition: a kind that a user defines.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, children, default_to};
use roadstead_schema::structural::Structural;
use roadstead_schema::structural::columns::PrinterColumn;
use serde_json::{Value, json};

use crate::kind::{Info, Kind};
use crate::names;
use crate::table::{Cell, Column, ColumnCell, NAME};

pub(super) struct CustomResourceDefinition;

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
        object["status"] = json!({
            "acceptedNames": object["spec"]["names"],
            "storedVersions": [storage(object)],
            "conditions": [
                condition("NamesAccepted", "NoConflicts", "no conflicts found"),
                condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
            ],
        });
    }

    fn prepare_update(&self, _: &Value, new: &mut Value) {
        let names = new["spec"]["names"].clone();
        let storage = storage(new);
        let status = child(new, "status");
        status["acceptedNames"] = names;
        let mut stored = status.list("/storedVersions").to_vec();
        if !storage.is_null() && !stored.contains(&storage) {
            stored.push(storage);
            status["storedVersions"] = stored.into();
        }
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        let mut warnings = Vec::new();
        if object.text("/spec/conversion/strategy") == "Webhook" {
            warnings.push(
                "spec.conversion.strategy: conversion webhooks are not called by this server"
                    .to_owned(),
            );
        }
        for (index, version) in object.list("/spec/versions").iter().enumerate() {
            if has_rules(&version["schema"]) {
                warnings.push(format!(
                    "spec.versions[{index}].schema.openAPIV3Schema: x-kubernetes-validations rules \
                     are kept but not enforced by this server"
                ));
            }
        }
        warnings
    }

    fn validate(&self, object: &Value, old: Option<&Value>, causes: &mut Causes) {
        let spec = &object["spec"];
        validate_versions(object, causes);
        let (group, plural) = (spec.text("/group"), spec.text("/names/plural"));
        if object.text("/metadata/name") != format!("{plural}.{group}") {
            let detail = "must be spec.names.plural+\".\"+spec.group";
            causes.invalid("metadata.name", &object["metadata"]["name"], detail);
        }
        if group.is_empty() {
            causes.required("spec.group", "");
        } else if !group.contains('.') {
            causes.invalid("spec.group", &json!(group), "should be a domain with at least one dot");
        } else if super::all().iter().any(|kind| kind.info().group == group) {
            // Its objects would lie among those of the built-in kinds.
            causes.forbidden("spec.group", "the group is built into this API server");
        } else if old.is_none()
            && is_protected(group)
            && !object["metadata"]["annotations"].get(APPROVAL).is_some_and(Value::is_string)
        {
            let detail = format!(
                "protected groups must have approval annotation {APPROVAL:?}, see https://github.com/kubernetes/enhancements/pull/1111"
            );
            causes.required(format!("metadata.annotations[{APPROVAL}]"), &detail);
        }
        for (field, text) in [("plural", plural), ("singular", spec.text("/names/singular"))] {
            names::check(names::label, format!("spec.names.{field}"), text, causes);
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
            if let Some(scale) = version.pointer("/subresources/scale") {
                let field = format!("spec.versions[{index}].subresources.scale");
                validate_scale(scale, &field, causes);
            }
        }
        for field in ["group", "scope"] {
            if old.is_some_and(|old| old["spec"][field] != spec[field]) {
                causes.invalid(format!("spec.{field}"), &spec[field], "field is immutable");
            }
        }
    }

    fn table(&self) -> &'static [ColumnCell] {
        const { &[NAME, (Column::text("Created At"), Cell::Value("/metadata/creationTimestamp"))] }
    }
}

/// Where those who may use the community's names say who allowed it.
const APPROVAL: &str = "api-approved.kubernetes.io";

/// Whether a name belongs to the community.
fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"].iter().any(|domain| {
        group.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

/// The name of the version in which objects are written.
fn storage(definition: &Value) -> Value {
    let mut versions = definition.list("/spec/versions").iter();
    versions.find(|version| version.flag("/storage")).map_or(Value::Null, |v| v["name"].clone())
}

/// Checks where the numbers of replicas are said to be.
fn validate_scale(scale: &Value, field: &str, causes: &mut Causes) {
    let below = |path: &str, root: &str| {
        let steps = path.strip_prefix(root).and_then(|rest| rest.strip_prefix('.'));
        let name = |step: &str| !step.is_empty() && !step.contains(['[', ']', '*', '/', '~']);
        steps.is_some_and(|steps| steps.split('.').all(name))
    };
    for (name, root) in [("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")] {
        match scale[name].as_str().unwrap_or("") {
            "" => causes.required(format!("{field}.{name}"), ""),
            path if !below(path, root) => causes.invalid(
                format!("{field}.{name}"),
                &json!(path),
                format_args!("should be a json path under {root}"),
            ),
            _ => {}
        }
    }
    let path = scale.text("/labelSelectorPath");
    if !path.is_empty() && !below(path, ".spec") && !below(path, ".status") {
        let detail = "should be a json path under either .spec or .status";
        causes.invalid(format!("{field}.labelSelectorPath"), &json!(path), detail);
    }
}

fn validate_versions(object: &Value, causes: &mut Causes) {
    let spec = &object["spec"];
    let versions = spec.list("/versions");
    let names: Vec<_> = versions.iter().map(|version| version.text("/name")).collect();
    for (index, name) in names.iter().enumerate() {
        names::check(names::label, format!("spec.versions[{index}].name"), name, causes);
        if names[..index].contains(name) {
            causes.duplicate(format!("spec.versions[{index}].name"), &json!(name));
        }
    }
    // A webhook would have to translate between versions; with one there is nothing to translate.
    let served = versions.iter().filter(|version| version.flag("/served")).count();
    match spec.text("/conversion/strategy") {
        "None" => {}
        "Webhook" if served <= 1 => {}
        _ => {
            let strategy = &spec["conversion"]["strategy"];
            causes.unsupported("spec.conversion.strategy", strategy, &["None"]);
        }
    }
    let stored = object.list("/status/storedVersions");
    for (index, version) in stored.iter().enumerate() {
        if !names.iter().any(|name| version == name) {
            let field = format!("status.storedVersions[{index}]");
            causes.invalid(field, version, "must appear in spec.versions");
        }
    }
    let storage = storage(object);
    if !stored.is_empty() && !stored.contains(&storage) {
        let detail = format!("must have the storage version {}", storage.as_str().unwrap_or(""));
        causes.invalid("status.storedVersions", &json!(stored), detail);
    }
}

/// Whether a schema has rules in CEL anywhere.
fn has_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => {
            fields.get("x-kubernetes-validations").is_some_and(Value::is_array)
                || fields.values().any(has_rules)
        }
        Value::Array(items) => items.iter().any(has_rules),
        _ => false,
    }
}

#[test]
fn versions_come_and_go() {
    let definition = |versions: &str, status: &[&str]| {
        // `v1*` is stored, `v1-` is not served.
        let versions = versions.split(' ').map(|word| {
            let name = word.trim_end_matches(['*', '-']);
            json!({"name": name, "served": !word.ends_with('-'), "storage": word.ends_with('*'),
                "schema": {"openAPIV3Schema": {"type": "object"}}})
        });
        json!({"metadata": {"name": "things.example.com"}, "status": {"storedVersions": status},
            "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
                "conversion": {"strategy": "None"}, "versions": versions.collect::<Vec<_>>()}})
    };
    let wrong = |object: &Value| {
        let mut causes = Causes::default();
        CustomResourceDefinition.validate(object, None, &mut causes);
        causes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let cases = [
        ("one", definition("v1*", &["v1"]), ""),
        ("two", definition("v1* v1beta1", &["v1beta1", "v1"]), ""),
        ("twice", definition("v1* v1", &["v1"]), "spec.versions[1].name: Duplicate value: \"v1\""),
        (
            "dropped while objects may be in it",
            definition("v1*", &["v1beta1", "v1"]),
            "status.storedVersions[0]: Invalid value: \"v1beta1\": must appear in spec.versions",
        ),
        (
            "forgotten",
            definition("v1* v1beta1", &["v1beta1"]),
            "status.storedVersions: Invalid value: [\"v1beta1\"]: must have the storage version v1",
        ),
    ];
    for (name, object, want) in cases {
        assert_eq!(wrong(&object), want, "{name}");
    }
    let mut new = definition("v1beta1 v1*", &["v1beta1"]);
    CustomResourceDefinition.prepare_update(&Value::Null, &mut new);
    assert_eq!(new["status"]["storedVersions"], json!(["v1beta1", "v1"]));
    for (versions, want) in [
        (
            "v1* v2",
            "spec.conversion.strategy: Unsupported value: \"Webhook\": supported values: \"None\"",
        ),
        ("v1* v2-", ""),
    ] {
        let mut object = definition(versions, &["v1"]);
        object["spec"]["conversion"]["strategy"] = "Webhook".into();
        assert_eq!(wrong(&object), want);
        assert_eq!(CustomResourceDefinition.warnings(&object).len(), 1);
    }
}

#[test]
fn groups_that_belong_to_others() {
    let definition = |group: &str, annotations: Value| {
        json!({"metadata": {"name": format!("things.{group}"), "annotations": annotations},
            "spec": {"group": group, "scope": "Cluster", "names": {"plural": "things",
                "singular": "thing", "kind": "Thing"}, "versions": [{"name": "v1", "served": true,
                "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
    };
    let approved = json!({"api-approved.kubernetes.io": "somewhere"});
    let cases = [
        ("example.com", json!({}), ""),
        ("myk8s.io", json!({}), ""),
        ("networking.k8s.io", approved.clone(), "spec.group: Forbidden: the group is built into"),
        ("gateway.networking.k8s.io", approved, ""),
        (
            "gateway.networking.k8s.io",
            json!({}),
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups \
             must have approval annotation \"api-approved.kubernetes.io\", see ",
        ),
    ];
    for (group, annotations, want) in cases {
        let mut object = definition(group, annotations);
        CustomResourceDefinition.default(&mut object);
        let mut causes = Causes::default();
        CustomResourceDefinition.validate(&object, None, &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        let found = found.join("; ");
        assert!(found.starts_with(want) && found.is_empty() == want.is_empty(), "{group}: {found}");
    }
}

#[test]
fn where_replicas_are() {
    let cases = [
        (".spec.replicas", ".status.size.now", ".status.selector", ""),
        ("", ".status.replicas", "", "scale.specReplicasPath: Required value"),
        (
            ".status.replicas",
            ".status.replicas",
            "",
            "scale.specReplicasPath: Invalid value: \".status.replicas\": should be a json path \
             under .spec",
        ),
        (
            ".spec.a",
            ".spec.b",
            "",
            "scale.statusReplicasPath: Invalid value: \".spec.b\": should be a json path under \
             .status",
        ),
        (
            ".spec.a",
            ".status.b",
            ".metadata.labels",
            "scale.labelSelectorPath: Invalid value: \".metadata.labels\": should be a json path \
             under either .spec or .status",
        ),
    ];
    for (wanted, present, selector, want) in cases {
        let scale = json!({"specReplicasPath": wanted, "statusReplicasPath": present,
            "labelSelectorPath": selector});
        let mut causes = Causes::default();
        validate_scale(&scale, "scale", &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(found.join("; "), want);
    }
}
