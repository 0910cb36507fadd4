//! Which pods leave a node that is drained: what kubectl decides, with words that it has for it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use crate::owner::controller_of;
use crate::pod_status::is_finished;

/// What marks pods that the node has from files: they end with their files only.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What an operator has allowed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// Pods of DaemonSets stay; else they are in the way.
    pub ignore_daemonsets: bool,
    /// What pods have in emptyDir volumes may be lost.
    pub delete_emptydir_data: bool,
    /// Pods that nobody makes again may be lost.
    pub force: bool,
}

/// What becomes of the pods of a node.
#[derive(Debug, Default, PartialEq)]
pub struct Drain<'a> {
    /// They are evicted.
    pub leave: Vec<&'a Pod>,
    /// Pods of DaemonSets, which stay.
    pub daemons: Vec<&'a Pod>,
    /// Why nothing can be done, each with the pods it is about.
    pub refusals: BTreeMap<&'static str, Vec<&'a Pod>>,
}

const DAEMONS: &str = "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)";
const ALONE: &str = "cannot delete Pods that declare no controller (use --force to override)";
const STORAGE: &str =
    "cannot delete Pods with local storage (use --delete-emptydir-data to override)";

/// Says what becomes of each pod of a node. If anything is in the way nothing should be evicted.
pub fn plan_drain<'a>(pods: impl IntoIterator<Item = &'a Pod>, allowed: Allowed) -> Drain<'a> {
    let mut plan = Drain::default();
    for pod in pods {
        let annotations = pod.metadata.annotations.as_ref();
        if annotations.is_some_and(|all| all.contains_key(MIRROR)) {
            continue;
        }
        let owner = controller_of(&pod.metadata).map(|owner| owner.kind.as_str());
        let ends = is_finished(pod);
        let why = match owner {
            Some("DaemonSet") if !ends && allowed.ignore_daemonsets => {
                plan.daemons.push(pod);
                continue;
            }
            Some("DaemonSet") if !ends => Some(DAEMONS),
            None if !ends && !allowed.force => Some(ALONE),
            _ if !ends && !allowed.delete_emptydir_data && has_local_data(pod) => Some(STORAGE),
            _ => None,
        };
        match why {
            Some(why) => plan.refusals.entry(why).or_default().push(pod),
            None => plan.leave.push(pod),
        }
    }
    plan
}

fn has_local_data(pod: &Pod) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.into_iter().any(|volume| volume.empty_dir.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `web:ReplicaSet`, `own:ReplicaSet+data`, `alone:`, `log:DaemonSet`, `done:-Succeeded`, `static:+mirror`.
    fn pod(text: &str) -> Pod {
        let (name, rest) = text.split_once(':').unwrap();
        let (kind, phase) = rest.split_once('-').unwrap_or((rest, "Running"));
        let (kind, more) = kind.split_once('+').unwrap_or((kind, ""));
        let owner = json!([{"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]);
        let annotations = if more == "mirror" { json!({MIRROR: "x"}) } else { json!({}) };
        let volumes =
            if more == "data" { json!([{"name": "v", "emptyDir": {}}]) } else { json!([]) };
        serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": annotations,
                "ownerReferences": if kind.is_empty() { json!([]) } else { owner }},
            "spec": {"containers": [], "volumes": volumes}, "status": {"phase": phase}}))
        .unwrap()
    }

    #[test]
    fn who_leaves() {
        let none = Allowed::default();
        let usual = Allowed { ignore_daemonsets: true, ..none };
        let data = Allowed { delete_emptydir_data: true, ..usual };
        let force = Allowed { force: true, ..usual };
        let cases = [
            ("web:ReplicaSet log:DaemonSet static:+mirror", usual, "leave web; stay log"),
            ("log:DaemonSet", none, "no log: cannot delete DaemonSet-managed Pods"),
            (
                "alone: web:ReplicaSet",
                usual,
                "leave web; no alone: cannot delete Pods that declare no controller",
            ),
            ("alone:", force, "leave alone"),
            ("done:-Succeeded failed:+data-Failed", usual, "leave done failed"),
            ("own:ReplicaSet+data", usual, "no own: cannot delete Pods with local storage"),
            ("own:StatefulSet+data", data, "leave own"),
            ("", usual, ""),
        ];
        for (pods, allowed, want) in cases {
            let pods: Vec<_> = pods.split_whitespace().map(pod).collect();
            let plan = plan_drain(&pods, allowed);
            let names = |verb: &str, all: &[&Pod]| {
                let names: Vec<_> = all.iter().filter_map(|p| p.metadata.name.as_deref()).collect();
                (!all.is_empty()).then(|| format!("{verb} {}", names.join(" ")))
            };
            let refused = plan.refusals.iter().filter_map(|(why, pods)| {
                let short = why.split(" (").next().unwrap();
                Some(format!("{}: {short}", names("no", pods)?))
            });
            let told = [names("leave", &plan.leave), names("stay", &plan.daemons)];
            let told: Vec<_> = told.into_iter().flatten().chain(refused).collect();
            assert_eq!(told.join("; "), want);
        }
    }
}
