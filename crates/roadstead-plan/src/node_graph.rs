//! Which objects a node needs: those that the pods on it name. Brought up to date pod by pod, so a change
//! costs what the pod has, however many others there are.

use std::collections::{BTreeMap, BTreeSet};

use roadstead_schema::json::Pointer;
use serde_json::Value;

/// What an agent shows of a pod that it has from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Pods and what they name, by node.
#[derive(Debug, Default)]
pub struct NodeGraph {
    /// By namespace and name.
    pods: BTreeMap<(String, String), PodOnNode>,
    /// By node and object: how many of its pods name it.
    named: BTreeMap<(String, NamedObject), usize>,
}

#[derive(Debug, Default)]
struct PodOnNode {
    node: String,
    names: BTreeSet<NamedObject>,
}

/// An object that a pod can name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedObject {
    /// Such as `secrets`.
    pub plural: &'static str,
    /// Where the object is.
    pub namespace: String,
    /// What it is called.
    pub name: String,
}

impl NodeGraph {
    /// Takes in the newest state of a pod, or that it is gone.
    pub fn observe(&mut self, namespace: &str, name: &str, pod: Option<&Value>) {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(PodOnNode { node, names }) = self.pods.remove(&key) {
            for object in names {
                let place = (node.clone(), object);
                if let Some(count) = self.named.get_mut(&place) {
                    *count -= 1;
                    if *count == 0 {
                        self.named.remove(&place);
                    }
                }
            }
        }
        let Some(pod) = pod.filter(|pod| !pod.text("/spec/nodeName").is_empty()) else { return };
        let node = pod.text("/spec/nodeName").to_owned();
        let names = names_of(namespace, name, pod);
        for object in &names {
            *self.named.entry((node.clone(), object.clone())).or_default() += 1;
        }
        self.pods.insert(key, PodOnNode { node, names });
    }

    /// The node that a pod is bound to, if it is bound at all.
    pub fn node_of(&self, namespace: &str, pod: &str) -> Option<&str> {
        let key = (namespace.to_owned(), pod.to_owned());
        self.pods.get(&key).map(|pod| pod.node.as_str())
    }

    /// Whether a pod on a node names an object.
    pub fn needs(&self, node: &str, object: NamedObject) -> bool {
        self.named.contains_key(&(node.to_owned(), object))
    }
}

/// What a pod names. Whoever shows a pod in the API that runs without it gets nothing by that.
fn names_of(namespace: &str, pod_name: &str, pod: &Value) -> BTreeSet<NamedObject> {
    let mut names = BTreeSet::new();
    if !pod["metadata"]["annotations"][MIRROR].is_null() {
        return names;
    }
    let mut add = |plural, name: &str| {
        if !name.is_empty() {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            names.insert(NamedObject { plural, namespace, name });
        }
    };
    let spec = &pod["spec"];
    add("serviceaccounts", spec.text("/serviceAccountName"));
    for secret in spec.list("/imagePullSecrets") {
        add("secrets", secret.text("/name"));
    }
    for volume in spec.list("/volumes") {
        if volume.has("/ephemeral") {
            let claim = format!("{pod_name}-{}", volume.text("/name"));
            add("persistentvolumeclaims", &claim);
        }
        volume_names(volume, &mut add);
    }
    for list in ["/initContainers", "/containers", "/ephemeralContainers"] {
        for container in spec.list(list) {
            for variable in container.list("/env") {
                add("secrets", variable.text("/valueFrom/secretKeyRef/name"));
                add("configmaps", variable.text("/valueFrom/configMapKeyRef/name"));
            }
            for all in container.list("/envFrom") {
                add("secrets", all.text("/secretRef/name"));
                add("configmaps", all.text("/configMapRef/name"));
            }
        }
    }
    names
}

fn volume_names(volume: &Value, add: &mut impl FnMut(&'static str, &str)) {
    add("secrets", volume.text("/secret/secretName"));
    add("secrets", volume.text("/azureFile/secretName"));
    add("configmaps", volume.text("/configMap/name"));
    add("persistentvolumeclaims", volume.text("/persistentVolumeClaim/claimName"));
    for (_, source) in volume.fields("") {
        add("secrets", source.text("/secretRef/name"));
        add("secrets", source.text("/nodePublishSecretRef/name"));
    }
    for source in volume.list("/projected/sources") {
        add("secrets", source.text("/secret/name"));
        add("configmaps", source.text("/configMap/name"));
    }
}

#[test]
fn what_nodes_need() {
    use serde_json::json;
    let mut graph = NodeGraph::default();
    let mut pod = json!({"spec": {"nodeName": "n1", "serviceAccountName": "sa",
        "imagePullSecrets": [{"name": "pull"}],
        "volumes": [{"name": "a", "secret": {"secretName": "vol"}}, {"name": "b", "configMap": {"name": "map"}},
            {"name": "c", "projected": {"sources": [{"secret": {"name": "proj"}}, {"configMap": {"name": "pmap"}}]}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "claim"}}, {"name": "e", "ephemeral": {}},
            {"name": "f", "csi": {"nodePublishSecretRef": {"name": "csi"}}}, {"name": "g", "rbd": {"secretRef": {"name": "rbd"}}}],
        "containers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "env"}}}],
            "envFrom": [{"configMapRef": {"name": "from"}}]}]}});
    graph.observe("ns", "p", Some(&pod));
    let needs = |graph: &NodeGraph, node: &str, text: &str| {
        let (plural, name) = text.split_once('/').unwrap();
        let plural = ["secrets", "configmaps", "persistentvolumeclaims", "serviceaccounts"]
            .into_iter()
            .find(|known| known.starts_with(plural))
            .unwrap();
        let (namespace, name) = ("ns".to_owned(), name.to_owned());
        graph.needs(node, NamedObject { plural, namespace, name })
    };
    let all = "secrets/pull secrets/vol secrets/proj secrets/csi secrets/rbd secrets/env configmaps/map \
        configmaps/pmap configmaps/from persistent/claim persistent/p-e serviceaccounts/sa";
    for object in all.split_whitespace() {
        assert!(needs(&graph, "n1", object), "{object}");
        assert!(!needs(&graph, "n2", object), "{object}");
    }
    assert!(!needs(&graph, "n1", "secrets/other"));
    assert_eq!((graph.node_of("ns", "p"), graph.node_of("ns", "q")), (Some("n1"), None));
    // Two pods name the same; what one of them does not need, the other may.
    graph.observe("ns", "q", Some(&pod));
    graph.observe("ns", "p", None);
    assert!(needs(&graph, "n1", "secrets/vol"));
    pod["spec"]["nodeName"] = "n2".into();
    graph.observe("ns", "q", Some(&pod));
    assert!(!needs(&graph, "n1", "secrets/vol") && needs(&graph, "n2", "secrets/vol"));
    pod["metadata"]["annotations"][MIRROR] = "x".into();
    graph.observe("ns", "q", Some(&pod));
    assert!(!needs(&graph, "n2", "secrets/vol") && graph.node_of("ns", "q") == Some("n2"));
    graph.observe("ns", "q", None);
    assert!(graph.named.is_empty() && graph.pods.is_empty());
}
