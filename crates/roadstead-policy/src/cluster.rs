//! All pods, namespaces and policies, and who has which address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use ipnet::IpNet;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Labels;

use crate::pod::PolicyPod;
use crate::policy::{Direction, NamespaceScope, PodGroup, Policy};

/// Everything that was observed.
#[derive(Clone, Debug, Default)]
pub struct PolicyCluster {
    namespaces: BTreeMap<String, Labels>,
    pods: BTreeMap<ObjectKey, PolicyPod>,
    policies: BTreeMap<Arc<ObjectKey>, Policy>,
    /// The addresses that nodes may give to their pods, as far as nodes say.
    blocks: BTreeMap<String, Vec<IpNet>>,
    /// Those who say that they have an address, the youngest last.
    claims: BTreeMap<IpAddr, BTreeSet<(i64, ObjectKey)>>,
}

impl PolicyCluster {
    /// Takes note of a pod, or that it is gone; returns the pods that this concerns, if anything is
    /// new.
    pub fn observe_pod(&mut self, key: ObjectKey, pod: Option<PolicyPod>) -> BTreeSet<ObjectKey> {
        if self.pods.get(&key) == pod.as_ref() {
            return BTreeSet::new();
        }
        let before = match &pod {
            Some(pod) => self.pods.insert(key.clone(), pod.clone()),
            None => self.pods.remove(&key),
        };
        let mut concerned: BTreeSet<_> = [key.clone()].into();
        for (old, new) in [(before.as_ref(), None), (None, pod.as_ref())] {
            let pods = old.or(new).into_iter();
            for (address, created) in pods.flat_map(|p| p.addresses.iter().map(|a| (*a, p.created)))
            {
                let claims = self.claims.entry(address).or_default();
                concerned.extend(claims.iter().map(|(_, other)| other.clone()));
                match old {
                    Some(_) => claims.remove(&(created, key.clone())),
                    None => claims.insert((created, key.clone())),
                };
                if claims.is_empty() {
                    self.claims.remove(&address);
                }
            }
        }
        concerned
    }

    /// Takes note of the addresses that a node may give to its pods; returns the pods that this concerns:
    /// those who say that they have an address of somebody else.
    pub fn observe_node(&mut self, name: &str, blocks: Option<Vec<IpNet>>) -> BTreeSet<ObjectKey> {
        if self.blocks.get(name) == blocks.as_ref() {
            return BTreeSet::new();
        }
        match blocks {
            Some(blocks) => self.blocks.insert(name.to_owned(), blocks),
            None => self.blocks.remove(name),
        };
        let contested = self.claims.values().filter(|claims| claims.len() > 1);
        contested.flatten().map(|(_, key)| key.clone()).collect()
    }

    /// Takes note of a namespace; returns the pods that this concerns.
    pub fn observe_namespace(&mut self, name: &str, labels: Option<Labels>) -> BTreeSet<ObjectKey> {
        if self.namespaces.get(name) == labels.as_ref() {
            return BTreeSet::new();
        }
        match labels {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        self.pods_of(name).map(|(key, _)| key.clone()).collect()
    }

    /// Takes note of a policy; returns whether anything is new.
    pub fn observe_policy(&mut self, key: &ObjectKey, policy: Option<Policy>) -> bool {
        if self.policies.get(key) == policy.as_ref() {
            return false;
        }
        match policy {
            Some(policy) => self.policies.insert(Arc::new(key.clone()), policy),
            None => self.policies.remove(key),
        };
        true
    }

    /// The pod that has an address, for those who let it in or are called by it.
    ///
    /// Each node says for itself which addresses its pods have, and may lie. Whoever has been given the
    /// address by its node, out of what that node may give, has it; and of several pods of one node the
    /// youngest. What several nodes claim with equal right, nobody has
    /// (`docs/adr/0196-who-says-that-it-has-an-address.md`).
    pub fn owner(&self, address: IpAddr) -> Option<&ObjectKey> {
        let claims = self.claims.get(&address)?;
        if claims.len() == 1 {
            return claims.last().map(|(_, key)| key);
        }
        let ranked = claims.iter().map(|(_, key)| (self.right(key, address), key));
        let best = ranked.clone().map(|(right, _)| right).max()?;
        let mut best = ranked.filter(|(right, _)| *right == best).map(|(_, key)| key).rev();
        let youngest = best.next()?;
        best.all(|other| self.node_of(other) == self.node_of(youngest)).then_some(youngest)
    }

    /// The pod of a node that has an address there. A node knows its own pods, whatever others say: nobody
    /// is freed of policies by the words of another node.
    pub(crate) fn owner_on(&self, node: &str, address: IpAddr) -> Option<&ObjectKey> {
        let mut claims = self.claims.get(&address)?.iter().rev().map(|(_, key)| key);
        claims.find(|key| self.node_of(key) == node)
    }

    fn node_of(&self, key: &ObjectKey) -> &str {
        self.pods.get(key).map_or("", |pod| &pod.node)
    }

    fn right(&self, key: &ObjectKey, address: IpAddr) -> Right {
        match self.blocks.get(self.node_of(key)).map(Vec::as_slice) {
            None | Some([]) => Right::Unknown,
            Some(blocks) if blocks.iter().any(|block| block.contains(&address)) => Right::Given,
            Some(_) => Right::Foreign,
        }
    }

    /// A pod.
    pub fn pod(&self, key: &ObjectKey) -> Option<&PolicyPod> {
        self.pods.get(key)
    }

    /// A policy.
    pub fn policy(&self, key: &ObjectKey) -> Option<(&Arc<ObjectKey>, &Policy)> {
        self.policies.get_key_value(key)
    }

    /// How many policies there are.
    pub fn policy_count(&self) -> usize {
        self.policies.len()
    }

    /// All pods.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (&ObjectKey, &PolicyPod)> {
        self.pods.iter()
    }

    /// The pods of a namespace.
    pub(crate) fn pods_of(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (&ObjectKey, &PolicyPod)> {
        let first = Bound::Included(ObjectKey::new(namespace, ""));
        let namespace = namespace.to_owned();
        self.pods
            .range((first, Bound::Unbounded))
            .take_while(move |(key, _)| key.namespace == namespace)
    }

    /// The addresses that a pod really has.
    pub(crate) fn addresses_of(&self, key: &ObjectKey) -> impl Iterator<Item = IpAddr> {
        let claimed = self.pods.get(key).into_iter().flat_map(|pod| &pod.addresses);
        claimed.copied().filter(move |address| self.owner(*address) == Some(key))
    }

    /// The addresses that a pod has on its node.
    pub(crate) fn addresses_on(&self, node: &str, key: &ObjectKey) -> impl Iterator<Item = IpAddr> {
        let claimed = self.pods.get(key).into_iter().flat_map(|pod| &pod.addresses);
        claimed.copied().filter(move |address| self.owner_on(node, *address) == Some(key))
    }

    /// The policies that a pod is under in a direction.
    pub(crate) fn policies_on(
        &self,
        key: &ObjectKey,
        direction: Direction,
    ) -> impl Iterator<Item = (&Arc<ObjectKey>, &Policy)> {
        let first = Bound::Included(ObjectKey::new(&*key.namespace, ""));
        let of_namespace = self
            .policies
            .range::<ObjectKey, _>((first, Bound::Unbounded))
            .take_while(move |(policy, _)| policy.namespace == key.namespace);
        let pod = self.pods.get(key);
        of_namespace.filter(move |(_, policy)| {
            policy.rules(direction).is_some()
                && pod.is_some_and(|pod| policy.subjects.matches_labels(Some(&pod.labels)))
        })
    }

    /// Whether a pod is in a group. Of a namespace that nobody has told us of, it is in none that goes
    /// by labels of namespaces.
    pub(crate) fn is_in(&self, group: &PodGroup, key: &ObjectKey, pod: &PolicyPod) -> bool {
        let there = match &group.namespaces {
            NamespaceScope::Named(name) => *name == key.namespace,
            NamespaceScope::Matching(selector) => self
                .namespaces
                .get(&key.namespace)
                .is_some_and(|labels| selector.matches_labels(Some(labels))),
        };
        there && group.pods.matches_labels(Some(&pod.labels))
    }
}

/// By what right a pod has the address that it says it has, the least first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Right {
    /// Its node gives others.
    Foreign,
    /// Nobody knows what its node gives.
    Unknown,
    /// It is one of those that its node gives.
    Given,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `old@n1=1` is a pod of a node, created then, that says it has the address of the test.
    fn cluster(nodes: &[(&str, &str)], pods: &str, address: IpAddr) -> PolicyCluster {
        let mut cluster = PolicyCluster::default();
        for text in pods.split_whitespace() {
            let (name, rest) = text.split_once('@').unwrap();
            let (node, created) = rest.split_once('=').unwrap();
            let pod = PolicyPod {
                node: node.into(),
                addresses: vec![address],
                created: created.parse().unwrap(),
                ..PolicyPod::default()
            };
            cluster.observe_pod(ObjectKey::new("x", name), Some(pod));
        }
        for (node, block) in nodes {
            let blocks = block.split_whitespace().map(|block| block.parse().unwrap()).collect();
            cluster.observe_node(node, Some(blocks));
        }
        cluster
    }

    #[test]
    fn who_has_an_address() {
        let address: IpAddr = [10, 244, 1, 7].into();
        let known = [("n1", "10.244.1.0/24"), ("n2", "10.244.2.0/24")];
        let silent = [("n1", ""), ("n2", "")];
        let cases = [
            ("one who says so", &known, "web@n1=1", "web"),
            ("another node lies, and its pod is younger", &known, "web@n1=1 liar@n2=9", "web"),
            ("or older", &known, "web@n1=5 liar@n2=1", "web"),
            ("the younger of a node", &known, "old@n1=1 new@n1=2", "new"),
            ("beside a lie", &known, "old@n1=1 new@n1=2 liar@n2=9", "new"),
            ("a network that goes its own ways", &silent, "web@n1=1", "web"),
            ("nobody knows who lies", &silent, "web@n1=1 liar@n2=9", ""),
            ("a node that nobody knows does not win", &known, "web@n1=1 liar@n3=9", "web"),
            ("nor is it trusted less than a liar", &known, "web@n3=1 liar@n2=9", "web"),
        ];
        for (name, nodes, pods, want) in cases {
            let cluster = cluster(nodes, pods, address);
            let owner = cluster.owner(address).map_or("", |key| &key.name);
            assert_eq!(owner, want, "{name}");
        }
        let cluster = cluster(&silent, "web@n1=1 liar@n2=9", address);
        let on = |node| cluster.owner_on(node, address).map_or("", |key| &key.name);
        assert_eq!((on("n1"), on("n2"), on("n3")), ("web", "liar", ""), "each node knows its own");
    }
}
