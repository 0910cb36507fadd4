//! Who selects whom, at a cost that follows the answer and not the cluster.
//!
//! Both indexes are by namespace and label pair. A selector is kept under the one of its pairs
//! that fewest others are kept under, so a pair that all Services share costs nothing. Objects are
//! kept under all their pairs, and a selection walks the shortest list.

use std::collections::{BTreeMap, BTreeSet};

use roadstead_api::key::ObjectKey;
use roadstead_api::selector::{Labels, selects};

type Pairs<V> = BTreeMap<String, BTreeMap<String, V>>;

fn pair((key, value): (&String, &String)) -> String {
    format!("{key}={value}")
}

/// Selectors by what they ask for.
#[derive(Debug, Default)]
pub struct Selectors {
    namespaces: BTreeMap<String, Pairs<Labels>>,
    /// Under which pair a selector is kept.
    places: BTreeMap<ObjectKey, String>,
}

impl Selectors {
    /// Takes in a selector in place of the one that had this key; an empty one selects nothing.
    pub fn set(&mut self, key: &ObjectKey, selector: Option<&Labels>) {
        if let Some(place) = self.places.remove(key) {
            remove(&mut self.namespaces, key, &place);
        }
        let Some(selector) = selector.filter(|selector| !selector.is_empty()) else { return };
        let pairs = self.namespaces.entry(key.namespace.clone()).or_default();
        let crowd = |place: &String| pairs.get(place).map_or(0, BTreeMap::len);
        let place = selector.iter().map(pair).min_by_key(crowd).expect("it is not empty");
        pairs.entry(place.clone()).or_default().insert(key.name.clone(), selector.clone());
        self.places.insert(key.clone(), place);
    }

    /// The names of all in a namespace that select these labels.
    pub fn selecting(&self, namespace: &str, labels: Option<&Labels>) -> Vec<&str> {
        let Some(pairs) = self.namespaces.get(namespace) else { return Vec::new() };
        let places = labels.into_iter().flatten().filter_map(|label| pairs.get(&pair(label)));
        let candidates = places.flatten();
        candidates.filter(|(_, wanted)| selects(wanted, labels)).map(|(name, _)| &**name).collect()
    }
}

/// Objects by their labels.
#[derive(Debug)]
pub struct Labelled<V> {
    namespaces: BTreeMap<String, Pairs<V>>,
}

impl<V> Default for Labelled<V> {
    fn default() -> Self {
        Self { namespaces: BTreeMap::new() }
    }
}

impl<V: Clone> Labelled<V> {
    /// Takes in an object, in place of what was kept of it before.
    pub fn insert(&mut self, key: &ObjectKey, labels: Option<&Labels>, value: &V) {
        if !self.namespaces.contains_key(&key.namespace) {
            self.namespaces.insert(key.namespace.clone(), BTreeMap::new());
        }
        let pairs = self.namespaces.get_mut(&key.namespace).expect("it was made");
        for label in labels.into_iter().flatten() {
            pairs.entry(pair(label)).or_default().insert(key.name.clone(), value.clone());
        }
    }

    /// Forgets an object that had these labels.
    pub fn remove(&mut self, key: &ObjectKey, labels: Option<&Labels>) {
        for label in labels.into_iter().flatten() {
            remove(&mut self.namespaces, key, &pair(label));
        }
    }

    /// All objects of a namespace that have every pair of a selector, by name. `labels` tells
    /// those of an object.
    pub fn selected<'a>(
        &'a self,
        namespace: &str,
        selector: &Labels,
        labels: impl Fn(&'a V) -> Option<&'a Labels>,
    ) -> Vec<&'a V> {
        let Some(pairs) = self.namespaces.get(namespace) else { return Vec::new() };
        let lists = selector.iter().map(|label| Some((label.0, pairs.get(&pair(label))?)));
        let lists: Option<Vec<_>> = lists.collect();
        let shortest = lists.into_iter().flatten().min_by_key(|(_, list)| list.len());
        let Some((known, shortest)) = shortest else { return Vec::new() };
        let mut others = selector.clone();
        others.remove(known);
        let all = shortest.values();
        all.filter(|value| others.is_empty() || selects(&others, labels(*value))).collect()
    }
}

/// Objects by the uid of what controls them.
#[derive(Debug, Default)]
pub struct Owned {
    owners: BTreeMap<String, BTreeSet<ObjectKey>>,
}

impl Owned {
    /// Takes in that an object had one owner and now has another.
    pub fn set(&mut self, key: &ObjectKey, before: Option<&str>, now: Option<&str>) {
        if before == now {
            return;
        }
        if let Some(before) = before
            && let Some(keys) = self.owners.get_mut(before)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.owners.remove(before);
            }
        }
        if let Some(now) = now {
            self.owners.entry(now.to_owned()).or_default().insert(key.clone());
        }
    }

    /// What an owner controls, by name.
    pub fn of<'a>(&'a self, uid: Option<&str>) -> impl Iterator<Item = &'a ObjectKey> {
        uid.and_then(|uid| self.owners.get(uid)).into_iter().flatten()
    }
}

fn remove<V>(namespaces: &mut BTreeMap<String, Pairs<V>>, key: &ObjectKey, place: &str) {
    let Some(pairs) = namespaces.get_mut(&key.namespace) else { return };
    if let Some(list) = pairs.get_mut(place) {
        list.remove(&key.name);
        if list.is_empty() {
            pairs.remove(place);
        }
    }
    if pairs.is_empty() {
        namespaces.remove(&key.namespace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a=1,b=2`
    fn labels(text: &str) -> Labels {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn who_selects_a_pod() {
        let mut index = Selectors::default();
        for (name, selector) in
            [("one", "a=1"), ("two", "a=1,b=2"), ("three", "b=3,a=1"), ("none", "")]
        {
            index.set(&ObjectKey::new("ns", name), Some(&labels(selector)));
        }
        let cases = [
            ("one pair", "a=1", vec!["one"]),
            ("all pairs", "a=1,b=2,c=3", vec!["one", "two"]),
            ("other value", "a=2,b=2", vec![]),
            ("no labels", "", vec![]),
        ];
        for (name, given, want) in cases {
            let mut got = index.selecting("ns", Some(&labels(given)));
            got.sort();
            assert_eq!(got, want, "{name}");
        }
        assert!(index.selecting("other", Some(&labels("a=1"))).is_empty());
        index.set(&ObjectKey::new("ns", "one"), Some(&labels("c=3")));
        assert_eq!(index.selecting("ns", Some(&labels("a=1"))), Vec::<&str>::new());
        assert_eq!(index.selecting("ns", Some(&labels("c=3"))), ["one"]);
        index.set(&ObjectKey::new("ns", "one"), None);
        assert_eq!(index.selecting("ns", Some(&labels("c=3"))), Vec::<&str>::new());
    }

    #[test]
    fn a_pair_that_everyone_shares_is_not_walked() {
        let mut index = Selectors::default();
        for number in 0..10_000 {
            let selector = labels(&format!("env=prod,name=s{number}"));
            index.set(&ObjectKey::new("ns", format!("s{number}")), Some(&selector));
        }
        let pairs = &index.namespaces["ns"];
        let walked = |text: &str| pairs.get(text).map_or(0, BTreeMap::len);
        assert!(walked("env=prod") + walked("name=s77") <= 2);
        assert_eq!(index.selecting("ns", Some(&labels("env=prod,name=s77"))), ["s77"]);
    }

    #[test]
    fn which_pods_a_selector_means() {
        let mut index = Labelled::default();
        for (name, given) in [("p1", "a=1,b=2"), ("p2", "a=1"), ("p3", "b=2")] {
            let labels = labels(given);
            index.insert(&ObjectKey::new("ns", name), Some(&labels), &(name, labels.clone()));
        }
        let names = |index: &Labelled<(&'static str, Labels)>, selector: &str| {
            let found = index.selected("ns", &labels(selector), |(_, labels)| Some(labels));
            found.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" ")
        };
        let cases = [
            ("one pair", "a=1", "p1 p2"),
            ("two pairs", "a=1,b=2", "p1"),
            ("a pair that nobody has", "a=1,c=3", ""),
            ("an empty selector selects nothing", "", ""),
        ];
        for (name, selector, want) in cases {
            assert_eq!(names(&index, selector), want, "{name}");
        }
        index.remove(&ObjectKey::new("ns", "p1"), Some(&labels("a=1,b=2")));
        assert_eq!(names(&index, "a=1"), "p2");
    }
}
