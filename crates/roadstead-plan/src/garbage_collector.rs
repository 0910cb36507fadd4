//! Who is left without an owner.
//!
//! A graph of all objects by uid, and what to do about each of them. The rules are upstream's
//! (garbagecollector.go): an object with at least one owner that stays is kept, one whose owners are
//! gone or wait for it goes, and an owner that is deleted in the foreground goes after those that
//! hold it. The caller asks the API server once more before it deletes anything: the graph may have
//! heard of a dependent before it hears of its owner.
//!
//! Owners that wait for each other in a circle all go, as soon as nothing outside of the circle
//! holds any of them. (Upstream makes one reference of the circle hold its owner no more, and only
//! if it sees the circle closing: it waits for ever when all of its members are deleted at once.)

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// The finalizer of an owner that wants to see its dependents go first.
pub const FOREGROUND: &str = "foregroundDeletion";
/// The finalizer of an owner that wants its dependents to stay.
pub const ORPHAN: &str = "orphan";

/// What to do about an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing.
    Keep,
    /// Delete it.
    Delete {
        /// But not if one of these owners exists: we have not heard of them.
        unless: Vec<OwnerReference>,
        /// What becomes of its own dependents.
        policy: Policy,
    },
    /// It has an owner that stays: others are taken off it.
    RemoveOwners {
        /// The uids of those who wait for it to go.
        waiting: Vec<String>,
        /// Those that we have not heard of; only if they do not exist.
        unknown: Vec<OwnerReference>,
    },
    /// Take the owner's reference off these dependents; the owner waits for that.
    Orphan(Vec<String>),
    /// Nothing holds the owner any more: remove this finalizer.
    RemoveFinalizer(&'static str),
}

/// What becomes of the dependents of an object that is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They go after it.
    Background,
    /// They go before it.
    Foreground,
    /// They stay.
    Orphan,
}

#[derive(Debug)]
struct Object<H> {
    handle: H,
    metadata: ObjectMeta,
}

/// All objects by uid. `H` is how the caller finds the object again.
#[derive(Debug)]
pub struct Graph<H> {
    objects: BTreeMap<String, Object<H>>,
    dependents: BTreeMap<String, BTreeSet<String>>,
}

impl<H> Default for Graph<H> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), dependents: BTreeMap::new() }
    }
}

impl<H> Graph<H> {
    /// Takes in the newest state of an object; returns the uids that need a verdict.
    pub fn observe(&mut self, handle: H, metadata: ObjectMeta) -> Vec<String> {
        let uid = metadata.uid.clone().unwrap_or_default();
        let begins_to_wait = waits(&metadata) && !self.waits(&uid);
        // An owner that waits for its dependents is interested in each of their changes, and most of
        // all in the one that makes it their owner no more.
        let mut suspects = self.unlink(&uid);
        for owner in metadata.owner_references.iter().flatten() {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        let owned = metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
        let leaving = metadata.deletion_timestamp.is_some();
        for owner in metadata.owner_references.iter().flatten() {
            if !suspects.contains(&owner.uid) {
                suspects.push(owner.uid.clone());
            }
        }
        self.objects.insert(uid.clone(), Object { handle, metadata });
        if begins_to_wait {
            suspects.extend(self.dependents.get(&uid).into_iter().flatten().cloned());
        }
        if owned || leaving {
            suspects.push(uid);
        }
        suspects
    }

    /// Takes in that an object is gone; returns the uids that need a verdict.
    pub fn forget(&mut self, uid: &str) -> Vec<String> {
        let owners = self.unlink(uid);
        self.objects.remove(uid);
        let dependents = self.dependents.get(uid).into_iter().flatten().cloned();
        dependents.chain(owners).collect()
    }

    fn unlink(&mut self, uid: &str) -> Vec<String> {
        let Some(object) = self.objects.get(uid) else { return Vec::new() };
        let owners = object.metadata.owner_references.iter().flatten();
        let owners: Vec<_> = owners.map(|owner| owner.uid.clone()).collect();
        for owner in &owners {
            if let Some(dependents) = self.dependents.get_mut(owner) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
        owners
    }

    /// How to find an object again, and its metadata.
    pub fn get(&self, uid: &str) -> Option<(&H, &ObjectMeta)> {
        self.objects.get(uid).map(|object| (&object.handle, &object.metadata))
    }

    /// What to do about an object now.
    pub fn verdict(&self, uid: &str) -> Verdict {
        let Some(object) = self.objects.get(uid) else { return Verdict::Keep };
        let metadata = &object.metadata;
        if metadata.deletion_timestamp.is_some() {
            return self.farewell(uid, metadata);
        }
        let Some(owners) = metadata.owner_references.as_deref().filter(|own| !own.is_empty())
        else {
            return Verdict::Keep;
        };
        let (known, unknown): (Vec<_>, Vec<_>) =
            owners.iter().cloned().partition(|owner| self.is_meant(owner, metadata));
        let (waiting, staying): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|owner| self.waits(&owner.uid));
        if staying.is_empty() {
            let policy = self.policy(uid, metadata, !waiting.is_empty());
            return Verdict::Delete { unless: unknown, policy };
        }
        if waiting.is_empty() && unknown.is_empty() {
            return Verdict::Keep;
        }
        let waiting = waiting.into_iter().map(|owner| owner.uid).collect();
        Verdict::RemoveOwners { waiting, unknown }
    }

    /// How an object goes that has no owner any more.
    fn policy(&self, uid: &str, metadata: &ObjectMeta, is_awaited: bool) -> Policy {
        if is_awaited && self.dependents_of(uid).next().is_some() {
            // Who waits for it means to wait for all of it.
            Policy::Foreground
        } else if has(metadata, ORPHAN) {
            Policy::Orphan
        } else if has(metadata, FOREGROUND) {
            Policy::Foreground
        } else {
            Policy::Background
        }
    }

    /// What an object that is being deleted still waits for.
    fn farewell(&self, uid: &str, metadata: &ObjectMeta) -> Verdict {
        if has(metadata, ORPHAN) {
            let dependents: Vec<_> = self.dependents_of(uid).cloned().collect();
            if dependents.is_empty() {
                Verdict::RemoveFinalizer(ORPHAN)
            } else {
                Verdict::Orphan(dependents)
            }
        } else if has(metadata, FOREGROUND) && self.is_free(uid) {
            Verdict::RemoveFinalizer(FOREGROUND)
        } else {
            Verdict::Keep
        }
    }

    /// Whether nothing holds an owner that wants to go last, except others that are held by it.
    ///
    /// "X waits for Y" makes a graph of its own. All that X waits for, directly or through others,
    /// must wait for X: they are a circle then, of which nobody else is a part.
    fn is_free(&self, uid: &str) -> bool {
        let mut reached = BTreeSet::from([uid]);
        let mut open = vec![uid];
        let mut waiters: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        while let Some(waiter) = open.pop() {
            for dependent in self.dependents_of(waiter).filter(|own| self.blocks(own, waiter)) {
                if !self.waits(dependent) {
                    return false;
                }
                waiters.entry(dependent).or_default().push(waiter);
                if reached.insert(dependent) {
                    open.push(dependent);
                }
            }
        }
        let mut returning = BTreeSet::from([uid]);
        let mut open = vec![uid];
        while let Some(waited_for) = open.pop() {
            for waiter in waiters.get(waited_for).into_iter().flatten() {
                if returning.insert(*waiter) {
                    open.push(waiter);
                }
            }
        }
        returning.len() == reached.len()
    }

    /// Those who say that this is their owner, and are right.
    fn dependents_of<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a String> {
        self.dependents.get(uid).into_iter().flatten().filter(move |dependent| {
            let object = self.objects.get(*dependent);
            object.is_some_and(|object| {
                let mut owners = object.metadata.owner_references.iter().flatten();
                owners.any(|owner| owner.uid == uid && self.is_meant(owner, &object.metadata))
            })
        })
    }

    /// Whether a reference means the object with that uid that we know. One with another name does
    /// not, nor one in another namespace: nobody may hold what is not theirs to see.
    fn is_meant(&self, owner: &OwnerReference, dependent: &ObjectMeta) -> bool {
        self.objects.get(&owner.uid).is_some_and(|known| {
            let known = &known.metadata;
            known.name.as_deref() == Some(&*owner.name)
                && (known.namespace.is_none() || known.namespace == dependent.namespace)
        })
    }

    /// Whether an owner that wants to go last waits for this dependent: for many it need not.
    fn blocks(&self, dependent: &str, owner: &str) -> bool {
        let object = self.objects.get(dependent).into_iter();
        let mut owners = object.flat_map(|own| own.metadata.owner_references.iter().flatten());
        owners.any(|own| own.uid == owner && own.block_owner_deletion == Some(true))
    }

    /// Whether an object is being deleted, after all that it owns.
    fn waits(&self, uid: &str) -> bool {
        self.objects.get(uid).is_some_and(|object| waits(&object.metadata))
    }

    /// The uids of all objects with an owner that we have not heard of.
    pub fn with_unknown_owners(&self) -> Vec<String> {
        let unknown =
            self.dependents.iter().filter(|(owner, _)| !self.objects.contains_key(*owner));
        unknown.flat_map(|(_, dependents)| dependents.iter().cloned()).collect()
    }
}

fn waits(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some() && has(metadata, FOREGROUND)
}

fn has(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|own| own == finalizer)
}

#[cfg(test)]
mod tests;
