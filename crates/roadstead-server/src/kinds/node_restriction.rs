//! What nodes may write: what is their own (upstream's NodeRestriction). A node that is no longer ours must not
//! get further than itself.

use std::collections::BTreeMap;

use roadstead_schema::json::Pointer;
use serde_json::Value;

use crate::error::ApiError;
use crate::identity::nodes::POLICY_ACCOUNT;
use crate::identity::parts::is_lease_of;
use crate::kinds::admission::AdmissionPlugin;
use crate::objects::admission_plugins::Plugin;
use crate::objects::write::Context;
use crate::request::handler::Handler;

/// What an agent shows of a pod that it has from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Labels by which operators keep workloads apart.
const GUARDED: &str = "node-restriction.kubernetes.io";
/// Labels of these domains mean something to Kubernetes; nodes may set those that they know about.
const DOMAINS: [&str; 2] = ["kubernetes.io", "k8s.io"];
const OWN_LABELS: [&str; 12] = [
    "kubernetes.io/hostname",
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "node.kubernetes.io/windows-build",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

pub(super) struct NodeRestriction;

impl AdmissionPlugin for NodeRestriction {
    fn check(&self, handler: &Handler<'_>, method: &str) -> Result<(), ApiError> {
        check(handler, method)
    }

    fn admit(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        admit(context, old, new)
    }
}

/// Refuses requests of nodes about what is not theirs, before anything is done.
fn check(handler: &Handler<'_>, method: &str) -> Result<(), ApiError> {
    let Handler { api, user, resource, path, .. } = handler;
    let Some(node) = user.node() else { return Ok(()) };
    let refuse = |why: String| Err(ApiError::forbidden_object(resource.info(), &path.name, &why));
    let info = resource.info();
    match (info.group, info.plural, &*path.subresource, method) {
        (_, _, _, "GET") => Ok(()),
        ("", "pods", below @ ("" | "status" | "eviction"), _) if !path.name.is_empty() => {
            let own = api.identity.rbac.nodes.runs(node, &path.namespace, &path.name);
            // What is gone is not found, whoever asks.
            let key = resource.key(&path.namespace, &path.name);
            if own || api.storage.store.get(&key).is_none() {
                return Ok(());
            }
            refuse(match below {
                "" => {
                    format!("node {node:?} can only delete pods with spec.nodeName set to itself")
                }
                "status" => format!(
                    "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
                ),
                _ => format!("node {node:?} can only evict pods with spec.nodeName set to itself"),
            })
        }
        ("", "pods", "", "DELETE") => refuse(format!("node {node:?} can only delete single pods")),
        ("", "nodes", _, "PUT" | "PATCH") if path.name != node => {
            refuse(format!("node {node:?} is not allowed to modify node {:?}", path.name))
        }
        _ => Ok(()),
    }
}

/// Refuses what a node may not say.
fn admit(context: &Context<'_>, old: Option<&Value>, new: &Value) -> Result<(), ApiError> {
    let Some(node) = context.user.and_then(|user| user.node()) else { return Ok(()) };
    let info = context.resource.info();
    let name = new.text("/metadata/name");
    let why = match (info.group, info.plural) {
        ("", "pods") => match old {
            None => new_pod(node, new),
            Some(old) => own_pod(node, old, new),
        },
        ("", "nodes") => own_node(node, old, new).or_else(|| own_blocks(context, node, old, new)),
        ("coordination.k8s.io", "leases")
            if name != node && old.is_none() && !is_lease_of(node, context.namespace, name) =>
        {
            Some(format!("node {node:?} can only access lease {node:?}"))
        }
        ("storage.k8s.io", "csinodes") if name != node && old.is_none() => {
            Some(format!("node {node:?} can only access CSINode {node:?}"))
        }
        _ => None,
    };
    why.map_or(Ok(()), |why| Err(ApiError::forbidden_object(info, name, &why)))
}

/// A node only shows pods that it has anyway, and they may not name anything that is secret.
fn new_pod(node: &str, pod: &Value) -> Option<String> {
    if pod["metadata"]["annotations"][MIRROR].is_null() {
        return Some(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if pod.text("/spec/nodeName") != node {
        return Some(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owners = pod.list("/metadata/ownerReferences");
    let is_self = |own: &Value| {
        own.text("/apiVersion") == "v1" && own.text("/kind") == "Node" && own.text("/name") == node
    };
    if owners.len() > 1 || !owners.iter().all(is_self) {
        return Some(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    let spec = &pod["spec"];
    if !spec.text("/serviceAccountName").is_empty() {
        return Some(format!("node {node:?} can not create pods that reference a service account"));
    }
    let text = spec.to_string();
    let named = [
        (
            "secrets",
            &["\"secret\":", "\"secretKeyRef\":", "\"secretRef\":", "\"imagePullSecrets\":[{"][..],
        ),
        ("configmaps", &["\"configMap\":", "\"configMapKeyRef\":", "\"configMapRef\":"]),
        ("persistentvolumeclaims", &["\"persistentVolumeClaim\":"]),
        ("service account tokens", &["\"serviceAccountToken\":"]),
    ];
    let found = named.iter().find(|(_, words)| words.iter().any(|word| text.contains(word)));
    found.map(|(what, _)| format!("node {node:?} can not create pods that reference {what}"))
}

/// What a node says of a pod draws no traffic to it, and no devices: labels are how Services and policies
/// choose.
fn own_pod(node: &str, old: &Value, new: &Value) -> Option<String> {
    let [before, after] =
        [old, new].map(|pod| pod.fields("/metadata/labels").collect::<BTreeMap<_, _>>());
    if before != after {
        return Some(format!("node {node:?} cannot update labels through pod status"));
    }
    let claims = "/status/resourceClaimStatuses";
    (old.list(claims) != new.list(claims))
        .then(|| format!("node {node:?} cannot update resource claim statues"))
}

fn own_node(node: &str, old: Option<&Value>, new: &Value) -> Option<String> {
    let name = new.text("/metadata/name");
    if name != node && !name.is_empty() {
        return Some(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    let empty = Value::Null;
    let before = old.unwrap_or(&empty);
    if old.is_some() && before["spec"]["taints"] != new["spec"]["taints"] {
        let none = |object: &Value| object.list("/spec/taints").is_empty();
        if !(none(before) && none(new)) {
            return Some(format!("node {node:?} is not allowed to modify taints"));
        }
    }
    // Whoever owns what is not there is collected, and could come back with other labels and taints.
    let owners = "/metadata/ownerReferences";
    if old.is_some() && before.list(owners) != new.list(owners) {
        return Some(format!("node {node:?} is not allowed to modify ownerReferences"));
    }
    if old.is_some() && before.text("/spec/configSource") != new.text("/spec/configSource") {
        return Some(format!("node {node:?} is not allowed to update configSource"));
    }
    let label = |object: &Value, name: &str| object["metadata"]["labels"].get(name).cloned();
    let names = before.fields("/metadata/labels").chain(new.fields("/metadata/labels"));
    let mut changed: Vec<_> = names
        .map(|(name, _)| name)
        .filter(|name| label(before, name) != label(new, name))
        .collect();
    changed.sort_unstable();
    changed.dedup();
    let forbidden: Vec<_> = changed.into_iter().filter(|name| !may_set(name)).collect();
    let verb = if old.is_some() { "modify" } else { "set" };
    (!forbidden.is_empty())
        .then(|| format!("is not allowed to {verb} the following labels: {}", forbidden.join(", ")))
        .map(|why| format!("node {node:?} {why}"))
}

/// Where somebody gives out pod addresses, a node that takes some itself would be sent what is for others.
fn own_blocks(
    context: &Context<'_>,
    node: &str,
    old: Option<&Value>,
    new: &Value,
) -> Option<String> {
    let is_own_part = context.user.is_some_and(|user| user.in_process);
    let before = old.unwrap_or(&Value::Null);
    let same = ["/spec/podCIDR", "/spec/podCIDRs"]
        .iter()
        .all(|field| before.pointer(field) == new.pointer(field));
    let given_out = context.api.network.services.gives_pod_ranges;
    (given_out && !is_own_part && !same)
        .then(|| format!("node {node:?} is not allowed to say which pod addresses it has"))
}

fn may_set(label: &str) -> bool {
    let domain = label.split_once('/').map_or("", |(domain, _)| domain);
    let within = |whole: &str| domain == whole || domain.ends_with(&format!(".{whole}"));
    if within(GUARDED) {
        return false;
    }
    if !DOMAINS.iter().any(|known| within(known)) {
        return true;
    }
    OWN_LABELS.contains(&label) || within("node.kubernetes.io") || within("kubelet.kubernetes.io")
}

/// Refuses a token that is not for a pod on the node.
pub(crate) fn check_token(handler: &Handler<'_>, request: &Value) -> Result<(), ApiError> {
    let Handler { api, user, path, resource, .. } = handler;
    let Some(node) = user.node().filter(|_| api.has(Plugin::NodeRestriction)) else {
        return Ok(());
    };
    let refuse = |why: &str| Err(ApiError::forbidden_object(resource.info(), &path.name, why));
    let bound = &request["spec"]["boundObjectRef"];
    if (&*path.namespace, &*path.name) == POLICY_ACCOUNT && bound.text("/kind") == "Node" {
        let own = api.storage.object(api.registry().core("nodes"), "", node);
        let is_own = own.is_some_and(|own| {
            bound.text("/name") == node && bound.text("/uid") == own.text("/metadata/uid")
        });
        return if is_own { Ok(()) } else { refuse("node requested token bound to another node") };
    }
    if bound.text("/kind") != "Pod" || bound.text("/name").is_empty() {
        return refuse("node requested token not bound to a pod");
    }
    if bound.text("/uid").is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    let registry = api.registry();
    let pod = api.storage.object(registry.core("pods"), &path.namespace, bound.text("/name"));
    match pod {
        None => refuse("node requested token bound to a pod that does not exist"),
        Some(pod) if pod.text("/metadata/uid") != bound.text("/uid") => {
            refuse("the UID in the bound object reference does not match the UID in record")
        }
        Some(pod) if pod.text("/spec/nodeName") != node => {
            refuse("node requested token bound to a pod scheduled on a different node")
        }
        Some(pod) if pod.text("/spec/serviceAccountName") != path.name => {
            refuse("node requested token for an account that its pod does not have")
        }
        Some(_) => Ok(()),
    }
}
