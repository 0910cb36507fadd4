//! Keeps the program equal to the cluster, and says what each change makes of it.
//!
//! A change of a pod costs the groups that it comes into or leaves; a change of a policy costs its own
//! chain, and the sets that nobody had asked for before. Neither grows with the number of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipnet::IpNet;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Labels;

use crate::cluster::PolicyCluster;
use crate::compile::{self, CompiledPolicy, GroupName, Numbers, PortName};
use crate::pod::PolicyPod;
use crate::policy::{Direction, NamespaceScope, PodGroup, Policy};
use crate::profiles::Profiles;
use crate::program::{
    ChainRule, ElementKey, ElementValue, PolicyChain, PolicyProgram, PolicySet, PolicyTransaction,
    SetKey, Step,
};

/// The elements that a pod brings.
type Elements = BTreeMap<ElementKey, ElementValue>;

/// What is in the kernel of one node, and why.
#[derive(Clone, Debug)]
pub struct PolicyLayout {
    node: String,
    cluster: PolicyCluster,
    profiles: BTreeMap<Direction, Profiles>,
    compiled: BTreeMap<(Direction, Arc<ObjectKey>), CompiledPolicy>,
    sets: Sets,
    /// What each pod brings as a subject, and as a member of groups.
    placed: BTreeMap<ObjectKey, Elements>,
    members: BTreeMap<ObjectKey, Elements>,
    dirty_pods: BTreeSet<ObjectKey>,
    dirty_policies: BTreeSet<ObjectKey>,
    written: Written,
}

impl PolicyLayout {
    /// Of the node of that name; nothing is known yet.
    pub fn new(node: &str) -> Self {
        Self {
            node: node.to_owned(),
            cluster: PolicyCluster::default(),
            profiles: Direction::ALL.into_iter().map(|own| (own, Profiles::default())).collect(),
            compiled: BTreeMap::new(),
            sets: Sets::default(),
            placed: BTreeMap::new(),
            members: BTreeMap::new(),
            dirty_pods: BTreeSet::new(),
            dirty_policies: BTreeSet::new(),
            written: Written::default(),
        }
    }

    /// Takes note of a pod, or that it is gone.
    pub fn observe_pod(&mut self, key: ObjectKey, pod: Option<PolicyPod>) {
        self.dirty_pods.extend(self.cluster.observe_pod(key, pod));
    }

    /// Takes note of a namespace's labels.
    pub fn observe_namespace(&mut self, name: &str, labels: Option<Labels>) {
        self.dirty_pods.extend(self.cluster.observe_namespace(name, labels));
    }

    /// Takes note of the addresses that a node gives to its pods.
    pub fn observe_node(&mut self, name: &str, blocks: Option<Vec<IpNet>>) {
        self.dirty_pods.extend(self.cluster.observe_node(name, blocks));
    }

    /// Takes note of a policy.
    pub fn observe_policy(&mut self, key: &ObjectKey, policy: Option<Policy>) {
        if self.cluster.observe_policy(key, policy) {
            self.dirty_policies.insert(key.clone());
        }
    }

    /// All that is known.
    pub fn cluster(&self) -> &PolicyCluster {
        &self.cluster
    }

    /// The program, as of the last update.
    pub fn program(&self) -> &PolicyProgram {
        &self.written.program
    }

    /// How many pods of this node are under policies.
    pub fn subject_count(&self) -> usize {
        let is_own = |key: &ElementKey| key.set == PolicySet::Own;
        self.placed.values().filter(|elements| elements.keys().any(is_own)).count()
    }

    /// Whether something waits for an update.
    pub fn is_dirty(&self) -> bool {
        !self.dirty_pods.is_empty() || !self.dirty_policies.is_empty()
    }

    /// Brings the program up to date; returns what changed in it.
    pub fn update(&mut self) -> PolicyTransaction {
        let (pods, policies) =
            (mem::take(&mut self.dirty_pods), mem::take(&mut self.dirty_policies));
        let mut moved = pods.clone();
        for policy in &policies {
            moved.extend(self.reselect(policy));
        }
        for pod in &pods {
            self.reprofile(pod);
        }
        self.write_profiles();
        self.replace_elements(Part::Placed, &moved);
        self.compile(&policies);
        let fresh = mem::take(&mut self.sets.fresh);
        self.replace_elements(Part::Members, &pods);
        self.fill(&fresh);
        self.forget_unused();
        self.written.take()
    }

    /// A policy is new, changed or gone.
    fn reselect(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        let known = self.cluster.policy(key);
        let name = known.map_or_else(|| Arc::new(key.clone()), |(key, _)| key.clone());
        let (cluster, node) = (&self.cluster, &self.node);
        let mut moved = Vec::new();
        for (direction, profiles) in &mut self.profiles {
            let policy = known.map(|(_, policy)| policy);
            let policy = policy.filter(|policy| policy.rules(*direction).is_some());
            let here = cluster.pods_of(&key.namespace).filter(|(_, pod)| pod.node == *node);
            let pods =
                here.filter(|(_, pod)| !pod.addresses.is_empty()).map(|(key, _)| key.clone());
            moved.extend(profiles.reselect(&name, pods, |pod| {
                let labels = cluster.pod(pod).map(|pod| &pod.labels);
                policy.is_some_and(|policy| policy.subjects.matches_labels(labels))
            }));
        }
        moved
    }

    /// A pod is new, changed or gone.
    fn reprofile(&mut self, key: &ObjectKey) {
        let pod = self.cluster.pod(key);
        let here = pod.is_some_and(|pod| pod.node == self.node && !pod.addresses.is_empty());
        for (direction, profiles) in &mut self.profiles {
            let policies = self.cluster.policies_on(key, *direction).filter(|_| here);
            let policies = policies.map(|(key, _)| key.clone()).collect();
            let from = profiles.of_pod(key);
            if from.and_then(|from| profiles.policies(from)) != Some(&policies) {
                profiles.place(from, vec![key.clone()], policies);
            }
        }
    }

    fn write_profiles(&mut self) {
        for (direction, profiles) in &mut self.profiles {
            for number in mem::take(&mut profiles.changed) {
                let chain = PolicyChain::Profile(*direction, number);
                let Some(policies) = profiles.policies(number) else {
                    self.written.chain(chain, None);
                    continue;
                };
                let jump = |key: &Arc<ObjectKey>| {
                    vec![Step::Jump(PolicyChain::Policy(*direction, key.clone()))]
                };
                let rules = policies.iter().map(jump).chain([vec![Step::Drop]]).collect();
                self.written.chain(chain, Some(rules));
            }
        }
    }

    /// Compiles the policies that are used, and forgets those that are not any more.
    fn compile(&mut self, changed: &BTreeSet<ObjectKey>) {
        let mut work: BTreeSet<(Direction, Arc<ObjectKey>)> = BTreeSet::new();
        for (direction, profiles) in &mut self.profiles {
            work.extend(mem::take(&mut profiles.touched).into_iter().map(|key| (*direction, key)));
            let changed = changed.iter().map(|key| (*direction, Arc::new(key.clone())));
            work.extend(changed);
        }
        for (direction, key) in work {
            let used = self.profiles[&direction].uses(&key);
            let policy = self.cluster.policy(&key).filter(|_| used);
            let rules = policy.and_then(|(_, policy)| policy.rules(direction));
            let new = rules.map(|rules| compile::compile(&key, direction, rules, &mut self.sets));
            let place = (direction, key);
            let old = match &new {
                Some(new) => self.compiled.insert(place, new.clone()),
                None => self.compiled.remove(&place),
            };
            let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
            for chain in old.chains.keys().filter(|chain| !new.chains.contains_key(chain)) {
                self.written.chain(chain.clone(), None);
            }
            for (chain, rules) in new.chains {
                self.written.chain(chain, Some(rules));
            }
            self.sets.release(&old);
        }
    }

    /// Puts elements of pods in the place of those they brought before. All old ones go first: an
    /// address may have passed from one pod to another.
    fn replace_elements(&mut self, part: Part, pods: &BTreeSet<ObjectKey>) {
        let wanted: Vec<_> = pods.iter().map(|pod| (pod, self.elements(part, pod))).collect();
        let brought = match part {
            Part::Placed => &mut self.placed,
            Part::Members => &mut self.members,
        };
        for (pod, elements) in &wanted {
            let old = brought.get(*pod).into_iter().flat_map(BTreeMap::keys);
            for key in old.filter(|key| !elements.contains_key(key)) {
                self.written.element(*key, None);
            }
        }
        for (pod, elements) in wanted {
            for (key, value) in &elements {
                self.written.element(*key, Some(*value));
            }
            match elements.is_empty() {
                true => brought.remove(pod),
                false => brought.insert(pod.clone(), elements),
            };
        }
    }

    fn elements(&self, part: Part, key: &ObjectKey) -> Elements {
        let addresses: Vec<_> = match part {
            Part::Placed => self.cluster.addresses_on(&self.node, key).collect(),
            Part::Members => self.cluster.addresses_of(key).collect(),
        };
        let Some(pod) = self.cluster.pod(key).filter(|_| !addresses.is_empty()) else {
            return Elements::new();
        };
        let mut elements = Elements::new();
        match part {
            Part::Placed => {
                for key in addresses.iter().copied().map(SetKey::Address) {
                    let key = ElementKey { set: PolicySet::Known, key };
                    elements.insert(key, ElementValue::Mark(pod.mark));
                }
                for (direction, profiles) in &self.profiles {
                    let Some(number) = profiles.of_pod(key) else { continue };
                    for key in addresses.iter().copied().map(SetKey::Address) {
                        let set = PolicySet::Subjects(*direction);
                        elements.insert(
                            ElementKey { set, key },
                            ElementValue::Goto(*direction, number),
                        );
                        let set = PolicySet::Own;
                        elements.insert(ElementKey { set, key }, ElementValue::Member);
                    }
                }
            }
            Part::Members => {
                for (number, group) in self.sets.groups_near(&key.namespace) {
                    if self.cluster.is_in(group, key, pod) {
                        let set = PolicySet::Group(number);
                        let keys = addresses.iter().copied().map(SetKey::Address);
                        elements.extend(
                            keys.map(|key| (ElementKey { set, key }, ElementValue::Member)),
                        );
                    }
                }
                for (name, protocol, port) in &pod.named_ports {
                    let Some(number) = self.sets.named.get(&(*protocol, name.clone())) else {
                        continue;
                    };
                    let set = PolicySet::Named(number);
                    let keys = addresses.iter().map(|address| SetKey::Port(*address, *port));
                    elements
                        .extend(keys.map(|key| (ElementKey { set, key }, ElementValue::Member)));
                }
            }
        }
        elements
    }

    /// Makes sets that nobody had asked for before, with all pods that belong there.
    fn fill(&mut self, fresh: &BTreeSet<PolicySet>) {
        for set in fresh {
            self.written.set(*set, true);
            for (pod, view) in self.sets.candidates(&self.cluster, *set) {
                for address in self.cluster.addresses_of(pod) {
                    for key in self.sets.keys_in(&self.cluster, *set, (pod, view), address) {
                        let key = ElementKey { set: *set, key };
                        let brought = self.members.entry(pod.clone()).or_default();
                        brought.insert(key, ElementValue::Member);
                        self.written.element(key, Some(ElementValue::Member));
                    }
                }
            }
        }
    }

    fn forget_unused(&mut self) {
        for set in self.sets.take_unused() {
            self.written.set(set, false);
            let elements = self.written.elements_of(set);
            for key in elements {
                self.written.element(key, None);
                let (SetKey::Address(address) | SetKey::Port(address, _)) = key.key;
                let owner = self.cluster.owner(address);
                if let Some(brought) = owner.and_then(|owner| self.members.get_mut(owner)) {
                    brought.remove(&key);
                }
            }
        }
    }
}

/// In which sets a pod's elements are.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Placed,
    Members,
}

/// The groups and names that compiled policies speak of.
#[derive(Clone, Debug, Default)]
struct Sets {
    groups: Numbered<GroupName>,
    named: Numbered<PortName>,
    by_number: BTreeMap<u32, PodGroup>,
    /// Those of one namespace by that, those that go by labels of namespaces under "".
    near: BTreeMap<String, BTreeSet<u32>>,
    fresh: BTreeSet<PolicySet>,
}

impl Numbers for Sets {
    fn group(&mut self, group: &PodGroup) -> u32 {
        let (number, is_new) = self.groups.acquire(compile::group_name(group));
        if is_new {
            self.by_number.insert(number, group.clone());
            self.near.entry(near(group)).or_default().insert(number);
            self.fresh.insert(PolicySet::Group(number));
        }
        number
    }

    fn named(&mut self, name: PortName) -> u32 {
        let (number, is_new) = self.named.acquire(name);
        if is_new {
            self.fresh.insert(PolicySet::Named(number));
        }
        number
    }
}

fn near(group: &PodGroup) -> String {
    match &group.namespaces {
        NamespaceScope::Named(name) => name.clone(),
        NamespaceScope::Matching(_) => String::new(),
    }
}

impl Sets {
    fn release(&mut self, policy: &CompiledPolicy) {
        policy.groups.iter().for_each(|name| self.groups.release(name));
        policy.named.iter().for_each(|name| self.named.release(name));
    }

    /// The groups that pods of a namespace may be in.
    fn groups_near(&self, namespace: &str) -> impl Iterator<Item = (u32, &PodGroup)> {
        let numbers = [namespace, ""].into_iter().filter_map(|name| self.near.get(name)).flatten();
        numbers.filter_map(|number| Some((*number, self.by_number.get(number)?)))
    }

    /// The pods that may have elements in a set.
    fn candidates<'a>(
        &'a self,
        cluster: &'a PolicyCluster,
        set: PolicySet,
    ) -> Box<dyn Iterator<Item = (&'a ObjectKey, &'a PolicyPod)> + 'a> {
        let group = match set {
            PolicySet::Group(number) => self.by_number.get(&number),
            _ => None,
        };
        match group.map(|group| &group.namespaces) {
            Some(NamespaceScope::Named(name)) => Box::new(cluster.pods_of(name)),
            _ => Box::new(cluster.pods()),
        }
    }

    /// The keys that an address of a pod has in a set.
    fn keys_in(
        &self,
        cluster: &PolicyCluster,
        set: PolicySet,
        (key, pod): (&ObjectKey, &PolicyPod),
        address: IpAddr,
    ) -> Vec<SetKey> {
        match set {
            PolicySet::Group(number) => {
                let group = self.by_number.get(&number);
                let is_in = group.is_some_and(|group| cluster.is_in(group, key, pod));
                is_in.then_some(SetKey::Address(address)).into_iter().collect()
            }
            PolicySet::Named(number) => {
                let ports = pod.named_ports.iter().filter(|(name, protocol, _)| {
                    self.named.get(&(*protocol, name.clone())) == Some(number)
                });
                ports.map(|(_, _, port)| SetKey::Port(address, *port)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn take_unused(&mut self) -> Vec<PolicySet> {
        let groups = self.groups.take_unused();
        for number in &groups {
            let Some(group) = self.by_number.remove(number) else { continue };
            if let Some(numbers) = self.near.get_mut(&near(&group)) {
                numbers.remove(number);
            }
        }
        let groups = groups.into_iter().map(PolicySet::Group);
        groups.chain(self.named.take_unused().into_iter().map(PolicySet::Named)).collect()
    }
}

/// Names with numbers, and how often each is used.
#[derive(Clone, Debug)]
struct Numbered<K> {
    last: u32,
    used: BTreeMap<K, (u32, usize)>,
    unused: BTreeSet<K>,
}

impl<K> Default for Numbered<K> {
    fn default() -> Self {
        Self { last: 0, used: BTreeMap::new(), unused: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> Numbered<K> {
    fn get(&self, name: &K) -> Option<u32> {
        self.used.get(name).map(|(number, _)| *number)
    }

    /// The number of a name that is used once more, and whether it is new.
    fn acquire(&mut self, name: K) -> (u32, bool) {
        self.unused.remove(&name);
        if let Some((number, uses)) = self.used.get_mut(&name) {
            *uses += 1;
            return (*number, false);
        }
        self.last += 1;
        self.used.insert(name, (self.last, 1));
        (self.last, true)
    }

    fn release(&mut self, name: &K) {
        let Some((_, uses)) = self.used.get_mut(name) else { return };
        *uses = uses.saturating_sub(1);
        if *uses == 0 {
            self.unused.insert(name.clone());
        }
    }

    fn take_unused(&mut self) -> Vec<u32> {
        let names = mem::take(&mut self.unused);
        names.iter().filter_map(|name| self.used.remove(name)).map(|(number, _)| number).collect()
    }
}

/// The program, and what was there before it was touched last.
#[derive(Clone, Debug, Default)]
struct Written {
    program: PolicyProgram,
    old_sets: BTreeMap<PolicySet, bool>,
    old_chains: BTreeMap<PolicyChain, Option<Vec<ChainRule>>>,
    old_elements: BTreeMap<ElementKey, Option<ElementValue>>,
}

impl Written {
    fn set(&mut self, set: PolicySet, present: bool) {
        let before = match present {
            true => !self.program.sets.insert(set),
            false => self.program.sets.remove(&set),
        };
        self.old_sets.entry(set).or_insert(before);
    }

    fn chain(&mut self, name: PolicyChain, rules: Option<Vec<ChainRule>>) {
        let before = match rules {
            Some(rules) => self.program.chains.insert(name.clone(), rules),
            None => self.program.chains.remove(&name),
        };
        self.old_chains.entry(name).or_insert(before);
    }

    fn element(&mut self, key: ElementKey, value: Option<ElementValue>) {
        let before = match value {
            Some(value) => self.program.elements.insert(key, value),
            None => self.program.elements.remove(&key),
        };
        self.old_elements.entry(key).or_insert(before);
    }

    fn elements_of(&self, set: PolicySet) -> Vec<ElementKey> {
        let first = ElementKey { set, key: SetKey::Address(Ipv4Addr::UNSPECIFIED.into()) };
        let from = self.program.elements.range(first..);
        from.map(|(key, _)| *key).take_while(|key| key.set == set).collect()
    }

    /// What is different since the last time.
    fn take(&mut self) -> PolicyTransaction {
        let mut transaction = PolicyTransaction::default();
        let sets = mem::take(&mut self.old_sets);
        for (set, before) in &sets {
            match (before, self.program.sets.contains(set)) {
                (false, true) => transaction.add_sets.push(*set),
                (true, false) => transaction.delete_sets.push(*set),
                _ => {}
            }
        }
        for (key, before) in mem::take(&mut self.old_elements) {
            let now = self.program.elements.get(&key).copied();
            if before == now {
                continue;
            }
            // What is in a set goes with it.
            if before.is_some() && self.program.sets.contains(&key.set) {
                transaction.delete.push(key);
            }
            transaction.add.extend(now.map(|value| (key, value)));
        }
        for (name, before) in mem::take(&mut self.old_chains) {
            match (before, self.program.chains.get(&name)) {
                (None, None) => {}
                (Some(_), None) => transaction.delete_chains.push(name),
                (Some(before), Some(now)) if before == *now => {}
                (before, Some(now)) => {
                    if before.is_none() {
                        transaction.add_chains.push(name.clone());
                    }
                    transaction.write.push((name, now.clone()));
                }
            }
        }
        transaction
    }
}
