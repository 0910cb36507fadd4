//! Kinds that are kept and on which nobody acts: whoever writes one hears it, so that nobody relies
//! on a guard that is not there. This is the one list of them; what runs beside the server decides
//! which of it is true.

mod pod_spec;

use roadstead_api::kind::Info;
use serde_json::Value;

use crate::config::Neighbours;

/// Group and plural, whose work it is (a controller's, or another component's, by the name that
/// Kubernetes has for it), and what is not done.
const KEPT: [(&str, &str, &str, &str); 16] = [
    ("", "resourcequotas", "resourcequota", ENFORCED),
    ("networking.k8s.io", "networkpolicies", "network-policy", ENFORCED),
    ("networking.k8s.io", "ingresses", "ingress", ACTED_ON),
    ("apps", "statefulsets", "statefulset", ACTED_ON),
    ("apps", "daemonsets", "daemonset", ACTED_ON),
    ("batch", "jobs", "job", ACTED_ON),
    ("batch", "cronjobs", "cronjob", ACTED_ON),
    ("", "replicationcontrollers", "replicationcontroller", ACTED_ON),
    ("autoscaling", "horizontalpodautoscalers", AUTOSCALER, ACTED_ON),
    ("policy", "poddisruptionbudgets", "disruption", ACTED_ON),
    ("", "persistentvolumeclaims", "persistentvolume-binder", ACTED_ON),
    ("", "persistentvolumes", "persistentvolume-binder", ACTED_ON),
    ("storage.k8s.io", "storageclasses", "persistentvolume-binder", ACTED_ON),
    ("storage.k8s.io", "volumeattachments", "attachdetach", ACTED_ON),
    ("node.k8s.io", "runtimeclasses", "runtime-class", ACTED_ON),
    ("scheduling.k8s.io", "priorityclasses", "scheduler", PREEMPTED),
];

const AUTOSCALER: &str = "horizontal-pod-autoscaler";
const ENFORCED: &str = "enforces it";
const ACTED_ON: &str = "acts on it";
const PREEMPTED: &str = "evicts other pods for those of the class";

/// What whoever has written an object of this kind should hear.
pub(crate) fn warnings(
    neighbours: &Neighbours,
    info: &Info,
    object: impl FnOnce() -> Value,
) -> Vec<String> {
    let kept =
        KEPT.iter().find(|(group, plural, ..)| (info.group, info.plural) == (*group, *plural));
    let Some((.., actor, deed)) = kept else { return fields(neighbours, info, object) };
    let version = match info.group {
        "" => info.version.to_owned(),
        group => format!("{group}/{}", info.version),
    };
    let what = format!("{version} {} is kept, but", info.kind);
    match neighbours.lacks(actor) {
        true => vec![format!("{what} nothing on this cluster {deed}")],
        false => fields(neighbours, info, object),
    }
}

/// Which fields of an object's pods nobody acts on.
fn fields(neighbours: &Neighbours, info: &Info, object: impl FnOnce() -> Value) -> Vec<String> {
    let Some(at) = pod_spec_of(info).filter(|_| neighbours.are_known()) else { return Vec::new() };
    let object = object();
    let spec = object.pointer(&format!("/{}", at.replace('.', "/"))).unwrap_or(&Value::Null);
    let kept = pod_spec::kept(spec, at).into_iter();
    let says = |(path, deed)| format!("{path} is kept, but nothing on this cluster {deed}");
    kept.map(says).collect()
}

/// Where the kind has the spec of a pod, for those whose pods our own node runs.
fn pod_spec_of(info: &Info) -> Option<&'static str> {
    match (info.group, info.plural) {
        ("", "pods") => Some("spec"),
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") => {
            Some("spec.template.spec")
        }
        ("", "replicationcontrollers") | ("batch", "jobs") => Some("spec.template.spec"),
        ("batch", "cronjobs") => Some("spec.jobTemplate.spec.template.spec"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(plural: &str) -> &'static Info {
        let mut all = roadstead_api::kinds::all().into_iter().map(|kind| kind.info());
        all.find(|info| info.plural == plural).unwrap()
    }

    #[test]
    fn who_acts_on_what() {
        let unknown = Neighbours::default();
        let up = Neighbours { components: Some(vec!["deployment"]) };
        let all = Neighbours { components: Some(vec!["statefulset"]) };
        let policy = "networking.k8s.io/v1 NetworkPolicy is kept, but nothing on this cluster \
            enforces it";
        let set = "apps/v1 StatefulSet is kept, but nothing on this cluster acts on it";
        let quota = "v1 ResourceQuota is kept, but nothing on this cluster enforces it";
        for (around, plural, want) in [
            (&up, "networkpolicies", policy),
            (&unknown, "networkpolicies", ""),
            (&up, "statefulsets", set),
            (&unknown, "statefulsets", ""),
            (&all, "statefulsets", ""),
            (&up, "resourcequotas", quota),
            (&unknown, "resourcequotas", ""),
            (&up, "limitranges", ""),
            (&up, "deployments", ""),
            (&up, "pods", ""),
            (&unknown, "pods", ""),
        ] {
            let found = warnings(around, kind(plural), || json!({}));
            assert_eq!(found.join("\n"), want, "{plural}");
        }
    }

    #[test]
    fn fields_of_pods() {
        let up = Neighbours { components: Some(vec![]) };
        let spec = json!({"runtimeClassName": "x"});
        let pod = json!({"spec": spec});
        let want = ["spec.runtimeClassName is kept, but nothing on this cluster acts on it"];
        assert_eq!(warnings(&up, kind("pods"), || pod.clone()), want);
        let none = warnings(&Neighbours::default(), kind("pods"), || pod);
        assert!(none.is_empty(), "others may run it: {none:?}");
        let deployment = json!({"spec": {"template": {"spec": spec}}});
        let found = warnings(&up, kind("deployments"), || deployment);
        assert!(found[0].starts_with("spec.template.spec.runtimeClassName is kept"), "{found:?}");
    }

    #[test]
    fn every_kind_of_the_list_is_served() {
        let all = roadstead_api::kinds::all();
        for (group, plural, ..) in KEPT {
            let served =
                all.iter().any(|kind| (kind.info().group, kind.info().plural) == (group, plural));
            assert!(served, "{group} {plural}");
        }
    }
}
