//! The roles and bindings of every cluster: who may do what before anyone has decided.
//!
//! They are data: `data/bootstrap-policy.json`, as a real cluster has them, and
//! `data/roadstead-policy.json`, what the parts of Roadstead need besides. Nobody has the role
//! `system:node`: what nodes may do depends on what runs on them (`identity::nodes`).

use serde::Deserialize;
use serde_json::{Map, Value, json};

const POLICIES: [&str; 2] = [
    include_str!("../../../data/bootstrap-policy.json"),
    include_str!("../../../data/roadstead-policy.json"),
];
const GROUP: &str = "rbac.authorization.k8s.io";

/// What a role collects the rules of, and what its own rules are added to.
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// An object that must exist, with its plural and namespace ("" for none).
#[derive(Debug)]
pub(crate) struct Bootstrap {
    /// The kind, as in a path.
    pub plural: &'static str,
    /// The namespace it is in.
    pub namespace: String,
    /// The object, without apiVersion and kind.
    pub object: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    cluster_roles: Vec<Role>,
    roles: Vec<Role>,
    cluster_role_bindings: Vec<Binding>,
    role_bindings: Vec<Binding>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Role {
    namespace: String,
    name: String,
    rules: Value,
    adds_to: Vec<String>,
    collects: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Binding {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default = "cluster_role")]
    role_kind: String,
    role: String,
    subjects: Vec<Value>,
}

fn cluster_role() -> String {
    "ClusterRole".into()
}

/// All of them, roles before the bindings that name them.
pub(crate) fn objects() -> Vec<Bootstrap> {
    let policies = POLICIES
        .map(|text| serde_json::from_str::<Policy>(text).expect("our own data is well formed"));
    // Roles of both before bindings of both.
    let (roles, bindings): (Vec<_>, Vec<_>) = policies.into_iter().map(Policy::objects).unzip();
    roles.into_iter().chain(bindings).flatten().collect()
}

impl Policy {
    /// The roles, and the bindings.
    fn objects(self) -> (Vec<Bootstrap>, Vec<Bootstrap>) {
        let roles =
            |plural, roles: Vec<Role>| roles.into_iter().map(move |role| role.object(plural));
        let bindings = |plural, bindings: Vec<Binding>| {
            bindings.into_iter().map(move |binding| binding.object(plural))
        };
        (
            roles("clusterroles", self.cluster_roles).chain(roles("roles", self.roles)).collect(),
            bindings("clusterrolebindings", self.cluster_role_bindings)
                .chain(bindings("rolebindings", self.role_bindings))
                .collect(),
        )
    }
}

impl Role {
    fn object(self, plural: &'static str) -> Bootstrap {
        let mut metadata = metadata(&self.name);
        for sum in &self.adds_to {
            metadata["labels"][format!("{AGGREGATE}{sum}")] = "true".into();
        }
        let mut object = json!({"metadata": metadata, "rules": self.rules});
        if !self.collects.is_empty() {
            let labels =
                self.collects.iter().map(|sum| (format!("{AGGREGATE}{sum}"), "true".into()));
            let labels: Map<String, Value> = labels.collect();
            object["rules"] = json!([]);
            object["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": labels}]});
        }
        Bootstrap { plural, namespace: self.namespace, object }
    }
}

impl Binding {
    fn object(mut self, plural: &'static str) -> Bootstrap {
        for subject in &mut self.subjects {
            if subject["kind"] != "ServiceAccount" {
                subject["apiGroup"] = GROUP.into();
            }
        }
        let object = json!({"metadata": metadata(&self.name), "subjects": self.subjects,
            "roleRef": {"apiGroup": GROUP, "kind": self.role_kind, "name": self.role}});
        Bootstrap { plural, namespace: self.namespace, object }
    }
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_binding_names_a_role_that_exists() {
        let all = objects();
        let has = |plural: &str, namespace: &str, name: &Value| {
            all.iter().any(|one| {
                one.plural == plural
                    && one.namespace == namespace
                    && one.object["metadata"]["name"] == *name
            })
        };
        assert!(all.len() > 140, "{}", all.len());
        for binding in all.iter().filter(|one| one.plural.ends_with("bindings")) {
            let role = &binding.object["roleRef"];
            let found = match role["kind"].as_str() {
                Some("Role") => has("roles", &binding.namespace, &role["name"]),
                _ => has("clusterroles", "", &role["name"]),
            };
            assert!(found, "{}", binding.object);
            let nobody = binding.object["subjects"] == json!([]);
            assert_eq!(nobody, binding.object["metadata"]["name"] == "system:node");
        }
    }
}
