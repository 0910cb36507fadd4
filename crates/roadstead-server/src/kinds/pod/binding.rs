//! Putting a pod onto a node.

use jiff::Timestamp;
use roadstead_api::kind::Info;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::kinds::Answer;
use crate::objects::write::{self, Writable};
use crate::request::handler::Handler;
use crate::transport::response::created;

/// Puts a pod onto a node.
pub(super) fn bind<'a>(handler: &'a Handler<'a>) -> Answer<'a> {
    Box::pin(async move {
        let binding = handler.typed("io.k8s.api.core.v1.Binding")?;
        let now = write::seconds(Timestamp::now());
        let info = handler.resource.info();
        let change = |pod: &Value| Ok(bound(info, pod, &binding, &now)?.into());
        let name = &handler.path.name;
        write::update(&handler.context(), name, Writable::Whole, change).await?;
        Ok(created())
    })
}

/// The pod on the node that a Binding names.
fn bound(info: &Info, pod: &Value, binding: &Value, now: &str) -> Result<Value, ApiError> {
    let name = pod.text("/metadata/name");
    let conflict = |why: &str| Err(ApiError::conflict(info, name, why));
    let node = binding.text("/target/name");
    if node.is_empty() {
        let target = Info::new("", "v1", "Binding", "bindings", "binding");
        let mut causes = roadstead_schema::invalid::Causes::default();
        causes.required("target.name", "");
        return Err(ApiError::invalid(&target, binding.text("/metadata/name"), &causes.0));
    }
    let uid = binding.text("/metadata/uid");
    if !uid.is_empty() && uid != pod.text("/metadata/uid") {
        return conflict(&format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            pod.text("/metadata/uid")
        ));
    }
    if pod.has("/metadata/deletionTimestamp") {
        return conflict(&format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let taken = pod.text("/spec/nodeName");
    if !taken.is_empty() {
        return conflict(&format!("pod {name} is already assigned to node {taken:?}"));
    }
    let mut new = pod.clone();
    new["spec"]["nodeName"] = node.into();
    for (key, value) in binding.fields("/metadata/annotations") {
        new["metadata"]["annotations"][key] = value.clone();
    }
    let others = pod.list("/status/conditions").iter();
    let others = others.filter(|condition| condition.text("/type") != "PodScheduled").cloned();
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now});
    new["status"]["conditions"] = others.chain([scheduled]).collect();
    Ok(new)
}

#[test]
fn bindings() {
    let pod = |fields: Value| {
        let mut pod = json!({"metadata": {"name": "p", "uid": "1"}, "spec": {}, "status":
            {"conditions": [{"type": "Gated"}, {"type": "PodScheduled", "status": "False"}]}});
        roadstead_patch::merge(&mut pod, &fields).unwrap();
        pod
    };
    let to = |node: &str, uid: &str| json!({"metadata": {"uid": uid}, "target": {"name": node}});
    let info = Info::new("", "v1", "Pod", "pods", "pod");
    let prefix = "Operation cannot be fulfilled on pods \"p\":";
    let cases = [
        (pod(json!({})), to("n", ""), Ok("n Gated PodScheduled".to_owned())),
        (pod(json!({})), to("n", "1"), Ok("n Gated PodScheduled".to_owned())),
        (
            pod(json!({})),
            to("n", "2"),
            Err(format!(
                "{prefix} Precondition failed: UID in precondition: 2, UID in object meta: 1"
            )),
        ),
        (
            pod(json!({})),
            to("", ""),
            Err("Binding \"\" is invalid: target.name: Required value".to_owned()),
        ),
        (
            pod(json!({"spec": {"nodeName": "m"}})),
            to("n", ""),
            Err(format!("{prefix} pod p is already assigned to node \"m\"")),
        ),
        (
            pod(json!({"metadata": {"deletionTimestamp": "now"}})),
            to("n", ""),
            Err(format!("{prefix} pod p is being deleted, cannot be assigned to a host")),
        ),
    ];
    for (pod, binding, want) in cases {
        let found = bound(&info, &pod, &binding, "now").map(|pod| {
            let conditions = pod.list("/status/conditions").iter();
            let types: Vec<_> = conditions.map(|condition| condition.text("/type")).collect();
            format!("{} {}", pod.text("/spec/nodeName"), types.join(" "))
        });
        assert_eq!(found.map_err(|error| error.message), want, "{binding}");
    }
}
