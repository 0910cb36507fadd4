//! What a group of transactions would do: checked against the state that the ones before them in
//! the group will have made, and seen by nobody yet. Every write gets a revision of its own. Pure.
//!
//! The logs that decide for themselves do it with this.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::entry::{Entry, Event, Key, Millis, Revision};
use crate::error::StoreError;
use crate::log::Group;
use crate::state::{State, weight};
use crate::transaction::Transaction;

/// The writes of a group of transactions, in order.
#[derive(Debug)]
pub(crate) struct CommitPlan {
    /// What will have happened.
    events: Vec<Arc<Event>>,
    revision: Revision,
    /// What all entries will weigh.
    bytes: u64,
    /// The entries that the group touches, as it leaves them.
    tentative: HashMap<Key, Option<Arc<Entry>>>,
}

impl CommitPlan {
    pub(crate) fn new(state: &State) -> Self {
        let (events, tentative) = (Vec::new(), HashMap::new());
        Self { events, revision: state.revision, bytes: state.bytes(), tentative }
    }

    /// Adds a transaction if all its conditions hold; returns the revision of its last write.
    pub(crate) fn add(
        &mut self,
        state: &State,
        mut transaction: Transaction,
        now: Millis,
    ) -> Result<Revision, StoreError> {
        for (key, expected) in std::mem::take(&mut transaction.guards) {
            let found = self.entry(state, &key).map(|entry| entry.revision);
            if found != expected {
                return Err(StoreError::Conflict { key, expected, found });
            }
        }
        self.bytes = self.weigh(state, &transaction)?;
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
            let encoded = OnceLock::new();
            self.events.push(Arc::new(Event { revision, key, before, after, at: now, encoded }));
        }
        Ok(self.revision)
    }

    /// All writes that were added, with as much of the past as they leave no room for.
    pub(crate) fn finish(self, state: &State, now: Millis) -> Group {
        let compact = state.compactable(&self.events, now);
        Group { events: self.events, compact, reached: self.revision }
    }

    /// What all entries weigh after the transaction, if there is room for it. What is there already
    /// may grow a little beyond the quota, so that a full cluster can still be put in order.
    fn weigh(&self, state: &State, transaction: &Transaction) -> Result<u64, StoreError> {
        let (mut less, mut more, mut creates) = (0, 0, false);
        for (key, value) in &transaction.writes {
            let before = self.entry(state, key).map(|entry| weight(key, &entry.value));
            let after = value.as_ref().map(|value| weight(key, value));
            creates |= before.is_none() && after.is_some();
            less += before.unwrap_or(0);
            more += after.unwrap_or(0);
        }
        let bytes = (self.bytes + more).saturating_sub(less);
        let Some(quota) = state.quota.filter(|_| more > less && !transaction.frees) else {
            return Ok(bytes);
        };
        let limit = if creates { quota } else { quota.saturating_add(quota / 16) };
        match bytes > limit {
            true => Err(StoreError::Full { used: self.bytes, quota }),
            false => Ok(bytes),
        }
    }

    fn entry<'a>(&'a self, state: &'a State, key: &Key) -> Option<&'a Arc<Entry>> {
        match self.tentative.get(key) {
            Some(tentative) => tentative.as_ref(),
            None => state.get(key),
        }
    }
}
