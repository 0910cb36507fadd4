//! What a group of transactions would do: checked against the state that the ones before them in
//! the group will have made, and seen by nobody yet. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use crate::entry::{Entry, Event, Key, Millis, Revision};
use crate::error::StoreError;
use crate::state::State;
use crate::transaction::Transaction;

/// The writes of a group of transactions, in order.
#[derive(Debug)]
pub(crate) struct Plan {
    /// What will have happened.
    pub(crate) events: Vec<Arc<Event>>,
    /// Events up to and including this revision are forgotten in the same step.
    pub(crate) forget: Option<Revision>,
    revision: Revision,
    /// The entries that the group touches, as it leaves them.
    tentative: HashMap<Key, Option<Arc<Entry>>>,
}

impl Plan {
    pub(crate) fn new(state: &State) -> Self {
        let (events, tentative) = (Vec::new(), HashMap::new());
        Self { events, forget: None, revision: state.revision, tentative }
    }

    /// Adds a transaction if all its conditions hold; returns the revision of its last write.
    pub(crate) fn add(
        &mut self,
        state: &State,
        transaction: Transaction,
        now: Millis,
    ) -> Result<Revision, StoreError> {
        for (key, expected) in transaction.guards {
            let found = self.entry(state, &key).map(|entry| entry.revision);
            if found != expected {
                return Err(StoreError::Conflict { key, expected, found });
            }
        }
        for (key, value) in transaction.writes {
            let key = state.shared_key(key);
            let before = self.entry(state, &key).cloned();
            if before.is_none() && value.is_none() {
                continue;
            }
            self.revision = Revision(self.revision.0 + 1);
            let revision = self.revision;
            let after = value.map(|value| Arc::new(Entry { key: key.clone(), value, revision }));
            self.tentative.insert(key.clone(), after.clone());
            self.events.push(Arc::new(Event::new(revision, now, key, before, after)));
        }
        Ok(self.revision)
    }

    fn entry<'a>(&'a self, state: &'a State, key: &Key) -> Option<&'a Arc<Entry>> {
        match self.tentative.get(key) {
            Some(tentative) => tentative.as_ref(),
            None => state.get(key),
        }
    }
}
