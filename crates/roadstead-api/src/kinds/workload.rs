//! What all kinds with a pod template and a selector have in common.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::kind::Info;
use crate::kinds::plain::{PlainKind, shown};
use crate::kinds::{cells, pod_spec};
use crate::metadata;
use crate::selector::Selector;
use crate::table::{Cell, Column, ColumnCell};

/// Where most of them have their template.
pub(super) const TEMPLATE: &str = "/spec/template";

pub(super) const CONTAINERS: ColumnCell =
    (Column::wide("Containers"), Cell::Made(|object| cells::containers(object, TEMPLATE, "name")));
pub(super) const IMAGES: ColumnCell =
    (Column::wide("Images"), Cell::Made(|object| cells::containers(object, TEMPLATE, "image")));
pub(super) const SELECTOR: ColumnCell =
    (Column::wide("Selector"), Cell::Labels("/spec/selector/matchLabels"));

/// A workload whose controller lives elsewhere.
pub(super) const fn workload(
    info: Info,
    table: &'static [ColumnCell],
    default: fn(&mut Value),
) -> PlainKind {
    PlainKind { template: TEMPLATE, default, ..shown(info, table) }
}

/// Says what is wrong with a workload of the group `apps`.
pub(super) fn validate(object: &Value, old: Option<&Value>, causes: &mut Causes) {
    let replicas = object.int("/spec/replicas");
    if replicas < 0 {
        let detail = "must be greater than or equal to 0";
        causes.invalid("spec.replicas", &json!(replicas), detail);
    }
    let selector = &object["spec"]["selector"];
    if !selector.is_object() {
        causes.required("spec.selector", "");
    } else if selector.fields("/matchLabels").count() + selector.list("/matchExpressions").len()
        == 0
    {
        causes.invalid("spec.selector", selector, "empty selector is invalid for deployment");
    }
    metadata::labels(selector.get("matchLabels"), "spec.selector.matchLabels", causes);
    if old.is_some_and(|old| old["spec"]["selector"] != *selector) {
        causes.invalid("spec.selector", selector, "field is immutable");
    }
    let labels = &object["spec"]["template"]["metadata"]["labels"];
    metadata::labels(Some(labels), "spec.template.metadata.labels", causes);
    let typed = LabelSelector::deserialize(selector).unwrap_or_default();
    if selector.is_object() && !Selector::from_object(&typed).matches(|key| labels[key].as_str()) {
        let detail = "`selector` does not match template `labels`";
        causes.invalid("spec.template.metadata.labels", labels, detail);
    }
    pod_spec::validate(&object["spec"]["template"]["spec"], "spec.template.spec", causes);
    if object.text("/spec/template/spec/restartPolicy") != "Always" {
        let policy = &object["spec"]["template"]["spec"]["restartPolicy"];
        causes.unsupported("spec.template.spec.restartPolicy", policy, &["Always"]);
    }
}

/// Pods of Jobs end: one that is started again and again never would.
pub(super) fn check_ends(pod: &Value, field: &str, causes: &mut Causes) {
    if pod.text("/restartPolicy") == "Always" {
        let detail = r#"valid values: "OnFailure", "Never""#;
        causes.required(format!("{field}.restartPolicy"), detail);
    }
}

#[test]
fn what_is_left_out_is_filled_in() {
    use crate::kind::Kind;
    use crate::kinds::{job, replication_controller, stateful_set};
    let all = [&replication_controller::KIND, &stateful_set::KIND, &job::KIND];
    let of = |name: &str, mut object: Value| {
        let kind = all.into_iter().find(|kind| kind.info().kind == name).unwrap();
        kind.default(&mut object);
        object["spec"].take()
    };
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}});
    let spec = of("ReplicationController", json!({"spec": {"template": template}}));
    assert_eq!((&spec["replicas"], &spec["selector"]), (&json!(1), &json!({"a": "b"})));
    assert_eq!(spec["template"]["spec"]["restartPolicy"], "Always");
    let spec = of("StatefulSet", json!({"spec": {}}));
    assert_eq!(
        spec["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}})
    );
    let spec = of("Job", json!({"spec": {"parallelism": 3}}));
    assert_eq!((&spec["completions"], &spec["parallelism"]), (&Value::Null, &json!(3)));
    assert_eq!(of("Job", json!({}))["completions"], 1);
    let mut own = json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {}}});
    job::KIND.prepare_create(&mut own);
    assert_eq!(own["spec"]["template"]["metadata"]["labels"]["job-name"], "j");
}
