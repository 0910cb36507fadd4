//! Kinds that users define: several versions of them, and how they go.

use roadstead_server::identity::user::User;
use serde_json::{Value, json};

use crate::server::Server;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com";

fn things(version: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/things")
}

/// A definition with these versions: `v1*` is stored, `v1-` is not served.
pub(crate) fn definition(versions: &str) -> Value {
    let versions = versions.split(' ').map(|word| {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        json!({"name": word.trim_end_matches(['*', '-']), "served": !word.ends_with('-'),
            "storage": word.ends_with('*'), "schema": {"openAPIV3Schema": schema}})
    });
    json!({"apiVersion": "apiextensions.k8s.io/v1", "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": versions.collect::<Vec<_>>()}})
}

#[tokio::test]
async fn an_object_is_served_in_every_version() {
    let server = Server::new().await;
    server.ask(&format!("POST {DEFINITIONS}"), definition("v1beta1*")).await;
    let thing = json!({"metadata": {"name": "old"}, "spec": {"size": 1}});
    server.ask(&format!("POST {}", things("v1beta1")), thing).await;
    assert_eq!(server.ask(&format!("GET {}", things("v1")), "").await.code, 404);

    // A second version appears, and new objects are kept in it.
    let updated = server.ask(&format!("PUT {DEFINITION}"), definition("v1beta1 v1*")).await;
    assert_eq!(updated.body["status"]["storedVersions"], json!(["v1beta1", "v1"]), "{updated:?}");
    let thing = json!({"metadata": {"name": "new"}, "spec": {"size": 2}});
    server.ask(&format!("POST {}", things("v1beta1")), thing).await;
    for version in ["v1beta1", "v1"] {
        let api_version = json!(format!("example.com/{version}"));
        let list = server.ask(&format!("GET {}", things(version)), "").await.body;
        assert_eq!(list["apiVersion"], api_version);
        let versions = list["items"].as_array().unwrap().iter().map(|item| &item["apiVersion"]);
        assert_eq!(versions.collect::<Vec<_>>(), [&api_version; 2]);
        let one = server.ask(&format!("GET {}/old", things(version)), "").await.body;
        assert_eq!((&one["apiVersion"], &one["spec"]["size"]), (&api_version, &json!(1)));
        let events = server.watch(&format!("{}?watch=1", things(version))).await;
        assert!(events.iter().all(|(_, object)| object["apiVersion"] == api_version));
        let patch = json!({"spec": {"by": version}});
        let patched = server.ask(&format!("PATCH {}/old", things(version)), patch).await.body;
        assert_eq!(
            (&patched["apiVersion"], &patched["spec"]["by"]),
            (&api_version, &json!(version))
        );
    }
    let group = server.ask("GET /apis/example.com", "").await.body;
    assert_eq!(group["preferredVersion"]["version"], "v1");

    // A version in which objects may still be kept cannot be dropped, one that is not served can.
    let refused = server.ask(&format!("PUT {DEFINITION}"), definition("v1*")).await;
    let words =
        "status.storedVersions[0]: Invalid value: \"v1beta1\": must appear in spec.versions";
    assert!(refused.body["message"].as_str().unwrap().contains(words), "{refused:?}");
    server.ask(&format!("PUT {DEFINITION}"), definition("v1beta1- v1*")).await;
    assert_eq!(server.ask(&format!("GET {}", things("v1beta1")), "").await.code, 404);
    let old = server.ask(&format!("GET {}/old", things("v1")), "").await.body;
    assert_eq!(old["apiVersion"], "example.com/v1");
}

#[tokio::test]
async fn objects_go_before_their_definition() {
    let server = Server::new().await;
    server.ask(&format!("POST {DEFINITIONS}"), definition("v1*")).await;
    for number in 0..100 {
        let metadata = match number {
            7 => json!({"name": "t7", "finalizers": ["example.com/wait"]}),
            _ => json!({"name": format!("t{number}")}),
        };
        let made =
            server.ask(&format!("POST {}", things("v1")), json!({"metadata": metadata})).await;
        assert_eq!(made.code, 201);
    }
    let dry = server.ask(&format!("DELETE {DEFINITION}?dryRun=All"), "").await;
    assert_eq!(dry.code, 200);
    let list = server.ask(&format!("GET {}", things("v1")), "").await.body;
    assert_eq!(list["items"].as_array().unwrap().len(), 100, "that was not meant");

    let going = server.ask(&format!("DELETE {DEFINITION}"), "").await;
    assert!(going.body["metadata"]["deletionTimestamp"].is_string(), "{going:?}");
    let list = server.ask(&format!("GET {}", things("v1")), "").await.body;
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "one has a finalizer");
    let waiting = server.ask(&format!("GET {DEFINITION}"), "").await.body;
    let conditions = waiting["status"]["conditions"].as_array().unwrap();
    let terminating = conditions.iter().find(|c| c["type"] == "Terminating").unwrap();
    assert_eq!(terminating["reason"], "InstanceDeletionInProgress");
    let refused =
        server.ask(&format!("POST {}", things("v1")), json!({"metadata": {"name": "x"}})).await;
    let words = "create not allowed while custom resource definition is terminating";
    assert_eq!((refused.code, &refused.body["message"]), (405, &json!(words)));

    let release = json!({"metadata": {"finalizers": null}});
    server.ask(&format!("PATCH {}/t7", things("v1")), release).await;
    assert_eq!(server.ask(&format!("GET {DEFINITION}"), "").await.code, 404);
    assert_eq!(server.ask(&format!("GET {}", things("v1")), "").await.code, 404);
    // A new definition of the same name begins empty.
    server.ask(&format!("POST {DEFINITIONS}"), definition("v1*")).await;
    let list = server.ask(&format!("GET {}", things("v1")), "").await.body;
    assert_eq!(list["items"], json!([]));
}

#[tokio::test]
async fn what_is_not_enforced_is_said() {
    let server = Server::new().await;
    let mut object = definition("v1*");
    object["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"] =
        json!([{"rule": "self.size > 1"}]);
    let created = server.ask(&format!("POST {DEFINITIONS}"), object).await;
    assert!(created.warnings[0].contains("kept but not enforced"), "{created:?}");
}

/// A kind of the Prometheus operator, as far as the seeds use it.
fn monitoring(kind: &str, spec: Value) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({"metadata": {"name": format!("{plural}.monitoring.coreos.com")},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema":
                {"openAPIV3Schema": {"type": "object", "required": ["spec"],
                    "properties": {"spec": spec}}}}]}})
}

#[tokio::test]
async fn monitors_and_rules_can_be_installed() {
    let server = Server::new().await;
    let text = json!({"type": "string"});
    let map = json!({"type": "object", "additionalProperties": text});
    let list = |items: Value| json!({"type": "array", "items": items});
    let object = |fields: Value| json!({"type": "object", "properties": fields});
    let monitor = object(json!({
        "selector": object(json!({"matchLabels": map})),
        "namespaceSelector": object(json!({"matchNames": list(text.clone())})),
        "endpoints": list(object(json!({"port": text,
            "interval": {"type": "string", "pattern": "^(0|(([0-9]+)(ms|s|m|h))+)$"}}))),
    }));
    let rule = object(json!({"alert": text, "expr": {"x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string"}]}, "for": text, "labels": map,
        "annotations": map}));
    let mut groups = list(object(json!({"name": text, "rules": list(rule)})));
    groups["x-kubernetes-list-type"] = "map".into();
    groups["x-kubernetes-list-map-keys"] = json!(["name"]);
    groups["items"]["required"] = json!(["name"]);
    let rules = object(json!({"groups": groups}));
    for definition in [monitoring("ServiceMonitor", monitor), monitoring("PrometheusRule", rules)] {
        let made = server.ask(&format!("POST {DEFINITIONS}"), definition).await;
        assert_eq!(made.code, 201, "{}", made.text);
    }
    server.ask("POST /api/v1/namespaces", json!({"metadata": {"name": "monitoring"}})).await;
    let group = "/apis/monitoring.coreos.com/v1/namespaces/monitoring";
    let monitor = "apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: endpoint-monitor, namespace: monitoring}
spec:
  selector: {matchLabels: {app: my-app}}
  endpoints: [{port: metrics, interval: 15s}]
  namespaceSelector: {matchNames: [default]}
";
    let rule = "apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: endpoint-alerts, namespace: monitoring}
spec:
  groups:
  - name: endpoint.rules
    rules:
    - alert: EndpointDown
      expr: kube_endpoint_address_available{endpoint=\"my-service\"} < 1
      for: 5m
      labels: {severity: critical}
      annotations: {summary: \"Endpoint {{ $labels.endpoint }} has no available addresses\"}
";
    for (plural, yaml) in [("servicemonitors", monitor), ("prometheusrules", rule)] {
        let request = format!("POST {group}/{plural}?fieldValidation=Strict");
        let made = server.ask_as(&request, "application/yaml", yaml).await;
        assert_eq!((made.code, made.warnings.len()), (201, 0), "{}", made.text);
    }
    let wrong = monitor.replace("15s", "often").replace("endpoint-monitor", "other");
    let request = format!("POST {group}/servicemonitors");
    let refused = server.ask_as(&request, "application/yaml", wrong).await;
    assert_eq!(refused.code, 422, "{}", refused.text);
    let resources = server.ask("GET /apis/monitoring.coreos.com/v1", "").await.text;
    assert!(resources.contains("\"servicemonitors\"") && resources.contains("\"PrometheusRule\""));
}

#[tokio::test]
async fn status_and_scale_are_apart() {
    let server = Server::new().await;
    let mut definition = definition("v1*");
    definition["spec"]["versions"][0]["subresources"] = json!({"status": {}, "scale": {
        "specReplicasPath": ".spec.size.count", "statusReplicasPath": ".status.count",
        "labelSelectorPath": ".status.selector"}});
    server.ask(&format!("POST {DEFINITIONS}"), definition).await;
    let thing = json!({"metadata": {"name": "t"}, "spec": {"size": {"count": 1}, "color": "red"},
        "status": {"count": 9}});
    let made = server.ask(&format!("POST {}", things("v1")), thing).await.body;
    assert_eq!(made["status"], Value::Null, "a new object has no status yet");
    let path = format!("{}/t", things("v1"));
    let change = json!({"spec": {"color": "blue"}, "status": {"count": 2, "selector": "a=b"}});
    let status = server.ask(&format!("PATCH {path}/status"), &change).await.body;
    assert_eq!((&status["spec"]["color"], &status["status"]["count"]), (&json!("red"), &json!(2)));
    assert_eq!(status["metadata"]["generation"], 1);
    let main = server.ask(&format!("PATCH {path}"), json!({"status": {"count": 7}})).await.body;
    assert_eq!(main["status"]["count"], 2);
    let scale = server.ask(&format!("GET {path}/scale"), "").await.body;
    assert_eq!(scale["spec"], json!({"replicas": 1}));
    assert_eq!(scale["status"], json!({"replicas": 2, "selector": "a=b"}));
    let scaled = server.ask(&format!("PATCH {path}/scale"), json!({"spec": {"replicas": 4}})).await;
    assert_eq!(scaled.body["spec"]["replicas"], 4, "{}", scaled.text);
    let found = server.ask(&format!("GET {path}"), "").await.body;
    assert_eq!(found["spec"], json!({"size": {"count": 4}, "color": "red"}));
    assert_eq!(found["metadata"]["generation"], 2);
}

#[tokio::test]
async fn defaults_of_a_newer_schema_hold_for_older_objects() {
    let server = Server::new().await;
    let definition = |size: Value| {
        json!({"metadata": {"name": "boxes.example.com"}, "spec": {"group": "example.com",
            "names": {"kind": "Box", "plural": "boxes"}, "scope": "Cluster", "versions": [{
                "name": "v1", "served": true, "storage": true,
                "additionalPrinterColumns": [{"name": "Size", "type": "string",
                    "jsonPath": ".spec.size"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {
                    "type": "object", "properties": {"size": size}}}}}}]}})
    };
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let made = server.ask(&format!("POST {crds}"), definition(json!({"type": "string"}))).await;
    assert_eq!(made.code, 201, "{}", made.text);
    let boxes = "/apis/example.com/v1/boxes";
    server.ask(&format!("POST {boxes}"), json!({"metadata": {"name": "a"}, "spec": {}})).await;
    let newer = definition(json!({"type": "string", "default": "large"}));
    let changed = json!({"spec": newer["spec"]});
    let changed = server.ask(&format!("PATCH {crds}/boxes.example.com"), changed).await;
    assert_eq!(changed.code, 200, "{}", changed.text);
    let one = server.ask(&format!("GET {boxes}/a"), "").await.body;
    assert_eq!(one["spec"]["size"], "large");
    let all = server.ask(&format!("GET {boxes}"), "").await.body;
    assert_eq!(all["items"][0]["spec"]["size"], "large");
    let seen = server.watch(&format!("{boxes}?watch=true")).await;
    assert_eq!(seen[0].1["spec"]["size"], "large");
    // Nor do the rows of tables show less, one by one or many.
    for path in [format!("{boxes}/a"), boxes.to_owned()] {
        let table = ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io");
        let shown = server.ask_by(User::component(), &[table], &format!("GET {path}")).await.body;
        assert_eq!(shown["rows"][0]["cells"], json!(["a", "large"]), "{path}");
    }
}

#[tokio::test]
async fn what_openapi_says_of_custom_kinds() {
    let server = Server::new().await;
    let crds = "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = |kind: &str, schema: Value| {
        let plural = format!("{}s", kind.to_lowercase());
        json!({"metadata": {"name": format!("{plural}.example.com")}, "spec": {
            "group": "example.com", "names": {"kind": kind, "plural": plural}, "scope": "Cluster",
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}]}})
    };
    let known = json!({"type": "object", "description": "A thing.", "properties": {
        "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"a": {"type": "string"}}},
        "free": {"type": "object", "properties": {"a": {"type": "string"}},
            "additionalProperties": true}}});
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for (kind, schema) in [("Known", known), ("Open", open)] {
        let made = server.ask(crds, definition(kind, schema)).await;
        assert_eq!(made.code, 201, "{}", made.text);
    }
    let v2 = server.ask("GET /openapi/v2", "").await.body;
    let known = &v2["definitions"]["com.example.v1.Known"];
    let metadata = &known["properties"]["metadata"];
    let reference = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    assert_eq!(metadata["$ref"], reference, "{known}");
    for field in ["apiVersion", "kind", "metadata"] {
        assert!(known["properties"][field]["description"].is_string(), "{field}");
    }
    // Fields that are named would forbid all others.
    let preserved = json!({"x-kubernetes-preserve-unknown-fields": true});
    assert_eq!(known["properties"]["spec"], preserved);
    let open = &v2["definitions"]["com.example.v1.Open"];
    assert_eq!((&open["type"], open.get("properties")), (&json!("object"), None), "{open}");
    let v3 = server.ask("GET /openapi/v3/apis/example.com/v1", "").await.body;
    let schemas = &v3["components"]["schemas"];
    assert!(schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"].is_object());
    let open = &schemas["com.example.v1.Open"];
    assert_eq!(open["x-kubernetes-preserve-unknown-fields"], true, "{open}");
    assert!(open["properties"]["metadata"]["description"].is_string());
    let known = &schemas["com.example.v1.Known"];
    assert!(known["properties"]["spec"]["properties"]["a"].is_object());
}
