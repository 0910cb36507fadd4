//! The state in memory from which everything is read: a replica of a log, fed with the groups of
//! writes that the log has committed, and with nothing else.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::log::Group;
use crate::state::State;

/// The state, shared by readers and the one who feeds it.
#[derive(Debug)]
pub(crate) struct Replica(RwLock<State>);

impl Replica {
    pub(crate) fn new(state: State) -> Arc<Self> {
        Arc::new(Self(RwLock::new(state)))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        #[cfg(test)]
        crate::turns::point();
        // Whoever panicked with the lock was not half-way through a change.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// For logs that decide and feed in one step, and for new followers.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, State> {
        #[cfg(test)]
        crate::turns::point();
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows what the log has committed.
    pub(crate) fn apply(&self, group: Group) {
        self.write().apply(group);
    }
}
