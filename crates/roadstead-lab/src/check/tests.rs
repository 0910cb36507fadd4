//! Questions, worlds, and what is missing.

use super::*;
use crate::language::Language;

fn world(yaml: &str, answer: Option<&str>) -> Evidence {
    let objects: Vec<Value> = serde_saphyr::from_str(yaml).unwrap();
    let kind = |object: &Value| LessonKind::of(object["kind"].as_str().unwrap()).unwrap();
    let objects = objects.into_iter().map(|object| (kind(&object), object)).collect();
    Evidence { objects, answer: answer.map(str::to_owned) }
}

fn read(yaml: &str) -> Question {
    serde_json::from_value(serde_saphyr::from_str(yaml).unwrap()).unwrap()
}

const SERVICE: &str = "[{kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.9, \
    type: ClusterIP, ports: [{port: 80}]}}]";
const SLICES: &str = "
- kind: EndpointSlice
  metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
  endpoints: [{addresses: [10.0.0.1], conditions: {ready: true}}, {addresses: [10.0.0.2]}]
- kind: EndpointSlice
  metadata: {name: web-2, labels: {kubernetes.io/service-name: web}}
  endpoints: [{addresses: [10.0.0.3], conditions: {ready: false}}, {addresses: [10.0.0.1]}]
- kind: EndpointSlice
  metadata: {name: other-1, labels: {kubernetes.io/service-name: other}}
  endpoints: [{addresses: [10.0.0.9]}]
";

#[test]
fn what_is_missing() {
    let cases = [
        ("nothing", "object: {kind: Service, name: web}", SERVICE, None, ""),
        (
            "no object",
            "object: {kind: Service, name: db}",
            SERVICE,
            None,
            "There is no Service db.",
        ),
        (
            "another value",
            "object: {kind: Service, name: web, fields: [{path: /spec/type, is: NodePort}]}",
            SERVICE,
            None,
            "Service web: spec.type is \"ClusterIP\" and should be \"NodePort\".",
        ),
        (
            "a number",
            "object: {kind: Service, name: web, fields: [{path: /spec/ports/0/port, is: 80}]}",
            SERVICE,
            None,
            "",
        ),
        (
            "a field",
            "object: {kind: Service, fields: [{path: /spec/selector, exists: true}]}",
            SERVICE,
            None,
            "Service: spec.selector is missing.",
        ),
        (
            "one field too many",
            "object: {kind: Service, fields: [{path: /spec/ports, exists: false}]}",
            SERVICE,
            None,
            "Service: spec.ports is [{\"port\":80}] and should not be there.",
        ),
        (
            "still there",
            "gone: {kind: Service, name: web}",
            SERVICE,
            None,
            "Service web is still there.",
        ),
        ("gone", "gone: {kind: Service, name: web}", "[]", None, ""),
        ("ready, each once", "ready: {service: web, addresses: 2}", SLICES, None, ""),
        (
            "too few",
            "ready: {service: web, addresses: 3}",
            SLICES,
            None,
            "2 addresses of Service web are ready, and should be 3.",
        ),
        (
            "a slice by its Service",
            "object: {kind: EndpointSlice, service: db}",
            SLICES,
            None,
            "There is no EndpointSlice (kubernetes.io/service-name=db).",
        ),
        ("an answer", "answer: {oneOf: [Service]}", "[]", Some(" `service` "), ""),
        ("a wrong answer", "answer: {oneOf: [Service]}", "[]", Some("Pod"), "That is not it."),
        (
            "no answer",
            "answer: {oneOf: [Service]}",
            "[]",
            None,
            "Give your answer: roadstead lab check ANSWER",
        ),
        (
            "an answer that is in an object",
            "answer: {of: {kind: Service, name: web, path: /spec/clusterIP}}",
            SERVICE,
            Some("10.96.0.9"),
            "",
        ),
        (
            "an answer that is in another object",
            "answer: {of: {kind: Service, name: db, path: /spec/clusterIP}}",
            SERVICE,
            Some("10.96.0.9"),
            "That is not it.",
        ),
        (
            "the first of all that is missing",
            "all: [{object: {kind: Service, name: web}}, {gone: {kind: Service, name: web}}]",
            SERVICE,
            None,
            "Service web is still there.",
        ),
    ];
    for (name, check, objects, answer, want) in cases {
        let check = read(check);
        let missing = check.missing(&world(objects, answer));
        let english = missing.as_ref().map_or("", |text| text.in_language(Language::English));
        assert_eq!(english, want, "{name}");
        let chinese = missing.as_ref().map_or("", |text| text.in_language(Language::Chinese));
        assert_eq!(chinese.is_empty(), want.is_empty(), "{name}");
    }
}

#[test]
fn what_has_to_be_fetched() {
    let check = "all: [{ready: {service: a, addresses: 1}}, {answer: {oneOf: [x]}}, \
                 {gone: {kind: Pod}}]";
    let check = read(check);
    assert_eq!(check.kinds(), [LessonKind::EndpointSlice, LessonKind::Pod].into());
    assert!(check.wants_answer());
}
