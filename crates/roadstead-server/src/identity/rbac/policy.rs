//! The roles by name, and who has which: brought up to date object by object.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use roadstead_api::selector::Selector;
use serde::Deserialize;

use super::rule::Rule;
use crate::identity::user::User;

/// Namespace ("" for cluster roles) and name.
type RoleKey = (String, String);

/// An RBAC object in the store: its bucket's number among [`super::KINDS`], and its path.
pub(super) type ObjectKey = (usize, Arc<str>);

/// The roles by name, and who has which.
#[derive(Debug, Default)]
pub(super) struct Policy {
    objects: HashMap<ObjectKey, Object>,
    roles: HashMap<RoleKey, Arc<[Rule]>>,
    /// By namespace ("" for everywhere) and subject: the roles, and how many bindings give each.
    bindings: HashMap<String, HashMap<String, BTreeMap<RoleKey, usize>>>,
    /// Whether sums of roles may be out of date.
    stale: bool,
}

#[derive(Debug)]
enum Object {
    Role(Role),
    Binding(Binding),
}

/// As much of a role as matters here.
#[derive(Debug)]
struct Role {
    metadata: Metadata,
    rules: Arc<[Rule]>,
    /// Which others it adds up, if it is a sum.
    sum: Option<Vec<Selector>>,
}

/// A role as it is stored.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoredRole {
    metadata: Metadata,
    rules: Option<Vec<Rule>>,
    aggregation_rule: Option<Aggregation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
    labels: HashMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Aggregation {
    cluster_role_selectors: Vec<LabelSelector>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Binding {
    metadata: Metadata,
    role_ref: Reference,
    subjects: Option<BTreeSet<Reference>>,
}

#[derive(Debug, Default, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(default)]
struct Reference {
    kind: String,
    namespace: String,
    name: String,
}

impl Policy {
    /// Takes in an object as it is now; `None` if it is gone. Sums are out of date until
    /// [`Self::sum_up`].
    pub(super) fn observe(&mut self, key: ObjectKey, value: Option<&[u8]>) {
        match self.objects.remove(&key) {
            Some(Object::Role(role)) => {
                self.stale |= role.metadata.namespace.is_empty();
                self.roles.remove(&role.key());
            }
            Some(Object::Binding(binding)) => self.count(&binding, |count| *count -= 1),
            None => {}
        }
        let Some(value) = value else { return };
        let object = if key.0 < 2 {
            let role = Role::read(value);
            self.stale |= role.metadata.namespace.is_empty();
            self.roles.insert(role.key(), role.rules.clone());
            Object::Role(role)
        } else {
            let binding: Binding = serde_json::from_slice(value).unwrap_or_default();
            self.count(&binding, |count| *count += 1);
            Object::Binding(binding)
        };
        self.objects.insert(key, object);
    }

    /// Counts a binding for each of its subjects.
    fn count(&mut self, binding: &Binding, change: impl Fn(&mut usize)) {
        let place = &binding.metadata.namespace;
        let home = if binding.role_ref.kind == "Role" { place.clone() } else { String::new() };
        let role = (home, binding.role_ref.name.clone());
        let here = self.bindings.entry(place.clone()).or_default();
        for subject in binding.subjects.iter().flatten().map(Reference::subject) {
            let roles = here.entry(subject.clone()).or_default();
            let count = roles.entry(role.clone()).or_default();
            change(count);
            if *count == 0 {
                roles.remove(&role);
            }
            if roles.is_empty() {
                here.remove(&subject);
            }
        }
        if here.is_empty() {
            self.bindings.remove(place);
        }
    }

    /// Gives cluster roles that are the sum of others the rules of those.
    pub(super) fn sum_up(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let roles = self.objects.iter().filter_map(|((kind, _), object)| match object {
            Object::Role(role) if *kind == 0 => Some((&*role.metadata.name, role)),
            _ => None,
        });
        // In the order of their names, for the same answer each time.
        let all: BTreeMap<_, _> = roles.collect();
        for role in all.values().filter(|role| role.sum.is_some()) {
            self.roles.insert(role.key(), sum(role, &all).into());
        }
    }

    /// The roles that the user has in a namespace, each once.
    pub(super) fn roles_of(&self, user: &User, namespace: &str) -> Vec<Arc<[Rule]>> {
        let groups = user.groups.iter().map(|group| format!("Group:{group}"));
        let subjects: Vec<_> = groups.chain([format!("User:{}", user.name)]).collect();
        let places = [Some(""), Some(namespace).filter(|place| !place.is_empty())];
        let mut found = BTreeSet::new();
        for here in places.iter().flatten().filter_map(|place| self.bindings.get(*place)) {
            found.extend(
                subjects.iter().filter_map(|subject| here.get(subject)).flat_map(BTreeMap::keys),
            );
        }
        found.into_iter().filter_map(|role| self.roles.get(role)).cloned().collect()
    }

    /// The rules of a role; the namespace is "" for cluster roles.
    pub(super) fn role(&self, namespace: &str, name: &str) -> Option<Arc<[Rule]>> {
        self.roles.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }
}

/// A role's own rules and those of the roles that it adds up, which may be sums themselves, also of
/// each other: each counts once.
fn sum(role: &Role, all: &BTreeMap<&str, &Role>) -> Vec<Rule> {
    let mut seen = BTreeSet::from([&*role.metadata.name]);
    let mut waiting = vec![role];
    let mut rules = Vec::new();
    while let Some(role) = waiting.pop() {
        rules.extend(role.rules.iter().cloned());
        let selectors = role.sum.as_deref().unwrap_or_default();
        for (name, part) in all.iter().filter(|_| !selectors.is_empty()) {
            let labels = |key: &str| part.metadata.labels.get(key).map(String::as_str);
            if selectors.iter().any(|selector| selector.matches(labels)) && seen.insert(name) {
                waiting.push(part);
            }
        }
    }
    rules
}

impl Role {
    fn read(value: &[u8]) -> Self {
        let stored: StoredRole = serde_json::from_slice(value).unwrap_or_default();
        let sum = stored
            .aggregation_rule
            .map(|sum| sum.cluster_role_selectors.iter().map(Selector::from_object).collect());
        let rules = stored.rules.unwrap_or_default().into();
        Self { metadata: stored.metadata, rules, sum }
    }

    fn key(&self) -> RoleKey {
        (self.metadata.namespace.clone(), self.metadata.name.clone())
    }
}

impl Reference {
    /// Service accounts are users with a long name.
    fn subject(&self) -> String {
        match &*self.kind {
            "ServiceAccount" => {
                format!("User:system:serviceaccount:{}:{}", self.namespace, self.name)
            }
            kind => format!("{kind}:{}", self.name),
        }
    }
}
