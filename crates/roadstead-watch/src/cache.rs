//! A kind's objects, as one component sees them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use roadstead_api::key::ObjectKey;
use serde::de::DeserializeOwned;

use crate::informer::{Change, key_of};
use crate::write::{Verb, Write};

/// The newest known state of every object of a kind.
///
/// The owner records its own writes, so that it never plans again on a state it has already
/// changed: the watch event that follows is older or equal and changes nothing.
#[derive(Debug)]
pub struct Cache<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    /// Uids of objects that we deleted and whose deletion the watch has not shown us yet.
    deleted: HashSet<String>,
    synced: bool,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), deleted: HashSet::new(), synced: false }
    }
}

impl<K: Resource> Cache<K> {
    /// Takes in a change; returns the key and the state before it if anything is different now.
    pub fn observe(&mut self, change: &Change<K>) -> Option<(ObjectKey, Option<Arc<K>>)> {
        match change {
            Change::Set(object) => self.set(object.clone()),
            Change::Gone(object) => {
                let key = key_of(object.as_ref());
                self.deleted.remove(&object.uid().unwrap_or_default());
                let known = self.objects.get(&key)?;
                if known.uid() != object.uid() {
                    return None;
                }
                let before = self.objects.remove(&key);
                Some((key, before))
            }
            Change::Synced => {
                self.synced = true;
                None
            }
        }
    }

    /// Takes in the answer to the owner's own create, update or patch.
    pub fn record(&mut self, object: K) {
        self.set(Arc::new(object));
    }

    /// Notes that the owner deleted this object.
    pub fn forget(&mut self, object: &K) {
        if self.objects.remove(&key_of(object)).is_some() {
            self.deleted.extend(object.uid());
        }
    }

    /// Takes in the server's answer to one of the owner's own writes; says what it changed.
    pub fn take_in(&mut self, write: &Write, answer: &str) -> Option<(ObjectKey, Option<Arc<K>>)>
    where
        K: DeserializeOwned,
    {
        let mut object = serde_json::from_str::<K>(answer).ok().filter(|o| o.meta().uid.is_some());
        if let Some(object) = &mut object {
            object.meta_mut().managed_fields = None;
        }
        let stays = |object: &K| object.meta().deletion_timestamp.is_some();
        match object {
            Some(object) if write.verb != Verb::Delete || stays(&object) => {
                self.set(Arc::new(object))
            }
            _ if write.verb == Verb::Delete => {
                let known = self.objects.get(&write.key)?;
                if write.uid.is_some() && known.uid() != write.uid {
                    return None;
                }
                let before = self.objects.remove(&write.key)?;
                self.deleted.extend(before.uid());
                Some((write.key.clone(), Some(before)))
            }
            _ => None,
        }
    }

    fn set(&mut self, object: Arc<K>) -> Option<(ObjectKey, Option<Arc<K>>)> {
        if object.uid().is_some_and(|uid| self.deleted.contains(&uid)) {
            return None;
        }
        let key = key_of(object.as_ref());
        if let Some(known) = self.objects.get_mut(&key)
            && known.uid() == object.uid()
            && version(known.as_ref()) >= version(object.as_ref())
        {
            // The informer holds this one too; the answer to our own write would be a second copy.
            if version(known.as_ref()) == version(object.as_ref()) {
                *known = object;
            }
            return None;
        }
        let before = self.objects.insert(key.clone(), object);
        Some((key, before))
    }

    /// Whether the first list has been taken in completely.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// The object of that key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// All objects, in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<K>)> {
        self.objects.iter()
    }

    /// All objects of a namespace, in the order of their names.
    pub fn in_namespace<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Arc<K>> {
        let first = ObjectKey::new(namespace, "");
        self.objects
            .range(first..)
            .take_while(move |(key, _)| key.namespace == namespace)
            .map(|(_, object)| object)
    }
}

/// Revisions grow, and clients may compare them (KEP-5504).
fn version<K: Resource>(object: &K) -> u64 {
    object.resource_version().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn map(name: &str, uid: &str, version: u64) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        map.metadata.uid = Some(uid.into());
        map.metadata.resource_version = Some(version.to_string());
        map
    }

    #[test]
    fn own_writes_win_over_older_events() {
        let mut cache = Cache::default();
        assert!(cache.observe(&Change::Set(Arc::new(map("a", "u", 5)))).is_some());
        cache.record(map("a", "u", 7));
        assert!(cache.observe(&Change::Set(Arc::new(map("a", "u", 6)))).is_none(), "older");
        assert!(cache.observe(&Change::Set(Arc::new(map("a", "u", 7)))).is_none(), "our own");
        assert!(cache.observe(&Change::Set(Arc::new(map("a", "u", 8)))).is_some(), "newer");
    }

    #[test]
    fn a_deleted_object_does_not_come_back() {
        let mut cache = Cache::default();
        cache.observe(&Change::Set(Arc::new(map("a", "u", 5))));
        cache.forget(&map("a", "u", 5));
        assert!(cache.observe(&Change::Set(Arc::new(map("a", "u", 6)))).is_none(), "late event");
        assert!(cache.observe(&Change::Set(Arc::new(map("a", "v", 8)))).is_some(), "successor");
        assert!(cache.observe(&Change::Gone(Arc::new(map("a", "u", 7)))).is_none());
        assert!(cache.get(&ObjectKey::new("", "a")).is_some(), "the successor stays");
    }
}
