//! Role-based access control: which roles a user has, and what they allow.
//!
//! The policy is an index over the four RBAC kinds, brought up to date from their feeds before
//! each question, so that a binding counts as soon as its creation has been answered.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use roadstead_api::look::Look;
use roadstead_api::selector::Selector;
use roadstead_store::entry::Revision;
use roadstead_store::feed::Feed;
use roadstead_store::store::Store;
use serde::Deserialize;
use serde_json::Value;

use crate::api::User;

pub(crate) mod aggregate;
pub mod bootstrap;
pub mod rule;

use rule::{Action, Rule};

const GROUP: &str = "rbac.authorization.k8s.io";
const KINDS: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

/// Answers who may do what.
pub struct Rbac {
    store: Arc<Store>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    feeds: Vec<Feed>,
    objects: HashMap<(usize, Arc<str>), Value>,
    policy: Policy,
}

impl Rbac {
    /// Follows the RBAC objects of a store.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, state: Mutex::default() }
    }

    /// Whether any role of the user allows the action.
    pub fn allows(&self, user: &User, action: &Action<'_>) -> bool {
        user.is_master() || self.with_policy(|policy| policy.allows(user, action))
    }

    /// All rules that the user has in a namespace.
    pub fn rules_of(&self, user: &User, namespace: &str) -> Vec<Rule> {
        self.with_policy(|policy| policy.rules_of(user, namespace))
    }

    /// The rules of a role that a binding refers to.
    pub fn rules_of_role(&self, kind: &str, namespace: &str, name: &str) -> Option<Vec<Rule>> {
        let namespace = if kind == "Role" { namespace } else { "" };
        self.with_policy(|policy| {
            policy.roles.get(&(namespace.to_owned(), name.to_owned())).cloned()
        })
    }

    fn with_policy<T>(&self, ask: impl FnOnce(&Policy) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.refresh(&self.store);
        ask(&state.policy)
    }
}

impl State {
    fn refresh(&mut self, store: &Arc<Store>) {
        if self.feeds.is_empty() {
            self.read_all(store);
            return;
        }
        let mut changed = false;
        for kind in 0..KINDS.len() {
            let Ok(batch) = self.feeds[kind].now() else {
                // We slept through more history than is kept.
                self.read_all(store);
                return;
            };
            for event in batch.events {
                changed = true;
                let key = (kind, event.key.path.clone());
                match &event.after {
                    Some(entry) => self.objects.insert(key, parse(&entry.value)),
                    None => self.objects.remove(&key),
                };
            }
        }
        if changed {
            self.policy = Policy::new(&self.objects);
        }
    }

    fn read_all(&mut self, store: &Arc<Store>) {
        self.objects.clear();
        self.feeds.clear();
        for (kind, plural) in KINDS.iter().enumerate() {
            let bucket = format!("{plural}.{GROUP}");
            let Ok(snapshot) = store.list(&bucket, "", None) else { return };
            for entry in snapshot.entries {
                self.objects.insert((kind, entry.key.path.clone()), parse(&entry.value));
            }
            let Ok(feed) = store.feed(&bucket, snapshot.revision.max(Revision(0))) else { return };
            self.feeds.push(feed);
        }
        self.policy = Policy::new(&self.objects);
    }
}

fn parse(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_default()
}

/// Namespace ("" for cluster roles) and name.
type RoleKey = (String, String);

/// The roles by name, and who has which.
#[derive(Debug, Default)]
struct Policy {
    roles: BTreeMap<RoleKey, Vec<Rule>>,
    /// By subject: where the binding holds ("" for everywhere), and the role.
    bindings: HashMap<String, Vec<(String, RoleKey)>>,
}

impl Policy {
    fn new(objects: &HashMap<(usize, Arc<str>), Value>) -> Self {
        let mut policy = Self::default();
        let of_kind = |wanted: usize| {
            objects.iter().filter(move |((kind, _), _)| *kind == wanted).map(|(_, object)| object)
        };
        let cluster_roles: Vec<_> = of_kind(0).collect();
        for role in of_kind(0).chain(of_kind(1)) {
            let mut rules = Vec::new();
            collect(role, &cluster_roles, &mut rules, &mut Vec::new());
            let place = role.text("/metadata/namespace").to_owned();
            policy.roles.insert((place, role.text("/metadata/name").to_owned()), rules);
        }
        for binding in of_kind(2).chain(of_kind(3)) {
            let place = binding.text("/metadata/namespace").to_owned();
            let home = match binding.text("/roleRef/kind") {
                "Role" => place.clone(),
                _ => String::new(),
            };
            let role = (home, binding.text("/roleRef/name").to_owned());
            for subject in binding.list("/subjects") {
                let entry = policy.bindings.entry(subject_key(subject)).or_default();
                entry.push((place.clone(), role.clone()));
            }
        }
        policy
    }

    fn allows(&self, user: &User, action: &Action<'_>) -> bool {
        self.of(user, action.namespace).any(|rule| rule.allows(action))
    }

    fn rules_of(&self, user: &User, namespace: &str) -> Vec<Rule> {
        self.of(user, namespace).cloned().collect()
    }

    fn of<'a>(&'a self, user: &'a User, namespace: &'a str) -> impl Iterator<Item = &'a Rule> {
        let groups = user.groups.iter().map(|group| format!("Group:{group}"));
        let subjects = groups.chain([format!("User:{}", user.name)]);
        let held = subjects.filter_map(|subject| self.bindings.get(&subject)).flatten();
        let here = held.filter(move |(place, _)| place.is_empty() || place == namespace);
        here.filter_map(|(_, role)| self.roles.get(role)).flatten()
    }
}

/// A role's own rules and those of the roles that it aggregates, which may aggregate others.
fn collect<'a>(
    role: &'a Value,
    all: &[&'a Value],
    rules: &mut Vec<Rule>,
    seen: &mut Vec<*const Value>,
) {
    if seen.contains(&std::ptr::from_ref(role)) {
        return;
    }
    seen.push(role);
    rules.extend(rule::read(&role["rules"]));
    for selector in role.list("/aggregationRule/clusterRoleSelectors") {
        let selector = Deserialize::deserialize(selector).unwrap_or_default();
        let selector = Selector::from_object(&selector);
        let matches =
            |other: &Value| selector.matches(|key| other["metadata"]["labels"][key].as_str());
        for part in all.iter().filter(|other| matches(other)) {
            collect(part, all, rules, seen);
        }
    }
}

/// Service accounts are users with a long name.
fn subject_key(subject: &Value) -> String {
    match subject.text("/kind") {
        "ServiceAccount" => format!(
            "User:system:serviceaccount:{}:{}",
            subject.text("/namespace"),
            subject.text("/name")
        ),
        kind => format!("{kind}:{}", subject.text("/name")),
    }
}

#[cfg(test)]
mod tests;
