//! What a watch must tell: everything after the revision that it asked for, once, in order.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use super::evidence::Evidence;
use super::{Call, Event, Fault, Revision, Value, Watched};

pub(super) fn check(watched: &Watched, evidence: &Evidence) -> Result<(), Fault> {
    let mut last = watched.after;
    for event in &watched.events {
        if event.revision <= last {
            let what = format!("{}={:?} after {last}", event.key, event.value);
            return Err(Fault::Disorder(event.revision, what));
        }
        last = event.revision;
    }
    let mut told = watched.events.iter().map(|event| event.revision).peekable();
    let end = last.max(watched.complete_to);
    for (revision, (key, value)) in evidence.changes.range((Excluded(watched.after), Included(end)))
    {
        if told.next_if_eq(revision).is_none() {
            return Err(Fault::Skipped(*revision, format!("{key}={value:?}")));
        }
    }
    deletions(watched, evidence)
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
