//! The seam below the store: what makes writes outlive the process. A store in memory has none.

use std::collections::BTreeMap;
use std::error::Error;

use bytes::Bytes;

use crate::entry::{Entry, Event, Key, Millis, Revision};
use crate::plan::Plan;

/// Where writes go before anyone sees them.
pub(crate) trait Journal: Send {
    /// Returns when all events of the plan are durable, in one step with what it forgets. After an
    /// error nobody knows how much of the plan is: the journal is not used again.
    fn write(&mut self, plan: &Plan) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// What a journal holds when it is opened.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The present.
    pub(crate) entries: Vec<Entry>,
    /// The log reaches back to just after this revision.
    pub(crate) compacted: Revision,
    /// In order, without gaps.
    pub(crate) log: Vec<Undo>,
}

/// How to undo one write.
#[derive(Debug)]
pub(crate) struct Undo {
    pub(crate) revision: Revision,
    pub(crate) at: Millis,
    pub(crate) key: Key,
    pub(crate) before: Option<(Revision, Bytes)>,
}

/// The writes of one plan, as they can be carried out again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// In order, without gaps.
    pub(crate) changes: Vec<Change>,
    /// Events up to and including this revision are forgotten in the same step.
    pub(crate) forget: Option<Revision>,
}

/// One write.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    pub(crate) at: Millis,
    pub(crate) key: Key,
    /// `None`: it was deleted.
    pub(crate) value: Option<Bytes>,
}

impl Group {
    pub(crate) fn of(plan: &Plan) -> Self {
        let change = |event: &Event| {
            let value = event.after.as_ref().map(|entry| entry.value.clone());
            Change { revision: event.revision, at: event.at, key: event.key.clone(), value }
        };
        let changes = plan.events.iter().map(|event| change(event)).collect();
        Self { changes, forget: plan.forget }
    }

    pub(crate) fn last(&self) -> Revision {
        self.changes.last().map_or(Revision(0), |change| change.revision)
    }
}

impl Contents {
    /// The revision of the newest write.
    pub(crate) fn revision(&self) -> Revision {
        self.log.last().map_or(self.compacted, |undo| undo.revision)
    }

    /// Carries out writes that are not among them yet.
    pub(crate) fn redo(&mut self, groups: &[Group]) {
        if groups.is_empty() {
            return;
        }
        let entries = std::mem::take(&mut self.entries).into_iter();
        let mut present: BTreeMap<_, _> = entries.map(|entry| (entry.key.clone(), entry)).collect();
        for group in groups {
            for Change { revision, at, key, value } in group.changes.iter().cloned() {
                let before = match value {
                    Some(value) => {
                        present.insert(key.clone(), Entry { key: key.clone(), value, revision })
                    }
                    None => present.remove(&key),
                };
                let before = before.map(|entry| (entry.revision, entry.value));
                self.log.push(Undo { revision, at, key, before });
            }
            if let Some(horizon) = group.forget {
                self.compacted = horizon;
                self.log.retain(|undo| undo.revision > horizon);
            }
        }
        self.entries = present.into_values().collect();
    }
}
