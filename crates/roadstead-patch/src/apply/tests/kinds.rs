//! Server-side apply for kinds other than Services.

use super::*;

#[test]
fn custom_resources_are_merged_as_their_schema_says() {
    let schema = roadstead_schema::structural::Structural::stored(&json!({
        "type": "object", "properties": {"spec": {"type": "object", "properties": {
            "groups": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name", "kind"],
                "items": {"type": "object", "required": ["name"], "properties": {
                    "name": {"type": "string"},
                    "kind": {"type": "string", "default": "x"},
                    "value": {"x-kubernetes-int-or-string": true}}}},
            "names": {"type": "array", "x-kubernetes-list-type": "set",
                "items": {"type": "string"}},
            "whole": {"type": "object", "x-kubernetes-map-type": "atomic",
                "additionalProperties": {"type": "string"}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "nothing": {"type": "string", "nullable": true},
        }}},
    }));
    let typing = Typing::custom(&schema);
    let config = |spec: Value| {
        json!({"apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "finalizers": ["f"]},
            "spec": spec})
    };
    let act = |live: Option<&Value>, who: &str, spec: Value| {
        let request = Request { manager: manager(who, "1"), force: false, part: Part::All };
        apply(typing, live, config(spec), &request)
    };
    let first = json!({"groups": [{"name": "a", "value": 1}], "names": ["n"],
        "whole": {"a": "b"}, "free": {"c": {"d": [1]}}, "nothing": null});
    let live = act(None, "one", first).unwrap();
    let owned = Managers::decode(live["metadata"]["managedFields"].clone()).unwrap().0[0].set();
    assert_eq!(
        owned.shown(),
        [
            ".metadata.finalizers[=\"f\"]",
            ".spec.nothing",
            ".spec.whole",
            ".spec.free.c",
            ".spec.free.c.d",
            ".spec.groups[kind=\"x\",name=\"a\"]",
            ".spec.groups[kind=\"x\",name=\"a\"].name",
            ".spec.groups[kind=\"x\",name=\"a\"].value",
            ".spec.names[=\"n\"]",
        ]
    );
    let second = json!({"groups": [{"name": "a", "kind": "x"}, {"name": "b"}], "names": ["m"]});
    let live = act(Some(&live), "two", second).unwrap();
    assert_eq!(
        live["spec"],
        json!({"groups": [{"name": "a", "kind": "x", "value": 1}, {"name": "b"}],
            "names": ["n", "m"], "whole": {"a": "b"}, "free": {"c": {"d": [1]}}, "nothing": null})
    );
    let error = act(Some(&live), "two", json!({"whole": {"a": "c"}})).unwrap_err().to_string();
    assert_eq!(error, "Apply failed with 1 conflict: conflict with \"one\": .spec.whole");
    let error = act(None, "two", json!({"nmes": []})).unwrap_err().to_string();
    assert!(error.ends_with("(/x; /v1, Kind=X): .spec.nmes: field not declared in schema"));
    let mut made = config(json!({"free": {"a": 1}}));
    track(typing, None, &mut made, &manager("m", "1"));
    let fields = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert_eq!(*fields, json!({".": {}, "f:free": {".": {}, "f:a": {}}}));
}

/// What `kubectl create` of a Deployment is known to look like.
#[test]
fn a_new_deployment_has_the_owners_that_kubernetes_gives_it() {
    let schema = Schema::kubernetes();
    let typing = Typing::known(schema, schema.of_kind("apps", "v1", "Deployment").unwrap());
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}, "uid": "u"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                "containers": [{"name": "c", "image": "i",
                    "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}}}});
    let manager = Manager { api_version: "apps/v1", ..manager("kubectl-create", "1") };
    track(typing, None, &mut object, &manager);
    let labels = json!({"f:labels": {".": {}, "f:app": {}}});
    let port = json!({".": {}, "f:containerPort": {}, "f:protocol": {}});
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{"apiVersion": "apps/v1", "fieldsType": "FieldsV1", "manager": "kubectl-create",
        "operation": "Update", "time": "1", "fieldsV1": {
            "f:metadata": labels,
            "f:spec": {
                "f:replicas": {}, "f:selector": {},
                "f:strategy": {
                    "f:rollingUpdate": {".": {}, "f:maxSurge": {}}, "f:type": {}},
                "f:template": {"f:metadata": labels, "f:spec": {"f:containers": {
                    "k:{\"name\":\"c\"}": {".": {}, "f:image": {}, "f:name": {},
                        "f:ports": {".": {},
                            "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": port}},
                }}},
            }}}])
    );
}
