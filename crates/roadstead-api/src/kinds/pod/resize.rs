//! The subresource `resize`: how much processor and memory the containers of a pod get that may run already
//! (KEP-1287). Nothing else of it changes.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child};
use serde_json::{Map, Value};

use super::{is_sidecar, service_class};

const LISTS: [&str; 2] = ["initContainers", "containers"];
const RESIZED: [&str; 2] = ["cpu", "memory"];
const ONLY: &str = "only cpu and memory resources are mutable";

/// Takes from what was sent all that may change. Containers that are not those of the pod are taken as they
/// are, so that [`validate`] sees them.
pub(super) fn merge(given: &Value, new: &mut Value) {
    let spec = child(new, "spec");
    put(spec, "resources", given.pointer("/spec/resources"));
    for list in LISTS {
        let sent = given.list(&format!("/spec/{list}"));
        let known = spec.list(&format!("/{list}"));
        let is_same = names(sent).eq(names(known));
        if !is_same {
            spec[list] = sent.to_vec().into();
            continue;
        }
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for (container, sent) in containers.into_iter().flatten().zip(sent) {
            put(container, "resources", sent.get("resources"));
            put(container, "resizePolicy", sent.get("resizePolicy"));
        }
    }
}

fn names(containers: &[Value]) -> impl Iterator<Item = &str> {
    containers.iter().map(|container| container.text("/name"))
}

fn put(object: &mut Value, field: &str, value: Option<&Value>) {
    match value.filter(|value| !value.is_null()) {
        Some(value) => object[field] = value.clone(),
        None => drop(object.as_object_mut().map(|fields| fields.remove(field))),
    }
}

/// Says why a pod may not be resized so.
pub(super) fn validate(old: &Value, new: &Value, causes: &mut Causes) {
    if old["metadata"]["annotations"].get("kubernetes.io/config.mirror").is_some() {
        causes.0.clear();
        return causes.forbidden("", "static pods cannot be resized");
    }
    if old.text("/spec/os/name") == "windows" {
        causes.0.clear();
        return causes.forbidden("", "windows pods cannot be resized");
    }
    let class = match old.text("/status/qosClass") {
        "" => service_class(old),
        class => class,
    };
    if class != service_class(new) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        causes.invalid("spec", &Value::from(class), detail);
    }
    if !is_supported(old) {
        causes.forbidden("spec", "Pod running on node without support for resize");
    }
    validate_whole(old, new, causes);
    if !same_containers(old, new, causes) {
        return;
    }
    for list in LISTS {
        let pairs = old.list(&format!("/spec/{list}")).iter();
        let pairs = pairs.zip(new.list(&format!("/spec/{list}")));
        for (index, (old, new)) in pairs.enumerate() {
            validate_container(old, new, (list, index), causes);
        }
    }
}

/// Node agents that say nothing of what containers have do not change it either.
fn is_supported(pod: &Value) -> bool {
    let mut statuses = pod.list("/status/containerStatuses").iter();
    let running = statuses.find(|status| status["state"]["running"].is_object());
    running.is_none_or(|status| status["resources"].is_object())
}

/// What the pod has as a whole.
fn validate_whole(old: &Value, new: &Value, causes: &mut Causes) {
    let (old, new) = (&old["spec"]["resources"], &new["spec"]["resources"]);
    if old.is_object() && !new.is_object() {
        return causes.forbidden("spec.resources", "pod-level resources cannot be removed");
    }
    for (amounts, word) in [("requests", "requests"), ("limits", "limits")] {
        if is_removed(&old[amounts], &new[amounts]) {
            let detail = format!("pod-level resource {word} cannot be removed");
            causes.forbidden(format!("spec.resources.{amounts}"), &detail);
        }
    }
    if others(old) != others(new) {
        causes.forbidden("spec", "only cpu and memory resources are mutable at pod-level");
    }
}

fn same_containers(old: &Value, new: &Value, causes: &mut Causes) -> bool {
    let before = causes.0.len();
    for list in LISTS {
        let place = format!("/spec/{list}");
        let (old, new) = (old.list(&place), new.list(&place));
        if old.len() != new.len() {
            let detail = format!("{list} may not be added or removed on resize");
            causes.forbidden(format!("spec.{list}"), &detail);
            continue;
        }
        for (index, (old, new)) in names(old).zip(names(new)).enumerate() {
            if old != new {
                let detail = format!("{list} may not be renamed or reordered on resize");
                causes.forbidden(format!("spec.{list}[{index}].name"), &detail);
            }
        }
    }
    causes.0.len() == before
}

fn validate_container(old: &Value, new: &Value, (list, index): (&str, usize), causes: &mut Causes) {
    let field = format!("spec.{list}[{index}]");
    let (had, has) = (&old["resources"], &new["resources"]);
    for (amounts, detail) in [
        ("requests", "resource requests cannot be removed"),
        ("limits", "resource limits cannot be removed"),
    ] {
        if is_removed(&had[amounts], &has[amounts]) {
            causes.forbidden(format!("{field}.resources.{amounts}"), detail);
        }
    }
    if others(had) != others(has) {
        match list {
            "containers" => causes.forbidden("spec", ONLY),
            _ => causes.forbidden(
                &field,
                "only cpu and memory resources for init or sidecar containers are mutable",
            ),
        }
    }
    let begins_anew =
        new.list("/resizePolicy").iter().any(|own| own["restartPolicy"] == "RestartContainer");
    if list == "initContainers" && !is_sidecar(new) && old != new && begins_anew {
        let detail = "non-sidecar init containers with a resize policy of RestartContainer \
                      cannot be resized";
        causes.forbidden(&field, detail);
    }
}

fn is_removed(old: &Value, new: &Value) -> bool {
    old.fields("").any(|(name, _)| new.get(name).is_none())
}

/// What of the resources cannot change.
fn others(resources: &Value) -> Map<String, Value> {
    let mut left = resources.as_object().cloned().unwrap_or_default();
    for amounts in ["requests", "limits"] {
        let all = left.remove(amounts);
        let all = all.as_ref().and_then(Value::as_object).into_iter().flatten();
        let fixed: Map<_, _> = all
            .filter(|(name, _)| !RESIZED.contains(&name.as_str()))
            .map(|(name, amount)| (name.clone(), amount.clone()))
            .collect();
        if !fixed.is_empty() {
            left.insert(amounts.into(), fixed.into());
        }
    }
    left.retain(|_, value| !matches!(value, Value::Array(list) if list.is_empty()));
    left
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Reads `a:cpu=1/2,memory=/1Gi i!:cpu=1`: requests and limits of containers, `!` of an init container,
    /// `*` of a sidecar.
    fn pod(text: &str) -> Value {
        let mut spec = json!({"containers": [], "initContainers": []});
        for word in text.split_whitespace() {
            let (name, amounts) = word.split_once(':').unwrap();
            let mut container = json!({"name": name.trim_end_matches(['!', '*']), "image": "i",
                "resources": {"requests": {}, "limits": {}}});
            for amount in amounts.split(',').filter(|amount| !amount.is_empty()) {
                let (resource, amount) = amount.split_once('=').unwrap();
                let (request, limit) = amount.split_once('/').unwrap_or((amount, ""));
                for (list, amount) in [("requests", request), ("limits", limit)] {
                    if !amount.is_empty() {
                        container["resources"][list][resource] = amount.into();
                    }
                }
            }
            if name.ends_with('*') {
                container["restartPolicy"] = "Always".into();
            }
            let list = if name.ends_with(['!', '*']) { "initContainers" } else { "containers" };
            spec[list].as_array_mut().unwrap().push(container);
        }
        let mut pod = json!({"metadata": {"name": "p"}, "spec": spec});
        pod["status"] = json!({"qosClass": service_class(&pod)});
        pod
    }

    fn judged(old: &Value, new: &Value) -> String {
        let mut causes = Causes::default();
        validate(old, new, &mut causes);
        causes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn what_may_be_resized() {
        let class = "spec: Invalid value: \"Burstable\": Pod QOS Class may not change as a result \
                     of resizing";
        for (old, new, want) in [
            ("a:cpu=1", "a:cpu=2", ""),
            ("a:cpu=1", "a:cpu=2/3,memory=1Gi", ""),
            ("a:cpu=1/1,memory=1Gi/1Gi", "a:cpu=2/2,memory=1Gi/1Gi", ""),
            ("a:cpu=1 i!:cpu=1 s*:cpu=1", "a:cpu=1 i!:cpu=2 s*:cpu=3", ""),
            ("a:cpu=1,memory=1", "a:cpu=1/1,memory=1/1", class),
            (
                "a:cpu=1/2",
                "a:cpu=1",
                "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
            ),
            (
                "a:cpu=1,memory=1",
                "a:cpu=1",
                "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
            ),
            (
                "a:cpu=1,gpu=1",
                "a:cpu=1,gpu=2",
                "spec: Forbidden: only cpu and memory resources are mutable",
            ),
            (
                "a:cpu=1 i!:cpu=1,gpu=1",
                "a:cpu=1 i!:cpu=1,gpu=2",
                "spec.initContainers[0]: Forbidden: only cpu and memory resources for init or sidecar \
              containers are mutable",
            ),
            (
                "a:cpu=1",
                "a:cpu=1 b:cpu=1",
                "spec.containers: Forbidden: containers may not be added or removed on resize",
            ),
            (
                "a:cpu=1 b:",
                "b: a:cpu=1",
                "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on \
              resize; spec.containers[1].name: Forbidden: containers may not be renamed or \
              reordered on resize",
            ),
        ] {
            assert_eq!(judged(&pod(old), &pod(new)), want, "{old} to {new}");
        }
    }

    #[test]
    fn pods_that_are_not_resized() {
        let (old, new) = (pod("a:cpu=1"), pod("a:cpu=2"));
        let with = |place: &str, value: Value| {
            let mut pod = old.clone();
            for (field, value) in value.as_object().unwrap() {
                pod[place][field] = value.clone();
            }
            judged(&pod, &new)
        };
        let mirror = json!({"annotations": {"kubernetes.io/config.mirror": "x"}});
        assert_eq!(with("metadata", mirror), ": Forbidden: static pods cannot be resized");
        let windows = json!({"os": {"name": "windows"}});
        assert_eq!(with("spec", windows), ": Forbidden: windows pods cannot be resized");
        let silent = json!({"containerStatuses": [{"name": "a", "state": {"running": {}}}]});
        let want = "spec: Forbidden: Pod running on node without support for resize";
        assert_eq!(with("status", silent), want);
        let telling = json!({"containerStatuses": [
            {"name": "a", "state": {"running": {}}, "resources": {}}]});
        assert_eq!(with("status", telling), "");
    }

    #[test]
    fn init_containers_do_not_begin_anew() {
        let (old, mut new) = (pod("a: i!:cpu=1"), pod("a: i!:cpu=2"));
        let policy = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
        new["spec"]["initContainers"][0]["resizePolicy"] = policy.clone();
        assert!(judged(&old, &new).contains("cannot be resized"));
        let (old, mut new) = (pod("a: s*:cpu=1"), pod("a: s*:cpu=2"));
        new["spec"]["initContainers"][0]["resizePolicy"] = policy;
        assert_eq!(judged(&old, &new), "");
    }

    #[test]
    fn nothing_else_is_taken() {
        let old = pod("a:cpu=1 i!:cpu=1");
        let mut given = pod("a:cpu=2 i!:cpu=3");
        given["spec"]["containers"][0]["image"] = "other".into();
        given["spec"]["nodeName"] = "elsewhere".into();
        given["metadata"]["labels"] = json!({"a": "b"});
        given["status"]["phase"] = "Failed".into();
        let mut new = old.clone();
        merge(&given, &mut new);
        let mut want = pod("a:cpu=2 i!:cpu=3");
        want["status"] = old["status"].clone();
        assert_eq!(new, want);
    }
}
