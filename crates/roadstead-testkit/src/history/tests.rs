use std::collections::BTreeMap;

use super::simulated::{Lie, run};
use super::{Answer, Call, Event, Fault, History, Listing, Operation, Watched};

/// Reads a history: `0-1 create k 1 = @5`, `2-3 update k 2 if 5 = conflict`, `2-3 delete k = done`,
/// `2-9 delete k = ?`, `4-5 get k = 2@6` or `= -`; `4-5 list = 6: k 2@6, l 1@2`, `4-5 at list = …`;
/// `watch 0 = k 1@5, k -@6`; `together = 1 2`: values of one transaction.
fn history(text: &str) -> History {
    let mut history = History::default();
    for line in text.split(';').map(str::trim) {
        let (left, right) = line.split_once(" = ").unwrap();
        let words: Vec<_> = left.split(' ').collect();
        if words[0] == "watch" {
            history.watches.push(watched(words[1].parse().unwrap(), right));
            continue;
        }
        if words[0] == "together" {
            let values = right.split(' ').map(|value| value.parse().unwrap());
            history.transactions.push(values.collect());
            continue;
        }
        let (invoked, answered) = words[0].split_once('-').unwrap();
        let (invoked, answered) = (invoked.parse().unwrap(), answered.parse().unwrap());
        if words.last() == Some(&"list") {
            let (revision, items) = right.split_once(':').unwrap();
            let exact = words[1] == "at";
            let items = items.split(',').filter_map(|item| item.trim().split_once(' '));
            let items: BTreeMap<_, _> =
                items.map(|(key, item)| (key.to_owned(), found(item).unwrap())).collect();
            let revision = revision.parse().unwrap();
            history.listings.push(Listing { invoked, answered, exact, revision, items });
            continue;
        }
        let number = |at: usize| words.get(at).map(|word| word.parse().unwrap());
        let call = match words[1] {
            "create" => Call::Create(number(3).unwrap()),
            "update" => Call::Update(number(3).unwrap(), number(5)),
            "delete" => Call::Delete(number(4)),
            _ => Call::Get,
        };
        let answer = match right {
            "?" => Answer::Unknown,
            "done" => Answer::Written(None),
            "exists" => Answer::Exists,
            "missing" => Answer::Missing,
            "conflict" => Answer::Conflict,
            _ if right.starts_with('@') => Answer::Written(Some(right[1..].parse().unwrap())),
            _ => Answer::Found(found(right)),
        };
        let key = words[2].to_owned();
        history.operations.push(Operation { key, invoked, answered, call, answer });
    }
    history
}

fn found(text: &str) -> Option<(u64, u64)> {
    let (value, revision) = text.split_once('@')?;
    Some((value.parse().unwrap(), revision.parse().unwrap()))
}

fn watched(after: u64, text: &str) -> Watched {
    let event = |item: &str| {
        let (key, item) = item.trim().split_once(' ').unwrap();
        let (value, revision) = item.split_once('@').unwrap();
        let (key, value) = (key.to_owned(), value.parse().ok());
        Event { revision: revision.parse().unwrap(), key, value }
    };
    let (text, end) = match text.split_once(" up to ") {
        Some((text, end)) => (text, end.parse().unwrap()),
        None => (text, 0),
    };
    let events: Vec<_> = text.split(',').map(event).collect();
    let complete_to = events.iter().map(|event| event.revision).max().unwrap().max(end);
    Watched { after, events, complete_to }
}

#[test]
fn histories() {
    let cases = [
        (
            "one after the other",
            "0-1 create k 1 = @5; 2-3 update k 2 if 5 = @6; 4-5 get k = 2@6",
            "",
        ),
        ("both at once", "0-9 create k 1 = @5; 1-2 get k = 1@5; 1-2 get k = -", ""),
        ("first there, then not", "0-9 create k 1 = @5; 1-2 get k = 1@5; 3-4 get k = -", "NoOrder"),
        (
            "refused rightly",
            "0-1 create k 1 = @5; 2-3 create k 2 = exists; 2-3 update l 3 = missing",
            "",
        ),
        ("refused wrongly", "0-1 create k 1 = @5; 2-3 update k 2 if 5 = conflict", "NoOrder"),
        (
            "no answer, and it happened",
            "0-1 create k 1 = @5; 2-9 update k 2 if 5 = ?; 10-11 get k = 2@6",
            "",
        ),
        (
            "no answer, and it did not",
            "0-1 create k 1 = @5; 2-9 update k 2 if 5 = ?; 10-11 get k = 1@5",
            "",
        ),
        (
            "no answer, and it flips back",
            "0-1 create k 1 = @5; 2-9 update k 2 = ?; 10-11 get k = 2@6; 12-13 get k = 1@5",
            "Stale",
        ),
        (
            "no answer, and it comes after the crash",
            "0-1 create k 1 = @5; 2-9 update k 2 = ?; 10-11 get k = 1@5; 12-13 get k = 2@6",
            "NoOrder",
        ),
        (
            "no answer to a deletion explains",
            "0-1 create k 1 = @5; 2-9 delete k = ?; 10-11 create k 2 = @7; 12-13 get k = 2@7",
            "",
        ),
        ("nobody deleted it", "0-1 create k 1 = @5; 10-11 create k 2 = @7", "NoOrder"),
        ("lost", "0-1 create k 1 = @5; 2-3 get k = -", "NoOrder"),
        ("stale", "0-1 create k 1 = @5; 2-3 update k 2 = @6; 4-5 get k = 1@5", "Stale"),
        (
            "stale while it is written",
            "0-1 create k 1 = @5; 2-9 update k 2 = @6; 4-5 get k = 1@5; 4-5 get k = 2@6",
            "",
        ),
        (
            "stale, since another has seen it",
            "0-1 create k 1 = @5; 2-9 update k 2 = @6; 4-5 get k = 2@6; 6-7 get k = 1@5",
            "Stale",
        ),
        (
            "nothing there, as no watch says",
            "0-1 create k 1 = @5; 2-3 get k = -; 4-5 create z 2 = @6; watch 0 = k 1@5, z 2@6",
            "Stale",
        ),
        ("read before it was written", "2-3 create k 1 = @5; 0-1 get k = 1@5", "OutOfTime"),
        (
            "two at once",
            "0-1 create k 1 = @5; 0-1 create l 2 = @5; together = 1 2; watch 0 = k 1@5, l 2@5",
            "",
        ),
        (
            "two at once, half of it",
            "0-1 create k 1 = @5; 0-1 create l 2 = @6; together = 1 2",
            "Torn",
        ),
        (
            "two at once, half of it told",
            "0-1 create k 1 = @5; 0-1 create l 2 = @5; together = 1 2; watch 0 = k 1@5",
            "Skipped",
        ),
        (
            "two at once, half of it told twice",
            "0-1 create k 1 = @5; 0-1 create l 2 = @5; together = 1 2; \
             watch 0 = k 1@5, l 2@5, k 1@5",
            "Disorder",
        ),
        (
            "two at once, half of it in a list",
            "0-1 create k 1 = @5; 0-1 create l 2 = @5; together = 1 2; 2-3 list = 5: k 1@5",
            "Listing",
        ),
        (
            "no answer, and it is in the chain twice",
            "0-1 create k 1 = @5; 2-9 update k 2 if 5 = ?; 10-11 get k = 2@6; 12-13 get k = 2@7",
            "WrittenTwice",
        ),
        ("two with one revision", "0-1 create k 1 = @5; 0-1 create l 2 = @5", "RevisionTwice"),
        ("revisions fall", "0-1 create k 1 = @5; 2-3 create l 2 = @4", "OutOfTime"),
        ("written twice", "0-1 create k 1 = @5; 2-3 get k = 1@6", "WrittenTwice"),
        ("from nowhere", "0-1 get k = 1@6", "FromNowhere"),
        (
            "refused and done",
            "0-1 create k 1 = @5; 2-3 update k 2 if 4 = conflict; 4-5 get k = 2@6",
            "FromNowhere",
        ),
        (
            "the guard is ignored",
            "0-1 create k 1 = @5; 2-3 update k 2 = @6; 4-5 update k 3 if 5 = @7",
            "Unguarded",
        ),
        (
            "two of three win",
            "0-1 create k 1 = @5; 2-9 update k 2 if 5 = @6; 2-9 update k 3 if 5 = @7",
            "Unguarded",
        ),
        ("a list", "0-1 create k 1 = @5; 2-3 list = 5: k 1@5", ""),
        (
            "a list of earlier",
            "0-1 create k 1 = @5; 2-3 update k 2 = @6; 4-5 at list = 5: k 1@5",
            "",
        ),
        (
            "a list that is stale",
            "0-1 create k 1 = @5; 2-3 create l 2 = @6; 4-5 list = 5: k 1@5",
            "OutOfTime",
        ),
        (
            "a list of two times",
            "0-1 create k 1 = @5; 0-9 update k 2 = @6; 2-9 list = 6: k 1@5",
            "Listing",
        ),
        ("a list with a hole", "0-1 create k 1 = @5; 2-3 list = 5: ", "Listing"),
        (
            "a list without one that is deleted",
            "0-1 create k 1 = @5; 2-3 delete k = done; 4-5 list = 6: ",
            "",
        ),
        (
            "a list that a watch contradicts",
            "0-1 create k 1 = @5; 2-3 delete k = done; 4-5 at list = 5: ; watch 0 = k 1@5, k -@6",
            "Listing",
        ),
        (
            "a watch",
            "0-1 create k 1 = @5; 2-3 delete k = done; watch 0 = k 1@5, k -@6; watch 5 = k -@6",
            "",
        ),
        (
            "a watch in disorder",
            "0-1 create k 1 = @5; 2-3 create l 2 = @6; watch 0 = l 2@6, k 1@5",
            "Disorder",
        ),
        (
            "a watch that has lost its last event",
            "0-1 create k 1 = @5; 2-3 create l 2 = @6; watch 0 = k 1@5 up to 6",
            "Skipped",
        ),
        ("a watch that repeats", "0-1 create k 1 = @5; watch 0 = k 1@5, k 1@5", "Disorder"),
        (
            "a watch that skips",
            "0-1 create k 1 = @5; 2-3 create l 2 = @6; watch 0 = l 2@6",
            "Skipped",
        ),
        (
            "a watch that skips a deletion",
            "0-1 create k 1 = @5; 2-3 delete k = done; 4-5 create k 2 = @7; watch 0 = k 1@5, k 2@7",
            "Unguarded",
        ),
        (
            "a later watch that skips a deletion",
            "0-1 create k 1 = @5; 2-3 delete k = done; 4-5 create k 2 = @7; watch 4 = k 1@5, k 2@7",
            "Skipped",
        ),
    ];
    for (name, text, want) in cases {
        let found = history(text).check().err().map_or(String::new(), |fault| format!("{fault:?}"));
        let kind = found.split(['(', ' ']).next().unwrap();
        assert_eq!(kind, want, "{name}: {found}");
    }
}

#[test]
fn what_was_lost_and_doubled_is_counted() {
    let all = "0-1 create k 1 = @5; 2-9 update k 2 = ?; 4-9 update k 3 = ?; 10-11 get k = 2@6";
    for (watches, want) in [
        ("watch 0 = k 1@5, k 2@6", "2 events: lost 0, doubled 0"),
        ("watch 0 = k 1@5 up to 6; watch 5 = k 2@6", "2 events: lost 1, doubled 0"),
        ("watch 0 = k 1@5, k 1@5, k 2@6", "3 events: lost 0, doubled 1"),
    ] {
        let tally = history(&format!("{all}; {watches}")).tally().unwrap();
        let said = "1 writes acknowledged, 1 unanswered ones seen and 1 not; ";
        assert_eq!(tally.to_string(), format!("{said}{want}"), "{watches}");
    }
}

/// Without the search: what revisions alone tell, of histories of any length.
#[test]
fn revisions_alone_find_lies() {
    let (mut told, mut found) = (0, 0);
    for seed in 0..200 {
        let lie = Lie::ALL[seed as usize % Lie::ALL.len()];
        let (history, lied) = run(seed, Some(lie), true);
        told += u32::from(lied);
        found += u32::from(lied && history.check_revisions().is_err());
        let (history, _) = run(seed, None, seed % 2 == 0);
        assert_eq!(history.check_revisions(), Ok(()), "seed {seed}");
    }
    eprintln!("found {found} of {told}");
    assert!(told > 100 && found * 10 >= told * 7, "found {found} of {told}");
}

#[test]
fn what_is_true_is_believed() {
    for seed in 0..300 {
        let (history, _) = run(seed, None, seed % 2 == 0);
        assert_eq!(history.check(), Ok(()), "seed {seed}");
    }
}

/// Each lie, told once in a history of about a hundred operations, is found wherever anybody could
/// know; how often that is, without a watch and with two.
#[test]
fn every_lie_is_found() {
    const ENOUGH: u64 = 60;
    for lie in Lie::ALL {
        let needs_watch =
            matches!(lie, Lie::ReorderedEvents | Lie::SkippedEvent | Lie::RepeatedEvent);
        for is_watched in [false, true] {
            let (mut told, mut found) = (0, 0);
            // A watch is needed to lie about it.
            let seeds = if needs_watch && !is_watched { 0 } else { 600 };
            for seed in 0..seeds {
                if told == ENOUGH {
                    break;
                }
                let (history, lied) = run(seed, Some(lie), is_watched);
                told += u64::from(lied);
                found += u64::from(lied && history.check().is_err());
            }
            eprintln!("{lie:?}: found {found} of {told}, watched: {is_watched}");
            assert!(told == ENOUGH || seeds == 0, "{lie:?} was told {told} times");
            // What nobody looked at before it was overwritten nobody can know.
            let enough = match (is_watched, needs_watch) {
                (true, _) => told * 8 / 10,
                (false, false) => told * 6 / 10,
                (false, true) => 0,
            };
            assert!(found >= enough, "{lie:?}: found {found} of {told}");
        }
    }
}

/// The search alone, on what is told without any revision that orders: it finds what reads show.
#[test]
fn the_search_alone_finds_lies_of_reads() {
    let (mut told, mut found) = (0, 0);
    for seed in 0..100 {
        let (history, lied) = run(seed, Some(Lie::StaleRead), false);
        let evidence = super::Evidence::gather(&history).unwrap();
        told += u32::from(lied);
        let judged = history.search(&evidence);
        found += u32::from(lied && matches!(judged, Err(Fault::NoOrder(..))));
    }
    assert!(told > 50 && found * 10 >= told * 8, "found {found} of {told}");
}
