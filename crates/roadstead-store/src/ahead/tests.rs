use std::fs;

use bytes::Bytes;
use tempfile::TempDir;

use crate::entry::{Key, Revision};
use crate::store::{Options, Store};
use crate::transaction::Transaction;

/// A store in a directory, after a crash.
struct Subject(TempDir);

impl Subject {
    /// Writes revisions 1 to `count`, of which the tables hold the first `settled`.
    async fn new(settled: u64, count: u64) -> Self {
        let subject = Self(tempfile::tempdir().unwrap());
        let write = async |from: u64, to: u64| {
            let store = subject.open().unwrap();
            for number in from..=to {
                let key = Key::new("things", format!("k{}", number % 3));
                let value = Bytes::from(format!("v{number}"));
                store.commit(Transaction::new().put(key, value)).await.unwrap();
            }
        };
        write(1, settled).await;
        // Whoever takes the tables away while the log goes on has them as after a crash.
        let tables = fs::read(subject.path("redb")).unwrap();
        write(settled + 1, count).await;
        fs::write(subject.path("redb"), tables).unwrap();
        subject
    }

    fn path(&self, extension: &str) -> std::path::PathBuf {
        self.0.path().join("store").with_extension(extension)
    }

    fn open(&self) -> Result<std::sync::Arc<Store>, String> {
        Store::open(&self.path("redb"), Options::default()).map_err(|error| error.to_string())
    }

    /// What can be read: all entries, and how far the history goes.
    fn shown(&self) -> String {
        match self.open() {
            Ok(store) => {
                let all = store.all();
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let entries = all.entries.iter().map(|entry| text(&entry.value));
                let mut feed = store.feed("things", Revision(0)).unwrap();
                let told = feed.now().unwrap().events.len();
                format!("{} @{} told {told}", entries.collect::<Vec<_>>().join(" "), all.revision)
            }
            Err(error) => error.split(": ").skip(1).collect::<Vec<_>>().join(": "),
        }
    }

    fn damage(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path("ahead0")).unwrap();
        change(&mut bytes);
        fs::write(self.path("ahead0"), bytes).unwrap();
    }
}

/// Where the value of a write is in the log: behind its key, as two letters alone may be anywhere.
fn find(bytes: &[u8], number: u64) -> usize {
    let text = format!("thingsk{}v{number}", number % 3);
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes());
    at.unwrap() + text.len() - 2
}

#[tokio::test]
async fn what_only_the_log_holds_is_there() {
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Damage, &str); 7] = [
        ("nothing wrong", |_| {}, "v9 v7 v8 @9 told 9"),
        (
            "the last write in part",
            |bytes| {
                let at = find(bytes, 9);
                bytes[at..].fill(0);
            },
            "v6 v7 v8 @8 told 8",
        ),
        (
            "the last write cut off",
            |bytes| {
                let at = find(bytes, 9);
                bytes.truncate(at);
            },
            "v6 v7 v8 @8 told 8",
        ),
        (
            "a write that the tables hold",
            |bytes| {
                let at = find(bytes, 3);
                bytes[at] = b'w';
            },
            "v9 v7 v8 @9 told 9",
        ),
        (
            "a write that they lack",
            |bytes| {
                let at = find(bytes, 7);
                bytes[at] = b'w';
            },
            "the write-ahead log lacks revision 7, but has 8",
        ),
        ("the header", |bytes| bytes[20] ^= 1, "v3 v4 v5 @5 told 5"),
        ("everything", |bytes| bytes.clear(), "v3 v4 v5 @5 told 5"),
    ];
    for (name, damage, want) in cases {
        let subject = Subject::new(5, 9).await;
        subject.damage(damage);
        assert_eq!(subject.shown(), want, "{name}");
        // And it stays so.
        assert_eq!(subject.shown(), want, "{name}, once more");
    }
}

#[tokio::test]
async fn the_log_of_another_store_is_nothing_to_us() {
    let (ours, theirs) = (Subject::new(2, 2).await, Subject::new(2, 9).await);
    fs::copy(theirs.path("ahead0"), ours.path("ahead0")).unwrap();
    assert_eq!(ours.shown(), "v1 v2 @2 told 2");
}
