//! What the controllers of a process are doing, for the page `/debug/state`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use roadstead_watch::queue::QueueCounts;
use serde::{Serialize, Serializer};

/// What each task of controllers is doing; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct States(Arc<Mutex<BTreeMap<&'static str, ControllerState>>>);

/// One task, when it last worked on a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ControllerState {
    /// Whether everything that is watched has been seen once.
    pub(crate) synced: bool,
    /// How many keys are being written.
    pub(crate) busy: usize,
    pub(crate) queue: QueueCounts,
    /// How many objects it knows, by kind.
    objects: BTreeMap<String, usize>,
    /// What went wrong last, if anything ever did.
    pub(crate) last_error: Option<String>,
}

impl ControllerState {
    pub(crate) fn set_objects<'a>(&mut self, counts: impl Iterator<Item = (&'a str, usize)>) {
        for (kind, count) in counts {
            match self.objects.get_mut(kind) {
                Some(known) => *known = count,
                None => drop(self.objects.insert(kind.to_owned(), count)),
            }
        }
    }
}

impl States {
    /// Where one task reports.
    pub(crate) fn of(&self, name: &'static str) -> StateReport {
        StateReport { states: self.clone(), name }
    }
}

impl Serialize for States {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).serialize(serializer)
    }
}

/// Where one task says what it is doing.
pub(crate) struct StateReport {
    states: States,
    name: &'static str,
}

impl StateReport {
    pub(crate) fn tell(&self, change: impl FnOnce(&mut ControllerState)) {
        let mut states = self.states.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(states.entry(self.name).or_default());
    }
}
