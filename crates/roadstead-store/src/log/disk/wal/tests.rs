use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use tempfile::TempDir;

use crate::entry::{Entry, Key, Revision};
use crate::kv::{Options, Store};
use crate::log::disk::contents::{Change, Contents, Redo};
use crate::log::disk::tables::tests::{format_of, of_old_format};
use crate::transaction::Transaction;

/// A store in a directory, after a crash.
struct Subject(TempDir);

impl Subject {
    /// Writes revisions 1 to `count`, of which the tables hold the first `checkpointed`.
    async fn new(checkpointed: u64, count: u64) -> Self {
        let subject = Self(tempfile::tempdir().unwrap());
        let write = async |from: u64, to: u64| {
            let store = subject.open(false).unwrap();
            for number in from..=to {
                let key = Key::new("things", format!("k{}", number % 3));
                let value = Bytes::from(format!("v{number}"));
                store.commit(Transaction::new().put(key, value)).await.unwrap();
            }
        };
        write(1, checkpointed).await;
        // Whoever takes the tables away while the log goes on has them as after a crash.
        let tables = fs::read(subject.path("redb")).unwrap();
        write(checkpointed + 1, count - 1).await;
        fs::copy(subject.path("mark"), subject.path("mark before the last write")).unwrap();
        write(count, count).await;
        fs::write(subject.path("redb"), tables).unwrap();
        subject
    }

    fn path(&self, extension: &str) -> PathBuf {
        self.0.path().join("store").with_extension(extension)
    }

    fn open(&self, accept_loss: bool) -> Result<std::sync::Arc<Store>, String> {
        let options = Options { accept_loss, ..Options::default() };
        Store::open(&self.path("redb"), options).map_err(|error| error.to_string())
    }

    /// What can be read: all entries, and how far the history goes. Or what is damaged.
    fn shown(&self) -> String {
        match self.open(false) {
            Ok(store) => {
                let text = values(&store);
                let mut feed = store.feed("things", Revision(0)).unwrap();
                let told = feed.now().unwrap().events.len();
                format!("{text} @{} told {told}", store.revision())
            }
            Err(error) => {
                assert!(error.contains("roadstead snapshot restore FILE --force"), "{error}");
                let error = error.replace(&format!("{}/", self.0.path().display()), "");
                let named = error.lines().skip(1).filter(|line| line.starts_with("  "));
                named.map(|line| line.trim()).collect::<Vec<_>>().join("; ")
            }
        }
    }

    fn damage(&self, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path(file)).unwrap();
        change(&mut bytes);
        fs::write(self.path(file), bytes).unwrap();
    }
}

fn values(store: &Store) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let entries = store.all().entries;
    entries.iter().map(|entry| text(&entry.value)).collect::<Vec<_>>().join(" ")
}

/// Where the value of a write is in the log: behind its key, as two letters alone may be anywhere.
fn find(bytes: &[u8], number: u64) -> usize {
    let text = format!("thingsk{}v{number}", number % 3);
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes());
    at.unwrap() + text.len() - 2
}

/// The power is cut while the last write is on its way: the mark knows nothing of it.
#[tokio::test]
async fn a_write_that_was_never_complete_is_dropped() {
    type Cut = fn(&mut Vec<u8>);
    let cases: [(&str, Cut, &str); 4] = [
        ("it is complete", |_| {}, "v9 v7 v8 @9 told 9"),
        (
            "there in part",
            |bytes| {
                let at = find(bytes, 9);
                bytes[at..].fill(0);
            },
            "v6 v7 v8 @8 told 8",
        ),
        (
            "cut off",
            |bytes| {
                let at = find(bytes, 9);
                bytes.truncate(at);
            },
            "v6 v7 v8 @8 told 8",
        ),
        (
            "cut off before its value",
            |bytes| {
                let at = find(bytes, 8) + 6;
                bytes[at..].fill(0);
            },
            "v6 v7 v8 @8 told 8",
        ),
    ];
    for (name, cut, want) in cases {
        let subject = Subject::new(5, 9).await;
        fs::copy(subject.path("mark before the last write"), subject.path("mark")).unwrap();
        subject.damage("ahead0", cut);
        assert_eq!(subject.shown(), want, "{name}");
        // And it stays so.
        assert_eq!(subject.shown(), want, "{name}, once more");
    }
}

/// Each with what is said, and what is there when the loss is accepted.
#[tokio::test]
async fn damage_to_what_was_acknowledged_is_refused() {
    type Harm = fn(&Subject);
    let known = "(which keys they wrote is not known)";
    let gone = "writes after revision 5 were acknowledged from it, if there were any";
    let cases: [(&str, Harm, String, &str); 13] = [
        (
            "the last write",
            |subject| {
                subject.damage("ahead0", |bytes| {
                    let at = find(bytes, 9);
                    bytes[at] ^= 1;
                })
            },
            format!("store.ahead0, byte 4928: revision 9 cannot be read, and was acknowledged {known}"),
            "v6 v7 v8",
        ),
        (
            "the last two writes are zeros",
            |subject| {
                subject.damage("ahead0", |bytes| {
                    let at = find(bytes, 7) + 6;
                    bytes[at..].fill(0);
                })
            },
            format!("store.ahead0, byte 4824: revisions 8 to 9 cannot be read, and were acknowledged {known}"),
            "v6 v7 v5",
        ),
        (
            "the end is cut off",
            |subject| {
                subject.damage("ahead0", |bytes| {
                    let at = find(bytes, 8);
                    bytes.truncate(at);
                })
            },
            format!("store.ahead0, byte 4824: revisions 8 to 9 cannot be read, and were acknowledged {known}"),
            "v6 v7 v5",
        ),
        (
            "a write in the middle",
            |subject| {
                subject.damage("ahead0", |bytes| {
                    let at = find(bytes, 7);
                    bytes[at] = b'w';
                })
            },
            format!("store.ahead0, byte 4720: revision 7 cannot be read, and was acknowledged {known}"),
            "v9 v4 v8",
        ),
        (
            "the header",
            |subject| subject.damage("ahead0", |bytes| bytes[20] ^= 1),
            format!("store.ahead0, byte 0: its header does not fit its checksum; {gone}; store.ahead1, byte 4096: revisions 6 to 9 cannot be read, and were acknowledged {known}"),
            "v3 v4 v5",
        ),
        (
            "the log is empty",
            |subject| subject.damage("ahead0", Vec::clear),
            format!("store.ahead0, byte 0: it is empty; {gone}; store.ahead1, byte 4096: revisions 6 to 9 cannot be read, and were acknowledged {known}"),
            "v3 v4 v5",
        ),
        (
            "the log is missing",
            |subject| fs::remove_file(subject.path("ahead0")).unwrap(),
            format!("store.ahead0, the file: it is missing; {gone}; store.ahead1, byte 4096: revisions 6 to 9 cannot be read, and were acknowledged {known}"),
            "v3 v4 v5",
        ),
        (
            "the file that is not in use is missing",
            |subject| fs::remove_file(subject.path("ahead1")).unwrap(),
            format!("store.ahead1, the file: it is missing; {gone}"),
            "v9 v7 v8",
        ),
        (
            "the files are exchanged",
            |subject| {
                let [one, other] = ["ahead0", "ahead1"].map(|name| fs::read(subject.path(name)).unwrap());
                fs::write(subject.path("ahead0"), other).unwrap();
                fs::write(subject.path("ahead1"), one).unwrap();
            },
            format!("store.ahead0, byte 0: it is the other file of the log; {gone}; store.ahead1, byte 0: it is the other file of the log; {gone}"),
            "v9 v7 v8",
        ),
        (
            "the mark is missing",
            |subject| fs::remove_file(subject.path("mark")).unwrap(),
            "store.mark, the mark: it is missing; without it nobody can tell whether the log is complete".into(),
            "v9 v7 v8",
        ),
        (
            "the mark is zeros",
            |subject| subject.damage("mark", |bytes| bytes.fill(0)),
            "store.mark, the mark: it does not fit its checksum; without it nobody can tell whether the log is complete".into(),
            "v9 v7 v8",
        ),
        (
            "everything of the log is missing",
            |subject| ["ahead0", "ahead1", "mark"].map(|name| fs::remove_file(subject.path(name)).unwrap()).into_iter().collect(),
            format!("store.ahead0, the file: it is missing; {gone}; store.ahead1, the file: it is missing; {gone}; store.mark, the mark: it is missing; without it nobody can tell whether the log is complete"),
            "v3 v4 v5",
        ),
        (
            "a log that the tables know, of an earlier time",
            |subject| subject.damage("mark", |bytes| {
                let newer = super::mark::tests::another(bytes, 4);
                *bytes = newer;
            }),
            format!("store.ahead0, byte 0: it is of an earlier time (use 2 instead of 4); {gone}"),
            "v9 v7 v8",
        ),
    ];
    for (name, harm, want, rest) in cases {
        let subject = Subject::new(5, 9).await;
        harm(&subject);
        assert_eq!(subject.shown(), want, "{name}");
        assert_eq!(subject.shown(), want, "{name}: nothing was changed");
        let store = subject.open(true).unwrap();
        assert_eq!(values(&store), rest, "{name}, accepted");
        assert!(
            store.revision() > Revision(1_000_000_009 - 9),
            "{name}: no revision is used twice"
        );
        store.commit(Transaction::new().put(Key::new("a", "b"), Bytes::new())).await.unwrap();
        drop(store);
        assert!(subject.open(false).is_ok(), "{name}: and all is well");
        let kept = fs::read_dir(subject.0.path()).unwrap().flatten();
        let kept = kept.filter(|file| file.file_name().to_string_lossy().starts_with("before-"));
        assert_eq!(kept.count(), 1, "{name}: the damaged files are kept");
    }
}

#[tokio::test]
async fn damage_to_what_the_tables_hold_costs_nothing() {
    let subject = Subject::new(5, 9).await;
    subject.damage("ahead0", |bytes| {
        let at = find(bytes, 3);
        bytes[at] = b'w';
    });
    assert_eq!(subject.shown(), "v9 v7 v8 @9 told 9");
}

#[tokio::test]
async fn a_log_without_tables_is_not_the_beginning_of_a_store() {
    let subject = Subject::new(5, 9).await;
    fs::remove_file(subject.path("redb")).unwrap();
    for accept_loss in [false, true] {
        let error = subject.open(accept_loss).unwrap_err();
        assert!(error.contains("it is missing, but"), "{error}");
        assert!(error.contains("roadstead snapshot restore FILE --force"), "{error}");
        assert!(error.contains("or begin with an empty cluster: move"), "{error}");
    }
    assert!(!subject.path("redb").exists());
}

#[tokio::test]
async fn the_log_of_another_store_is_refused() {
    let (ours, theirs) = (Subject::new(2, 3).await, Subject::new(2, 9).await);
    fs::copy(theirs.path("ahead0"), ours.path("ahead0")).unwrap();
    assert!(ours.shown().starts_with("store.ahead0, byte 0: it belongs to another store"));
}

/// Stores of earlier versions are taken over with all that is in their logs.
#[tokio::test]
async fn a_store_of_an_earlier_version_is_taken_over() {
    let things = |number: u64| Key::new("things", format!("k{number}"));
    for (format, logged) in [(1, 0), (2, 0), (2, 4)] {
        let subject = Subject(tempfile::tempdir().unwrap());
        let entries = (1..=3).map(|number| Entry {
            key: things(number),
            value: Bytes::from(format!("v{number}")),
            revision: Revision(number),
        });
        let contents =
            Contents { entries: entries.collect(), compacted: Revision(3), log: Vec::new() };
        of_old_format(&subject.path("redb"), format, 77, &contents);
        let groups = (4..4 + logged).map(|number| {
            let (revision, key) = (Revision(number), things(number % 4));
            let value = Some(Bytes::from(format!("v{number}")));
            Redo { changes: vec![Change { revision, at: 5, key, value }], compact: None }
        });
        if logged > 0 {
            let log = super::file::tests::old_log(77, &groups.collect::<Vec<_>>());
            fs::write(subject.path("ahead0"), log).unwrap();
            fs::write(subject.path("ahead1"), "").unwrap();
        }
        let want = if logged > 0 { "v4 v5 v6 v7" } else { "v1 v2 v3" };
        for round in 0..2 {
            let store = subject.open(false).unwrap();
            assert_eq!(values(&store), want, "{format} {logged} {round}");
            assert_eq!(store.revision(), Revision(3 + logged), "{format} {logged} {round}");
            drop(store);
            assert_eq!(format_of(&subject.path("redb")), 3);
        }
    }
}
