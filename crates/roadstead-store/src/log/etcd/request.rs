//! A transaction of ours as one of etcd's, and what its answer means. Pure.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bytes::Bytes;
use roadstead_etcd::messages::{
    Act, Compare, DeleteRangeRequest, PutRequest, RangeRequest, TxnOperation, TxnRequest,
    TxnResponse,
};

use crate::entry::{Event, Key, Revision};
use crate::error::StoreError;
use crate::layout::KeyLayout;
use crate::transaction::Transaction;

/// How many conditions or operations etcd takes at once, unless it is told otherwise (`--max-txn-ops`).
const OPERATIONS: usize = 128;
/// How many bytes etcd takes at once, unless it is told otherwise (`--max-request-bytes`).
const BYTES: usize = (3 << 20) / 2;

/// A transaction that can be sent.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) txn: TxnRequest,
    guards: Vec<(Key, Option<Revision>)>,
    /// Each key once.
    writes: Vec<(Key, Option<Bytes>)>,
    /// How long what is put lasts, by the places of the writes.
    lasts: Vec<(usize, Duration)>,
}

/// What became of a transaction that was sent more than once, and in the end refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// One of the first attempts was carried out, at this revision.
    Took(Revision),
    /// None was.
    Never,
    /// Somebody has done the same.
    Unsure,
}

impl Request {
    /// Fails if it is more than etcd takes.
    pub(super) fn of(transaction: Transaction, layout: &dyn KeyLayout) -> Result<Self, StoreError> {
        let (guards, writes) = (transaction.guards, last_of_each(transaction.writes));
        let lasts = |(at, (key, value)): (usize, &(Key, Option<Bytes>))| {
            let time = transaction.lasts.or_else(|| layout.lasts(key));
            value.as_ref().and_then(|_| Some((at, time?)))
        };
        let lasts = writes.iter().enumerate().filter_map(lasts).collect();
        let place = |key: &Key| Bytes::from(layout.place(key));
        let act = |act| TxnOperation { act: Some(act) };
        let revision = |revision: &Option<Revision>| revision.map_or(0, |at| at.0 as i64);
        let compare =
            guards.iter().map(|(key, at)| Compare::at_revision(place(key), revision(at))).collect();
        let write = |(key, value): &(Key, Option<Bytes>)| match value.clone() {
            Some(value) => act(Act::Put(PutRequest { key: place(key), value, lease: 0 })),
            None => act(Act::Delete(DeleteRangeRequest { key: place(key) })),
        };
        let look = |(key, _): &(Key, Option<Revision>)| {
            let only = RangeRequest { key: place(key), keys_only: true, ..RangeRequest::default() };
            act(Act::Range(only))
        };
        let success = writes.iter().map(write).collect();
        let failure = guards.iter().map(look).collect();
        let txn = TxnRequest { compare, success, failure };
        let too_large = |cause: String| Err(StoreError::TooLarge { cause: cause.into() });
        let (operations, size) = (guards.len().max(writes.len()), txn.size());
        if operations > OPERATIONS {
            return too_large(format!(
                "{operations} keys are to be written or compared in one transaction, and etcd takes no \
                 more than {OPERATIONS}"
            ));
        }
        if size > BYTES {
            return too_large(format!(
                "the request has {size} bytes, and etcd takes no more than {BYTES}"
            ));
        }
        Ok(Self { txn, guards, writes, lasts })
    }

    /// How long something lasts that it puts, for each such time.
    pub(super) fn times(&self) -> BTreeSet<Duration> {
        self.lasts.iter().map(|(_, time)| *time).collect()
    }

    /// What it puts for that time ends with a lease.
    pub(super) fn end_with(&mut self, time: Duration, lease: i64) {
        for (at, _) in self.lasts.iter().filter(|(_, lasts)| *lasts == time) {
            if let Some(TxnOperation { act: Some(Act::Put(put)) }) = self.txn.success.get_mut(*at) {
                put.lease = lease;
            }
        }
    }

    /// Whether it can be carried out only once, however often it is sent: a key that it writes must be at a
    /// revision, to which no key comes back. That a key is absent may be so again: then the first attempt
    /// was carried out, somebody deleted what it wrote, and the second one would write it once more.
    pub(super) fn is_repeatable(&self) -> bool {
        let writes = |key: &Key| self.writes.iter().any(|(written, _)| written == key);
        self.writes.is_empty() || self.guards.iter().any(|(key, at)| at.is_some() && writes(key))
    }

    /// Which of the conditions does not hold, as a refusal tells.
    pub(super) fn conflict(&self, refusal: &TxnResponse) -> StoreError {
        let found = refusal.responses.iter().map(|outcome| {
            let first = outcome.range.as_ref().and_then(|range| range.kvs.first());
            first.map(|kv| Revision(kv.mod_revision.unsigned_abs()))
        });
        let mut all = self.guards.iter().zip(found);
        let broken = all.find(|((_, expected), found)| expected != found);
        let ((key, expected), found) = match broken {
            Some((guard, found)) => (guard, found),
            None => match self.guards.first() {
                Some(guard) => (guard, guard.1),
                None => {
                    let cause = "a transaction without conditions was refused".into();
                    return StoreError::Unknown { cause };
                }
            },
        };
        StoreError::Conflict { key: key.clone(), expected: *expected, found }
    }

    /// The keys that it writes.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.writes.iter().map(|(key, _)| key)
    }

    /// Finds itself among all events about its keys since it was sent first, in order.
    pub(super) fn judge<'a>(&self, events: impl Iterator<Item = &'a Event>) -> Verdict {
        let mut revisions: Vec<(Revision, HashMap<&Key, Option<&Bytes>>)> = Vec::new();
        for event in events {
            if revisions.last().is_none_or(|(last, _)| *last != event.revision) {
                revisions.push((event.revision, HashMap::new()));
            }
            let written = event.after.as_ref().map(|entry| &entry.value);
            revisions.last_mut().expect("one was just added").1.insert(&event.key, written);
        }
        let is_ours = |written: &HashMap<&Key, Option<&Bytes>>| {
            self.writes.iter().all(|(key, value)| match (value, written.get(key)) {
                (Some(value), Some(Some(written))) => value == *written,
                // Nobody is told of the end of what was not there.
                (None, found) => matches!(found, None | Some(None)),
                _ => false,
            })
        };
        let found = revisions.iter().find(|(_, written)| !written.is_empty() && is_ours(written));
        match found {
            None => Verdict::Never,
            // An end is the same whoever brings it about.
            Some(_) if self.writes.iter().all(|(_, value)| value.is_none()) => Verdict::Unsure,
            Some((revision, _)) => Verdict::Took(*revision),
        }
    }
}

/// Of several writes to a key only the last one counts: etcd takes no two in one transaction.
fn last_of_each(writes: Vec<(Key, Option<Bytes>)>) -> Vec<(Key, Option<Bytes>)> {
    let mut places = HashMap::new();
    let mut each: Vec<(Key, Option<Bytes>)> = Vec::with_capacity(writes.len());
    for (key, value) in writes {
        let place = *places.entry(key.clone()).or_insert(each.len());
        match each.get_mut(place) {
            Some(earlier) => earlier.1 = value,
            None => each.push((key, value)),
        }
    }
    each
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use roadstead_etcd::messages::{KeyValue, Outcome, RangeResponse};

    use super::*;
    use crate::entry::Entry;

    /// Entries by their own names.
    #[derive(Debug)]
    struct Bare;

    impl KeyLayout for Bare {
        fn prefix(&self) -> &str {
            ""
        }

        fn place(&self, key: &Key) -> String {
            key.path.to_string()
        }

        fn key(&self, place: &str) -> Option<Key> {
            Some(key(place))
        }

        fn value(&self, _: &Key, stored: Bytes) -> Bytes {
            stored
        }

        fn lasts(&self, key: &Key) -> Option<Duration> {
            key.path.starts_with("brief").then_some(Duration::from_secs(60))
        }
    }

    fn key(path: &str) -> Key {
        Key::new("things", path)
    }

    /// `a=1` is written, `a=` removed; `a@3` must be at revision 3, `a@` absent.
    fn request(text: &str) -> Request {
        let all = text.split_whitespace().fold(Transaction::new(), |all, word| {
            match (word.split_once('='), word.split_once('@')) {
                (Some((path, "")), _) => all.delete(key(path)),
                (Some((path, value)), _) => all.put(key(path), value.to_owned().into()),
                (None, Some((path, at))) => all.expect(key(path), at.parse().ok().map(Revision)),
                _ => panic!("{word}"),
            }
        });
        Request::of(all, &Bare).unwrap()
    }

    /// `7:a=1`: at revision 7 `a` was written; `7:a=`: removed.
    fn events(text: &str) -> Vec<Event> {
        let event = |word: &str| {
            let (revision, rest) = word.split_once(':').unwrap();
            let (path, value) = rest.split_once('=').unwrap();
            let (key, revision) = (key(path), Revision(revision.parse().unwrap()));
            let entry = |value: &str| {
                Arc::new(Entry { key: key.clone(), value: value.to_owned().into(), revision })
            };
            let after = (!value.is_empty()).then(|| entry(value));
            let (before, key, encoded) = (None, key.clone(), OnceLock::new());
            Event { revision, key, before, after, at: 0, encoded }
        };
        text.split_whitespace().map(event).collect()
    }

    #[test]
    fn what_became_of_a_lost_attempt() {
        let cases = [
            ("a@3 a=x", "", "Never"),
            ("a@3 a=x", "7:a=x", "Took(Revision(7))"),
            ("a@3 a=x", "7:a=y", "Never"),
            ("a@3 a=x", "7:a=x 8:a=y", "Took(Revision(7))"),
            ("a@3 a=x", "7:a=x 8:a=", "Took(Revision(7))"),
            ("a@ a=x b=y", "7:a=x 7:b=y", "Took(Revision(7))"),
            ("a@ a=x b=y", "7:a=x 8:b=y", "Never"),
            ("a@ a=x b=", "7:a=x", "Took(Revision(7))"),
            ("a@ a=x b=", "7:a=x 7:b=", "Took(Revision(7))"),
            ("a@ a=x b=", "7:a=x 7:b=z", "Never"),
            ("a@3 a=", "7:a=", "Unsure"),
            ("a@3 a=", "7:a=x", "Never"),
        ];
        for (written, seen, want) in cases {
            let found = request(written).judge(events(seen).iter());
            assert_eq!(format!("{found:?}"), want, "{written}, then {seen}");
        }
    }

    #[test]
    fn what_may_be_sent_twice() {
        for (text, want) in [
            ("a@3 a=x", true),
            ("a@ a=x b=y", false),
            ("a@ b@3 a=x b=y", true),
            ("a@3 a=", true),
            ("b@3 a=x", false),
            ("a=x", false),
            ("a@3", true),
            ("", true),
        ] {
            assert_eq!(request(text).is_repeatable(), want, "{text}");
        }
    }

    #[test]
    fn what_was_in_the_way() {
        let request = request("a@3 b@ c@5 a=x");
        let refusal = |found: [i64; 3]| {
            let responses = found.map(|mod_revision| {
                let kvs = match mod_revision {
                    0 => Vec::new(),
                    _ => vec![KeyValue { mod_revision, ..KeyValue::default() }],
                };
                Outcome { range: Some(RangeResponse { kvs, ..RangeResponse::default() }) }
            });
            TxnResponse { responses: responses.into(), ..TxnResponse::default() }
        };
        for (found, want) in [
            (
                [4, 0, 5],
                "things/a is at revision Some(Revision(4)), the write expected Some(Revision(3))",
            ),
            ([3, 7, 5], "things/b is at revision Some(Revision(7)), the write expected None"),
            ([3, 0, 0], "things/c is at revision None, the write expected Some(Revision(5))"),
        ] {
            assert_eq!(request.conflict(&refusal(found)).to_string(), want);
        }
    }

    #[test]
    fn the_last_write_of_a_key_counts() {
        let request = request("a=1 b=2 a= a=3 b=");
        let written = request.writes.iter().map(|(key, value)| format!("{key}={value:?}"));
        assert_eq!(written.collect::<Vec<_>>(), ["things/a=Some(b\"3\")", "things/b=None"]);
        assert_eq!(request.txn.success.len(), 2);
    }

    #[test]
    fn what_ends_by_itself() {
        let mut request = request("a=1 brief=2 brief-gone= brief=3");
        assert_eq!(request.times(), [Duration::from_secs(60)].into());
        request.end_with(Duration::from_secs(60), 7);
        let lease = |operation: &TxnOperation| match &operation.act {
            Some(Act::Put(put)) => Some(put.lease),
            _ => None,
        };
        let leases: Vec<_> = request.txn.success.iter().map(lease).collect();
        assert_eq!(leases, [Some(0), Some(7), None]);
    }
}
