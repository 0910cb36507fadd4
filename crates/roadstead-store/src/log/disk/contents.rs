//! What is on disk when it is opened: the present, how to undo the writes of the recent past, and
//! those that the tables lack.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::entry::{Entry, Event, Key, Millis, Revision};
use crate::log::Group;

/// What a log holds when it is opened.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The present.
    pub(crate) entries: Vec<Entry>,
    /// The log reaches back to just after this revision.
    pub(crate) compacted: Revision,
    /// In order.
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

/// A group of writes as it can be carried out again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redo {
    /// In order, without gaps.
    pub(crate) changes: Vec<Change>,
    /// Events up to and including this revision are forgotten in the same step.
    pub(crate) compact: Option<Revision>,
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

impl Redo {
    pub(crate) fn of(group: &Group) -> Self {
        let change = |event: &Event| {
            let value = event.after.as_ref().map(|entry| entry.value.clone());
            Change { revision: event.revision, at: event.at, key: event.key.clone(), value }
        };
        let changes = group.events.iter().map(|event| change(event)).collect();
        Self { changes, compact: group.compact }
    }

    /// The revision of its last write.
    pub(crate) fn last(&self) -> Revision {
        self.changes.last().map_or(Revision(0), |change| change.revision)
    }
}

impl Contents {
    /// The revision of the newest write.
    pub(crate) fn revision(&self) -> Revision {
        self.log.last().map_or(self.compacted, |undo| undo.revision)
    }

    /// Fails if a revision is missing: in this log every write has one of its own.
    pub(crate) fn check_gapless(&self) -> Result<(), String> {
        let mut expected = self.compacted.0;
        for undo in &self.log {
            expected = expected.wrapping_add(1);
            if undo.revision.0 != expected {
                let (key, revision) = (&undo.key, undo.revision);
                return Err(format!("the log does not explain {key} at revision {revision}"));
            }
        }
        Ok(())
    }

    /// Carries out writes that are not among them yet.
    pub(crate) fn redo(&mut self, groups: &[Redo]) {
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
            if let Some(horizon) = group.compact {
                self.compacted = horizon;
                self.log.retain(|undo| undo.revision > horizon);
            }
        }
        self.entries = present.into_values().collect();
    }
}
