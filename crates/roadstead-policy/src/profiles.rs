//! Which pods of this node are under the same policies.
//!
//! Pods that are have one profile, so that a policy or a pod more costs one chain or one element, and
//! not a chain for each pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use roadstead_api::key::ObjectKey;

/// The policies that some pods have in common. They are all of one namespace.
pub(crate) type Policies = BTreeSet<Arc<ObjectKey>>;

/// The profiles of a direction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profiles {
    last: u32,
    of_pods: BTreeMap<ObjectKey, u32>,
    profiles: BTreeMap<u32, Profile>,
    numbers: BTreeMap<Policies, u32>,
    /// In how many profiles a policy is.
    uses: BTreeMap<Arc<ObjectKey>, usize>,
    /// Profiles whose policies are not what they were.
    pub(crate) changed: BTreeSet<u32>,
    /// Policies that may be used for the first time now, or not any more.
    pub(crate) touched: BTreeSet<Arc<ObjectKey>>,
}

#[derive(Clone, Debug)]
struct Profile {
    policies: Policies,
    pods: BTreeSet<ObjectKey>,
}

impl Profiles {
    /// The profile of a pod.
    pub(crate) fn of_pod(&self, pod: &ObjectKey) -> Option<u32> {
        self.of_pods.get(pod).copied()
    }

    /// The policies of a profile.
    pub(crate) fn policies(&self, number: u32) -> Option<&Policies> {
        self.profiles.get(&number).map(|profile| &profile.policies)
    }

    /// Whether any pod is under a policy.
    pub(crate) fn uses(&self, policy: &ObjectKey) -> bool {
        self.uses.contains_key(policy)
    }

    /// A policy begins or ends to select pods of this node; returns the pods whose profile has another
    /// number now. `selected` says of a pod whether it is under it.
    pub(crate) fn reselect(
        &mut self,
        policy: &Arc<ObjectKey>,
        pods: impl Iterator<Item = ObjectKey>,
        selected: impl Fn(&ObjectKey) -> bool,
    ) -> Vec<ObjectKey> {
        let mut moving: BTreeMap<Option<u32>, Vec<ObjectKey>> = BTreeMap::new();
        for pod in pods {
            let profile = self.of_pod(&pod);
            let was = profile.and_then(|p| self.policies(p)).is_some_and(|p| p.contains(policy));
            if was != selected(&pod) {
                moving.entry(profile).or_default().push(pod);
            }
        }
        let mut moved = Vec::new();
        for (profile, pods) in moving {
            let mut policies = profile.and_then(|p| self.policies(p)).cloned().unwrap_or_default();
            if !policies.remove(policy) {
                policies.insert(policy.clone());
            }
            moved.extend(self.place(profile, pods, policies));
        }
        moved
    }

    /// Pods that have had that profile until now are under these policies; returns those with another
    /// number.
    pub(crate) fn place(
        &mut self,
        from: Option<u32>,
        pods: Vec<ObjectKey>,
        policies: Policies,
    ) -> Vec<ObjectKey> {
        let whole = from.filter(|from| self.profiles[from].pods.len() == pods.len());
        let known = self.numbers.get(&policies).copied();
        if let (Some(number), None, false) = (whole, known, policies.is_empty()) {
            self.change(number, policies);
            return Vec::new();
        }
        let to = match known {
            _ if policies.is_empty() => None,
            Some(number) => Some(number),
            None => Some(self.make(policies)),
        };
        if from == to {
            return Vec::new();
        }
        for pod in &pods {
            match to {
                Some(number) => self.of_pods.insert(pod.clone(), number),
                None => self.of_pods.remove(pod),
            };
            if let Some(profile) = from.and_then(|from| self.profiles.get_mut(&from)) {
                profile.pods.remove(pod);
            }
            if let Some(profile) = to.and_then(|to| self.profiles.get_mut(&to)) {
                profile.pods.insert(pod.clone());
            }
        }
        if let Some(empty) = whole {
            self.remove(empty);
        }
        pods
    }

    fn make(&mut self, policies: Policies) -> u32 {
        self.last += 1;
        let number = self.last;
        self.count(&policies, 1);
        self.numbers.insert(policies.clone(), number);
        self.profiles.insert(number, Profile { policies, pods: BTreeSet::new() });
        self.changed.insert(number);
        number
    }

    fn change(&mut self, number: u32, policies: Policies) {
        self.count(&policies, 1);
        self.numbers.insert(policies.clone(), number);
        let Some(profile) = self.profiles.get_mut(&number) else { return };
        let before = std::mem::replace(&mut profile.policies, policies);
        self.numbers.remove(&before);
        self.count(&before, -1);
        self.changed.insert(number);
    }

    fn remove(&mut self, number: u32) {
        let Some(profile) = self.profiles.remove(&number) else { return };
        self.numbers.remove(&profile.policies);
        self.count(&profile.policies, -1);
        self.changed.insert(number);
    }

    fn count(&mut self, policies: &Policies, by: isize) {
        for policy in policies {
            let uses = self.uses.entry(policy.clone()).or_default();
            *uses = uses.saturating_add_signed(by);
            let (first, none) = (*uses == 1 && by > 0, *uses == 0);
            if none {
                self.uses.remove(policy);
            }
            if first || none {
                self.touched.insert(policy.clone());
            }
        }
    }
}
