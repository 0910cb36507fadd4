//! Claims and volumes: which volume a claim gets, and when one is made for it.
//!
//! Volumes that are made here are directories of one node. Which node is decided by the scheduler, which
//! writes it to the claim when a pod with that claim is there.

use k8s_openapi::api::core::v1::{
    LocalVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use roadstead_api::node_affinity::{NodeTraits, meets_any};
use roadstead_api::quantity;
use roadstead_api::selector::Selector;

pub mod shelf;

use shelf::Shelf;

/// Who makes volumes here, as users of k3s know it.
pub const PROVISIONER: &str = "rancher.io/local-path";
/// The provisioner of classes whose volumes are made by hand.
pub(crate) const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
/// The annotation of what was bound without being asked for by name.
pub const BOUND_BY: &str = "pv.kubernetes.io/bound-by-controller";
/// The annotation by which the scheduler says where the first pod with a claim goes.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation of a volume that says who made it.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The annotation of a claim that has got its volume.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// The label of a volume that says which node it is on.
pub const NODE: &str = "roadstead.dev/node";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// What there is to choose from.
#[derive(Debug)]
pub struct Storage<'a> {
    /// All volumes.
    pub volumes: &'a Shelf,
    /// All classes.
    pub classes: Vec<&'a StorageClass>,
    /// Where volumes are made on every node; nowhere, if not given.
    pub directory: Option<&'a str>,
}

/// What is to be done about a claim: one step.
#[derive(Debug, PartialEq)]
pub enum ClaimStep<'a> {
    /// Nothing.
    Rest,
    /// It gets the class of those that name none.
    Class(String),
    /// This volume is made for it.
    Make(Box<PersistentVolume>),
    /// It has this volume.
    Bind(&'a PersistentVolume),
    /// The volume that it had is gone, or another's.
    Lost,
    /// It waits; reason and message.
    Wait(&'static str, String),
}

/// Decides about a claim.
pub fn plan<'a>(claim: &PersistentVolumeClaim, storage: &Storage<'a>) -> ClaimStep<'a> {
    if claim.metadata.deletion_timestamp.is_some() {
        return ClaimStep::Rest;
    }
    let spec = claim.spec.clone().unwrap_or_default();
    if let Some(name) = spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        return named(claim, storage, name);
    }
    if spec.storage_class_name.is_none()
        && let Some(class) = default_class(storage)
    {
        return ClaimStep::Class(class);
    }
    let class_name = spec.storage_class_name.as_deref().unwrap_or("");
    let class = storage.classes.iter().find(|class| name_of(&class.metadata) == class_name);
    if let Some(volume) = storage.volumes.reserved(claim) {
        return ClaimStep::Bind(volume);
    }
    let node = annotation(&claim.metadata, SELECTED_NODE);
    let late = class.and_then(|class| class.volume_binding_mode.as_deref());
    if late == Some("WaitForFirstConsumer") && node.is_none() {
        let text = "waiting for first consumer to be created before binding";
        return ClaimStep::Wait("WaitForFirstConsumer", text.to_owned());
    }
    // The smallest free volume that is enough.
    if let Some(volume) = best(claim, storage.volumes, node) {
        return ClaimStep::Bind(volume);
    }
    match class {
        None if class_name.is_empty() => ClaimStep::Wait(
            "FailedBinding",
            "no persistent volumes available for this claim and no storage class is set".to_owned(),
        ),
        None => ClaimStep::Wait(
            "ProvisioningFailed",
            format!("storageclass.storage.k8s.io {class_name:?} not found"),
        ),
        Some(class) => provision(claim, class, node, storage.directory),
    }
}

/// What becomes of a claim that says which volume it wants, or has.
fn named<'a>(claim: &PersistentVolumeClaim, storage: &Storage<'a>, name: &str) -> ClaimStep<'a> {
    let volume = storage.volumes.get(name);
    let had = annotation(&claim.metadata, BIND_COMPLETED).is_some();
    match volume {
        Some(volume) if is_for(volume, claim) => ClaimStep::Bind(volume),
        Some(volume) if !had && is_free(volume) && suits(claim, volume) => ClaimStep::Bind(volume),
        _ if had => ClaimStep::Lost,
        Some(_) => {
            let text = format!("volume {name:?} already bound to a different claim.");
            ClaimStep::Wait("FailedBinding", text)
        }
        None => ClaimStep::Wait("FailedBinding", format!("volume {name:?} not found")),
    }
}

fn provision<'a>(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: Option<&str>,
    directory: Option<&str>,
) -> ClaimStep<'a> {
    match class.provisioner.as_str() {
        NO_PROVISIONER => ClaimStep::Rest,
        PROVISIONER if directory.is_some() => {
            let is_block = claim.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
            match (node, directory) {
                (Some(node), Some(directory)) if is_block != Some("Block") => {
                    ClaimStep::Make(Box::new(make(claim, class, node, directory)))
                }
                (None, _) => ClaimStep::Wait(
                    "ProvisioningFailed",
                    format!(
                        "failed to provision volume with StorageClass {:?}: configuration error, no \
                         node was specified",
                        name_of(&class.metadata)
                    ),
                ),
                _ => ClaimStep::Wait(
                    "ProvisioningFailed",
                    "block volumes are not supported by this provisioner".to_owned(),
                ),
            }
        }
        other => ClaimStep::Wait(
            "ExternalProvisioning",
            format!(
                "Waiting for a volume to be created either by the external provisioner '{other}' or \
                 manually by the system administrator. If volume creation is delayed, please verify \
                 that the provisioner is running and correctly registered."
            ),
        ),
    }
}

/// A directory of a node, for one claim. Its name has the uid of the claim: another claim of that name
/// gets another directory.
fn make(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &str,
    directory: &str,
) -> PersistentVolume {
    let spec = claim.spec.clone().unwrap_or_default();
    let (namespace, own) = (claim.metadata.namespace.as_deref(), name_of(&claim.metadata));
    let name = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or(""));
    let path = format!("{directory}/{name}_{}_{own}", namespace.unwrap_or(""));
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.clone());
    let here = NodeSelectorRequirement {
        key: "kubernetes.io/hostname".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![here]), match_fields: None };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some([(NODE.to_owned(), node.to_owned())].into()),
            annotations: Some([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())].into()),
            finalizers: Some(vec![PROTECTED_VOLUME.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: requests,
            claim_ref: Some(reference(claim)),
            local: Some(LocalVolumeSource { path, fs_type: None }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone(),
            storage_class_name: spec.storage_class_name,
            volume_mode: spec.volume_mode,
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// How a volume names the claim that has it.
pub fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: claim.metadata.namespace.clone(),
        name: claim.metadata.name.clone(),
        uid: claim.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// Keeps a claim while pods use it.
pub const PROTECTED_CLAIM: &str = "kubernetes.io/pvc-protection";
/// Keeps a volume while a claim has it.
pub const PROTECTED_VOLUME: &str = "kubernetes.io/pv-protection";

/// The phase of a volume, given the claim that it names, if that exists.
pub fn phase(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>) -> &'static str {
    let Some(wanted) = claim_of(volume) else { return "Available" };
    match claim {
        _ if wanted.uid.as_deref().unwrap_or("").is_empty() => "Available",
        Some(claim) if is_for(volume, claim) => "Bound",
        _ => "Released",
    }
}

/// The claim that a volume names.
pub fn claim_of(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

/// Whether a volume is meant for this very claim.
fn is_for(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
    claim_of(volume).is_some_and(|own| {
        own.name == claim.metadata.name
            && own.namespace == claim.metadata.namespace
            && own.uid.as_ref().is_none_or(|uid| Some(uid) == claim.metadata.uid.as_ref())
    })
}

fn is_free(volume: &PersistentVolume) -> bool {
    claim_of(volume).is_none() && volume.metadata.deletion_timestamp.is_none()
}

fn best<'a>(
    claim: &PersistentVolumeClaim,
    volumes: &'a Shelf,
    node: Option<&str>,
) -> Option<&'a PersistentVolume> {
    let name = volumes.suitable(claim).find(|volume| is_on(volume, node))?.metadata.name.clone()?;
    volumes.get(&name)
}

#[cfg(test)]
thread_local! {
    /// How many volumes were looked at.
    static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How much room a claim asks for.
fn asked(claim: &PersistentVolumeClaim) -> f64 {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    let asked = requests.and_then(|requests| requests.get("storage"));
    asked.and_then(|asked| quantity::read(&asked.0)).unwrap_or(0.0)
}

fn suits(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let (Some(wants), Some(has)) = (&claim.spec, &volume.spec) else { return false };
    #[cfg(test)]
    LOOKS.set(LOOKS.get() + 1);
    let modes = has.access_modes.as_deref().unwrap_or_default();
    let selector = wants.selector.as_ref().map(Selector::from_object);
    let text = |own: &Option<String>| own.clone().unwrap_or_default();
    capacity(volume) >= asked(claim)
        && wants.access_modes.iter().flatten().all(|mode| modes.contains(mode))
        && text(&wants.storage_class_name) == text(&has.storage_class_name)
        && wants.volume_mode.as_deref().unwrap_or("Filesystem")
            == has.volume_mode.as_deref().unwrap_or("Filesystem")
        && selector.is_none_or(|own| own.matches_labels(volume.metadata.labels.as_ref()))
}

/// Whether a volume can be used on a node; one that is called as its label says.
fn is_on(volume: &PersistentVolume, node: Option<&str>) -> bool {
    let Some(node) = node else { return true };
    let labels = [("kubernetes.io/hostname".to_owned(), node.to_owned())].into();
    reaches(volume, NodeTraits { name: node, labels: Some(&labels) })
}

/// Whether pods on this node can use a volume.
pub fn reaches(volume: &PersistentVolume, node: NodeTraits<'_>) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| meets_any(&required.node_selector_terms, node))
}

fn capacity(volume: &PersistentVolume) -> f64 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    let storage = capacity.and_then(|capacity| capacity.get("storage"));
    storage.and_then(|storage| quantity::read(&storage.0)).unwrap_or(0.0)
}

/// The class of claims that name none: the newest of those that say so.
fn default_class(storage: &Storage<'_>) -> Option<String> {
    let says_so =
        |class: &&&StorageClass| annotation(&class.metadata, DEFAULT_CLASS) == Some("true");
    let created =
        |class: &&&StorageClass| class.metadata.creation_timestamp.clone().map(|time| time.0);
    let newest = storage.classes.iter().filter(says_so).max_by_key(created);
    newest.map(|class| name_of(&class.metadata).to_owned())
}

/// The class of directories on nodes, as users of k3s know it.
pub fn local_class() -> StorageClass {
    StorageClass {
        metadata: ObjectMeta {
            name: Some("local-path".to_owned()),
            annotations: Some([(DEFAULT_CLASS.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        provisioner: PROVISIONER.to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("WaitForFirstConsumer".to_owned()),
        ..StorageClass::default()
    }
}

/// An annotation.
pub fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    let value = metadata.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
    value.filter(|value| !value.is_empty())
}

fn name_of(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(spec: Value, annotations: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "ns", "uid": "u",
            "annotations": annotations}, "spec": spec}))
        .unwrap()
    }

    fn volume(name: &str, size: &str, more: Value) -> PersistentVolume {
        let mut spec = json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    }

    fn told(step: &ClaimStep<'_>) -> String {
        match step {
            ClaimStep::Rest => "rest".to_owned(),
            ClaimStep::Class(name) => format!("class {name}"),
            ClaimStep::Make(volume) => {
                let path = volume.spec.as_ref().and_then(|spec| spec.local.as_ref());
                format!("make {}", path.map_or("", |local| &local.path))
            }
            ClaimStep::Bind(volume) => format!("bind {}", name_of(&volume.metadata)),
            ClaimStep::Lost => "lost".to_owned(),
            ClaimStep::Wait(reason, _) => (*reason).to_owned(),
        }
    }

    #[test]
    fn which_volume_a_claim_gets() {
        let ask = |class: &str| {
            json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}})
        };
        let on = json!({SELECTED_NODE: "n1"});
        let wants = |name: &str| json!({"volumeName": name, "storageClassName": ""});
        let had = json!({BIND_COMPLETED: "yes"});
        let other = json!({"claimRef": {"name": "d", "namespace": "ns", "uid": "x"}});
        let mine = json!({"claimRef": {"name": "c", "namespace": "ns", "uid": "u"}});
        let namesake = json!({"claimRef": {"name": "c", "namespace": "ns", "uid": "old"}});
        let small = volume("small", "1Gi", json!({}));
        let large = volume("large", "5Gi", json!({}));
        let tiny = volume("tiny", "1Mi", json!({}));
        let cases = [
            (
                "the smallest that is enough",
                ask(""),
                json!({}),
                vec![&large, &small, &tiny],
                "bind small",
            ),
            ("none", ask(""), json!({}), vec![&tiny], "FailedBinding"),
            ("the default", json!({}), json!({}), vec![&small], "class local-path"),
            ("no pod yet", ask("local-path"), json!({}), vec![], "WaitForFirstConsumer"),
            ("a directory", ask("local-path"), on.clone(), vec![], "make /s/pvc-u_ns_c"),
            ("of another class", ask("other"), on, vec![&small], "ProvisioningFailed"),
            ("by name", wants("large"), json!({}), vec![&small, &large], "bind large"),
            ("by a name that is gone", wants("gone"), had.clone(), vec![&small], "lost"),
            (
                "by a name that is not there",
                wants("gone"),
                json!({}),
                vec![&small],
                "FailedBinding",
            ),
        ];
        let class = local_class();
        let decide = |claim: &PersistentVolumeClaim, volumes: Vec<&PersistentVolume>| {
            let mut shelf = Shelf::default();
            for volume in volumes {
                shelf.observe(name_of(&volume.metadata), Some(volume.clone().into()));
            }
            let storage = Storage { volumes: &shelf, classes: vec![&class], directory: Some("/s") };
            told(&plan(claim, &storage))
        };
        for (name, spec, annotations, volumes, want) in cases {
            assert_eq!(decide(&claim(spec, annotations), volumes), want, "{name}");
        }
        let (taken, own, old) =
            (volume("v", "5Gi", other), volume("v", "5Gi", mine), volume("v", "5Gi", namesake));
        for (name, volume, annotations, want) in [
            ("what is another's is not taken", &taken, json!({}), "FailedBinding"),
            ("nor if the claim says it had it", &taken, had, "lost"),
            ("its own", &own, json!({}), "bind v"),
            ("its predecessor's is not its own", &old, json!({}), "FailedBinding"),
        ] {
            assert_eq!(decide(&claim(wants("v"), annotations), vec![volume]), want, "{name}");
        }
    }

    #[test]
    fn what_state_a_volume_is_in() {
        let own = claim(json!({}), json!({}));
        let named = |uid: Value| {
            volume("v", "1Gi", json!({"claimRef": {"name": "c", "namespace": "ns", "uid": uid}}))
        };
        assert_eq!(phase(&volume("v", "1Gi", json!({})), None), "Available");
        assert_eq!(phase(&named(Value::Null), Some(&own)), "Available");
        assert_eq!(phase(&named(json!("u")), Some(&own)), "Bound");
        assert_eq!(phase(&named(json!("old")), Some(&own)), "Released");
        assert_eq!(phase(&named(json!("u")), None), "Released");
    }
}
