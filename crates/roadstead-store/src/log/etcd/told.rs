//! What a watch of etcd tells, put together again by revisions. Pure.

use roadstead_etcd::messages::{KeyEvent, WatchResponse};

use crate::entry::Revision;

/// All events of one revision.
#[derive(Debug, PartialEq)]
pub(super) struct Told {
    pub(super) revision: Revision,
    pub(super) events: Vec<KeyEvent>,
}

/// The beginning of a revision whose end has not come yet: a long answer comes in pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces(Option<Told>);

impl Pieces {
    /// Adds an answer; returns the revisions that are whole now.
    pub(super) fn add(&mut self, answer: WatchResponse) -> Vec<Told> {
        let mut whole = Vec::new();
        for event in answer.events {
            let Some(kv) = &event.kv else { continue };
            let revision = Revision(kv.mod_revision.unsigned_abs());
            match &mut self.0 {
                Some(told) if told.revision == revision => told.events.push(event),
                other => {
                    whole.extend(other.replace(Told { revision, events: vec![event] }));
                }
            }
        }
        if !answer.fragment {
            whole.extend(self.0.take());
        }
        whole
    }
}

#[test]
fn revisions_in_pieces() {
    use roadstead_etcd::messages::KeyValue;
    let answer = |revisions: &str, fragment| {
        let event = |revision: char| {
            let mod_revision = i64::from(revision.to_digit(10).unwrap());
            KeyEvent { kind: 0, kv: Some(KeyValue { mod_revision, ..KeyValue::default() }) }
        };
        let events = revisions.chars().map(event).collect();
        WatchResponse { events, fragment, ..WatchResponse::default() }
    };
    let mut pieces = Pieces::default();
    let mut add = |revisions, fragment| {
        let whole = pieces.add(answer(revisions, fragment));
        let text = whole.iter().map(|told| format!("{}x{} ", told.revision, told.events.len()));
        text.collect::<String>()
    };
    for (revisions, fragment, want) in [
        ("2", false, "2x1 "),
        ("334", false, "3x2 4x1 "),
        ("556", true, "5x2 "),
        ("6", true, ""),
        ("67", false, "6x3 7x1 "),
        ("", false, ""),
    ] {
        assert_eq!(add(revisions, fragment), want, "{revisions}");
    }
}
