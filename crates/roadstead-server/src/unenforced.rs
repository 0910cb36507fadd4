//! Kinds that are kept and on which nobody acts: whoever writes one hears it, so that nobody relies
//! on a guard that is not there. This is the one list of them; what runs beside the server decides
//! which of it is true.

use roadstead_api::kind::Info;
use serde_json::Value;

use crate::api::Neighbours;

/// Whose work an object would be.
#[derive(Clone, Copy, Debug)]
enum Actor {
    /// The API server's own, which does not do it.
    Admission,
    /// A controller's, or another component's, by the name that Kubernetes has for it.
    Component(&'static str),
}

/// Group and plural, whose work it is, and what is not done.
const KEPT: [(&str, &str, Actor, &str); 17] = [
    ("", "resourcequotas", Actor::Admission, ENFORCED),
    ("", "limitranges", Actor::Admission, ENFORCED),
    ("networking.k8s.io", "networkpolicies", Actor::Component("network-policy"), ENFORCED),
    ("networking.k8s.io", "ingresses", Actor::Component("ingress"), ACTED_ON),
    ("apps", "statefulsets", Actor::Component("statefulset"), ACTED_ON),
    ("apps", "daemonsets", Actor::Component("daemonset"), ACTED_ON),
    ("batch", "jobs", Actor::Component("job"), ACTED_ON),
    ("batch", "cronjobs", Actor::Component("cronjob"), ACTED_ON),
    ("", "replicationcontrollers", Actor::Component("replicationcontroller"), ACTED_ON),
    ("autoscaling", "horizontalpodautoscalers", AUTOSCALER, ACTED_ON),
    ("policy", "poddisruptionbudgets", Actor::Component("disruption"), ACTED_ON),
    ("", "persistentvolumeclaims", Actor::Component("persistentvolume-binder"), ACTED_ON),
    ("", "persistentvolumes", Actor::Component("persistentvolume-binder"), ACTED_ON),
    ("storage.k8s.io", "storageclasses", Actor::Component("persistentvolume-binder"), ACTED_ON),
    ("storage.k8s.io", "volumeattachments", Actor::Component("attachdetach"), ACTED_ON),
    ("node.k8s.io", "runtimeclasses", Actor::Component("runtime-class"), ACTED_ON),
    ("scheduling.k8s.io", "priorityclasses", Actor::Component("preemption"), PREEMPTED),
];

const AUTOSCALER: Actor = Actor::Component("horizontal-pod-autoscaler");
const ENFORCED: &str = "enforces it";
const ACTED_ON: &str = "acts on it";
const PREEMPTED: &str = "evicts other pods for those of the class";

/// The labels by which a namespace asks for Pod Security.
const POD_SECURITY: &str = "pod-security.kubernetes.io/";

/// What whoever has written an object of this kind should hear.
pub fn warnings(
    neighbours: &Neighbours,
    info: &Info,
    object: impl FnOnce() -> Value,
) -> Vec<String> {
    if (info.group, info.plural) == ("", "namespaces") {
        return pod_security(&object());
    }
    let kept =
        KEPT.iter().find(|(group, plural, ..)| (info.group, info.plural) == (*group, *plural));
    let Some((.., actor, deed)) = kept else { return Vec::new() };
    let version = match info.group {
        "" => info.version.to_owned(),
        group => format!("{group}/{}", info.version),
    };
    let what = format!("{version} {} is kept, but", info.kind);
    match actor {
        Actor::Admission => vec![format!("{what} this server does not enforce it")],
        Actor::Component(name) if neighbours.lacks(name) => {
            vec![format!("{what} nothing on this cluster {deed}")]
        }
        Actor::Component(_) => Vec::new(),
    }
}

fn pod_security(namespace: &Value) -> Vec<String> {
    let Some(labels) = namespace["metadata"]["labels"].as_object() else { return Vec::new() };
    let asks = labels.iter().filter(|(name, level)| {
        let mode = name.strip_prefix(POD_SECURITY).unwrap_or("");
        // Versions alone say nothing, and privileged pods are what everybody gets.
        matches!(mode, "enforce" | "audit" | "warn") && *level != "privileged"
    });
    asks.map(|(name, _)| format!("label {name} is kept, but this server does not enforce it"))
        .collect()
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
        let quota = "v1 ResourceQuota is kept, but this server does not enforce it";
        for (around, plural, want) in [
            (&up, "networkpolicies", policy),
            (&unknown, "networkpolicies", ""),
            (&up, "statefulsets", set),
            (&unknown, "statefulsets", ""),
            (&all, "statefulsets", ""),
            (&up, "resourcequotas", quota),
            (&unknown, "resourcequotas", quota),
            (&up, "deployments", ""),
            (&up, "pods", ""),
        ] {
            let found = warnings(around, kind(plural), || json!({}));
            assert_eq!(found.join("\n"), want, "{plural}");
        }
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

    #[test]
    fn labels_of_namespaces() {
        for (labels, want) in [
            (json!({}), 0),
            (json!({"a": "b"}), 0),
            (json!({"pod-security.kubernetes.io/enforce": "restricted"}), 1),
            (json!({"pod-security.kubernetes.io/enforce": "privileged"}), 0),
            (json!({"pod-security.kubernetes.io/enforce-version": "latest"}), 0),
            (
                json!({"pod-security.kubernetes.io/enforce": "baseline",
                    "pod-security.kubernetes.io/warn": "restricted"}),
                2,
            ),
        ] {
            let namespace = json!({"metadata": {"labels": labels}});
            let found = warnings(&Neighbours::default(), kind("namespaces"), || namespace);
            assert_eq!(found.len(), want, "{found:?}");
        }
    }
}
