use proptest::prelude::*;
use serde_json::json;

use super::*;

fn patched(kind: &str, mut object: Value, patch: Value) -> Result<Value, PatchError> {
    let schema = Schema::kubernetes();
    let group = if kind == "Deployment" { "apps" } else { "" };
    let id = schema.of_kind(group, "v1", kind).unwrap();
    merge(schema, id, &mut object, patch).map(|()| object)
}

/// Merges into the `spec` of a kind and shows the result as compact JSON.
fn spec(kind: &str, object: Value, patch: Value) -> String {
    match patched(kind, json!({"spec": object}), json!({"spec": patch})) {
        Ok(mut object) => object["spec"].take().to_string(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn lists_are_merged_by_their_key() {
    let cases = [
        (
            "an element of the same key is merged",
            json!({"ports": [{"port": 80, "name": "a"}, {"port": 81}]}),
            json!({"ports": [{"port": 80, "nodePort": 1}]}),
            r#"{"ports":[{"name":"a","nodePort":1,"port":80},{"port":81}]}"#,
        ),
        (
            "a new element without order comes first",
            json!({"ports": [{"port": 80}]}),
            json!({"ports": [{"port": 81}]}),
            r#"{"ports":[{"port":81},{"port":80}]}"#,
        ),
        (
            "with order, the order wins",
            json!({"ports": [{"port": 80}]}),
            json!({"$setElementOrder/ports": [{"port": 80}, {"port": 81}], "ports": [{"port": 81}]}),
            r#"{"ports":[{"port":80},{"port":81}]}"#,
        ),
        (
            "order alone reorders",
            json!({"ports": [{"port": 80}, {"port": 81}]}),
            json!({"$setElementOrder/ports": [{"port": 81}, {"port": 80}]}),
            r#"{"ports":[{"port":81},{"port":80}]}"#,
        ),
        (
            "an element deletes itself",
            json!({"ports": [{"port": 80}, {"port": 81}]}),
            json!({"ports": [{"$patch": "delete", "port": 80}]}),
            r#"{"ports":[{"port":81}]}"#,
        ),
        (
            "the whole list is replaced",
            json!({"ports": [{"port": 80}, {"port": 81}]}),
            json!({"ports": [{"$patch": "replace"}, {"port": 82}]}),
            r#"{"ports":[{"port":82}]}"#,
        ),
        (
            "atomic lists are replaced",
            json!({"externalIPs": ["a", "b"]}),
            json!({"externalIPs": ["c"]}),
            r#"{"externalIPs":["c"]}"#,
        ),
        (
            "null removes, objects are merged",
            json!({"type": "ClusterIP", "selector": {"a": "1", "b": "2"}}),
            json!({"type": null, "selector": {"b": null, "c": "3"}}),
            r#"{"selector":{"a":"1","c":"3"}}"#,
        ),
        (
            "an object is replaced by directive",
            json!({"selector": {"a": "1", "b": "2"}}),
            json!({"selector": {"$patch": "replace", "c": "3"}}),
            r#"{"selector":{"c":"3"}}"#,
        ),
        (
            "an element without its key is refused",
            json!({"ports": [{"port": 80}]}),
            json!({"ports": [{"name": "x"}]}),
            r#"map: {"name":"x"} does not contain declared merge key: port"#,
        ),
        (
            "an unknown directive is refused",
            json!({}),
            json!({"selector": {"$patch": "explode"}}),
            "Unknown patch type: explode",
        ),
    ];
    for (name, object, patch, want) in cases {
        assert_eq!(spec("Service", object, patch), want, "{name}");
    }
}

#[test]
fn other_keys_and_directives() {
    let finalizers = json!({"metadata": {"finalizers": ["a", "b", "c"]}});
    let patch =
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"], "finalizers": ["d"]}});
    let merged = patched("Service", finalizers, patch).unwrap();
    assert_eq!(merged["metadata"]["finalizers"], json!(["d", "a", "c"]));

    let strategy = json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}});
    let patch = json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}});
    assert_eq!(spec("Deployment", strategy, patch), r#"{"strategy":{"type":"Recreate"}}"#);

    let nested = json!({"template": {"spec": {"containers": [
        {"name": "a", "image": "x", "env": [{"name": "K", "value": "1"}]}, {"name": "b"}]}}});
    let patch = json!({"template": {"spec": {"containers": [
        {"name": "a", "image": "y", "env": [{"name": "L", "value": "2"}]}]}}});
    assert_eq!(
        spec("Deployment", nested, patch),
        r#"{"template":{"spec":{"containers":[{"env":[{"name":"L","value":"2"},{"name":"K","value":"1"}],"image":"y","name":"a"},{"name":"b"}]}}}"#
    );
}

fn ports() -> impl Strategy<Value = Value> {
    let port = (80u16..86, proptest::option::of("[a-c]"));
    proptest::collection::btree_map(80u16..86, port, 0..5).prop_map(|ports| {
        let ports = ports.into_iter().map(|(number, (_, name))| match name {
            Some(name) => json!({"port": number, "name": name}),
            None => json!({"port": number}),
        });
        json!({"ports": ports.collect::<Vec<_>>()})
    })
}

proptest! {
    /// A patch without order or deletions is idempotent: the second time it finds all it wants.
    #[test]
    fn merging_twice_is_merging_once(object in ports(), patch in ports()) {
        let once = patched("Service", json!({"spec": object}), json!({"spec": patch.clone()})).unwrap();
        let twice = patched("Service", once.clone(), json!({"spec": patch})).unwrap();
        prop_assert_eq!(once, twice);
    }
}
