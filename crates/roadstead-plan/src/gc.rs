//! Who is left without an owner.
//!
//! A graph of all objects by uid. Deleting an owner makes its dependents suspects; a suspect goes
//! when none of its owners is known. The caller asks the API server once more before it deletes:
//! the graph may have heard of a dependent before it hears of its owner.

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
    /// Delete it, if none of these owners exists.
    DeleteUnless(Vec<OwnerReference>),
    /// The owner waits for its dependents.
    Clear {
        /// These are deleted.
        delete: Vec<String>,
        /// These have another owner: the reference to this one is taken off.
        release: Vec<String>,
    },
    /// Take the owner's reference off these dependents; the owner waits for that.
    Release(Vec<String>),
    /// Nothing holds the owner any more: remove this finalizer.
    LetGo(&'static str),
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
        let owners = metadata.owner_references.clone().unwrap_or_default();
        let known = |owner: &OwnerReference| self.objects.contains_key(&owner.uid);
        if owners.is_empty() || owners.iter().any(known) {
            return Verdict::Keep;
        }
        Verdict::DeleteUnless(owners)
    }

    /// What an object that is being deleted still waits for.
    fn farewell(&self, uid: &str, metadata: &ObjectMeta) -> Verdict {
        let has = |name: &str| metadata.finalizers.iter().flatten().any(|f| f == name);
        let dependents = self.dependents.get(uid).into_iter().flatten();
        if has(ORPHAN) {
            let dependents: Vec<_> = dependents.cloned().collect();
            if dependents.is_empty() {
                Verdict::LetGo(ORPHAN)
            } else {
                Verdict::Release(dependents)
            }
        } else if has(FOREGROUND) {
            let waited_for = dependents.filter(|dependent| self.blocks(dependent, uid));
            let waited_for: Vec<_> = waited_for.cloned().collect();
            if waited_for.is_empty() {
                return Verdict::LetGo(FOREGROUND);
            }
            let staying = waited_for.into_iter().filter(|dependent| !self.is_leaving(dependent));
            let (release, delete) = staying.partition(|dependent| self.has_home(dependent));
            Verdict::Clear { delete, release }
        } else {
            Verdict::Keep
        }
    }

    fn owners(&self, uid: &str) -> impl Iterator<Item = &OwnerReference> {
        let object = self.objects.get(uid).into_iter();
        object.flat_map(|object| object.metadata.owner_references.iter().flatten())
    }

    /// Whether an owner that wants to go last waits for this dependent: for many it need not.
    fn blocks(&self, dependent: &str, owner: &str) -> bool {
        let mut owners = self.owners(dependent).filter(|reference| reference.uid == owner);
        owners.any(|reference| reference.block_owner_deletion == Some(true))
    }

    fn is_leaving(&self, uid: &str) -> bool {
        let object = self.objects.get(uid);
        object.is_none_or(|object| object.metadata.deletion_timestamp.is_some())
    }

    /// Whether one of the owners stays.
    fn has_home(&self, uid: &str) -> bool {
        self.owners(uid)
            .any(|owner| self.objects.contains_key(&owner.uid) && !self.is_leaving(&owner.uid))
    }

    /// The uids of all objects that the caller finds in this way.
    pub fn found_by(&self, wanted: impl Fn(&H) -> bool) -> Vec<String> {
        let found = self.objects.iter().filter(|(_, object)| wanted(&object.handle));
        found.map(|(uid, _)| uid.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `set owner=deploy!,other leaving finalizer=orphan`: deploy waits for set, other does not.
    fn metadata(text: &str) -> ObjectMeta {
        let mut words = text.split_whitespace();
        let uid = words.next().unwrap();
        let mut value = json!({"uid": uid, "name": uid});
        for word in words {
            match word.split_once('=') {
                Some(("owner", owners)) => {
                    let owners = owners.split(',').map(|owner| {
                        let name = owner.trim_end_matches('!');
                        json!({"apiVersion": "v1", "kind": "K", "name": name, "uid": name,
                            "blockOwnerDeletion": owner.ends_with('!')})
                    });
                    value["ownerReferences"] = owners.collect();
                }
                Some(("finalizer", name)) => value["finalizers"] = json!([name]),
                _ => value["deletionTimestamp"] = json!("2020-01-01T00:00:00Z"),
            }
        }
        serde_json::from_value(value).unwrap()
    }

    fn graph(objects: &[&str]) -> Graph<()> {
        let mut graph = Graph::default();
        objects.iter().for_each(|text| {
            graph.observe((), metadata(text));
        });
        graph
    }

    #[test]
    fn verdicts() {
        let uids = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let clear = |delete: &[&str], release: &[&str]| Verdict::Clear {
            delete: uids(delete),
            release: uids(release),
        };
        let cases: [(&[&str], &str, Verdict); 11] = [
            (&["a"], "a", Verdict::Keep),
            (&["a owner=b", "b"], "a", Verdict::Keep),
            (
                &["a owner=b"],
                "a",
                Verdict::DeleteUnless(metadata("a owner=b").owner_references.unwrap()),
            ),
            (&["a owner=b leaving", "b"], "a", Verdict::Keep),
            (
                &["a owner=b!", "c owner=b! leaving", "b leaving finalizer=foregroundDeletion"],
                "b",
                clear(&["a"], &[]),
            ),
            (
                &["c owner=b! leaving", "b leaving finalizer=foregroundDeletion"],
                "b",
                clear(&[], &[]),
            ),
            (
                &["a owner=b!,d", "b leaving finalizer=foregroundDeletion", "d"],
                "b",
                clear(&[], &["a"]),
            ),
            (
                &["a owner=b!,d", "b leaving finalizer=foregroundDeletion", "d leaving"],
                "b",
                clear(&["a"], &[]),
            ),
            (
                &["a owner=b", "b leaving finalizer=foregroundDeletion"],
                "b",
                Verdict::LetGo(FOREGROUND),
            ),
            (&["b leaving finalizer=foregroundDeletion"], "b", Verdict::LetGo(FOREGROUND)),
            (&["a owner=b", "b leaving finalizer=orphan"], "b", Verdict::Release(uids(&["a"]))),
        ];
        for (objects, uid, want) in cases {
            assert_eq!(graph(objects).verdict(uid), want, "{objects:?}");
        }
    }

    #[test]
    fn losing_an_owner_makes_suspects() {
        let mut graph = graph(&["deploy", "set owner=deploy", "pod owner=set"]);
        assert_eq!(graph.observe((), metadata("set owner=deploy")), ["deploy", "set"]);
        assert_eq!(graph.observe((), metadata("pod")), ["set"], "it was its owner");
        graph.observe((), metadata("pod owner=set"));
        assert_eq!(graph.forget("deploy"), ["set"]);
        assert_eq!(graph.forget("set"), ["pod", "deploy"]);
        assert!(matches!(graph.verdict("pod"), Verdict::DeleteUnless(_)));
    }
}
