//! ReplicationController: what ReplicaSets have replaced.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, default_to};
use serde_json::{Value, json};

use crate::kinds::plain::{PlainKind, namespaced};
use crate::kinds::pod_spec;
use crate::kinds::workload::{CONTAINERS, IMAGES, workload};
use crate::metadata;
use crate::table::{AGE, Cell, Column, NAME};

pub(super) static KIND: PlainKind = PlainKind {
    selectable: &[("status.replicas", "/status/replicas")],
    check,
    ..workload(
        namespaced("", "ReplicationController", "replicationcontrollers", "replicationcontroller")
            .short(&["rc"])
            .with_status()
            .with_scale()
            .in_all(),
        &[
            NAME,
            (Column::int("Desired"), Cell::Int("/spec/replicas")),
            (Column::int("Current"), Cell::Int("/status/replicas")),
            (Column::int("Ready"), Cell::Int("/status/readyReplicas")),
            AGE,
            CONTAINERS,
            IMAGES,
            (Column::wide("Selector"), Cell::Labels("/spec/selector")),
        ],
        default,
    )
};

fn default(object: &mut Value) {
    let labels = object["spec"]["template"]["metadata"]["labels"].clone();
    let spec = child(object, "spec");
    default_to(spec, "replicas", 1);
    if labels.is_object() {
        default_to(spec, "selector", labels.clone());
        // It is labelled as its pods are, unless its author says otherwise.
        default_to(child(object, "metadata"), "labels", labels);
    }
}

fn check(object: &Value, old: Option<&Value>, causes: &mut Causes) {
    let spec = &object["spec"];
    if old.is_some_and(|old| old["spec"] == *spec) {
        return;
    }
    for field in ["minReadySeconds", "replicas"] {
        let number = spec.int(&format!("/{field}"));
        if number < 0 {
            let detail = "must be greater than or equal to 0";
            causes.invalid(format!("spec.{field}"), &json!(number), detail);
        }
    }
    let selector = &spec["selector"];
    metadata::labels(Some(selector), "spec.selector", causes);
    if spec.fields("/selector").next().is_none() {
        causes.required("spec.selector", "");
    }
    let template = &spec["template"];
    if !template.is_object() {
        return causes.required("spec.template", "");
    }
    let labels = &template["metadata"]["labels"];
    metadata::labels(Some(labels), "spec.template.metadata.labels", causes);
    if spec.fields("/selector").any(|(key, value)| labels.get(key) != Some(value)) {
        let detail = "`selector` does not match template `labels`";
        causes.invalid("spec.template.metadata.labels", labels, detail);
    }
    pod_spec::validate(&template["spec"], "spec.template.spec", causes);
    let policy = &template["spec"]["restartPolicy"];
    if policy != "Always" {
        causes.unsupported("spec.template.spec.restartPolicy", policy, &["Always"]);
    }
}

#[test]
fn what_is_wrong_with_one() {
    use crate::kind::Kind;
    let pod = |policy: &str| json!({"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]});
    let template = |policy: &str| json!({"metadata": {"labels": {"a": "b"}}, "spec": pod(policy)});
    let cases = [
        (json!({"template": template("Always")}), ""),
        (json!({}), "spec.selector: Required value\nspec.template: Required value"),
        (json!({"template": {"spec": pod("Always")}}), "spec.selector: Required value"),
        (
            json!({"template": template("Always"), "selector": {"a": "c"}}),
            "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match \
             template `labels`",
        ),
        (
            json!({"template": template("Never"), "replicas": -1}),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0\n\
             spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \
             \"Always\"",
        ),
    ];
    for (spec, want) in cases {
        let mut object = json!({"metadata": {"name": "rc"}, "spec": spec});
        KIND.default(&mut object);
        let mut causes = Causes::default();
        KIND.validate(&object, None, &mut causes);
        let all: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        assert_eq!(all.join("\n"), want, "{object}");
    }
}
