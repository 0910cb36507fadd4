//! A kind's objects, as one component sees them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use roadstead_api::key::ObjectKey;
use serde::de::DeserializeOwned;

use crate::informer::{Change, key_of, revision_of};
use crate::write::{Verb, Write};

/// So many objects may go between a write that makes one of them and the answer to it.
const LATEST: usize = 1000;

/// The newest known state of every object of a kind.
///
/// The owner records its own writes, so that it never plans again on a state it has already
/// changed: the watch event that follows is older or equal and changes nothing.
#[derive(Debug)]
pub struct Cache<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    /// Objects that we deleted and whose deletion the watch has not shown us yet.
    deleted: BTreeMap<ObjectKey, Vec<Deleted>>,
    /// What the watch has shown us to be gone, and as of which revision; the last ones only.
    gone: VecDeque<(ObjectKey, u64)>,
    synced: bool,
}

/// One of the objects that had a name, and the last revision in which we knew it.
#[derive(Debug)]
struct Deleted {
    uid: String,
    revision: u64,
}

impl<K> Default for Cache<K> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            deleted: BTreeMap::new(),
            gone: VecDeque::new(),
            synced: false,
        }
    }
}

impl<K: Resource> Cache<K> {
    /// Takes in a change; returns the key and the state before it if anything is different now.
    pub fn observe(&mut self, change: &Change<Arc<K>>) -> Option<(ObjectKey, Option<Arc<K>>)> {
        match change {
            Change::Set(object) => self.set(object.clone()),
            Change::Gone(key, revision) => self.remove(key, *revision),
            Change::Synced => {
                self.synced = true;
                None
            }
        }
    }

    /// Removes what there was of that name up to a revision. A successor stays that we made
    /// ourselves and the watch has not shown us yet.
    fn remove(&mut self, key: &ObjectKey, revision: u64) -> Option<(ObjectKey, Option<Arc<K>>)> {
        if let Some(deleted) = self.deleted.get_mut(key) {
            deleted.retain(|deleted| deleted.revision > revision);
            if deleted.is_empty() {
                self.deleted.remove(key);
            }
        }
        self.gone.truncate(LATEST - 1);
        self.gone.push_front((key.clone(), revision));
        let known = self.objects.get(key)?;
        if revision_of(known.as_ref()) > revision {
            return None;
        }
        let before = self.objects.remove(key);
        Some((key.clone(), before))
    }

    /// Takes in the answer to the owner's own create, update or patch.
    pub fn record(&mut self, object: K) {
        self.set(Arc::new(object));
    }

    /// Notes that the owner deleted this object.
    pub fn forget(&mut self, object: &K) {
        let key = key_of(object);
        if let Some(before) = self.objects.remove(&key) {
            self.note_deleted(&key, &before);
        }
    }

    fn note_deleted(&mut self, key: &ObjectKey, object: &K) {
        let Some(uid) = object.uid() else { return };
        let revision = revision_of(object);
        self.deleted.entry(key.clone()).or_default().push(Deleted { uid, revision });
    }

    /// Takes in the server's answer to one of the owner's own writes; says what it changed.
    ///
    /// The watch may be faster than the answer, and have shown us already that somebody has deleted
    /// the object. Nothing would ever take it out again, so it must not come in.
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
                if self.has_gone(write, &object) {
                    return None;
                }
                self.set(Arc::new(object))
            }
            _ if write.verb == Verb::Delete => {
                let known = self.objects.get(&write.key)?;
                if write.uid.is_some() && known.uid() != write.uid {
                    return None;
                }
                let before = self.objects.remove(&write.key)?;
                self.note_deleted(&write.key, &before);
                Some((write.key.clone(), Some(before)))
            }
            _ => None,
        }
    }

    /// Whether the object of an answer has been deleted since it was written.
    fn has_gone(&self, write: &Write, object: &K) -> bool {
        let key = key_of(object);
        if self.objects.get(&key).is_some_and(|known| known.uid() == object.uid()) {
            return false;
        }
        // Only a new object can be one that we have not heard of.
        let mut gone = self.gone.iter().filter(|(gone, _)| *gone == key);
        write.verb != Verb::Create || gone.any(|(_, since)| *since >= revision_of(object))
    }

    fn set(&mut self, object: Arc<K>) -> Option<(ObjectKey, Option<Arc<K>>)> {
        let key = key_of(object.as_ref());
        let uid = object.meta().uid.as_deref();
        let mut deleted = self.deleted.get(&key).into_iter().flatten();
        if deleted.any(|deleted| Some(&*deleted.uid) == uid) {
            return None;
        }
        if let Some(known) = self.objects.get_mut(&key)
            && known.uid() == object.uid()
            && revision_of(known.as_ref()) >= revision_of(object.as_ref())
        {
            // The informer holds this one too; the answer to our own write would be a second copy.
            if revision_of(known.as_ref()) == revision_of(object.as_ref()) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write::Collection;
    use k8s_openapi::api::core::v1::ConfigMap;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

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
        assert!(cache.observe(&Change::Gone(ObjectKey::new("", "a"), 7)).is_none());
        assert!(cache.get(&ObjectKey::new("", "a")).is_some(), "the successor stays");
    }
    #[test]
    fn an_answer_that_comes_after_the_deletion_changes_nothing() {
        let key = || ObjectKey::new("", "a");
        let answer = |version| serde_json::to_string(&map("a", "u", version)).unwrap();
        let changed = Write::replace(key(), &map("a", "u", 5));
        let created = Write::create("", &map("a", "", 0));
        let deleted = Write::delete(Collection::of::<ConfigMap>(), key(), Some("u"));
        let mut leaving = map("a", "u", 6);
        leaving.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let leaving = serde_json::to_string(&leaving).unwrap();
        let other = serde_json::to_string(&map("a", "v", 8)).unwrap();
        // What we wrote and what the answer is, the watch having shown that `u` is gone.
        let cases = [
            ("a change", &changed, answer(6), false),
            ("a deletion that had to wait", &deleted, leaving, false),
            ("a new object", &created, answer(6), false),
            ("another new object, of which the watch has not told us", &created, other, true),
        ];
        for (name, write, answer, want) in cases {
            let mut cache = Cache::<ConfigMap>::default();
            cache.observe(&Change::Set(Arc::new(map("a", "u", 5))));
            cache.observe(&Change::Gone(ObjectKey::new("", "a"), 7));
            assert_eq!(cache.take_in(write, &answer).is_some(), want, "{name}");
            assert_eq!(cache.get(&key()).is_some(), want, "{name}");
        }
    }

    #[test]
    fn what_the_server_does_not_find_is_forgotten() {
        let mut cache = Cache::default();
        cache.observe(&Change::Set(Arc::new(map("a", "u", 5))));
        let write = Write::replace(ObjectKey::new("", "a"), &map("a", "u", 5));
        let gone = write.in_vain().unwrap();
        assert!(cache.take_in(&gone, "").is_some());
        cache.observe(&Change::Set(Arc::new(map("a", "v", 8))));
        assert!(cache.take_in(&gone, "").is_none(), "the successor stays");
        assert!(cache.get(&ObjectKey::new("", "a")).is_some());
    }
}
