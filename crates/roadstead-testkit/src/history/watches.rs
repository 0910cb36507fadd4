//! What a watch must tell: everything after the revision that it asked for, once, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included};

use super::evidence::Evidence;
use super::{Call, Event, Fault, Revision, Value, Watched};

/// A change of one object.
type Change<'a> = (Revision, &'a str);

pub(super) fn check(watched: &Watched, evidence: &Evidence) -> Result<(), Fault> {
    let (mut last, mut told) = (watched.after, BTreeSet::new());
    for Event { revision, key, value } in &watched.events {
        // Of one revision there may be several, of one object each.
        let is_new = *revision > watched.after && told.insert((*revision, key.as_str()));
        if *revision < last || !is_new {
            return Err(Fault::Disorder(*revision, format!("{key}={value:?} after {last}")));
        }
        last = *revision;
    }
    if let Some(((revision, key), value)) = lost(watched, evidence, &told).next() {
        return Err(Fault::Skipped(revision, format!("{key}={value:?}")));
    }
    deletions(watched, evidence)
}

/// How many changes a watch did not tell, and how many it told again.
pub(super) fn count(watched: &Watched, evidence: &Evidence) -> (usize, usize) {
    let told: BTreeSet<Change<'_>> =
        watched.events.iter().map(|event| (event.revision, event.key.as_str())).collect();
    (lost(watched, evidence, &told).count(), watched.events.len() - told.len())
}

/// What happened while the watch was on, and was not told.
fn lost<'a>(
    watched: &Watched,
    evidence: &'a Evidence,
    told: &BTreeSet<Change<'a>>,
) -> impl Iterator<Item = (Change<'a>, Option<Value>)> {
    let last = watched.events.iter().map(|event| event.revision).max();
    let end = last.unwrap_or(watched.after).max(watched.complete_to);
    let happened = evidence.changes.range((Excluded(watched.after), Included(end)));
    let each = happened.flat_map(|(revision, changes)| {
        changes.iter().map(move |(key, value)| ((*revision, key.as_str()), *value))
    });
    each.filter(move |(change, _)| !told.contains(change))
}

/// Deletions leave no other trace than that an object is created again, or deleted.
fn deletions(watched: &Watched, evidence: &Evidence) -> Result<(), Fault> {
    let mut now: BTreeMap<&str, (Revision, Option<Value>)> = BTreeMap::new();
    for Event { revision, key, value } in &watched.events {
        let last = now.insert(key, (*revision, *value));
        // What was there before the watch began is not known here.
        let Some((before, old)) =
            last.or((watched.after == evidence.empty_at).then_some((0, None)))
        else {
            continue;
        };
        let missing = match value.map(|value| &evidence.writer(value).call) {
            Some(Call::Create(_)) => old.is_some().then_some("that it was deleted"),
            Some(_) => old.is_none().then_some("that it was created"),
            None => old.is_none().then_some("that it was created again"),
        };
        if let Some(missing) = missing {
            let what = format!("{key} at {revision}, after {before}, without {missing}");
            return Err(Fault::Skipped(*revision, what));
        }
    }
    Ok(())
}
