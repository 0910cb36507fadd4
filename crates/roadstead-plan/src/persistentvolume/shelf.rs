//! All volumes, found by what is asked about them: a claim costs the volumes that could be its own, however
//! many others there are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::{capacity, claim_of, is_for, is_free, suits};
use crate::persistentvolume::asked;

/// The volumes, on a shelf.
#[derive(Debug, Default)]
pub struct Shelf {
    all: BTreeMap<String, Arc<PersistentVolume>>,
    /// By the namespace and name of the claim that they name.
    named: BTreeMap<(String, String), BTreeSet<String>>,
    /// Those that nobody has, by their class: the smallest first.
    free: BTreeMap<String, BTreeSet<(u64, String)>>,
}

impl Shelf {
    /// Takes in what a volume is now; nothing, once it is gone.
    pub fn observe(&mut self, name: &str, now: Option<Arc<PersistentVolume>>) {
        if let Some(before) = self.all.remove(name) {
            self.note(name, &before, false);
        }
        if let Some(now) = now {
            self.note(name, &now, true);
            self.all.insert(name.to_owned(), now);
        }
    }

    fn note(&mut self, name: &str, volume: &PersistentVolume, is_there: bool) {
        if let Some(claim) = claim_of(volume) {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            let key = (text(&claim.namespace), text(&claim.name));
            change(&mut self.named, key, name.to_owned(), is_there);
        } else if is_free(volume) {
            let place = (bytes(capacity(volume)), name.to_owned());
            change(&mut self.free, class_of(volume).to_owned(), place, is_there);
        }
    }

    /// The volume of that name.
    pub fn get(&self, name: &str) -> Option<&PersistentVolume> {
        self.all.get(name).map(Arc::as_ref)
    }

    /// The volume that names this claim, whether made for it or set aside by hand.
    pub(crate) fn reserved(&self, claim: &PersistentVolumeClaim) -> Option<&PersistentVolume> {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let key = (text(&claim.metadata.namespace), text(&claim.metadata.name));
        let named = self.named.get(&key).into_iter().flatten().filter_map(|name| self.get(name));
        named.into_iter().find(|volume| is_for(volume, claim))
    }

    /// The volumes that a claim could have, the smallest first.
    pub(crate) fn suitable<'a>(
        &'a self,
        claim: &'a PersistentVolumeClaim,
    ) -> impl Iterator<Item = &'a PersistentVolume> {
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        let least = (bytes(asked(claim)), String::new());
        let large = self.free.get(class.unwrap_or("")).map(|free| free.range(least..));
        let volumes = large.into_iter().flatten().filter_map(|(_, name)| self.get(name));
        volumes.filter(|volume| suits(claim, volume))
    }
}

fn change<K: Ord, V: Ord>(index: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: V, is_there: bool) {
    if is_there {
        index.entry(key).or_default().insert(value);
    } else if let Some(values) = index.get_mut(&key) {
        values.remove(&value);
        if values.is_empty() {
            index.remove(&key);
        }
    }
}

fn class_of(volume: &PersistentVolume) -> &str {
    let class = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    class.unwrap_or("")
}

/// Whole bytes, rounded down: only an order.
fn bytes(amount: f64) -> u64 {
    amount.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::persistentvolume::{ClaimStep, LOOKS, SELECTED_NODE, Storage, local_class, plan};
    use proptest::prelude::*;
    use serde_json::json;

    fn claim(number: usize, gigabytes: u32) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": format!("c{number}"),
                "namespace": "ns", "uid": format!("u{number}"),
                "annotations": {SELECTED_NODE: "n1"}},
            "spec": {"storageClassName": "local-path", "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": format!("{gigabytes}Gi")}}}}))
        .unwrap()
    }

    fn volume(name: &str, gigabytes: u32, owner: Option<usize>) -> PersistentVolume {
        let owner = owner.map(|number| {
            json!({"namespace": "ns", "name": format!("c{number}"), "uid": format!("u{number}")})
        });
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"claimRef": owner,
            "storageClassName": "local-path", "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": format!("{gigabytes}Gi")}}}))
        .unwrap()
    }

    /// Every claim has its volume made and bound: a thousand times as many are no more work for each.
    #[test]
    fn a_claim_costs_only_its_own_volumes() {
        let class = local_class();
        let mut shelf = Shelf::default();
        LOOKS.set(0);
        for number in 0..1000 {
            let own = claim(number, 1);
            for _ in 0..2 {
                let made = {
                    let classes = vec![&class];
                    let storage = Storage { volumes: &shelf, classes, directory: Some("/s") };
                    match plan(&own, &storage) {
                        ClaimStep::Make(volume) => Some(*volume),
                        ClaimStep::Bind(volume) => {
                            let name = format!("pvc-u{number}");
                            assert_eq!(volume.metadata.name, Some(name));
                            None
                        }
                        other => panic!("{other:?}"),
                    }
                };
                if let Some(volume) = made {
                    let name = volume.metadata.name.clone().unwrap();
                    shelf.observe(&name, Some(volume.into()));
                }
            }
        }
        assert!(LOOKS.get() <= 2000, "{} volumes were looked at for 1000 claims", LOOKS.get());
    }

    proptest! {
        /// Whatever comes and goes, the shelf finds what looking at all finds.
        #[test]
        fn it_finds_what_looking_at_all_finds(
            steps in prop::collection::vec((0..8usize, 0..4u32, prop::option::of(0..3usize)), 1..40),
            wanted in 0..4u32,
        ) {
            let mut shelf = Shelf::default();
            let mut all: BTreeMap<String, PersistentVolume> = BTreeMap::new();
            for (name, size, owner) in steps {
                let name = format!("v{name}");
                // One of size 0 is one that goes.
                let now = (size > 0).then(|| volume(&name, size, owner));
                shelf.observe(&name, now.clone().map(Arc::new));
                match now {
                    Some(now) => drop(all.insert(name, now)),
                    None => drop(all.remove(&name)),
                }
                let own = claim(1, wanted);
                let found = shelf.reserved(&own).map(|volume| volume.metadata.name.clone());
                let want = all.values().find(|volume| is_for(volume, &own));
                prop_assert_eq!(found, want.map(|volume| volume.metadata.name.clone()));
                let names: Vec<_> = shelf.suitable(&own).map(|own| own.metadata.name.clone()).collect();
                let mut want: Vec<_> =
                    all.values().filter(|own_| is_free(own_) && suits(&own, own_)).collect();
                want.sort_by(|a, b| capacity(a).total_cmp(&capacity(b)));
                let want: Vec<_> = want.iter().map(|own| own.metadata.name.clone()).collect();
                prop_assert_eq!(names, want);
            }
        }
    }
}
