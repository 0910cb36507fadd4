//! The log that keeps nothing: what was written is gone when the process ends.

use std::sync::Arc;

use crate::clock::Clock;
use crate::commit_plan::CommitPlan;
use crate::entry::Revision;
use crate::error::StoreError;
use crate::log::Log;
use crate::replica::Replica;
use crate::transaction::Transaction;

/// Writers decide for themselves, one at a time.
#[derive(Debug)]
pub(crate) struct MemoryLog {
    replica: Arc<Replica>,
    clock: Clock,
}

impl MemoryLog {
    pub(crate) fn new(replica: Arc<Replica>) -> Self {
        Self { replica, clock: Clock::new(0) }
    }
}

impl Log for MemoryLog {
    async fn commit(&self, transaction: Transaction) -> Result<Revision, StoreError> {
        let now = self.clock.now();
        let mut state = self.replica.write();
        let mut plan = CommitPlan::new(&state);
        let revision = plan.add(&state, transaction, now)?;
        let group = plan.finish(&state, now);
        state.apply(group);
        Ok(revision)
    }
}
