//! What writes to `/status` and the like change: the status, and most of the metadata.

use serde_json::{Value, json};

use crate::samples::{self, Sample};
use crate::server::Server;

/// Which of labels, annotations, finalizers and owners a write to `/status` does not change.
fn kept(kind: &str) -> &'static [&'static str] {
    match kind {
        "v1 pods" => &["ownerReferences"],
        "apps/v1 deployments" => &["labels"],
        "flowcontrol.apiserver.k8s.io/v1 flowschemas"
        | "flowcontrol.apiserver.k8s.io/v1 prioritylevelconfigurations"
        | "networking.k8s.io/v1 servicecidrs"
        | "storage.k8s.io/v1 volumeattachments"
        | "example.com/v1 tunes" => &["labels", "annotations", "finalizers", "ownerReferences"],
        _ => &[],
    }
}

fn notes() -> Value {
    json!({"labels": {"noted": "yes"}, "annotations": {"example.com/noted": "yes"},
        "finalizers": ["example.com/noted"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]})
}

async fn subresources(server: &Server, sample: &Sample) -> Vec<&'static str> {
    let mut found = Vec::new();
    for name in ["status", "approval"] {
        if server.ask(&format!("GET {}/{name}", sample.one()), "").await.code == 200 {
            found.push(name);
        }
    }
    found
}

#[tokio::test]
async fn notes_in_the_metadata_are_kept() {
    let (server, samples) = samples::all().await;
    let mut seen = 0;
    for sample in &samples {
        let made = server.ask(&format!("POST {}", sample.path), &sample.object).await;
        assert_eq!(made.code, 201, "{}: {}", sample.kind, made.text);
        for subresource in subresources(&server, sample).await {
            seen += 1;
            let path = format!("{}/{subresource}", sample.one());
            for way in ["PATCH", "PUT", "apply"] {
                let before = server.ask(&format!("GET {}", sample.one()), "").await.body;
                let mut all = before.clone();
                for (field, value) in notes().as_object().unwrap() {
                    all["metadata"][field] = value.clone();
                }
                let answer = match way {
                    "PATCH" => {
                        server.ask(&format!("PATCH {path}"), json!({"metadata": notes()})).await
                    }
                    "PUT" => server.ask(&format!("PUT {path}"), &all).await,
                    _ => {
                        let mut config = json!({"apiVersion": before["apiVersion"],
                            "kind": before["kind"], "metadata": notes()});
                        config["metadata"]["name"] = before["metadata"]["name"].clone();
                        let query = "?fieldManager=test&force=true";
                        let apply = "application/apply-patch+yaml";
                        server.ask_as(&format!("PATCH {path}{query}"), apply, config).await
                    }
                };
                let what = format!("{way} {} {subresource}", sample.kind);
                assert_eq!(answer.code, 200, "{what}: {}", answer.text);
                for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
                    let want = match kept(sample.kind).contains(&field) {
                        true => &before["metadata"][field],
                        false => &all["metadata"][field],
                    };
                    let found = &answer.body["metadata"][field];
                    match (field, want) {
                        // A namespace has a label of its own besides.
                        ("labels", Value::Object(want)) => {
                            assert!(want.iter().all(|(k, v)| found[k] == *v), "{what}: {found}");
                        }
                        _ => assert_eq!(found, want, "{what} {field}"),
                    }
                }
                let generation = |object: &Value| object["metadata"]["generation"].clone();
                assert_eq!(generation(&answer.body), generation(&before), "{what}");
                assert_eq!(answer.body["spec"], before["spec"], "{what}");
                // As before, for the next way.
                let gone = json!({"metadata": {"labels": {"noted": null}, "finalizers":
                    before["metadata"]["finalizers"], "ownerReferences": null,
                    "annotations": {"example.com/noted": null}}});
                let back = server.ask(&format!("PATCH {}", sample.one()), gone).await;
                assert_eq!(back.code, 200, "{what}: {}", back.text);
            }
        }
    }
    assert!(seen >= 20, "only {seen} kinds have a status");
}

#[tokio::test]
async fn an_annotation_of_a_deployment_counts_and_one_by_its_status_does_not() {
    let (server, samples) = samples::all().await;
    let sample = samples.iter().find(|own| own.kind == "apps/v1 deployments").unwrap();
    server.ask(&format!("POST {}", sample.path), &sample.object).await;
    for (path, want) in [("", 2), ("/status", 2), ("", 3)] {
        let note = json!({"metadata": {"annotations": {"example.com/a": format!("{path}{want}")}}});
        let answer = server.ask(&format!("PATCH {}{path}", sample.one()), note).await;
        assert_eq!(answer.body["metadata"]["generation"], want, "{}", answer.text);
    }
}
