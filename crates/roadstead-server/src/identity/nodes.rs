//! What nodes may do besides what roles give them: a node reads what the pods on it name, and writes what is
//! its own (upstream's node authorizer). What it may write into that is `kinds::node_restriction`.

use std::sync::{Arc, Mutex, PoisonError};

use roadstead_plan::node_graph::{NamedObject, NodeGraph};
use roadstead_schema::json::Pointer;
use roadstead_store::entry::Key;
use roadstead_store::feed::Feed;
use roadstead_store::kv::Store;
use serde_json::Value;

use crate::identity::authorize;
use crate::identity::rbac::bootstrap;
use crate::identity::rbac::rule::{self, Attributes, Rule};
use crate::identity::user::User;
use crate::reading::object;

const PODS: &str = "pods";
const VOLUMES: &str = "persistentvolumes";
const LEASES: &str = "kube-node-lease";
/// Volumes that are directories of a node say of which.
const NODE_LABEL: &str = "roadstead.dev/node";

/// What the pods on a node name: read one by one.
const NAMED: [&str; 4] = ["secrets", "configmaps", "persistentvolumeclaims", "serviceaccounts"];

/// What is a node's own, or is on it.
const OWN: [&str; 5] = [PODS, VOLUMES, "nodes", "leases", "csinodes"];

/// What the proxy and DNS of a node follow; there is nothing secret in it.
const FOLLOWED: [(&str, &str); 6] = [
    ("", "services"),
    ("", "nodes"),
    ("", "namespaces"),
    ("discovery.k8s.io", "endpointslices"),
    ("networking.k8s.io", "servicecidrs"),
    ("node.k8s.io", "runtimeclasses"),
];

/// As whom NetworkPolicies are enforced on a machine that joined: the account sees all pods, which nodes do not.
/// A node gets a token for it that ends with the Node.
pub(crate) const POLICY_ACCOUNT: (&str, &str) = ("kube-system", "roadstead-network-policy");

/// Answers what nodes may do.
pub(crate) struct Nodes {
    store: Arc<Store>,
    state: Mutex<(Option<Feed>, NodeGraph)>,
    /// What all nodes may do, whatever runs on them.
    rules: Vec<Rule>,
}

impl Nodes {
    /// Follows the pods of a store.
    pub(crate) fn new(store: Arc<Store>) -> Self {
        let roles = bootstrap::objects();
        let role = roles.iter().find(|one| one.object["metadata"]["name"] == "system:node");
        let mut rules = rule::read(role.map_or(&Value::Null, |role| &role.object["rules"]));
        for rule in &mut rules {
            rule.resources.retain(|resource| !is_special(resource));
        }
        rules.retain(|rule| !rule.resources.is_empty());
        Self { store, state: Mutex::default(), rules }
    }

    /// Whether a user is a node that may do this.
    pub(crate) fn allows(&self, user: &User, action: &Attributes<'_>) -> bool {
        let Some(node) = user.node() else { return false };
        let (resource, subresource) =
            action.resource.split_once('/').unwrap_or((action.resource, ""));
        let reads = matches!(action.verb, "get" | "list" | "watch");
        match (action.group, resource, subresource) {
            ("", "serviceaccounts", "token") => {
                let place = (action.namespace, action.name);
                action.verb == "create"
                    && (place == POLICY_ACCOUNT || self.needs(node, "serviceaccounts", action))
            }
            ("", "persistentvolumeclaims", "status") => {
                matches!(action.verb, "get" | "update" | "patch")
                    && self.needs(node, "persistentvolumeclaims", action)
            }
            ("", named, "") if NAMED.contains(&named) => {
                let known = NAMED.into_iter().find(|known| *known == named);
                reads
                    && !action.name.is_empty()
                    && known.is_some_and(|known| self.needs(node, known, action))
            }
            ("", VOLUMES, "") => match action.verb {
                "get" => self.needs_volume(node, action.name) || self.has_volume(node, action.name),
                "list" | "watch" => action.node.strip_prefix(authorize::NODE_LABEL) == Some(node),
                // It removes its own directories when nobody claims them any more.
                "delete" => self.has_volume(node, action.name),
                _ => false,
            },
            ("", PODS, "") => match action.verb {
                "get" => self.runs(node, action.namespace, action.name),
                // Which pods those are that it is asked for is in the selector.
                "list" | "watch" => action.node == node,
                // What may be created, and deleted, is for admission to say.
                "create" | "delete" => true,
                _ => false,
            },
            ("", PODS, "status") => matches!(action.verb, "update" | "patch"),
            ("", PODS, "eviction") => action.verb == "create",
            ("", "nodes", "" | "status") => {
                reads || matches!(action.verb, "create" | "update" | "patch")
            }
            // Proxies say there what they have programmed; a pod that goes waits for it.
            ("coordination.k8s.io", "leases", "") if action.namespace == "kube-system" => {
                action.verb == "list"
            }
            ("coordination.k8s.io", "leases", "") => {
                action.namespace == LEASES
                    && (action.verb == "create" || action.name == node)
                    && matches!(action.verb, "create" | "get" | "update" | "patch" | "delete")
            }
            ("storage.k8s.io", "csinodes", "") => {
                (action.verb == "create" || action.name == node)
                    && matches!(action.verb, "create" | "get" | "update" | "patch" | "delete")
            }
            (group, plural, "") if reads && FOLLOWED.contains(&(group, plural)) => true,
            _ => self.rules.iter().any(|rule| rule.allows(action)),
        }
    }

    /// The node that a pod is bound to.
    pub(crate) fn runs(&self, node: &str, namespace: &str, pod: &str) -> bool {
        self.with_graph(|graph| graph.node_of(namespace, pod) == Some(node))
    }

    fn needs(&self, node: &str, plural: &'static str, action: &Attributes<'_>) -> bool {
        self.needs_named(node, plural, action.namespace, action.name)
    }

    fn needs_named(&self, node: &str, plural: &'static str, namespace: &str, name: &str) -> bool {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.with_graph(|graph| graph.needs(node, NamedObject { plural, namespace, name }))
    }

    /// A volume is needed where the claim is that has it.
    fn needs_volume(&self, node: &str, name: &str) -> bool {
        let Some(volume) = self.volume(name) else { return false };
        let claim = &volume["spec"]["claimRef"];
        let (namespace, name) = (claim.text("/namespace"), claim.text("/name"));
        self.needs_named(node, "persistentvolumeclaims", namespace, name)
    }

    /// Whether a volume is a directory of the node.
    fn has_volume(&self, node: &str, name: &str) -> bool {
        self.volume(name).is_some_and(|own| own["metadata"]["labels"][NODE_LABEL] == node)
    }

    fn volume(&self, name: &str) -> Option<Value> {
        let entry = self.store.get(&Key::new(VOLUMES, format!("/{name}")))?;
        Some(object::value(&entry))
    }

    /// Looks something up, after taking in what has happened to pods since the last time.
    fn with_graph<T>(&self, ask: impl FnOnce(&NodeGraph) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (feed, graph) = &mut *state;
        match feed.as_mut().map(Feed::now) {
            Some(Ok(batch)) => {
                for event in batch.events {
                    let after = event.after.as_ref().map(|entry| object::value(entry));
                    observe(graph, &event.key.path, after.as_ref());
                }
            }
            // We begin, or have slept through more history than is kept.
            None | Some(Err(_)) => {
                *graph = NodeGraph::default();
                *feed = None;
                if let Ok(all) = self.store.list(PODS, "", None) {
                    for entry in &all.entries {
                        observe(graph, &entry.key.path, Some(&object::value(entry)));
                    }
                    *feed = self.store.feed(PODS, all.revision).ok();
                }
            }
        }
        ask(graph)
    }
}

fn observe(graph: &mut NodeGraph, path: &str, pod: Option<&Value>) {
    let (namespace, name) = path.split_once('/').unwrap_or(("", path));
    graph.observe(namespace, name, pod);
}

/// Whether what the role allows depends on the node.
fn is_special(resource: &str) -> bool {
    let plural = resource.split('/').next().unwrap_or("");
    NAMED.contains(&plural) || OWN.contains(&plural)
}
