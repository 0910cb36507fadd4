//! Elements that go a moment later than the change that made them useless.
//!
//! A commit is atomic for each lookup, but a packet makes several on its way. One that was sent to
//! an endpoint of this node just before the commit still has to be recognised as a call of a pod to
//! itself after it, or its answer never leaves the pod. Such an element harms nobody meanwhile.

use std::collections::BTreeSet;
use std::mem;
use std::time::{Duration, Instant};

use roadstead_forwarding::nft::model::{Key, Transaction};

/// No packet is on its way for longer.
const MOMENT: Duration = Duration::from_secs(1);

/// What is still to be deleted, and since when.
#[derive(Debug, Default)]
pub(super) struct DelayedDeletions {
    keys: BTreeSet<Key>,
    since: Option<Instant>,
}

impl DelayedDeletions {
    /// Takes such elements out of a transaction, and forgets those that it needs again.
    pub(super) fn hold_back(&mut self, transaction: &mut Transaction, now: Instant) {
        for (key, _) in &transaction.add {
            self.keys.remove(key);
        }
        let is_late = |key: &mut Key| matches!(key, Key::Hairpin(..));
        let late: Vec<_> = transaction.delete.extract_if(.., is_late).collect();
        if !late.is_empty() {
            self.since = Some(now);
            self.keys.extend(late);
        }
    }

    /// The transaction that deletes what has waited for long enough, or all of it if `at_once`.
    pub(super) fn due(&mut self, at_once: bool, now: Instant) -> Option<Transaction> {
        let since = self.since.filter(|_| !self.keys.is_empty())?;
        if !at_once && now.duration_since(since) < MOMENT {
            return None;
        }
        let delete = mem::take(&mut self.keys).into_iter().collect();
        Some(Transaction { delete, ..Transaction::default() })
    }

    /// Everything is written anew.
    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use roadstead_forwarding::nft::model::Value;
    use roadstead_forwarding::service::Protocol;

    use super::*;

    #[test]
    fn what_is_late() {
        let hairpin = |n: u8| Key::Hairpin([10, 0, 0, n].into(), Protocol::Tcp, 80);
        let other = Key::ClusterIp([10, 96, 0, 1].into());
        let (mut late, start) = (DelayedDeletions::default(), Instant::now());
        let delete = vec![hairpin(1), other, hairpin(2)];
        let mut transaction = Transaction { delete, ..Transaction::default() };
        late.hold_back(&mut transaction, start);
        assert_eq!(transaction.delete, [other], "the rest goes at once");
        let add = vec![(hairpin(2), Value::Member)];
        late.hold_back(&mut Transaction { add, ..Transaction::default() }, start);
        assert_eq!(late.due(false, start), None, "too early");
        let due = late.due(false, start + MOMENT).unwrap();
        assert_eq!(due.delete, [hairpin(1)], "the other is needed again");
        assert_eq!(late.due(true, start + MOMENT), None, "all is done");
    }
}
