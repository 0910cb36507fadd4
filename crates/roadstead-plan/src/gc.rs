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
    /// Delete these dependents first; the owner waits for them.
    DeleteFirst(Vec<String>),
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
        self.unlink(&uid);
        for owner in metadata.owner_references.iter().flatten() {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        let owned = metadata.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
        let leaving = metadata.deletion_timestamp.is_some();
        // An owner that waits for its dependents is interested in each of their changes.
        let owners = metadata.owner_references.iter().flatten().map(|owner| owner.uid.clone());
        let mut suspects: Vec<_> = owners.collect();
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
            let all: Vec<_> = dependents.cloned().collect();
            if all.is_empty() {
                return Verdict::LetGo(FOREGROUND);
            }
            let staying = |uid: &String| {
                let object = self.objects.get(uid);
                object.is_some_and(|object| object.metadata.deletion_timestamp.is_none())
            };
            Verdict::DeleteFirst(all.into_iter().filter(staying).collect())
        } else {
            Verdict::Keep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `pod<set<deploy` in reverse: `set owner=deploy leaving finalizer=orphan`.
    fn metadata(text: &str) -> ObjectMeta {
        let mut words = text.split_whitespace();
        let uid = words.next().unwrap();
        let mut value = json!({"uid": uid, "name": uid});
        for word in words {
            match word.split_once('=') {
                Some(("owner", owner)) => {
                    value["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "K",
                        "name": owner, "uid": owner}]);
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
        let cases: [(&[&str], &str, Verdict); 7] = [
            (&["a"], "a", Verdict::Keep),
            (&["a owner=b", "b"], "a", Verdict::Keep),
            (
                &["a owner=b"],
                "a",
                Verdict::DeleteUnless(metadata("a owner=b").owner_references.unwrap()),
            ),
            (&["a owner=b leaving", "b"], "a", Verdict::Keep),
            (
                &["a owner=b", "c owner=b leaving", "b leaving finalizer=foregroundDeletion"],
                "b",
                Verdict::DeleteFirst(uids(&["a"])),
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
        assert_eq!(graph.forget("deploy"), ["set"]);
        assert_eq!(graph.forget("set"), ["pod", "deploy"]);
        assert!(matches!(graph.verdict("pod"), Verdict::DeleteUnless(_)));
    }
}
