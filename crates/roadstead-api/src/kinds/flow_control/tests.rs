//! What levels and schemas may say.

use roadstead_schema::types::Schema;
use serde_json::json;

use super::*;
use crate::kind::Kind;

fn kind(plural: &str) -> &'static PlainKind {
    ALL.iter().find(|kind| kind.info().plural == plural).unwrap()
}

fn wrong(plural: &str, mut object: Value) -> String {
    let mut causes = Causes::default();
    kind(plural).default(&mut object);
    kind(plural).validate(&object, None, &mut causes);
    let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
    found.join("; ")
}

#[test]
fn what_every_cluster_has_is_right_and_complete() {
    let all = bootstrap::objects();
    assert_eq!(all.len(), 8 + 11);
    for one in &all {
        let mut object = one.object.clone();
        kind(one.plural).default(&mut object);
        assert_eq!(object, one.object, "nothing is left to be filled in");
        assert_eq!(wrong(one.plural, object), "");
        let Some(level) = one.object.pointer("/spec/priorityLevelConfiguration/name") else {
            continue;
        };
        let is_it = |other: &bootstrap::SystemObject| {
            other.plural == bootstrap::LEVELS && other.object["metadata"]["name"] == *level
        };
        assert!(all.iter().any(is_it), "{level}");
    }
    // The shares of which 600 seats are divided.
    let shares =
        |one: &bootstrap::SystemObject| one.object.int("/spec/limited/nominalConcurrencyShares");
    assert_eq!(all.iter().map(shares).sum::<i64>(), 245);
    assert!(Schema::kubernetes().of_kind(GROUP, "v1", "FlowSchema").is_some());
}

#[test]
fn levels() {
    let named = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let limited = |limited: Value| named("a", json!({"type": "Limited", "limited": limited}));
    let queues = |queues: i64, hand: i64, length: i64| {
        limited(json!({"limitResponse": {"type": "Queue", "queuing":
            {"queues": queues, "handSize": hand, "queueLengthLimit": length}}}))
    };
    let reject = json!({"type": "Reject"});
    let cases = [
        (limited(json!({"limitResponse": reject})), ""),
        (queues(0, 0, 0), ""),
        (queues(64, 65, 1), "handSize: Invalid value: 65: should not be greater than queues (64)"),
        (
            queues(10_000_001, 1, 1),
            "queues: Invalid value: 10000001: must not be greater than 10000000",
        ),
        (queues(1024, 6, 1), ""),
        (
            queues(1025, 6, 1),
            "required entropy bits of deckSize 1025 and handSize 6 should not be greater than 60",
        ),
        (queues(-1, 1, -1), "queues: Invalid value: -1: must be positive"),
        (
            limited(json!({"limitResponse": {"type": "Queue"}})),
            "limitResponse.queuing: Required value: must not be empty",
        ),
        (
            limited(json!({"limitResponse": {"type": "Odd"}})),
            "Unsupported value: \"Odd\": supported values: \"Queue\", \"Reject\"",
        ),
        (
            limited(json!({"limitResponse": {"type": "Reject", "queuing": {}}})),
            "limitResponse.queuing: Forbidden",
        ),
        (
            limited(json!({"nominalConcurrencyShares": -1, "limitResponse": reject})),
            "nominalConcurrencyShares: Invalid value: -1: must be a non-negative integer",
        ),
        (
            limited(json!({"lendablePercent": 101, "limitResponse": reject})),
            "lendablePercent: Invalid value: 101: must be between 0 and 100, inclusive",
        ),
        (
            limited(json!({"borrowingLimitPercent": -1, "limitResponse": reject})),
            "if specified, must be a non-negative integer",
        ),
        (
            named("a", json!({"type": "Limited"})),
            "spec.limited: Required value: must not be empty when type is Limited",
        ),
        (
            named("a", json!({"type": "Exempt"})),
            "spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'",
        ),
        (named("exempt", json!({"type": "Exempt", "exempt": {"nominalConcurrencyShares": 7}})), ""),
        (
            named("catch-all", json!({"type": "Limited", "limited": {"limitResponse": reject}})),
            "spec of 'catch-all' must equal the fixed value",
        ),
        (
            named("exempt", json!({"type": "Exempt", "limited": {}})),
            "spec of 'exempt' except the 'spec.exempt' field must equal the fixed value",
        ),
    ];
    for (level, want) in cases {
        let found = wrong(bootstrap::LEVELS, level.clone());
        assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{level}: {found}");
    }
}

/// A schema with one rule about objects and one about paths.
fn schema(change: impl FnOnce(&mut Value)) -> Value {
    let mut schema = json!({"metadata": {"name": "a"}, "spec": {
    "priorityLevelConfiguration": {"name": "l"},
    "rules": [{
        "subjects": [{"kind": "User", "user": {"name": "u"}}],
        "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"],
            "namespaces": ["n"]}],
        "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": ["/a/*"]}],
    }]}});
    change(&mut schema["spec"]);
    schema
}

#[test]
fn schemas() {
    let rule =
        |at: &str, value: Value| schema(|spec| spec["rules"][0]["resourceRules"][0][at] = value);
    let path = |text: &str| {
        schema(|spec| spec["rules"][0]["nonResourceRules"][0]["nonResourceURLs"] = json!([text]))
    };
    let subject = |subject: Value| schema(|spec| spec["rules"][0]["subjects"] = json!([subject]));
    let cases = [
        (schema(|_| {}), ""),
        (schema(|spec| spec["matchingPrecedence"] = json!(-1)), "must be a positive value"),
        (
            schema(|spec| spec["matchingPrecedence"] = json!(10_001)),
            "must not be greater than 10000",
        ),
        (
            schema(|spec| spec["matchingPrecedence"] = json!(1)),
            "only the schema named 'exempt' may have matchingPrecedence 1",
        ),
        (
            schema(|spec| spec["distinguisherMethod"] = json!({"type": "x"})),
            "supported values: \"ByNamespace\", \"ByUser\"",
        ),
        (
            schema(|spec| spec["priorityLevelConfiguration"] = json!({})),
            "name: Required value: must reference a priority level",
        ),
        (
            schema(|spec| spec["rules"][0]["subjects"] = json!([])),
            "subjects: Required value: subjects must contain at least one value",
        ),
        (
            schema(|spec| {
                spec["rules"][0].as_object_mut().unwrap().retain(|at, _| at == "subjects");
            }),
            "spec.rules[0]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
        ),
        (rule("verbs", json!([])), "verbs: Required value: verbs must contain at least one value"),
        (rule("verbs", json!(["*", "get"])), "if '*' is present, must not specify other verbs"),
        (
            rule("verbs", json!(["look"])),
            "Unsupported value: [\"look\"]: supported values: \"create\"",
        ),
        (rule("apiGroups", json!(["*", "a"])), "must not specify other api groups"),
        (rule("resources", json!([])), "resource rules must supply at least one resource"),
        (
            rule("namespaces", json!([])),
            "resource rules that are not cluster scoped must supply at least one namespace",
        ),
        (
            rule("namespaces", json!(["A"])),
            "each member of this list must be '*' or a DNS-1123 label",
        ),
        (path("a"), "must start with slash"),
        (path("/a//b"), "must not contain double slash"),
        (path("/a*"), "wildcard can only do suffix matching"),
        (path("*"), ""),
        (
            subject(json!({"kind": "User", "user": {"name": ""}})),
            "subjects[0].user.name: Required value",
        ),
        (
            subject(json!({"kind": "User", "group": {"name": "g"}})),
            "user is required when subject kind is 'User'",
        ),
        (
            subject(json!({"kind": "User", "user": {"name": "u"}, "group": {"name": "g"}})),
            "group is forbidden when subject kind is not 'Group'",
        ),
        (
            subject(json!({"kind": "ServiceAccount", "serviceAccount": {"name": "*"}})),
            "must specify namespace for service account",
        ),
        (
            subject(json!({"kind": "Role"})),
            "supported values: \"Group\", \"ServiceAccount\", \"User\"",
        ),
    ];
    for (schema, want) in cases {
        let found = wrong(bootstrap::SCHEMAS, schema.clone());
        assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{schema}: {found}");
    }
    let mut fixed = bootstrap::mandatory_schema("catch-all").unwrap();
    fixed["spec"]["matchingPrecedence"] = json!(9);
    assert!(
        wrong(bootstrap::SCHEMAS, fixed).contains("spec of 'catch-all' must equal the fixed value")
    );
}

#[test]
fn tables() {
    let now = jiff::Timestamp::now();
    let row = |plural: &str, object: &Value| {
        let cells = kind(plural).cells(object, now).into_iter();
        let cells: Vec<_> =
            cells.map(|cell| cell.as_str().map_or(cell.to_string(), str::to_owned)).collect();
        cells.join(" ")
    };
    let find = |plural: &str, name: &str| {
        let all = bootstrap::objects();
        let found = all
            .into_iter()
            .find(|one| one.plural == plural && one.object["metadata"]["name"] == name);
        found.unwrap().object
    };
    let mut probes = find(bootstrap::SCHEMAS, "probes");
    assert_eq!(row(bootstrap::SCHEMAS, &probes), "probes exempt 2 <none> <unknown> ?");
    probes["status"]["conditions"] = json!([{"type": "Dangling", "status": "False"}]);
    assert_eq!(row(bootstrap::SCHEMAS, &probes), "probes exempt 2 <none> <unknown> False");
    let system = find(bootstrap::LEVELS, "system");
    assert_eq!(row(bootstrap::LEVELS, &system), "system Limited 30 64 6 50 <unknown>");
    let exempt = find(bootstrap::LEVELS, "exempt");
    assert_eq!(
        row(bootstrap::LEVELS, &exempt),
        "exempt Exempt <none> <none> <none> <none> <unknown>"
    );
}
