use proptest::prelude::*;
use serde_json::json;

use super::prune::prune;
use super::validate::validate;
use super::*;

/// In the style of the Prometheus operator, cut to what the examples need.
fn service_monitor() -> Value {
    let label_selector = json!({
        "type": "object", "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {"type": "object", "additionalProperties": {"type": "string"}},
            "matchExpressions": {"type": "array", "x-kubernetes-list-type": "atomic", "items": {
                "type": "object", "required": ["key", "operator"],
                "properties": {
                    "key": {"type": "string"},
                    "operator": {"type": "string"},
                    "values": {"type": "array", "items": {"type": "string"}},
                },
            }},
        },
    });
    let duration = "^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?\
                    (([0-9]+)ms)?)$";
    json!({
        "type": "object", "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {
                "type": "object", "required": ["endpoints", "selector"],
                "properties": {
                    "selector": label_selector,
                    "sampleLimit": {"type": "integer", "format": "int64", "minimum": 0},
                    "namespaceSelector": {"type": "object", "properties": {
                        "any": {"type": "boolean"},
                        "matchNames": {"type": "array", "items": {"type": "string"}},
                    }},
                    "endpoints": {"type": "array", "items": {
                        "type": "object",
                        "properties": {
                            "port": {"type": "string"},
                            "targetPort": {"x-kubernetes-int-or-string": true,
                                "anyOf": [{"type": "integer"}, {"type": "string"}]},
                            "interval": {"type": "string", "pattern": duration},
                            "scheme": {"type": "string", "enum": ["http", "https"],
                                "default": "http"},
                            "params": {"type": "object", "additionalProperties":
                                {"type": "array", "items": {"type": "string"}}},
                        },
                    }},
                },
            },
        },
    })
}

fn prometheus_rule() -> Value {
    let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
    json!({
        "type": "object", "required": ["spec"],
        "properties": {"spec": {"type": "object", "properties": {"groups": {
            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string", "minLength": 1},
                "interval": {"type": "string"},
                "rules": {"type": "array", "items": {"type": "object", "required": ["expr"],
                    "properties": {
                        "alert": {"type": "string"},
                        "record": {"type": "string"},
                        "expr": {"x-kubernetes-int-or-string": true,
                            "anyOf": [{"type": "integer"}, {"type": "string"}]},
                        "for": {"type": "string"},
                        "labels": texts, "annotations": texts,
                    }}},
            }},
        }}}},
    })
}

fn parse(schema: &Value) -> Structural {
    Structural::parse(schema, "schema").unwrap_or_else(|causes| panic!("{:#?}", causes.0))
}

fn mistakes(schema: &Structural, object: &Value) -> Vec<String> {
    let mut causes = Causes::default();
    validate(schema, object, "", &mut causes);
    causes.0.iter().map(ToString::to_string).collect()
}

#[test]
fn the_objects_of_tutorials_are_accepted() {
    let monitor = json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
        "metadata": {"name": "endpoint-monitor", "namespace": "monitoring"},
        "spec": {
            "selector": {"matchLabels": {"app": "my-app"}},
            "endpoints": [{"port": "metrics", "interval": "15s"}],
            "namespaceSelector": {"matchNames": ["default"]},
        },
    });
    let rule = json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule",
        "metadata": {"name": "endpoint-alerts", "namespace": "monitoring"},
        "spec": {"groups": [{"name": "endpoint.rules", "rules": [
            {"alert": "EndpointDown", "expr": "up{endpoint=\"my-service\"} < 1", "for": "5m",
                "labels": {"severity": "critical"}, "annotations": {"summary": "{{ $x }}"}},
        ]}]},
    });
    for (schema, object) in [(service_monitor(), monitor), (prometheus_rule(), rule)] {
        let schema = parse(&schema);
        let mut pruned = object.clone();
        assert_eq!(prune(&schema, &mut pruned), [""; 0]);
        assert_eq!(pruned, object);
        assert_eq!(mistakes(&schema, &object), [""; 0]);
    }
}

#[test]
fn unknown_fields_go_and_defaults_come() {
    let schema = parse(&service_monitor());
    let mut object = json!({
        "metadata": {"name": "x", "anything": 1},
        "colour": "red",
        "spec": {
            "selector": {"matchLabels": {"a": "b"}, "matchLabel": {}},
            "sampleLimit": null,
            "endpoints": [{"prot": "x", "params": {"a": ["b"]}}, {"scheme": null}],
        },
    });
    assert_eq!(
        prune(&schema, &mut object),
        ["colour", "spec.endpoints[0].prot", "spec.selector.matchLabel"]
    );
    defaults::apply(&schema, &mut object);
    assert_eq!(
        object,
        json!({
            "metadata": {"name": "x", "anything": 1},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "endpoints": [{"params": {"a": ["b"]}, "scheme": "http"}, {"scheme": "http"}],
            },
        })
    );
}

/// A list of ten thousand times nothing is not ten thousand times the default.
#[test]
fn defaults_do_not_grow_without_end() {
    let schema = parse(&json!({"type": "object", "properties": {
        "list": {"type": "array", "items": {"type": "object", "properties": {
            "text": {"type": "string", "default": "x".repeat(4000)}}}},
    }}));
    for (count, fits) in [(100, true), (10_000, false)] {
        let mut object = json!({"list": vec![json!({}); count]});
        defaults::apply(&schema, &mut object);
        assert!(object.to_string().len() < 700_000, "{count}");
        assert_eq!(defaults::is_complete(&schema, &object), fits, "{count}");
    }
}

#[test]
fn unknown_fields_can_be_wanted() {
    let schema = parse(&json!({"type": "object", "properties": {
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"strict": {"type": "object", "properties": {"a": {"type": "string"}}}}},
        "any": {"type": "object", "additionalProperties": true},
        "untyped": {"x-kubernetes-preserve-unknown-fields": true, "nullable": true},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true,
            "properties": {"spec": {"type": "object"}}},
    }}));
    let mut object = json!({
        "free": {"x": {"y": 1}, "strict": {"a": "b", "c": "d"}},
        "any": {"x": {"y": null}},
        "untyped": null,
        "template": {"apiVersion": "v1", "metadata": {"x": 1}, "spec": {"gone": 1}, "gone": 1},
    });
    let unknown = prune(&schema, &mut object);
    assert_eq!(unknown, ["free.strict.c", "template.gone", "template.spec.gone"]);
    defaults::apply(&schema, &mut object);
    assert_eq!(
        object,
        json!({
            "free": {"x": {"y": 1}, "strict": {"a": "b"}},
            "any": {"x": {"y": null}},
            "untyped": null,
            "template": {"apiVersion": "v1", "metadata": {"x": 1}, "spec": {}},
        })
    );
    assert_eq!(mistakes(&schema, &object), ["template.kind: Required value: must not be empty"]);
}

#[test]
fn values_are_validated() {
    let text = |rules: Value| {
        let mut schema = json!({"type": "string"});
        schema.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
        schema
    };
    let number = |ty: &str, rules: Value| {
        let mut schema = text(rules);
        schema["type"] = ty.into();
        schema
    };
    let list = |rules: Value| {
        let mut schema = json!({"type": "array", "items": {"type": "string"}});
        schema.as_object_mut().unwrap().extend(rules.as_object().unwrap().clone());
        schema
    };
    let either = json!({"x-kubernetes-int-or-string": true});
    let in_body = |rest: &str| format!("x in body {rest}");
    let invalid = |value: &str, rest: &str| format!("x: Invalid value: {value}: {}", in_body(rest));
    let cases: Vec<(Value, Value, Vec<String>)> = vec![
        (
            number("integer", json!({})),
            json!("string"),
            vec![invalid("\"string\"", "must be of type integer: \"string\"")],
        ),
        (
            number("integer", json!({})),
            json!(1.5),
            vec![invalid("\"number\"", "must be of type integer: \"number\"")],
        ),
        (number("integer", json!({})), json!(2.0), vec![]),
        (number("number", json!({})), json!(2), vec![]),
        (
            text(json!({})),
            json!(null),
            vec![invalid("\"null\"", "must be of type string: \"null\"")],
        ),
        (text(json!({"nullable": true})), json!(null), vec![]),
        (
            number("integer", json!({"minimum": 1, "maximum": 3})),
            json!(0),
            vec![invalid("0", "should be greater than or equal to 1")],
        ),
        (
            number("integer", json!({"minimum": 1, "exclusiveMinimum": true})),
            json!(1),
            vec![invalid("1", "should be greater than 1")],
        ),
        (
            number("number", json!({"maximum": 3})),
            json!(3.5),
            vec![invalid("3.5", "should be less than or equal to 3")],
        ),
        (
            number("integer", json!({"maximum": 3, "exclusiveMaximum": true})),
            json!(3),
            vec![invalid("3", "should be less than 3")],
        ),
        (
            number("integer", json!({"multipleOf": 3})),
            json!(4),
            vec![invalid("4", "should be a multiple of 3")],
        ),
        (number("number", json!({"multipleOf": 0.1})), json!(0.3), vec![]),
        (
            number("integer", json!({"format": "int32"})),
            json!(3_000_000_000_u64),
            vec![invalid("3000000000", "must be of type int32")],
        ),
        (
            text(json!({"minLength": 2, "pattern": "^b+$"})),
            json!("ä"),
            vec![
                invalid("\"ä\"", "should be at least 2 chars long"),
                invalid("\"ä\"", "should match '^b+$'"),
            ],
        ),
        (
            text(json!({"maxLength": 2})),
            json!("abc"),
            vec!["x: Too long: may not be more than 2 bytes".into()],
        ),
        (
            text(json!({"enum": ["a", "b"]})),
            json!("x"),
            vec!["x: Unsupported value: \"x\": supported values: \"a\", \"b\"".into()],
        ),
        (
            text(json!({"format": "date-time"})),
            json!("x"),
            vec![invalid("\"x\"", "must be of type date-time: \"x\"")],
        ),
        (
            list(json!({"maxItems": 1})),
            json!(["a", "b"]),
            vec!["x: Too many: 2: must have at most 1 item".into()],
        ),
        (
            list(json!({"minItems": 1})),
            json!([]),
            vec![invalid("0", "should have at least 1 items")],
        ),
        (
            list(json!({"x-kubernetes-list-type": "set"})),
            json!(["a", "b", "a"]),
            vec!["x[2]: Duplicate value: \"a\"".into()],
        ),
        (
            list(json!({})),
            json!(["a", 1]),
            vec![
                "x[1]: Invalid value: \"integer\": x[1] in body must be of type string: \
                 \"integer\""
                    .into(),
            ],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"},
                "minProperties": 2, "maxProperties": 3}),
            json!({"a": 1}),
            vec![
                invalid("1", "should have at least 2 properties"),
                "x.a: Invalid value: \"integer\": x.a in body must be of type string: \"integer\""
                    .into(),
            ],
        ),
        (
            json!({"type": "object", "required": ["a", "b"],
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}),
            json!({"a": "1"}),
            vec!["x.b: Required value".into()],
        ),
        (either.clone(), json!("80%"), vec![]),
        (either.clone(), json!(80), vec![]),
        (
            either,
            json!(true),
            vec![invalid("\"boolean\"", "must be of type integer,string: \"boolean\"")],
        ),
        (
            text(json!({"anyOf": [{"pattern": "^a"}, {"minLength": 3}]})),
            json!("b"),
            vec![
                "<nil>: Invalid value: \"\": \"x\" must validate at least one schema (anyOf)"
                    .into(),
                invalid("\"b\"", "should match '^a'"),
            ],
        ),
        (
            text(json!({"oneOf": [{"pattern": "^a"}, {"minLength": 1}]})),
            json!("a"),
            vec![
                "<nil>: Invalid value: \"\": \"x\" must validate one and only one schema (oneOf). \
                 Found 2 valid alternatives"
                    .into(),
            ],
        ),
        (
            text(json!({"allOf": [{"pattern": "^a"}, {"maxLength": 1}]})),
            json!("ab"),
            vec![
                "<nil>: Invalid value: \"\": \"x\" must validate all the schemas (allOf)".into(),
                "x: Too long: may not be more than 1 bytes".into(),
            ],
        ),
        (
            text(json!({"not": {"pattern": "^a"}})),
            json!("a"),
            vec!["<nil>: Invalid value: \"\": \"x\" must not validate the schema (not)".into()],
        ),
    ];
    for (schema, value, want) in cases {
        let schema = parse(&json!({"type": "object", "properties": {"x": schema}}));
        assert_eq!(mistakes(&schema, &json!({"x": value})), want, "{value}");
    }
}

#[test]
fn lists_by_key_have_each_key_once() {
    let schema = parse(&prometheus_rule());
    let object = json!({"spec": {"groups": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}});
    assert_eq!(mistakes(&schema, &object), ["spec.groups[2]: Duplicate value: {\"name\":\"a\"}"]);
    assert_eq!(mistakes(&schema, &json!({})), ["spec: Required value"]);
}

#[test]
fn what_is_not_structural_is_refused() {
    let field = |schema: Value| json!({"type": "object", "properties": {"x": schema}});
    let cases = [
        (json!({}), "type: Required value: must not be empty at the root"),
        (json!({"type": "string"}), "type: Invalid value: \"string\": must be object at the root"),
        (
            json!({"type": "object", "additionalProperties": true}),
            "additionalProperties: Forbidden: must not be used at the root",
        ),
        (
            field(json!({})),
            "properties[x].type: Required value: must not be empty for specified object fields",
        ),
        (
            field(json!({"type": "array", "items": {}})),
            "properties[x].items.type: Required value: must not be empty for specified array items",
        ),
        (field(json!({"type": "array"})), "properties[x].items: Required value: must be specified"),
        (
            field(json!({"type": "text"})),
            "properties[x].type: Unsupported value: \"text\": supported values: \"array\", \
             \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (
            field(json!({"type": "string", "anyOf": [{"type": "string"}]})),
            "properties[x].anyOf[0].type: Forbidden: must be empty to be structural",
        ),
        (
            field(json!({"type": "string", "not": {"default": 1}})),
            "properties[x].not.default: Forbidden: must be undefined to be structural",
        ),
        (
            field(json!({"type": "object", "oneOf": [{"properties": {"y": {}}}]})),
            "properties[x].properties[y]: Required value: because it is defined in \
             schema.properties[x].oneOf[0].properties[y]",
        ),
        (
            field(json!({"type": "object", "properties": {}, "$ref": "#/x"})),
            "properties[x].$ref: Forbidden: $ref is not supported",
        ),
        (
            field(json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true})),
            "properties[x].uniqueItems: Forbidden: uniqueItems cannot be set to true since the \
             runtime complexity becomes quadratic",
        ),
        (
            field(json!({"type": "array", "items": {"type": "object"},
                "x-kubernetes-list-type": "map"})),
            "properties[x].x-kubernetes-list-map-keys: Required value: must not be empty if \
             x-kubernetes-list-type is map",
        ),
        (
            field(json!({"type": "array", "items": {"type": "object"},
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]})),
            "properties[x].x-kubernetes-list-map-keys[0]: Invalid value: \"a\": entries must all \
             be names of item properties",
        ),
        (
            field(json!({"type": "object", "x-kubernetes-embedded-resource": true})),
            "properties[x].properties: Required value: must not be empty if \
             x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ),
        (
            field(json!({"x-kubernetes-int-or-string": true,
                "x-kubernetes-preserve-unknown-fields": true})),
            "properties[x].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be \
             false if x-kubernetes-int-or-string is true",
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object",
                "properties": {"labels": {"type": "object"}}}}}),
            "properties[metadata]: Forbidden: must not specify anything other than name and \
             generateName, but metadata is implicitly specified",
        ),
        (
            field(json!({"type": "string", "default": 1})),
            "properties[x].default: Invalid value: \"integer\": schema.properties[x].default in \
             body must be of type string: \"integer\"",
        ),
        (
            field(json!({"type": "object", "properties": {}, "default": {"a": 1}})),
            "properties[x].default: Invalid value: {\"a\":1}: must not have unknown fields: a",
        ),
    ];
    for (schema, want) in cases {
        let causes = Structural::parse(&schema, "schema").expect_err(want).0;
        let lines: Vec<_> = causes.iter().map(ToString::to_string).collect();
        assert_eq!(lines, [format!("schema.{want}")]);
    }
    let bad_pattern = field(json!({"type": "string", "pattern": "["}));
    let causes = Structural::parse(&bad_pattern, "schema").unwrap_err().0;
    assert!(causes[0].message.contains("must be a valid regular expression, but isn't"));
}

/// Objects that have something to do with the ServiceMonitor above, and much else.
fn objects() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..3i64).prop_map(Value::from),
        "[a-z0-9]{0,3}".prop_map(Value::from),
    ];
    let name = prop_oneof![
        Just("spec"),
        Just("selector"),
        Just("matchLabels"),
        Just("endpoints"),
        Just("scheme"),
        Just("params"),
        Just("unknown"),
    ];
    leaf.prop_recursive(5, 40, 4, move |inner| {
        let fields =
            prop::collection::btree_map(name.clone().prop_map(str::to_owned), inner.clone(), 0..4);
        prop_oneof![
            prop::collection::vec(inner, 0..3).prop_map(Value::from),
            fields.prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn pruning_and_defaulting_twice_changes_nothing(object in objects()) {
        let schema = parse(&service_monitor());
        let mut object = object;
        prune(&schema, &mut object);
        defaults::apply(&schema, &mut object);
        let once = object.clone();
        prop_assert_eq!(prune(&schema, &mut object), [""; 0]);
        defaults::apply(&schema, &mut object);
        prop_assert_eq!(&object, &once);
        mistakes(&schema, &object);
    }
}
