//! Kinds that users define: several versions of them, and how they go.

use serde_json::{Value, json};

use crate::server::Server;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DEFINITION: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com";

fn things(version: &str) -> String {
    format!("/apis/example.com/{version}/namespaces/default/things")
}

/// A definition with these versions: `v1*` is stored, `v1-` is not served.
pub fn definition(versions: &str) -> Value {
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
