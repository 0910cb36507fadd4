//! Kinds that show the objects of another: events.k8s.io and autoscaling/v1.

use roadstead_server::identity::user::User;
use serde_json::json;

use crate::server::Server;

const NEW_EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const EVENTS: &str = "/api/v1/namespaces/default/events";
const AUTOSCALING: &str = "/apis/autoscaling";
const AUTOSCALERS: &str = "namespaces/default/horizontalpodautoscalers";

#[tokio::test]
async fn an_event_is_one_object_with_two_views() {
    let server = Server::new().await;
    let event = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": "web.1"}, "note": "hello", "reason": "Started", "type": "Normal",
        "action": "Start", "reportingController": "kubelet", "reportingInstance": "node",
        "eventTime": "2026-01-01T00:00:00.000000Z", "regarding": {"kind": "Pod", "name": "web"}});
    let created = server.ask(&format!("POST {NEW_EVENTS}"), &event).await;
    assert_eq!((created.code, &created.body["note"]), (201, &json!("hello")), "{created:?}");
    let core = server.ask(&format!("GET {EVENTS}/web.1"), "").await.body;
    let seen = [&core["apiVersion"], &core["message"], &core["involvedObject"]["name"]];
    assert_eq!(seen, ["v1", "hello", "web"]);
    assert_eq!(core["reportingComponent"], "kubelet");
    assert_eq!(core["metadata"]["uid"], created.body["metadata"]["uid"]);

    // A change through one view is seen through the other.
    let patch = json!({"message": "changed", "count": 2});
    server.ask(&format!("PATCH {EVENTS}/web.1"), patch).await;
    let new = server.ask(&format!("GET {NEW_EVENTS}/web.1"), "").await.body;
    assert_eq!((&new["note"], &new["deprecatedCount"]), (&json!("changed"), &json!(2)));
    let patch = json!({"series": {"count": 5, "lastObservedTime": "2026-01-01T00:01:00.000000Z"}});
    let patched = server.ask(&format!("PATCH {NEW_EVENTS}/web.1"), patch).await;
    assert_eq!((patched.code, &patched.body["series"]["count"]), (200, &json!(5)), "{patched:?}");

    // Lists, selectors and watches speak the language of their group.
    let list =
        server.ask(&format!("GET {NEW_EVENTS}?fieldSelector=regarding.name%3Dweb"), "").await;
    assert_eq!(list.body["items"][0]["note"], "changed");
    let other = server.ask(&format!("GET {NEW_EVENTS}?fieldSelector=regarding.name%3Dx"), "").await;
    assert_eq!(other.body["items"], json!([]));
    let version = list.body["metadata"]["resourceVersion"].as_str().unwrap();
    server.ask(&format!("PATCH {EVENTS}/web.1"), json!({"message": "again"})).await;
    for (path, version_of, field) in
        [(EVENTS, "v1", "message"), (NEW_EVENTS, "events.k8s.io/v1", "note")]
    {
        for start in [version, "0"] {
            let events = server.watch(&format!("{path}?watch=1&resourceVersion={start}")).await;
            let (_, object) = &events[0];
            assert_eq!(
                (&object["apiVersion"], &object[field]),
                (&json!(version_of), &json!("again"))
            );
        }
    }
    let gone = server.ask(&format!("DELETE {NEW_EVENTS}/web.1"), "").await;
    assert_eq!(gone.code, 200);
    assert_eq!(server.ask(&format!("GET {EVENTS}/web.1"), "").await.code, 404);
}

#[tokio::test]
async fn an_event_of_the_new_group_is_complete() {
    let server = Server::new().await;
    let event = json!({"metadata": {"name": "x"}, "regarding": {"kind": "Pod", "name": "web"}});
    let refused = server.ask(&format!("POST {NEW_EVENTS}"), event).await;
    let message = refused.body["message"].as_str().unwrap();
    assert_eq!(refused.code, 422, "{message}");
    assert!(message.contains("eventTime: Required value"), "{message}");
}

#[tokio::test]
async fn old_and_new_autoscalers_are_the_same() {
    let server = Server::new().await;
    let (old, new) =
        (format!("{AUTOSCALING}/v1/{AUTOSCALERS}"), format!("{AUTOSCALING}/v2/{AUTOSCALERS}"));
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let object = json!({"apiVersion": "autoscaling/v1", "metadata": {"name": "web"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": target, "targetCPUUtilizationPercentage": 50}});
    let created = server.ask(&format!("POST {old}"), object).await;
    assert_eq!(created.body["spec"]["targetCPUUtilizationPercentage"], 50, "{created:?}");
    let stored = server.ask(&format!("GET {new}/web"), "").await.body;
    assert_eq!(stored["apiVersion"], "autoscaling/v2");
    let cpu = &stored["spec"]["metrics"][0]["resource"];
    assert_eq!((&cpu["name"], &cpu["target"]["averageUtilization"]), (&json!("cpu"), &json!(50)));

    // What version 1 has no field for survives an update through it.
    let memory = json!({"type": "Resource", "resource": {"name": "memory",
        "target": {"type": "AverageValue", "averageValue": "1Gi"}}});
    let metrics = json!({"spec": {"metrics": [stored["spec"]["metrics"][0], memory]}});
    server.ask(&format!("PATCH {new}/web"), metrics).await;
    let patch = json!({"spec": {"targetCPUUtilizationPercentage": 60}});
    let patched = server.ask(&format!("PATCH {old}/web"), patch).await;
    assert_eq!(patched.code, 200, "{patched:?}");
    let stored = server.ask(&format!("GET {new}/web"), "").await.body;
    assert_eq!(stored["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], 60);
    assert_eq!(stored["spec"]["metrics"][1], memory);
    // Nothing changes, nothing is written.
    let again = server.ask(&format!("PUT {old}/web"), &patched.body).await;
    assert_eq!(again.body["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"]);

    let group = server.ask(&format!("GET {AUTOSCALING}"), "").await.body;
    assert_eq!(group["preferredVersion"]["version"], "v2");
    assert_eq!(group["versions"][1]["version"], "v1");
}

#[tokio::test]
async fn annotations_of_old_autoscalers_are_checked() {
    let server = Server::new().await;
    let old = format!("{AUTOSCALING}/v1/{AUTOSCALERS}");
    let object = |name: &str, metrics: &str| {
        let annotations = json!({"autoscaling.alpha.kubernetes.io/metrics": metrics});
        json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "web"}}})
    };
    // One that cannot be read would hide all others.
    let odd = server.ask(&format!("POST {old}"), object("odd", r#"[{"type": 5}]"#)).await;
    assert_eq!(odd.code, 201, "{odd:?}");
    let stored = server.ask(&format!("GET {AUTOSCALING}/v2/{AUTOSCALERS}/odd"), "").await.body;
    assert!(stored["spec"]["metrics"].as_array().is_none_or(|all| all[0]["type"] == "Resource"));
    let wrong = server.ask(&format!("POST {old}"), object("wrong", r#"[{"type": "Magic"}]"#)).await;
    assert_eq!(wrong.code, 422, "{wrong:?}");
    let target = json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "../nodes/x"}}});
    let path = server.ask(&format!("PATCH {old}/odd"), target).await;
    assert!(path.body["message"].as_str().unwrap().contains("may not contain '/'"), "{path:?}");
}

#[tokio::test]
async fn zones_must_be_known() {
    let server = Server::new().await;
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]});
    let object = |zone: &str| {
        json!({"metadata": {"name": "c"}, "spec": {"schedule": "* * * * *", "timeZone": zone,
            "jobTemplate": {"spec": {"template": {"spec": pod}}}}})
    };
    let path = "POST /apis/batch/v1/namespaces/default/cronjobs";
    for (zone, want) in [
        (
            "Nowhere/Else",
            "spec.timeZone: Invalid value: \"Nowhere/Else\": unknown time zone Nowhere/Else",
        ),
        ("../../../etc/passwd", "time: invalid location name"),
    ] {
        let refused = server.ask(path, object(zone)).await;
        assert_eq!(refused.code, 422, "{refused:?}");
        assert!(refused.body["message"].as_str().unwrap().contains(want), "{refused:?}");
    }
    assert_eq!(server.ask(path, object("UTC")).await.code, 201);
}

#[tokio::test]
async fn objects_in_yaml() {
    let server = Server::new().await;
    let user = roadstead_server::identity::user::User::component();
    let path = "GET /api/v1/namespaces/default";
    let answer = server.ask_by(user, &[("accept", "application/yaml")], path).await;
    assert!(
        answer.text.starts_with("apiVersion: v1\nkind: Namespace\nmetadata:\n  "),
        "{}",
        answer.text
    );
}

#[tokio::test]
async fn a_question_is_no_table() {
    let server = Server::new().await;
    let path = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let both = format!("{table},application/json");
    for (accept, code) in [(table, 406), ("application/json", 201), (both.as_str(), 201)] {
        let headers = [("accept", accept)];
        let answer = server.ask_by(User::component(), &headers, path).await;
        assert_eq!(answer.code, code, "{accept}: {}", answer.text);
    }
}

#[tokio::test]
async fn events_are_found_by_every_field_that_upstream_knows() {
    let server = Server::new().await;
    let about = json!({"kind": "Pod", "name": "web", "namespace": "default", "apiVersion": "v1",
        "uid": "u", "resourceVersion": "7", "fieldPath": "spec"});
    let event = |name: &str, source: serde_json::Value| {
        json!({"metadata": {"name": name}, "involvedObject": about, "reason": "Started",
            "type": "Normal", "source": source, "reportingComponent": "new"})
    };
    for (name, source) in [("a", json!({"component": "kubelet"})), ("b", json!({}))] {
        assert_eq!(server.ask(&format!("POST {EVENTS}"), event(name, source)).await.code, 201);
    }
    let cases = [
        ("source=kubelet", "a"),
        // Newer recorders say it elsewhere.
        ("source=new", "b"),
        ("reportingComponent=new", "a b"),
        ("involvedObject.kind=Pod,involvedObject.name=web,involvedObject.namespace=default", "a b"),
        ("involvedObject.uid=u,involvedObject.apiVersion=v1", "a b"),
        ("involvedObject.resourceVersion=7,involvedObject.fieldPath=spec", "a b"),
        ("reason=Started,type=Normal", "a b"),
        ("type!=Normal", ""),
    ];
    for (selector, want) in cases {
        let selector = selector.replace('=', "%3D").replace(',', "%2C").replace('!', "%21");
        let list = server.ask(&format!("GET {EVENTS}?fieldSelector={selector}"), "").await.body;
        let items = list["items"].as_array().unwrap_or_else(|| panic!("{selector}: {list}"));
        let names = items.iter().map(|own| own["metadata"]["name"].as_str().unwrap());
        assert_eq!(names.collect::<Vec<_>>().join(" "), want, "{selector}");
    }
}
