//! What a read of one object must show: nothing that was replaced, as somebody knew, before it was asked.

use std::collections::BTreeMap;

use super::evidence::Evidence;
use super::{Answer, Call, Fault, History, Operation, Revision, Time, Value};

/// What is known of one object: when somebody was told of which revision.
type Known<'a> = BTreeMap<&'a str, Vec<(Time, Revision)>>;

pub(super) fn check(history: &History, evidence: &Evidence) -> Result<(), Fault> {
    let known = known(history);
    for read in history.operations.iter().filter(|operation| operation.call == Call::Get) {
        let Answer::Found(found) = &read.answer else { continue };
        if let Some((value, _)) = found
            && evidence.writer(*value).invoked > read.answered
        {
            return Err(Fault::OutOfTime(format!("{value} was read before it was written")));
        }
        let told = known.get(read.key.as_str()).map_or(&[][..], Vec::as_slice);
        let before = &told[..told.partition_point(|(answered, _)| *answered < read.invoked)];
        let Some((_, newest)) = before.last() else { continue };
        if is_stale(evidence, &read.key, *newest, *found) {
            let what = format!("{} is {found:?}, after {newest} was known", read.key);
            return Err(Fault::Stale(what));
        }
    }
    Ok(())
}

/// Who knew when: sorted by time, with the largest revision known until then.
fn known(history: &History) -> Known<'_> {
    let mut known = Known::new();
    for Operation { key, answered, answer, .. } in &history.operations {
        if let Answer::Written(Some(revision)) | Answer::Found(Some((_, revision))) = answer {
            known.entry(key).or_default().push((*answered, *revision));
        }
    }
    for listing in &history.listings {
        for (key, (_, revision)) in &listing.items {
            known.entry(key).or_default().push((listing.answered, *revision));
        }
    }
    for told in known.values_mut() {
        told.sort_unstable();
        let mut newest = 0;
        for (_, revision) in told {
            newest = newest.max(*revision);
            *revision = newest;
        }
    }
    known
}

/// Whether an answer is older than a revision that was known. That nothing is there can be true if it
/// was deleted since: of that only a watch of everything tells.
fn is_stale(
    evidence: &Evidence,
    key: &str,
    newest: Revision,
    found: Option<(Value, Revision)>,
) -> bool {
    match found {
        Some((_, revision)) => revision < newest,
        None => {
            let gone = |(at, value): (Revision, Option<Value>)| at > newest && value.is_none();
            newest <= evidence.complete_to && evidence.is_all_told && !evidence.of(key).any(gone)
        }
    }
}
