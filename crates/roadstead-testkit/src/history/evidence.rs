//! What happened at each revision, according to anybody, and whether all of it agrees.

use std::collections::{BTreeMap, HashMap};

use super::{Answer, Call, Event, Fault, History, Operation, Revision, Time, Value};

/// What happened to an object.
type Change = (Revision, Option<Value>);

/// Everything that anybody was told of any revision.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// What happened at each revision: the objects, and what they became.
    pub(super) changes: BTreeMap<Revision, BTreeMap<String, Option<Value>>>,
    /// The revision at which there was nothing yet.
    pub(super) empty_at: Revision,
    /// The revisions of each object, in order.
    of_key: BTreeMap<String, BTreeMap<Revision, Option<Value>>>,
    revisions: HashMap<Value, Revision>,
    /// Who wrote, or may have written, each value.
    writers: HashMap<Value, Operation>,
    /// In which transaction each value was written, of those with several.
    transaction_of: HashMap<Value, usize>,
    /// Up to here a watch that began at the beginning told everything, deletions too.
    pub(super) complete_to: Revision,
    /// Whether it told of everything that anybody has heard of, and what came last was known to be last.
    pub(super) is_all_told: bool,
}

impl Evidence {
    pub(super) fn gather(history: &History) -> Result<Self, Fault> {
        let mut all = Self { empty_at: history.empty_at, ..Self::default() };
        for (number, values) in history.transactions.iter().enumerate() {
            all.transaction_of.extend(values.iter().map(|value| (*value, number)));
        }
        for operation in &history.operations {
            if let Some(value) = operation.call.value()
                && operation.took_effect() != Some(false)
            {
                all.writers.insert(value, operation.clone());
            }
        }
        for operation in &history.operations {
            match (&operation.answer, operation.call.value()) {
                (Answer::Written(Some(revision)), Some(value)) => {
                    all.add(&operation.key, Some(value), *revision)?;
                }
                (Answer::Found(Some((value, revision))), _) => {
                    all.add(&operation.key, Some(*value), *revision)?;
                }
                _ => {}
            }
        }
        for listing in &history.listings {
            for (key, (value, revision)) in &listing.items {
                all.add(key, Some(*value), *revision)?;
            }
        }
        for watched in &history.watches {
            for Event { revision, key, value } in &watched.events {
                all.add(key, *value, *revision)?;
            }
            if watched.after == history.empty_at {
                all.complete_to = all.complete_to.max(watched.complete_to);
            }
        }
        all.is_all_told = all.has_heard_the_last(history);
        Ok(all)
    }

    /// Whether the last revision that a watch of everything told is that of a write that began after
    /// everything else had been answered, or could no longer happen.
    fn has_heard_the_last(&self, history: &History) -> bool {
        let last =
            self.changes.last_key_value().filter(|(revision, _)| **revision <= self.complete_to);
        let value = last.and_then(|(_, changes)| *changes.values().next()?);
        let Some(last) = value.and_then(|value| self.writers.get(&value)) else { return false };
        let others = history.operations.iter().filter(|other| *other != last);
        others.into_iter().all(|other| other.answered <= last.invoked)
    }

    fn add(&mut self, key: &str, value: Option<Value>, revision: Revision) -> Result<(), Fault> {
        let transaction = |value: Option<Value>| self.transaction_of.get(&value?);
        let changes = self.changes.entry(revision).or_default();
        let contradicts = |(other, found): &(&String, &Option<Value>)| match *other == key {
            true => **found != value,
            false => transaction(**found).is_none() || transaction(**found) != transaction(value),
        };
        if let Some((other, found)) = changes.iter().find(contradicts) {
            let what = format!("{other}={found:?} and {key}={value:?}");
            return Err(Fault::RevisionTwice(revision, what));
        }
        changes.insert(key.to_owned(), value);
        self.of_key.entry(key.to_owned()).or_default().insert(revision, value);
        let Some(value) = value else { return Ok(()) };
        let what = format!("{key}={value}");
        if self.writers.get(&value).is_none_or(|writer| writer.key != key) {
            return Err(Fault::FromNowhere(format!("{what}, found at {revision}")));
        }
        let first = *self.revisions.entry(value).or_insert(revision);
        if first == revision { Ok(()) } else { Err(Fault::WrittenTwice(what, first, revision)) }
    }

    /// The revision at which the value was written, if anybody was told.
    pub(super) fn revision_of(&self, value: Value) -> Option<Revision> {
        self.revisions.get(&value).copied()
    }

    /// The call that wrote the value.
    pub(super) fn writer(&self, value: Value) -> &Operation {
        &self.writers[&value]
    }

    /// The last change of the object before a revision.
    pub(super) fn before(&self, key: &str, revision: Revision) -> Option<Change> {
        let last = self.of_key.get(key)?.range(..revision).next_back();
        last.map(|(revision, value)| (*revision, *value))
    }

    /// The changes of one object, in order.
    pub(super) fn of(&self, key: &str) -> impl Iterator<Item = Change> {
        let changes = self.of_key.get(key).into_iter().flatten();
        changes.map(|(revision, value)| (*revision, *value))
    }

    /// What was written together has one revision, or none.
    pub(super) fn check_transactions(&self, history: &History) -> Result<(), Fault> {
        for values in &history.transactions {
            let known: Vec<_> = values.iter().map(|value| self.revision_of(*value)).collect();
            let Some(revision) = known.iter().flatten().next() else { continue };
            // What nobody saw before it was overwritten was perhaps there, unless a watch tells all.
            let fits = |at: &Option<Revision>| match at {
                Some(at) => at == revision,
                None => *revision > self.complete_to,
            };
            if !known.iter().all(fits) {
                return Err(Fault::Torn(format!("{values:?} at {known:?}")));
            }
        }
        Ok(())
    }

    /// Whatever begins after something was acknowledged has the larger revision.
    pub(super) fn check_time(&self, history: &History) -> Result<(), Fault> {
        // What was known when: a write's revision, or one that was read.
        let mut known: Vec<(Time, Revision)> = Vec::new();
        // What must be larger than all that was known when it began, or at least as large.
        let mut later: Vec<(Time, Revision, String)> = Vec::new();
        for operation in &history.operations {
            match (&operation.answer, operation.call.value()) {
                (Answer::Found(Some((_, revision))), _) => {
                    known.push((operation.answered, *revision))
                }
                (_, Some(value)) if operation.took_effect() != Some(false) => {
                    let Some(revision) = self.revision_of(value) else { continue };
                    if operation.took_effect() == Some(true) {
                        known.push((operation.answered, revision));
                    }
                    // A write is newer than everything known.
                    let what = format!("{} wrote {value} at {revision}", operation.key);
                    later.push((operation.invoked, revision.saturating_sub(1), what));
                }
                _ => {}
            }
        }
        for listing in &history.listings {
            known.push((listing.answered, listing.revision));
            if !listing.exact {
                let what = format!("a list of {}", listing.revision);
                later.push((listing.invoked, listing.revision, what));
            }
        }
        known.sort_unstable();
        later.sort_unstable();
        let (mut known, mut newest) = (known.into_iter().peekable(), 0);
        for (begun, revision, what) in later {
            while let Some((_, told)) = known.next_if(|(answered, _)| *answered < begun) {
                newest = newest.max(told);
            }
            if revision < newest {
                return Err(Fault::OutOfTime(format!("{what}, after {newest} was known")));
            }
        }
        Ok(())
    }

    /// What was written was what its writer demanded to be so just before.
    pub(super) fn check_guards(&self, history: &History) -> Result<(), Fault> {
        for operation in &history.operations {
            let Some(value) = operation.call.value() else { continue };
            let Some(revision) = self.revision_of(value) else { continue };
            let last = self.before(&operation.key, revision);
            let holds = match operation.call {
                Call::Update(_, Some(demanded)) => {
                    last.is_some_and(|(found, value)| found == demanded && value.is_some())
                }
                // A deletion that nobody watched may stand between.
                Call::Update(..) | Call::Create(_) if revision > self.complete_to => true,
                Call::Update(..) => last.is_some_and(|(_, value)| value.is_some()),
                _ => last.is_none_or(|(_, value)| value.is_none()),
            };
            if !holds {
                let Operation { key, call, .. } = operation;
                let what = format!("{key}: {call:?} at {revision}, after {last:?}");
                return Err(Fault::Unguarded(what));
            }
        }
        Ok(())
    }

    /// Each list is what the changes up to its revision leave.
    pub(super) fn check_listings(&self, history: &History) -> Result<(), Fault> {
        for listing in &history.listings {
            let revision = listing.revision;
            let fault = |what| Err(Fault::Listing(revision, what));
            for (key, item) in &listing.items {
                let last = self.before(key, revision + 1);
                if last != Some((item.1, Some(item.0))) {
                    return fault(format!("{key} is {item:?}, and not {last:?}"));
                }
            }
            for (key, changes) in &self.of_key {
                let there = changes.range(..=revision).next_back();
                let Some((at, Some(value))) = there else { continue };
                let gone = revision > self.complete_to
                    && self.may_be_deleted(history, key, listing.answered);
                if !listing.items.contains_key(key) && !gone {
                    return fault(format!("{key}={value}, written at {at}, is not in it"));
                }
            }
        }
        Ok(())
    }

    /// Whether anybody may have deleted the object by then.
    fn may_be_deleted(&self, history: &History, key: &str, by: Time) -> bool {
        history.operations.iter().any(|operation| {
            operation.key == key
                && operation.invoked < by
                && matches!(operation.call, Call::Delete(_))
                && operation.took_effect() != Some(false)
        })
    }
}
