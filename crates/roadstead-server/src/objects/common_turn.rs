//! Who writes next what many objects have in common, such as the one key with all node ports.
//!
//! Whether a write needs a turn is seen when it has been computed. It then waits, and is computed again
//! from what those before it have left. Nobody waits here who has a turn of the admission plugins: those
//! are taken afterwards, always in this order.

use std::sync::Arc;

use roadstead_store::transaction::Transaction;
use tokio::sync::Mutex;

use crate::api::Api;
use crate::kinds::admission::Turn;
use crate::registry::Resource;

/// The turn of one write, for all its attempts.
#[derive(Debug, Default)]
pub(crate) enum CommonTurn {
    /// No attempt has needed it yet.
    #[default]
    Unneeded,
    /// The last attempt has.
    Needed(Arc<Mutex<()>>),
    /// Nobody else writes until this is dropped.
    Held(#[expect(dead_code, reason = "holding it is what it is for")] Turn),
}

impl CommonTurn {
    /// Whether a transaction may be committed now; if not, it is to be computed again after
    /// [`wait`](Self::wait).
    pub(super) fn allows(
        &mut self,
        api: &Api,
        resource: &Resource,
        transaction: &Transaction,
    ) -> bool {
        if matches!(self, Self::Held(_)) {
            return true;
        }
        let Some(turn) = resource.strategy.turn(api, transaction) else { return true };
        *self = Self::Needed(turn.clone());
        false
    }

    /// Waits for the turn, if it is needed.
    pub(super) async fn wait(&mut self) {
        if let Self::Needed(turn) = self {
            *self = Self::Held(turn.clone().lock_owned().await);
        }
    }
}
