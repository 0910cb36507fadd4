//! What clients were told, and what must follow from it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::ObjectList;

/// The state of an object: its revision and the number that its writer gave it.
pub(crate) type State = Option<(u64, u64)>;

/// What one client did last to its object.
#[derive(Debug, Default)]
struct Known {
    /// What was acknowledged last; of a deletion nobody is told the revision.
    state: State,
    /// A write without an answer: the number that it writes, or `None` if it deletes.
    doubtful: Option<Option<u64>>,
}

/// An event of the watch.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    name: String,
    number: Option<u64>,
}

/// Everything that clients were told over all lives of the server.
#[derive(Debug, Default)]
pub(crate) struct Record {
    known: BTreeMap<String, Known>,
    /// What happened at each revision, according to anyone.
    history: BTreeMap<u64, Seen>,
    /// The watch, in the order in which it was told.
    watched: Vec<(u64, Seen)>,
    /// Where the watch goes on.
    resume: Option<u64>,
    /// How many writes must be in the watch: those acknowledged, and those found without it.
    writes: usize,
    found: usize,
    last_number: u64,
}

impl Record {
    /// What the writer of this object knows.
    pub(crate) fn state(&self, name: &str) -> State {
        self.known.get(name).and_then(|known| known.state)
    }

    /// A number that was never written before.
    pub(crate) fn fresh(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// A write is sent.
    pub(crate) fn sent(&mut self, name: &str, number: Option<u64>) {
        self.known.entry(name.to_owned()).or_default().doubtful = Some(number);
    }

    /// The write has been acknowledged.
    pub(crate) fn acknowledged(&mut self, name: &str, state: State) {
        if let Some((revision, number)) = state {
            self.agree(revision, Seen { name: name.to_owned(), number: Some(number) });
        }
        self.writes += 1;
        self.known.insert(name.to_owned(), Known { state, doubtful: None });
    }

    /// The watch told of an event.
    pub(crate) fn watched(&mut self, map: &ConfigMap, deleted: bool) {
        let (revision, number) = state(map).expect("it has a revision");
        let number = (!deleted).then_some(number);
        let seen = Seen { name: map.name_any(), number };
        self.agree(revision, seen.clone());
        self.watched.push((revision, seen));
        self.resume = Some(revision);
    }

    /// Where the watch begins or goes on.
    pub(crate) fn resume(&self) -> u64 {
        self.resume.expect("a list came first")
    }

    /// What a server remembers is what was acknowledged; what was not may have happened.
    pub(crate) fn check_list(&mut self, list: &ObjectList<ConfigMap>) {
        self.resume.get_or_insert(list_revision(list));
        let found: BTreeMap<_, _> =
            list.items.iter().map(|map| (map.name_any(), state(map))).collect();
        for name in found.keys() {
            assert!(self.known.contains_key(name), "nobody wrote {name}");
        }
        for (name, known) in &mut self.known {
            let found = found.get(name).copied().flatten();
            let doubtful = known.doubtful.take();
            if found == known.state {
                continue;
            }
            let happened = doubtful.is_some_and(|number| number == found.map(|state| state.1));
            let later = found.is_none_or(|new| known.state.is_none_or(|old| new.0 > old.0));
            assert!(happened && later, "{name} is {found:?}, but {known:?} and {doubtful:?}");
            known.state = found;
            self.writes += 1;
            self.found += 1;
        }
        for (name, state) in found {
            let (revision, number) = state.expect("a listed object has a revision");
            self.agree(revision, Seen { name, number: Some(number) });
        }
    }

    /// Whether the watch has told as many events as there were writes.
    pub(crate) fn watch_has_caught_up(&self) -> bool {
        self.watched.len() >= self.writes
    }

    /// What must be true in the end.
    pub(crate) fn check_all(&self) {
        assert!(self.watched.is_sorted_by(|one, two| one.0 < two.0), "in order, and each once");
        assert_eq!(self.watched.len(), self.writes, "each write is one event");
        let watched: BTreeMap<_, _> = self.watched.iter().cloned().collect();
        assert_eq!(watched, self.history, "the watch tells what everyone else was told");
        let mut present: BTreeMap<&str, State> = BTreeMap::new();
        for (revision, seen) in &self.watched {
            present.insert(&seen.name, seen.number.map(|number| (*revision, number)));
        }
        for (name, known) in &self.known {
            assert_eq!(present.get(name.as_str()).copied().flatten(), known.state, "{name}");
        }
    }

    pub(crate) fn summary(&self) -> String {
        let Self { writes, found, .. } = self;
        format!("{writes} writes, {found} of them found without an answer, each watched once")
    }

    /// No revision means two things.
    fn agree(&mut self, revision: u64, seen: Seen) {
        let known = self.history.entry(revision).or_insert_with(|| seen.clone());
        assert_eq!(*known, seen, "revision {revision} was used twice");
    }
}

fn list_revision(list: &ObjectList<ConfigMap>) -> u64 {
    list.metadata.resource_version.as_ref().unwrap().parse().unwrap()
}

/// The revision and the number of an object.
pub(crate) fn state(map: &ConfigMap) -> State {
    let revision = map.resource_version()?.parse().ok()?;
    Some((revision, map.data.as_ref()?.get("number")?.parse().ok()?))
}
