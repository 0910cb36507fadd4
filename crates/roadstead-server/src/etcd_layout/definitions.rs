//! CustomResourceDefinitions as kube-apiserver keeps them to this day: in the form of v1beta1, which says once
//! what v1 says of each version. Pure.

use serde_json::{Map, Value, json};

/// Their group, and the form that is read here.
const OLD: &str = "apiextensions.k8s.io/v1beta1";
const NEW: &str = "apiextensions.k8s.io/v1";
/// What is said of all versions, and what it is called there.
const OF_ALL: [(&str, &str); 3] = [
    ("validation", "schema"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
];

/// The same definition in the form of v1; any other object as it is.
pub(super) fn in_newest_form(mut object: Value) -> Value {
    if object["apiVersion"] != OLD {
        return object;
    }
    object["apiVersion"] = json!(NEW);
    if let Some(spec) = object["spec"].as_object_mut() {
        divide(spec);
    }
    object
}

fn divide(spec: &mut Map<String, Value>) {
    let only =
        spec.remove("version").map(|name| json!({"name": name, "served": true, "storage": true}));
    let versions = spec.entry("versions").or_insert_with(|| only.into_iter().collect());
    let mut versions = versions.take();
    for (all, each) in OF_ALL {
        let Some(common) = spec.remove(all) else { continue };
        for version in versions.as_array_mut().into_iter().flatten() {
            // One of the two is said, never both.
            if version[each].is_null() {
                version[each] = common.clone();
            }
        }
    }
    for version in versions.as_array_mut().into_iter().flatten() {
        let columns = version.get_mut("additionalPrinterColumns").and_then(Value::as_array_mut);
        for column in columns.into_iter().flatten().filter_map(Value::as_object_mut) {
            if let Some(path) = column.remove("JSONPath") {
                column.insert("jsonPath".to_owned(), path);
            }
        }
    }
    spec.insert("versions".to_owned(), versions);
    let Some(conversion) = spec.get_mut("conversion").and_then(Value::as_object_mut) else {
        return;
    };
    let (client, versions) =
        (conversion.remove("webhookClientConfig"), conversion.remove("conversionReviewVersions"));
    if let Some(client) = client {
        let webhook = json!({"clientConfig": client, "conversionReviewVersions": versions});
        conversion.insert("webhook".to_owned(), webhook);
    }
}

#[test]
fn definitions_of_kube_apiserver() {
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let column = |path: &str| json!([{"name": "A", "type": "string", path: ".spec.a"}]);
    let cases = [
        (
            "one version",
            json!({"version": "v1", "versions": [{"name": "v1"}], "validation": schema,
                "subresources": {"status": {}}, "additionalPrinterColumns": column("JSONPath"),
                "conversion": {"strategy": "None"}}),
            json!({"versions": [{"name": "v1", "schema": schema, "subresources": {"status": {}},
                "additionalPrinterColumns": column("jsonPath")}], "conversion": {"strategy": "None"}}),
        ),
        (
            "several, each with its own",
            json!({"version": "v1", "versions": [
                {"name": "v1", "schema": schema, "additionalPrinterColumns": column("JSONPath")},
                {"name": "v2", "schema": {"openAPIV3Schema": {"type": "array"}}}]}),
            json!({"versions": [
                {"name": "v1", "schema": schema, "additionalPrinterColumns": column("jsonPath")},
                {"name": "v2", "schema": {"openAPIV3Schema": {"type": "array"}}}]}),
        ),
        (
            "very old",
            json!({"version": "v1", "validation": schema}),
            json!({"versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}),
        ),
        (
            "with a webhook",
            json!({"versions": [], "conversion": {"strategy": "Webhook", "webhookClientConfig": {"url": "u"},
                "conversionReviewVersions": ["v1"]}}),
            json!({"versions": [], "conversion": {"strategy": "Webhook",
                "webhook": {"clientConfig": {"url": "u"}, "conversionReviewVersions": ["v1"]}}}),
        ),
    ];
    for (name, old, new) in cases {
        let object = |version: &str, spec: &Value| json!({"apiVersion": version, "spec": spec});
        assert_eq!(in_newest_form(object(OLD, &old)), object(NEW, &new), "{name}");
        assert_eq!(in_newest_form(object(NEW, &new)), object(NEW, &new), "{name}: as it is");
    }
}
