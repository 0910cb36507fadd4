//! Pods that a node runs by itself, from files: what becomes of a file, and of its mirror in the API. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use roadstead_api::kinds;
use roadstead_typed::Typed;
use serde_json::{Value, json};

const SOURCE: &str = "kubernetes.io/config.source";
const HASH: &str = "kubernetes.io/config.hash";
const SEEN: &str = "kubernetes.io/config.seen";
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Returns the pod of a file on a node; `hash` is of node, file and content, and becomes its uid. The
/// error says what is wrong with the file.
pub fn static_pod(
    mut object: Value,
    node: &str,
    hash: &str,
    seen: Timestamp,
) -> Result<Pod, String> {
    if object["apiVersion"] != "v1" || object["kind"] != "Pod" {
        return Err("it is no Pod of v1".into());
    }
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        return Err("it has no name".into());
    }
    object["metadata"]["name"] = format!("{name}-{}", node.to_lowercase()).into();
    if object["metadata"]["namespace"].as_str().unwrap_or_default().is_empty() {
        object["metadata"]["namespace"] = "default".into();
    }
    object["metadata"]["uid"] = hash.into();
    for (annotation, value) in [(SOURCE, "file"), (HASH, hash), (SEEN, &seen.to_string())] {
        object["metadata"]["annotations"][annotation] = value.into();
    }
    object["spec"]["nodeName"] = node.into();
    tolerate_everything(&mut object["spec"]["tolerations"]);
    let pods = kinds::all().into_iter().find(|kind| kind.info().bucket() == "pods");
    if let Some(kind) = pods {
        kind.default(&mut object);
    }
    if let Value::Object(fields) = &mut object {
        fields.remove("status");
    }
    let pod: Pod = Pod::from_value(&object).map_err(|error| error.to_string())?;
    match needs_others(&pod) {
        Some(what) => Err(format!("a static pod may not use {what}")),
        None => Ok(pod),
    }
}

fn tolerate_everything(tolerations: &mut Value) {
    let all = json!({"operator": "Exists", "effect": "NoExecute"});
    match tolerations {
        Value::Array(known) if !known.contains(&all) => known.push(all),
        Value::Array(_) => {}
        other => *other = json!([all]),
    }
}

/// What of the API the pod cannot do without: a node must be able to run it alone.
fn needs_others(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    if spec.service_account_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return Some("a service account");
    }
    for volume in spec.volumes.iter().flatten() {
        let projected = volume.projected.iter().flat_map(|all| all.sources.iter().flatten());
        if volume.secret.is_some() || projected.clone().any(|source| source.secret.is_some()) {
            return Some("secrets");
        }
        if volume.config_map.is_some() || projected.clone().any(|one| one.config_map.is_some()) {
            return Some("config maps");
        }
        if projected.into_iter().any(|source| source.service_account_token.is_some()) {
            return Some("a service account");
        }
    }
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    for container in containers {
        let sources = container.env.iter().flatten().filter_map(|env| env.value_from.as_ref());
        let all = container.env_from.iter().flatten();
        if sources.clone().any(|source| source.secret_key_ref.is_some())
            || all.clone().any(|source| source.secret_ref.is_some())
        {
            return Some("secrets");
        }
        if sources.into_iter().any(|source| source.config_map_key_ref.is_some())
            || all.into_iter().any(|source| source.config_map_ref.is_some())
        {
            return Some("config maps");
        }
    }
    None
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let annotations: &BTreeMap<_, _> = pod.metadata.annotations.as_ref()?;
    annotations.get(name).map(String::as_str)
}

/// Whether the pod comes from a file of this node.
pub fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE) == Some("file") && !is_mirror(pod)
}

/// Whether the object only shows what a node runs by itself.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR).is_some()
}

/// Returns what the API is shown of a static pod; it goes with the node of this uid.
pub fn mirror_of(pod: &Pod, node_uid: &str) -> Pod {
    let mut mirror = Pod { status: None, ..pod.clone() };
    let hash = mirror.metadata.uid.take().unwrap_or_default();
    mirror.metadata.annotations.get_or_insert_default().insert(MIRROR.into(), hash);
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    mirror.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.unwrap_or_default(),
        uid: node_uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    mirror
}

/// What to do about a mirror.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MirrorStep {
    /// It is not there.
    Create,
    /// It shows something else, or nothing any more; or somebody wants it to go, and it will come back.
    Delete,
}

/// Compares what a node runs under a name with what the API shows of it.
pub fn mirror_step(wanted: Option<&Pod>, mirror: Option<&Pod>) -> Option<MirrorStep> {
    match (wanted, mirror) {
        (Some(_), None) => Some(MirrorStep::Create),
        (None, Some(_)) => Some(MirrorStep::Delete),
        (None, None) => None,
        (Some(wanted), Some(mirror)) => {
            let same = annotation(mirror, MIRROR) == wanted.metadata.uid.as_deref();
            (!same || mirror.metadata.deletion_timestamp.is_some()).then_some(MirrorStep::Delete)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(spec: Value) -> Result<Pod, String> {
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
            "spec": spec});
        static_pod(object, "Node", "hash", Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn what_becomes_of_a_file() {
        let pod = read(json!({"containers": [{"name": "a", "image": "x"}]})).unwrap();
        let pod = serde_json::to_value(pod).unwrap();
        assert_eq!(
            pod["metadata"],
            json!({"name": "web-node", "namespace": "default", "uid": "hash", "annotations": {
                SOURCE: "file", HASH: "hash", SEEN: "1970-01-01T00:00:00Z"}})
        );
        assert_eq!(pod["spec"]["nodeName"], "Node");
        assert_eq!(pod["spec"]["restartPolicy"], "Always", "with the defaults of the API");
        assert_eq!(
            pod["spec"]["tolerations"],
            json!([{"operator": "Exists", "effect": "NoExecute"}])
        );
    }

    #[test]
    fn what_a_file_may_not_ask_for() {
        let container = |extra: Value| {
            let mut container = json!({"name": "a", "image": "x"});
            container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({"containers": [container]})
        };
        let volume = |source: Value| {
            let mut spec = container(json!({}));
            spec["volumes"] = json!([source]);
            spec
        };
        for (spec, want) in [
            (json!({"containers": [], "serviceAccountName": "x"}), "a service account"),
            (volume(json!({"name": "v", "secret": {"secretName": "x"}})), "secrets"),
            (volume(json!({"name": "v", "configMap": {"name": "x"}})), "config maps"),
            (container(json!({"envFrom": [{"secretRef": {"name": "x"}}]})), "secrets"),
            (
                container(json!({"env": [{"name": "A",
                    "valueFrom": {"configMapKeyRef": {"name": "x", "key": "k"}}}]})),
                "config maps",
            ),
        ] {
            assert_eq!(read(spec), Err(format!("a static pod may not use {want}")));
        }
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}});
        assert!(static_pod(service, "n", "h", Timestamp::UNIX_EPOCH).is_err());
    }

    #[test]
    fn mirrors_follow_their_pods() {
        let pod = read(json!({"containers": [{"name": "a", "image": "x"}]})).unwrap();
        let mirror = mirror_of(&pod, "node-uid");
        assert!(is_static(&pod) && is_mirror(&mirror) && !is_static(&mirror));
        assert_eq!(mirror.metadata.uid, None);
        let owner = &mirror.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "node-uid"));
        let mut other = pod.clone();
        other.metadata.uid = Some("other".into());
        let mut going = mirror.clone();
        going.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
        for (wanted, found, want) in [
            (Some(&pod), None, Some(MirrorStep::Create)),
            (Some(&pod), Some(&mirror), None),
            (Some(&other), Some(&mirror), Some(MirrorStep::Delete)),
            (Some(&pod), Some(&going), Some(MirrorStep::Delete)),
            (None, Some(&mirror), Some(MirrorStep::Delete)),
            (None, None, None),
        ] {
            assert_eq!(mirror_step(wanted, found), want);
        }
    }
}
