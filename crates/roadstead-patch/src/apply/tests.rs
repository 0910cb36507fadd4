use roadstead_api::kind::METADATA;
use roadstead_schema::types::Schema;
use serde_json::json;

use super::track::track;
use super::*;

mod kinds;
mod properties;

fn service() -> Typing<'static> {
    let schema = Schema::kubernetes();
    Typing::known(schema, schema.of_kind("", "v1", "Service").unwrap())
}

fn manager<'a>(name: &'a str, time: &'a str) -> Manager<'a> {
    let (name, subresource) = name.split_once('/').unwrap_or((name, ""));
    Manager { name, api_version: "v1", subresource, time }
}

/// A Service with this `spec`; labels may stand in it, too.
fn object(mut spec: Value) -> Value {
    let mut object =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"}});
    for (name, place) in [("labels", "metadata"), ("finalizers", "metadata")] {
        if let Some(value) = spec.as_object_mut().unwrap().remove(name) {
            object[place][name] = value;
        }
    }
    if let Some(status) = spec.as_object_mut().unwrap().remove("status") {
        object["status"] = status;
    }
    if spec != json!({}) {
        object["spec"] = spec;
    }
    object
}

/// A cluster of one Service, written to at one second after another.
#[derive(Default)]
struct Cluster {
    live: Option<Value>,
    second: usize,
}

impl Cluster {
    fn time(&mut self) -> String {
        self.second += 1;
        format!("2026-01-01T00:00:{:02}Z", self.second)
    }

    fn apply(&mut self, who: &str, spec: Value, force: bool) -> Result<(), ApplyError> {
        let time = self.time();
        let manager = manager(who, &time);
        let part =
            if manager.subresource == "status" { Part::Status(METADATA) } else { Part::Main };
        let request = Request { manager, force, part };
        self.live = Some(apply(service(), self.live.as_ref(), object(spec), &request)?);
        Ok(())
    }

    /// Writes the whole object, as an update does.
    fn put(&mut self, who: &str, spec: Value) {
        let mut new = object(spec);
        if let Some(old) = &self.live {
            new["metadata"]["uid"] = "u".into();
            if old.get("status").is_some() && new.get("status").is_none() {
                new["status"] = old["status"].clone();
            }
        }
        let time = self.time();
        track(service(), self.live.as_ref(), &mut new, &manager(who, &time));
        self.live = Some(new);
    }

    /// `/metadata` and `/spec` without names and owners.
    fn shown(&self) -> String {
        let mut shown = self.live.clone().unwrap();
        let metadata = shown["metadata"].as_object_mut().unwrap();
        metadata.retain(|name, _| ["labels", "finalizers"].contains(&name.as_str()));
        let (metadata, spec) = (shown["metadata"].take(), shown["spec"].take());
        let mut all = metadata.as_object().cloned().unwrap_or_default();
        all.extend(spec.as_object().cloned().unwrap_or_default());
        Value::Object(all).to_string()
    }

    /// One line for each owner: operation, name, second, and paths.
    fn owners(&self) -> Vec<String> {
        let list = &self.live.as_ref().unwrap()["metadata"]["managedFields"];
        let line = |entry: &Entry| {
            let at = entry.time.trim_start_matches("2026-01-01T00:00:").trim_end_matches('Z');
            let slash = if entry.subresource.is_empty() { "" } else { "/" };
            let (name, sub) = (&entry.manager, &entry.subresource);
            let fields = entry.set().shown().join(" ");
            format!("{:?} {name}{slash}{sub}@{at} {fields}", entry.operation)
        };
        let managers = Managers::decode(list.clone()).unwrap_or_default();
        managers.0.iter().map(line).collect()
    }
}

/// Runs steps such as `("a", spec)`: `a` applies, `a!` applies with force, `=a` puts.
fn run(steps: &[(&str, Value)]) -> (Cluster, Option<ApplyError>) {
    let mut cluster = Cluster::default();
    for (who, spec) in steps {
        let result = match who.strip_prefix('=') {
            Some(who) => {
                cluster.put(who, spec.clone());
                Ok(())
            }
            None => {
                let force = who.ends_with('!');
                cluster.apply(who.trim_end_matches('!'), spec.clone(), force)
            }
        };
        if let Err(error) = result {
            return (cluster, Some(error));
        }
    }
    (cluster, None)
}

type Steps = Vec<(&'static str, Value)>;
type Lines = Vec<&'static str>;

#[test]
fn who_owns_what_after_ordinary_writes() {
    let create = ("=a", json!({"type": "ClusterIP", "labels": {"x": "1"}}));
    let cases: Vec<(&str, Steps, Lines)> = vec![
        (
            "a new object is all its creator's",
            vec![create.clone()],
            vec!["Update a@01 .metadata.labels .metadata.labels.x .spec.type"],
        ),
        (
            "what is changed or added changes hands, what is removed has no owner",
            vec![create.clone(), ("=b", json!({"type": "NodePort", "labels": {"y": "1"}}))],
            vec!["Update a@01 .metadata.labels", "Update b@02 .metadata.labels.y .spec.type"],
        ),
        (
            "no change, no owner",
            vec![create.clone(), ("=b", create.1.clone())],
            vec!["Update a@01 .metadata.labels .metadata.labels.x .spec.type"],
        ),
        (
            "who owns nothing any more is not listed",
            vec![create.clone(), ("=b", json!({"type": "NodePort"}))],
            vec!["Update b@02 .spec.type"],
        ),
        (
            "removing does not move the time",
            vec![create.clone(), ("=a", json!({"type": "ClusterIP"}))],
            vec!["Update a@01 .spec.type"],
        ),
        (
            "elements of a list by key, with the default for the protocol",
            vec![("=a", json!({"ports": [{"port": 80}], "clusterIPs": ["1"]}))],
            vec![
                "Update a@01 .spec.clusterIPs .spec.ports \
                 .spec.ports[port=80,protocol=\"TCP\"] .spec.ports[port=80,protocol=\"TCP\"].port",
            ],
        ),
        (
            "an atomic map is one thing",
            vec![
                ("=a", json!({"selector": {"x": "1"}})),
                ("=b", json!({"selector": {"x": "1", "y": "2"}})),
            ],
            vec!["Update b@02 .spec.selector"],
        ),
        (
            "a set has owners by element",
            vec![("=a", json!({"finalizers": ["x"]})), ("=b", json!({"finalizers": ["x", "y"]}))],
            vec![
                "Update a@01 .metadata.finalizers .metadata.finalizers[=\"x\"]",
                "Update b@02 .metadata.finalizers[=\"y\"]",
            ],
        ),
        (
            "subresources are told apart",
            vec![
                create.clone(),
                (
                    "=a/status",
                    json!({"type": "ClusterIP", "labels": {"x": "1"},
                    "status": {"conditions": [{"type": "A", "status": "True"}]}}),
                ),
            ],
            vec![
                "Update a@01 .metadata.labels .metadata.labels.x .spec.type",
                "Update a/status@02 .status.conditions .status.conditions[type=\"A\"] \
                 .status.conditions[type=\"A\"].status .status.conditions[type=\"A\"].type",
            ],
        ),
        (
            "an update takes from an applier",
            vec![("a", json!({"type": "ClusterIP"})), ("=b", json!({"type": "NodePort"}))],
            vec!["Update b@02 .spec.type"],
        ),
    ];
    for (name, steps, want) in cases {
        assert_eq!(run(&steps).0.owners(), want, "{name}");
    }
}

#[test]
fn applying() {
    let cases: Vec<(&str, Steps, &str, Lines)> = vec![
        (
            "what is no longer applied goes",
            vec![("a", json!({"type": "x", "externalName": "y"})), ("a", json!({"type": "x"}))],
            r#"{"type":"x"}"#,
            vec!["Apply a@02 .spec.type"],
        ),
        (
            "unless somebody else applies it",
            vec![
                ("a", json!({"labels": {"x": "1", "y": "1"}})),
                ("b", json!({"labels": {"x": "1"}})),
                ("a", json!({})),
            ],
            r#"{"labels":{"x":"1"}}"#,
            vec!["Apply b@02 .metadata.labels.x"],
        ),
        (
            "or has written it",
            vec![
                ("a", json!({"type": "x", "labels": {"x": "1"}})),
                ("=b", json!({"type": "x", "labels": {"x": "1", "y": "2"}})),
                ("a", json!({"type": "x"})),
            ],
            r#"{"labels":{"y":"2"},"type":"x"}"#,
            vec!["Apply a@03 .spec.type", "Update b@02 .metadata.labels.y"],
        ),
        (
            "the same twice is nothing, not even a time",
            vec![("a", json!({"type": "x"})), ("a", json!({"type": "x"}))],
            r#"{"type":"x"}"#,
            vec!["Apply a@01 .spec.type"],
        ),
        (
            "elements of others stay, in their order",
            vec![
                ("=b", json!({"ports": [{"port": 1}, {"port": 2}, {"port": 3}]})),
                ("a", json!({"ports": [{"port": 9}, {"port": 3, "protocol": "TCP"}, {"port": 8}]})),
            ],
            r#"{"ports":[{"port":1},{"port":2},{"port":9},{"port":3,"protocol":"TCP"},{"port":8}]}"#,
            vec![
                "Apply a@02 .spec.ports[port=3,protocol=\"TCP\"] \
                 .spec.ports[port=8,protocol=\"TCP\"] .spec.ports[port=9,protocol=\"TCP\"] \
                 .spec.ports[port=3,protocol=\"TCP\"].port \
                 .spec.ports[port=3,protocol=\"TCP\"].protocol \
                 .spec.ports[port=8,protocol=\"TCP\"].port .spec.ports[port=9,protocol=\"TCP\"].port",
                "Update b@01 .spec.ports .spec.ports[port=1,protocol=\"TCP\"] \
                 .spec.ports[port=2,protocol=\"TCP\"] .spec.ports[port=3,protocol=\"TCP\"] \
                 .spec.ports[port=1,protocol=\"TCP\"].port .spec.ports[port=2,protocol=\"TCP\"].port \
                 .spec.ports[port=3,protocol=\"TCP\"].port",
            ],
        ),
        (
            "applied order wins among what is applied",
            vec![
                ("b", json!({"finalizers": ["x", "y", "z"]})),
                ("a", json!({"finalizers": ["z", "x"]})),
            ],
            r#"{"finalizers":["y","z","x"]}"#,
            vec![
                "Apply b@01 .metadata.finalizers[=\"x\"] .metadata.finalizers[=\"y\"] \
                 .metadata.finalizers[=\"z\"]",
                "Apply a@02 .metadata.finalizers[=\"x\"] .metadata.finalizers[=\"z\"]",
            ],
        ),
        (
            "an element goes as a whole, with what others put into it",
            vec![
                ("a", json!({"ports": [{"port": 1}, {"port": 2}]})),
                ("=b", json!({"ports": [{"port": 1, "name": "n"}, {"port": 2}]})),
                ("a", json!({"ports": [{"port": 2}]})),
            ],
            r#"{"ports":[{"port":2}]}"#,
            vec![
                "Apply a@03 .spec.ports[port=2,protocol=\"TCP\"] \
                 .spec.ports[port=2,protocol=\"TCP\"].port",
            ],
        ),
        (
            "the last element takes the list with it",
            vec![("a", json!({"type": "x", "ports": [{"port": 1}]})), ("a", json!({"type": "x"}))],
            r#"{"type":"x"}"#,
            vec!["Apply a@02 .spec.type"],
        ),
        (
            "an atomic list is replaced",
            vec![
                ("a", json!({"externalIPs": ["1", "2"], "type": "x"})),
                ("a", json!({"externalIPs": ["2"], "type": "x"})),
            ],
            r#"{"externalIPs":["2"],"type":"x"}"#,
            vec!["Apply a@02 .spec.externalIPs .spec.type"],
        ),
        (
            "force takes fields from their owners",
            vec![("a", json!({"type": "x", "externalName": "y"})), ("b!", json!({"type": "z"}))],
            r#"{"externalName":"y","type":"z"}"#,
            vec!["Apply a@01 .spec.externalName", "Apply b@02 .spec.type"],
        ),
        (
            "agreement is shared ownership",
            vec![("a", json!({"type": "x"})), ("b", json!({"type": "x"}))],
            r#"{"type":"x"}"#,
            vec!["Apply a@01 .spec.type", "Apply b@02 .spec.type"],
        ),
        (
            "null clears a field and owns it",
            vec![("=b", json!({"type": "x", "externalName": "y"})), ("a!", json!({"type": null}))],
            r#"{"externalName":"y"}"#,
            vec!["Apply a@02 .spec.type", "Update b@01 .spec.externalName"],
        ),
        (
            "null for a map says nothing about what is in it",
            vec![("=b", json!({"labels": {"x": "1"}})), ("a", json!({"labels": null}))],
            r#"{"labels":{"x":"1"}}"#,
            vec!["Apply a@02 .metadata.labels", "Update b@01 .metadata.labels .metadata.labels.x"],
        ),
        (
            "an empty object is owned by itself",
            vec![("a", json!({"labels": {}, "sessionAffinityConfig": {}}))],
            r#"{"labels":{},"sessionAffinityConfig":{}}"#,
            vec!["Apply a@01 .metadata.labels .spec.sessionAffinityConfig"],
        ),
        (
            "and so is an empty list",
            vec![("a", json!({"ports": [{"port": 1}]})), ("a", json!({"ports": []}))],
            r#"{"ports":[]}"#,
            vec!["Apply a@02 .spec.ports"],
        ),
        (
            "the status is not the main resource's business",
            vec![
                ("a", json!({"type": "x", "status": {"conditions": []}})),
                (
                    "a/status",
                    json!({"type": "z", "labels": {"x": "1"},
                    "status": {"loadBalancer": {"ingress": [{"ip": "1"}]}}}),
                ),
            ],
            r#"{"type":"x"}"#,
            vec!["Apply a@01 .spec.type", "Apply a/status@02 .status.loadBalancer.ingress"],
        ),
    ];
    for (name, steps, want, owners) in cases {
        let (cluster, error) = run(&steps);
        assert_eq!(error, None, "{name}");
        assert_eq!(cluster.shown(), want, "{name}");
        assert_eq!(cluster.owners(), owners, "{name}");
    }
}

#[test]
fn refusals() {
    let typed = "failed to create typed patch object (n/s; /v1, Kind=Service): ";
    let port = json!({"ports": [{"port": 80, "targetPort": 1, "protocol": "TCP"}]});
    let cases: Vec<(Steps, String)> = vec![
        (
            vec![
                ("kubectl", port.clone()),
                ("b", json!({"ports": [{"port": 80, "targetPort": 2}]})),
            ],
            "Apply failed with 1 conflict: conflict with \"kubectl\": \
             .spec.ports[port=80,protocol=\"TCP\"].targetPort"
                .into(),
        ),
        (
            vec![("=ed", json!({"type": "x"})), ("b", json!({"type": "y"}))],
            "Apply failed with 1 conflict: conflict with \"ed\" using v1: .spec.type".into(),
        ),
        (
            vec![
                ("=ed", json!({"type": "x", "externalName": "e"})),
                ("=ed/scale", json!({"type": "x", "externalName": "e", "clusterIP": "1"})),
                ("c", json!({"labels": {"x": "1"}})),
                (
                    "b",
                    json!({"type": "y", "externalName": "f", "clusterIP": "2",
                    "labels": {"x": "2"}}),
                ),
            ],
            "Apply failed with 4 conflicts: conflicts with \"c\":\n- .metadata.labels.x\n\
             conflicts with \"ed\" using v1:\n- .spec.externalName\n- .spec.type\n\
             conflicts with \"ed\" with subresource \"scale\" using v1:\n- .spec.clusterIP"
                .into(),
        ),
        (
            vec![("a", json!({"selctor": {}}))],
            format!("{typed}.spec.selctor: field not declared in schema"),
        ),
        (
            vec![("a", json!({"ports": [{"port": 80, "prot": 1}]}))],
            format!(
                "{typed}.spec.ports[port=80,protocol=\"TCP\"].prot: field not declared in schema"
            ),
        ),
        (
            vec![("a", json!({"ports": [{"port": 80}, {"protocol": "TCP", "port": 80}]}))],
            format!("{typed}.spec.ports: duplicate entries for key [port=80,protocol=\"TCP\"]"),
        ),
        (
            vec![("a", json!({"finalizers": ["x", "x"]}))],
            format!("{typed}.metadata.finalizers: duplicate entries for key [=\"x\"]"),
        ),
        (
            vec![(
                "a",
                json!({"ports": {"port": 1}, "type": 1, "externalIPs": [1], "selector": []}),
            )],
            format!(
                "{typed}errors:\n  \
                 .spec.externalIPs[0]: expected string, got &value.valueUnstructured{{Value:1}}\n  \
                 .spec.ports: expected list, got &{{map[port:1]}}\n  \
                 .spec.selector: expected map, got &{{[]}}\n  \
                 .spec.type: expected string, got &value.valueUnstructured{{Value:1}}"
            ),
        ),
        (
            vec![("a", json!({"ports": [{"port": "x"}], "publishNotReadyAddresses": "x"}))],
            format!(
                "{typed}errors:\n  .spec.ports[port=\"x\",protocol=\"TCP\"].port: \
                 expected numeric (int or float), got string\n  \
                 .spec.publishNotReadyAddresses: expected boolean, got string"
            ),
        ),
    ];
    for (steps, want) in cases {
        let (before, error) = run(&steps);
        assert_eq!(error.expect(&want).to_string(), want);
        let (other, _) = run(&steps[..steps.len() - 1]);
        assert_eq!(before.live, other.live, "a refusal changes nothing");
    }
    let request = Request { manager: manager("a", "t"), force: true, part: Part::Main };
    let mut config = object(json!({}));
    config["metadata"]["managedFields"] = json!([]);
    let error = apply(service(), None, config.clone(), &request).unwrap_err().to_string();
    assert_eq!(error, "metadata.managedFields must be nil");
    config["metadata"]["managedFields"] = json!(null);
    assert!(apply(service(), None, config.clone(), &request).is_ok());
    config["apiVersion"] = "v2".into();
    let error = apply(service(), None, config, &request).unwrap_err().to_string();
    assert!(error.ends_with("Specified patch version: v2, expected: v1"), "{error}");
}

#[test]
fn owners_can_be_set_and_forgotten_by_hand() {
    let mut cluster = run(&[("=a", json!({"type": "x"}))]).0;
    let old = cluster.live.clone().unwrap();
    let write = |fields: Value, who: &str| {
        let mut new = old.clone();
        new["metadata"]["managedFields"] = fields;
        track(service(), Some(&old), &mut new, &manager(who, "2026-01-01T00:00:09Z"));
        Cluster { live: Some(new), second: 9 }
    };
    let mut other = old["metadata"]["managedFields"].clone();
    other[0]["manager"] = "b".into();
    other[0]["operation"] = "Apply".into();
    let before = ["Update a@01 .spec.type"];
    assert_eq!(write(other.clone(), "k").owners(), ["Apply b@01 .spec.type"]);
    assert_eq!(write(other, "k/status").owners(), before, "not by a subresource");
    assert_eq!(write(json!([]), "k").owners(), before, "an empty list is ignorance");
    assert_eq!(write(json!([{"operation": "x"}]), "k").owners(), before, "nonsense is ignored");
    cluster = write(json!([{}]), "k");
    assert_eq!(cluster.live.as_ref().unwrap()["metadata"].get("managedFields"), None);
    cluster.put("c", json!({"type": "y"}));
    assert!(cluster.owners().is_empty(), "forgotten until the next apply");
    cluster.apply("d", json!({"labels": {"x": "1"}}), false).unwrap();
    assert_eq!(
        cluster.owners(),
        ["Apply d@11 .metadata.labels.x", "Update before-first-apply@11 .spec.type"]
    );
}

#[test]
fn from_client_side_to_server_side() {
    const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let mut live = object(json!({"type": "x", "externalName": "e"}));
    live["metadata"]["annotations"] = json!({LAST: live.to_string()});
    track(service(), None, &mut live, &manager("kubectl-client-side-apply", "1"));
    let mut changed = live.clone();
    changed["spec"]["externalName"] = "f".into();
    track(service(), Some(&live), &mut changed, &manager("kubectl-edit", "2"));
    let attempt = |name: &str, spec: Value| {
        let request = Request { manager: manager(name, "3"), force: false, part: Part::Main };
        apply(service(), Some(&changed), object(spec), &request)
    };
    let wanted = json!({"type": "y", "externalName": "f"});
    let after = attempt("kubectl", wanted.clone()).unwrap();
    assert_eq!(after["spec"], wanted);
    let annotation = after["metadata"]["annotations"][LAST].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(annotation).unwrap(), object(wanted.clone()));
    let owners = Cluster { live: Some(after), second: 3 }.owners();
    let fields = ".spec.externalName .spec.type";
    assert_eq!(owners[0], format!("Apply kubectl@3 {fields}"));
    assert!(attempt("other", wanted).is_err(), "only kubectl inherits");
    assert!(attempt("kubectl", json!({"externalName": "g"})).is_err(), "others' edits are safe");
}

#[test]
fn the_oldest_of_too_many_writers_become_one() {
    let mut cluster = Cluster::default();
    let mut labels = serde_json::Map::new();
    for n in 1..=13 {
        labels.insert(format!("l{n}"), "x".into());
        cluster.put(&format!("m{n}"), json!({"labels": labels}));
    }
    let owners = cluster.owners();
    assert_eq!(owners.len(), 10);
    let ancient = ".metadata.labels .metadata.labels.l1 .metadata.labels.l2 .metadata.labels.l3 \
                   .metadata.labels.l4";
    assert_eq!(owners[0], format!("Update ancient-changes@04 {ancient}"));
    assert_eq!(owners[9], "Update m13@13 .metadata.labels.l13");
}

#[test]
fn without_a_schema_objects_are_maps_and_lists_are_whole() {
    let config = json!({"apiVersion": "v1", "metadata": {"name": "x"},
        "spec": {"a": {"b": 1}, "list": [{"name": "x"}], "none": null}});
    let request = Request { manager: manager("a", "1"), force: false, part: Part::All };
    let live = apply(Typing::Free, None, config.clone(), &request).unwrap();
    let want = json!({"f:spec": {".": {}, "f:a": {".": {}, "f:b": {}}, "f:list": {},
        "f:none": {}}});
    assert_eq!(live["metadata"]["managedFields"][0]["fieldsV1"], want);
    assert_eq!(live["spec"], config["spec"]);
    let mut other = config;
    other["spec"] = json!({"a": {"c": 1}});
    let request = Request { manager: manager("b", "2"), ..request };
    let live = apply(Typing::Free, Some(&live), other, &request).unwrap();
    assert_eq!(live["spec"]["a"], json!({"b": 1, "c": 1}));
}

#[test]
fn times_alone_are_no_change() {
    let old = run(&[("=a", json!({"type": "x"})), ("=b", json!({"type": "x", "clusterIP": "1"}))]);
    let old = old.0.live.unwrap();
    let mut new = old.clone();
    let list = new["metadata"]["managedFields"].as_array_mut().unwrap();
    list[0]["time"] = "2027-01-01T00:00:00Z".into();
    list.reverse();
    let mut changed = new.clone();
    managers::keep_times(&old, &mut new);
    assert_eq!(new, old);
    changed["spec"]["type"] = "y".into();
    let before = changed.clone();
    managers::keep_times(&old, &mut changed);
    assert_eq!(changed, before);
}
