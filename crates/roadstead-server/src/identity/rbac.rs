//! Role-based access control: which roles a user has, and what they allow.
//!
//! The policy is an index over the four RBAC kinds, brought up to date from their feeds before
//! each question, so that a binding counts as soon as its creation has been answered.

use std::sync::{Arc, Mutex, PoisonError};

use roadstead_store::entry::Revision;
use roadstead_store::feed::Feed;
use roadstead_store::kv::Store;

use crate::identity::nodes::Nodes;
use crate::identity::parts;
use crate::identity::user::User;

pub(crate) mod aggregate;
pub(crate) mod bootstrap;
pub(crate) mod cover;
mod policy;
pub(crate) mod rule;

use policy::Policy;
use rule::{Attributes, Rule};

pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
const KINDS: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

/// Answers who may do what.
pub(crate) struct Rbac {
    store: Arc<Store>,
    state: Mutex<State>,
    /// What nodes may do, which no role says.
    pub(crate) nodes: Nodes,
}

#[derive(Default)]
struct State {
    feeds: Vec<Feed>,
    policy: Policy,
}

impl Rbac {
    /// Follows the RBAC objects of a store.
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { nodes: Nodes::new(store.clone()), store, state: Mutex::default() }
    }

    /// Whether any role of the user allows the action, or the user is a node or a part
    /// that needs it.
    pub(crate) fn allows(&self, user: &User, action: &Attributes<'_>) -> bool {
        let allows = |role: &Arc<[Rule]>| role.iter().any(|rule| rule.allows(action));
        user.is_master()
            || self.roles_of(user, action.namespace).iter().any(allows)
            || self.nodes.allows(user, action)
            || parts::allows(user, action)
    }

    /// The rules of all roles that the user has in a namespace, by role.
    pub(crate) fn roles_of(&self, user: &User, namespace: &str) -> Vec<Arc<[Rule]>> {
        self.with_policy(|policy| policy.roles_of(user, namespace))
    }

    /// The rules of a role that a binding refers to.
    pub(crate) fn rules_of_role(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<[Rule]>> {
        let namespace = if kind == "Role" { namespace } else { "" };
        self.with_policy(|policy| policy.role(namespace, name))
    }

    /// Takes in what has changed.
    pub(crate) fn refresh(&self) {
        self.with_policy(|_| ());
    }

    /// Looks something up. Rules, of which there may be many, are looked at afterwards: nobody waits
    /// while somebody else's are.
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
        for (kind, feed) in self.feeds.iter_mut().enumerate() {
            let Ok(batch) = feed.now() else {
                // We slept through more history than is kept.
                self.read_all(store);
                return;
            };
            for event in batch.events {
                let value = event.after.as_ref().map(|entry| &entry.value[..]);
                self.policy.observe((kind, event.key.path.clone()), value);
            }
        }
        self.policy.sum_up();
    }

    fn read_all(&mut self, store: &Arc<Store>) {
        *self = Self::default();
        let mut feeds = Vec::new();
        for (kind, plural) in KINDS.iter().enumerate() {
            let bucket = format!("{plural}.{GROUP}");
            let Ok(snapshot) = store.list(&bucket, "", None) else { return };
            for entry in snapshot.entries {
                self.policy.observe((kind, entry.key.path.clone()), Some(&entry.value));
            }
            let Ok(feed) = store.feed(&bucket, snapshot.revision.max(Revision(0))) else { return };
            feeds.push(feed);
        }
        self.feeds = feeds;
        self.policy.sum_up();
    }
}

#[cfg(test)]
mod tests;
