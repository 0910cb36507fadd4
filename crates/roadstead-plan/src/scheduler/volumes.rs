//! Where a pod can go because of its volumes.

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, Pod, TopologySelectorTerm,
};
use k8s_openapi::api::storage::v1::StorageClass;
use roadstead_api::node_affinity::NodeTraits;

use crate::persistentvolume::shelf::Shelf;
use crate::persistentvolume::{NO_PROVISIONER, SELECTED_NODE, annotation, reaches};

/// How claims, volumes and classes are found by their names.
pub struct StorageView<'a, 'b> {
    /// A claim of the pod's namespace.
    pub claim: &'b dyn Fn(&str) -> Option<&'a PersistentVolumeClaim>,
    /// All volumes.
    pub volumes: &'a Shelf,
    /// Whether a volume was given to another pod a moment ago.
    pub is_taken: &'b dyn Fn(&str) -> bool,
    /// A class.
    pub class: &'b dyn Fn(&str) -> Option<&'a StorageClass>,
}

/// What a pod's volumes ask of its node.
#[derive(Debug, Default)]
pub struct VolumeNeeds<'a> {
    /// Volumes that must be usable there.
    pub bound: Vec<&'a PersistentVolume>,
    /// Claims that get a volume once it is known where the pod goes.
    pub unbound: Vec<Unbound<'a>>,
    /// The node that such a claim was promised already.
    pub selected: Option<&'a str>,
}

/// A claim that gets a volume once it is known where its pod goes.
#[derive(Debug)]
pub struct Unbound<'a> {
    /// The claim.
    pub claim: &'a PersistentVolumeClaim,
    /// The volume that names it already.
    own: Option<&'a PersistentVolume>,
    /// Those that it could have, the smallest first.
    volumes: Vec<&'a PersistentVolume>,
    /// Where one can be made for it: nowhere, or on nodes with these labels.
    made: Option<&'a [TopologySelectorTerm]>,
}

/// What a claim gets on a node: a volume that there is, or one that is still to be made.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// Whose volume it is.
    pub claim: &'a PersistentVolumeClaim,
    /// Nothing, if it is to be made.
    pub volume: Option<&'a PersistentVolume>,
}

impl<'a> VolumeNeeds<'a> {
    /// What the claims would get on a node; `None` if one of them gets nothing there.
    pub fn choose(&self, node: NodeTraits<'_>) -> Option<Vec<Choice<'a>>> {
        let mut chosen: Vec<Choice<'_>> = Vec::new();
        for Unbound { claim, own, volumes, made } in &self.unbound {
            let is_free = |volume: &PersistentVolume| {
                let mut all = chosen.iter().filter_map(|choice| choice.volume);
                all.all(|taken| taken.metadata.name != volume.metadata.name)
            };
            let volume = match own {
                Some(own) if reaches(own, node) => Some(*own),
                Some(_) => return None,
                None => {
                    let mut near = volumes.iter().filter(|volume| reaches(volume, node));
                    near.find(|volume| is_free(volume)).copied()
                }
            };
            if volume.is_none() && !made.is_some_and(|terms| may_be_made(terms, node)) {
                return None;
            }
            chosen.push(Choice { claim, volume });
        }
        Some(chosen)
    }
}

/// Whether a class makes volumes for this node: one of its terms must hold, if it has any.
fn may_be_made(terms: &[TopologySelectorTerm], node: NodeTraits<'_>) -> bool {
    let value = |key: &String| node.labels.and_then(|labels| labels.get(key));
    terms.is_empty()
        || terms.iter().any(|term| {
            let rules = term.match_label_expressions.as_deref().unwrap_or_default();
            let holds = rules
                .iter()
                .all(|rule| value(&rule.key).is_some_and(|value| rule.values.contains(value)));
            holds && !rules.is_empty()
        })
}

/// The names of a pod's claims.
pub fn claims(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

/// What the claims of a pod ask for; the error says why the pod cannot go anywhere yet.
pub fn needs<'a>(pod: &Pod, storage: &StorageView<'a, '_>) -> Result<VolumeNeeds<'a>, String> {
    let mut needs = VolumeNeeds::default();
    for name in claims(pod) {
        let claim = (storage.claim)(name);
        let claim = claim.ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        let spec = claim.spec.as_ref();
        let volume = spec.and_then(|spec| spec.volume_name.as_deref()).unwrap_or("");
        if phase == Some("Lost") {
            return Err(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
            ));
        }
        if phase == Some("Bound") {
            needs.bound.extend(storage.volumes.get(volume));
            continue;
        }
        let class = spec.and_then(|spec| spec.storage_class_name.as_deref());
        let class = class.and_then(storage.class);
        let mode = class.and_then(|own| own.volume_binding_mode.as_deref());
        let Some(class) =
            class.filter(|_| mode == Some("WaitForFirstConsumer") && volume.is_empty())
        else {
            return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
        };
        needs.selected = needs.selected.or(annotation(&claim.metadata, SELECTED_NODE));
        needs.unbound.push(unbound(claim, class, storage));
    }
    Ok(needs)
}

fn unbound<'a>(
    claim: &'a PersistentVolumeClaim,
    class: &'a StorageClass,
    storage: &StorageView<'a, '_>,
) -> Unbound<'a> {
    let is_left = |volume: &&PersistentVolume| {
        !(storage.is_taken)(volume.metadata.name.as_deref().unwrap_or(""))
    };
    let makes = !["", NO_PROVISIONER].contains(&class.provisioner.as_str());
    Unbound {
        claim,
        own: storage.volumes.reserved(claim),
        volumes: storage.volumes.suitable(claim).filter(is_left).collect(),
        made: makes.then(|| class.allowed_topologies.as_deref().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persistentvolume::local_class;
    use crate::scheduler::tests::{cluster, pod as pod_of};
    use crate::scheduler::{Decision, decide};
    use serde_json::{Value, json};

    #[test]
    fn claims_that_hold_a_pod_back() {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [], "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}))
        .unwrap();
        let claim = |class: &str, phase: &str, gone: Value| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"name": "c", "deletionTimestamp": gone},
                "spec": {"storageClassName": class, "volumeName": "v"}, "status": {"phase": phase}}))
            .unwrap()
        };
        let class = local_class();
        let mut volumes = Shelf::default();
        volumes.observe("v", Some(PersistentVolume::default().into()));
        let lost = "persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\"";
        let mut unnamed = claim("local-path", "Pending", json!(null));
        unnamed.spec.as_mut().unwrap().volume_name = None;
        let cases = [
            (None, "persistentvolumeclaim \"c\" not found"),
            (
                Some(claim("", "Pending", json!(null))),
                "pod has unbound immediate PersistentVolumeClaims",
            ),
            (Some(unnamed.clone()), "0 bound, 1 not"),
            (Some(claim("local-path", "Bound", json!(null))), "1 bound, 0 not"),
            (Some(claim("local-path", "Lost", json!(null))), lost),
            (
                Some(claim("", "Bound", json!("2026-01-01T00:00:00Z"))),
                "persistentvolumeclaim \"c\" is being deleted",
            ),
        ];
        let not_yet = "pod has unbound immediate PersistentVolumeClaims";
        let chosen_by_name = (Some(claim("local-path", "Pending", json!(null))), not_yet);
        for (claim, want) in cases.into_iter().chain([chosen_by_name]) {
            let storage = StorageView {
                claim: &|_| claim.as_ref(),
                volumes: &volumes,
                is_taken: &|_| false,
                class: &|name| (name == "local-path").then_some(&class),
            };
            let told = |needs: VolumeNeeds<'_>| {
                format!("{} bound, {} not", needs.bound.len(), needs.unbound.len())
            };
            let found = needs(&pod, &storage).map_or_else(|why| why, told);
            assert_eq!(found, want);
        }
    }

    fn claim(name: &str, class: &str) -> PersistentVolumeClaim {
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}, "status": {"phase": "Pending"}}),
        )
        .unwrap()
    }

    fn class(name: &str, provisioner: &str, zones: Value) -> StorageClass {
        serde_json::from_value(json!({"metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer", "allowedTopologies": zones}))
        .unwrap()
    }

    /// `big z1 2Gi by-hand`, and with the claim that it names: `own z2 2Gi by-hand c`.
    fn volume(text: &str) -> PersistentVolume {
        let words: Vec<_> = text.split(' ').collect();
        let owner =
            words.get(4).map(|claim| json!({"namespace": "default", "name": claim, "uid": claim}));
        let zone = json!([{"key": "zone", "operator": "In", "values": [words[1]]}]);
        serde_json::from_value(json!({"metadata": {"name": words[0]}, "spec": {
            "storageClassName": words[3], "capacity": {"storage": words[2]}, "claimRef": owner,
            "accessModes": ["ReadWriteOnce"],
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": zone}]}}}}))
        .unwrap()
    }

    /// The node and the volumes, or why there is none.
    fn place(claims: &[&str], volumes: &[&str], taken: &str) -> String {
        let only = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["z2", "z9"]}]}]);
        let nowhere = json!([{"matchLabelExpressions": []}]);
        let classes = [
            class("anywhere", "example.com/made", json!(null)),
            class("in-z2", "example.com/made", only),
            class("nowhere", "example.com/made", nowhere),
            class("by-hand", NO_PROVISIONER, json!(null)),
        ];
        let claims: Vec<_> = claims
            .iter()
            .map(|text| {
                let (name, class) = text.split_once(':').unwrap();
                claim(name, class)
            })
            .collect();
        let mut shelf = Shelf::default();
        for own in volumes.iter().map(|text| volume(text)) {
            shelf.observe(&own.metadata.name.clone().unwrap(), Some(own.into()));
        }
        let mut waiting = pod_of("p@");
        let named = |own: &PersistentVolumeClaim| json!({"name": own.metadata.name, "persistentVolumeClaim": {"claimName": own.metadata.name}});
        waiting["spec"]["volumes"] = claims.iter().map(named).collect();
        let waiting: Pod = serde_json::from_value(waiting).unwrap();
        let storage = StorageView {
            claim: &|name| claims.iter().find(|own| own.metadata.name.as_deref() == Some(name)),
            volumes: &shelf,
            class: &|name| classes.iter().find(|own| own.metadata.name.as_deref() == Some(name)),
            is_taken: &|name| name == taken,
        };
        let needs = needs(&waiting, &storage).unwrap();
        // The first is the emptiest.
        let mut cluster = cluster("a zone=z1; b zone=z2; c", "x@b; y@c; z@c");
        match decide(&waiting, &mut cluster, &needs) {
            Decision::Bind(node) => {
                let zone = match node.as_str() {
                    "a" => "z1",
                    "b" => "z2",
                    _ => "",
                };
                let labels = [("zone".to_owned(), zone.to_owned())].into();
                let traits = NodeTraits { name: &node, labels: Some(&labels) };
                let chosen = needs.choose(traits).unwrap();
                let names = chosen.iter().map(|choice| {
                    choice.volume.map_or("made", |own| own.metadata.name.as_deref().unwrap())
                });
                format!("{node}: {}", names.collect::<Vec<_>>().join(" "))
            }
            Decision::Wait(refusal) => refusal.why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn claims_decide_where_their_first_pod_goes() {
        let nowhere = "0/3 nodes are available: 3 node(s) didn't find available persistent volumes to \
                       bind. preemption: 0/3 nodes are available: 3 Preemption is not helpful for \
                       scheduling.";
        let (big, small) = ("big z2 5Gi by-hand", "small z2 1Gi by-hand");
        type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a str, &'a str);
        let cases: [Case<'_>; 12] = [
            ("made anywhere", &["c:anywhere"], &[], "", "a: made"),
            ("made there only", &["c:in-z2"], &[], "", "b: made"),
            ("a term without rules holds nowhere", &["c:nowhere"], &[], "", nowhere),
            ("nobody makes any", &["c:by-hand"], &[], "", nowhere),
            ("the smallest that is there", &["c:by-hand"], &[big, small], "", "b: small"),
            ("one each", &["c:by-hand", "d:by-hand"], &[big, small], "", "b: small big"),
            ("one is too few", &["c:by-hand", "d:by-hand"], &[small], "", nowhere),
            ("another pod gets it", &["c:by-hand"], &[big, small], "small", "b: big"),
            ("too small", &["c:by-hand"], &["tiny z1 1Mi by-hand"], "", nowhere),
            ("its own", &["c:by-hand"], &[small, "own z1 2Gi by-hand c"], "", "a: own"),
            ("both must be", &["c:by-hand", "d:in-z2"], &["v z1 1Gi by-hand"], "", nowhere),
            ("there is one, or it is made", &["c:in-z2"], &["v z1 1Gi in-z2"], "", "a: v"),
        ];
        for (name, claims, volumes, taken, want) in cases {
            assert_eq!(place(claims, volumes, taken), want, "{name}");
        }
    }
}
