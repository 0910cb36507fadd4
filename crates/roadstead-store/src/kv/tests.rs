use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn key(path: &str) -> Key {
    Key::new("things", path)
}

fn put(path: &str, value: &str) -> Transaction {
    Transaction::new().put(key(path), Bytes::copy_from_slice(value.as_bytes()))
}

fn text(snapshot: &Snapshot) -> String {
    let words = snapshot.entries.iter().map(|entry| {
        format!("{}={}@{}", entry.key.path, String::from_utf8_lossy(&entry.value), entry.revision)
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A store of either sort; the one on disk can be closed and opened again.
struct Subject {
    store: Arc<Store>,
    options: Options,
    directory: Option<TempDir>,
}

impl Subject {
    fn both(options: Options) -> [Self; 2] {
        let directory = tempfile::tempdir().unwrap();
        let disk = Store::open(&directory.path().join("store.redb"), options).unwrap();
        [
            Self { store: Store::memory_with(options), options, directory: None },
            Self { store: disk, options, directory: Some(directory) },
        ]
    }

    /// Only a store on disk outlives its process.
    fn reopen(&mut self) {
        let Some(directory) = &self.directory else { return };
        self.store = Store::memory();
        self.store = Store::open(&directory.path().join("store.redb"), self.options).unwrap();
    }
}

#[tokio::test]
async fn a_transaction_happens_whole_or_not_at_all() {
    for mut subject in Subject::both(Options::default()) {
        let store = subject.store.clone();
        store.commit(put("a", "1")).await.unwrap();
        let both = put("b", "2").expect(key("a"), None);
        let error = store.commit(both).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "things/a is at revision Some(Revision(1)), the write expected None"
        );
        assert_eq!(text(&store.list("things", "", None).unwrap()), "a=1@1");
        let both =
            put("b", "2").put(key("c"), Bytes::from("3")).expect(key("a"), Some(Revision(1)));
        assert_eq!(store.commit(both).await, Ok(Revision(3)));
        drop(store);
        subject.reopen();
        assert_eq!(text(&subject.store.list("things", "", None).unwrap()), "a=1@1 b=2@2 c=3@3");
    }
}

#[tokio::test(start_paused = true)]
async fn the_past_can_be_read_until_it_is_forgotten() {
    let history = Limits { age: Duration::from_secs(10), events: 5, ..Limits::default() };
    for mut subject in Subject::both(Options { history, ..Options::default() }) {
        subject.store.commit(put("old", "0")).await.unwrap();
        for round in 2..=7 {
            subject.store.commit(put("a", &round.to_string())).await.unwrap();
        }
        let list = |store: &Store, at| store.list("things", "", Some(Revision(at)));
        assert_eq!(text(&list(&subject.store, 1).unwrap()), "old=0@1", "it is young");
        tokio::time::advance(Duration::from_secs(11)).await;
        subject.store.commit(put("a", "8")).await.unwrap();
        for _ in 0..2 {
            let store = &subject.store;
            assert_eq!(text(&list(store, 5).unwrap()), "a=5@5 old=0@1");
            assert_eq!(
                text(&list(store, 3).unwrap()),
                "a=3@3 old=0@1",
                "the state after the last forgotten event"
            );
            let gone = StoreError::Compacted { asked: Revision(2), oldest: Revision(3) };
            assert_eq!(list(store, 2).unwrap_err(), gone);
            assert_eq!(store.feed("things", Revision(2)).unwrap_err(), gone);
            assert_eq!(
                list(store, 9).unwrap_err(),
                StoreError::Future { asked: Revision(9), newest: Revision(8) }
            );
            subject.reopen();
        }
        // Nobody knows any more which buckets had events that were forgotten before the start.
        if subject.directory.is_some() {
            assert!(subject.store.feed("other", Revision(2)).is_err());
            assert!(subject.store.list("other", "", Some(Revision(2))).is_err());
        }
        assert!(subject.store.feed("other", Revision(3)).is_ok());
    }
}

#[tokio::test]
async fn a_quiet_reader_loses_nothing_when_others_fill_the_history() {
    let history = Limits { bytes: 4000, ..Limits::default() };
    for subject in Subject::both(Options { history, ..Options::default() }) {
        let store = subject.store;
        let mut feed = store.feed("things", Revision(0)).unwrap();
        for _ in 0..50 {
            let noise = Transaction::new().put(Key::new("other", "x"), Bytes::from("noise"));
            store.commit(noise).await.unwrap();
        }
        assert!(store.feed("other", Revision(0)).is_err(), "that was too much to keep");
        store.commit(put("a", "1")).await.unwrap();
        assert_eq!(feed.next().await.unwrap().events.len(), 1);
    }
}

#[tokio::test]
async fn a_feed_wakes_for_its_own_bucket_only() {
    for subject in Subject::both(Options::default()) {
        let store = subject.store;
        let mut feed = store.feed("things", Revision(0)).unwrap();
        store.commit(Transaction::new().put(Key::new("other", "x"), Bytes::new())).await.unwrap();
        assert!(feed.now().unwrap().events.is_empty());
        let (batch, _) = tokio::join!(feed.next(), store.commit(put("a", "1")));
        let batch = batch.unwrap();
        assert_eq!(
            format!("{:?} upto {}", batch.events, batch.revision),
            "[things/a created at 2] upto 2"
        );
    }
}

#[tokio::test]
async fn revisions_go_on_when_everything_is_deleted_and_forgotten() {
    let history = Limits { bytes: 1, ..Limits::default() };
    let [_, mut subject] = Subject::both(Options { history, ..Options::default() });
    subject.store.commit(put("a", "1")).await.unwrap();
    subject.store.commit(Transaction::new().delete(key("a"))).await.unwrap();
    subject.reopen();
    assert_eq!(subject.store.revision(), Revision(2));
    assert_eq!(subject.store.commit(put("a", "2")).await, Ok(Revision(3)));
}

#[test]
fn what_cannot_be_opened_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let open = |name: &str| {
        let error = Store::open(&path(name), Options::default()).unwrap_err().to_string();
        error.replace(&directory.path().display().to_string(), "DIR")
    };
    std::fs::write(path("text"), "not a store").unwrap();
    std::fs::write(path("long"), vec![7; 100_000]).unwrap();
    std::fs::write(path("file"), "").unwrap();
    std::fs::write(path("void"), "").unwrap();
    crate::log::disk::tables::tests::of_format(
        &path("newer"),
        crate::log::disk::tables::FORMAT + 1,
    );
    crate::log::disk::tables::tests::of_somebody_else(&path("foreign"));
    let held = Store::open(&path("held"), Options::default()).unwrap();
    let in_use = "the store DIR/held is in use by ".to_owned();
    let cases = [
        ("text", "the store DIR/text cannot be read, and was left as it is: "),
        ("long", "the store DIR/long cannot be read, and was left as it is: "),
        ("void", "the store DIR/void cannot be read, and was left as it is: "),
        ("file/store", "cannot use DIR/file"),
        ("newer", "the store DIR/newer has format 4, this version of roadstead knows up to 3"),
        (
            "foreign",
            "the store DIR/foreign cannot be read, and was left as it is: DB corrupted: it holds \
             something else",
        ),
        ("held", &in_use),
    ];
    for (name, want) in cases {
        let error = open(name);
        assert!(error.starts_with(want), "{name}: {error}");
    }
    assert!(open("held").ends_with(&format!("(pid {})", std::process::id())), "{}", open("held"));
    drop(held);
    assert!(Store::open(&path("held"), Options::default()).is_ok());
}

#[tokio::test]
async fn a_damaged_file_is_refused_or_read_but_never_a_panic() {
    let [_, subject] = Subject::both(Options::default());
    for round in 0..200 {
        subject.store.commit(put(&(round % 20).to_string(), &"x".repeat(round))).await.unwrap();
    }
    let directory = subject.directory.unwrap();
    let path = directory.path().join("store.redb");
    drop(subject.store);
    let whole = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for round in 0..300_usize {
        let mut bytes = whole.clone();
        let from = round * 7919 % bytes.len();
        let until = bytes.len().min(from + [1, 64, 5000][round % 3]);
        match round % 2 {
            0 => bytes[from..until].fill(u8::try_from(round % 256).unwrap()),
            _ => bytes.truncate(from),
        }
        std::fs::write(&path, bytes).unwrap();
        match Store::open(&path, Options::default()) {
            Ok(store) => drop(store.all()),
            Err(OpenError::Corrupt { .. } | OpenError::Damaged { .. }) => refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
    assert!(refused > 100, "only {refused} refused");
}

/// What a writer may do to one of a few keys.
fn operations() -> impl Strategy<Value = Vec<(u8, Option<u8>)>> {
    proptest::collection::vec((0u8..6, proptest::option::weighted(0.7, any::<u8>())), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is written, a reader that follows the feed from any revision at which it read a
    /// snapshot ends with the same content as a fresh snapshot, whether or not the store was opened
    /// anew meanwhile.
    #[test]
    fn snapshot_plus_feed_is_the_present(operations in operations(), start in 0usize..60) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for mut subject in Subject::both(Options::default()) {
            let revisions = runtime.block_on(write(&subject.store, &operations));
            subject.reopen();
            let start = revisions[start % revisions.len()];
            follow(&subject.store, start)?;
            for prefix in ["", "even/", "odd/", "odd/k1", "none/"] {
                pages(&subject.store, prefix, start)?;
            }
        }
    }
}

async fn write(store: &Store, operations: &[(u8, Option<u8>)]) -> Vec<Revision> {
    let mut revisions = vec![Revision(0)];
    for (name, value) in operations {
        let group = ["even", "odd"][usize::from(name % 2)];
        let key = key(&format!("{group}/k{name}"));
        let change = match value {
            Some(value) => Transaction::new().put(key, Bytes::copy_from_slice(&[*value])),
            None => Transaction::new().delete(key),
        };
        revisions.push(store.commit(change).await.unwrap());
    }
    revisions
}

fn follow(store: &Arc<Store>, start: Revision) -> Result<(), TestCaseError> {
    let content = |snapshot: Snapshot| -> BTreeMap<_, _> {
        snapshot.entries.iter().map(|e| (e.key.path.clone(), e.value.clone())).collect()
    };
    let mut model = content(store.list("things", "", Some(start)).unwrap());
    let mut last = start;
    for event in store.feed("things", start).unwrap().now().unwrap().events {
        prop_assert!(event.revision > last, "in order, none doubled");
        last = event.revision;
        let before = event.before.as_ref().map(|e| e.value.clone());
        prop_assert_eq!(model.get(&event.key.path).cloned(), before);
        match &event.after {
            Some(after) => model.insert(event.key.path.clone(), after.value.clone()),
            None => model.remove(&event.key.path),
        };
    }
    prop_assert_eq!(model, content(store.list("things", "", None).unwrap()));
    Ok(())
}

/// Page by page, a past or present state is the same as in one piece.
fn pages(store: &Arc<Store>, prefix: &str, at: Revision) -> Result<(), TestCaseError> {
    for at in [Some(at), None] {
        let whole = store.list("things", prefix, at).unwrap();
        for limit in [1, 2, 5] {
            let (mut found, mut after) = (Vec::new(), String::new());
            loop {
                let range = Range { prefix, after: &after, limit };
                let page = store.page("things", &range, at).unwrap();
                prop_assert!(page.entries.len() <= limit);
                prop_assert_eq!(page.revision, whole.revision);
                found.extend(page.entries);
                if !page.more {
                    let now = store.list("things", prefix, None).unwrap().entries.len();
                    prop_assert_eq!(page.total, now);
                    break;
                }
                after = found.last().unwrap().key.path.to_string();
            }
            let found = Snapshot { entries: found, revision: whole.revision };
            prop_assert_eq!(text(&found), text(&whole));
        }
    }
    Ok(())
}

fn replace(path: &Path, from: &str, to: &str) -> usize {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(path).unwrap();
    let found =
        (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from.as_bytes()));
    let found: Vec<_> = found.collect();
    for at in &found {
        bytes[*at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    // In place: whoever has it open has the same file.
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::File::options().write(true).open(path).unwrap(),
        &bytes,
        0,
    )
    .unwrap();
    found.len()
}

#[tokio::test]
async fn a_damaged_object_is_named_and_the_others_can_be_kept() {
    let [_, subject] = Subject::both(Options::default());
    for number in 0..9 {
        subject.store.commit(put(&format!("k{number}"), &format!("MARKER{number}"))).await.unwrap();
    }
    let directory = subject.directory.unwrap();
    let path = directory.path().join("store.redb");
    drop(subject.store);
    assert!(replace(&path, "MARKER4", "MARKER5") > 0);
    let open = |accept_loss| Store::open(&path, Options { accept_loss, ..Options::default() });
    let error = open(false).unwrap_err().to_string();
    let want = "store.redb, things/k4 at revision 5: the object does not fit its checksum";
    assert!(error.contains(want) && error.contains("--accept-loss"), "{error}");
    assert_eq!(Store::verify(&path).unwrap_err().to_string(), error);
    let store = open(true).unwrap();
    let kept = text(&store.list("things", "", None).unwrap());
    assert_eq!(kept.split(' ').count(), 8, "{kept}");
    assert!(kept.contains("k3=MARKER3@4 k5=MARKER5@6"), "{kept}");
    drop(store);
    assert_eq!(Store::verify(&path).unwrap().entries.len(), 8);
}

/// A place for a store is no store that was there before.
#[test]
fn a_store_that_is_gone_is_not_made_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let open = |accept_loss| {
        Store::open(&path, Options { expected: true, accept_loss, ..Options::default() })
    };
    let error = open(false).unwrap_err().to_string();
    assert!(error.contains("is gone") && error.contains("snapshot restore FILE"), "{error}");
    assert!(error.contains("--accept-loss"), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing was made");
    drop(open(true).unwrap());
    open(false).unwrap();
}

#[tokio::test]
async fn nothing_is_acknowledged_when_a_file_is_not_where_it_was() {
    type Harm = fn(&Path);
    let cases: [(&str, Harm, &str); 4] = [
        ("redb", |path| std::fs::remove_file(path).unwrap(), "has been removed"),
        ("ahead0", |path| std::fs::remove_file(path).unwrap(), "has been removed"),
        (
            "mark",
            |path| {
                std::fs::copy(path, path.with_extension("copy")).unwrap();
                std::fs::rename(path.with_extension("copy"), path).unwrap();
            },
            "has been replaced",
        ),
        (
            "ahead1",
            |path| std::fs::rename(path, path.with_extension("x")).unwrap(),
            "has been removed",
        ),
    ];
    for (file, harm, want) in cases {
        for look in [false, true] {
            let [_, subject] = Subject::both(Options::default());
            let path = subject.directory.as_ref().unwrap().path().join("store");
            let store = subject.store.clone();
            store.commit(put("a", "1")).await.unwrap();
            assert_eq!(store.failure(), None);
            harm(&path.with_extension(file));
            // Either somebody asks, or somebody writes, a moment later.
            std::thread::sleep(Duration::from_millis(25));
            let failure = match look {
                true => store.failure().unwrap(),
                false => store.commit(put("a", "2")).await.unwrap_err(),
            };
            let said = failure.to_string();
            assert!(
                said.starts_with("the store is read-only since") && said.contains(want),
                "{said}"
            );
            assert_eq!(store.commit(put("a", "3")).await, Err(failure));
            assert_eq!(text(&store.list("things", "", None).unwrap()), "a=1@1", "reads go on");
        }
    }
}

#[tokio::test]
async fn a_quota_holds_for_what_grows() {
    for subject in Subject::both(Options { quota: Some(3200), ..Options::default() }) {
        let store = subject.store;
        let long = "x".repeat(800);
        for name in ["a", "b", "c"] {
            store.commit(put(name, &long)).await.unwrap();
        }
        assert_eq!(store.usage(), (3003, Some(3200)));
        let error = store.commit(put("d", "x")).await.unwrap_err();
        assert_eq!(error, StoreError::Full { used: 3003, quota: 3200 });
        let said = error.to_string();
        assert!(said.starts_with("etcdserver: mvcc: database space exceeded: "), "{said}");
        // What is there may grow a little further, and shrink as it likes.
        store.commit(put("a", &"x".repeat(1190))).await.unwrap();
        assert!(store.commit(put("a", &"x".repeat(1210))).await.is_err());
        assert!(store.commit(put("a", &"x".repeat(1210)).freeing()).await.is_ok(), "it is going");
        assert!(
            store.commit(put("e", "x").delete(key("b"))).await.is_ok(),
            "it is less than before"
        );
        store.commit(Transaction::new().delete(key("a"))).await.unwrap();
        store.commit(put("d", &long)).await.unwrap();
        assert_eq!(store.usage().0, 2 * 1001 + 202);
    }
}

#[tokio::test]
async fn a_running_store_finds_damage_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let scrub = Some(Duration::from_millis(20));
    let store = Store::open(&path, Options { scrub, ..Options::default() }).unwrap();
    // More than fits into the pages that redb keeps in memory.
    for first in (0..3000).step_by(100) {
        let all = (first..first + 100).fold(Transaction::new(), |all, number| {
            let value = format!("MARKER{number:04}{}", "x".repeat(3000));
            all.put(key(&format!("k{number:04}")), Bytes::from(value))
        });
        store.commit(all).await.unwrap();
    }
    let wait = async |what: &str, until: &dyn Fn() -> bool| {
        for _ in 0..600 {
            if until() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{what}");
    };
    let checkpointed = || std::fs::metadata(&path).unwrap().len() > 9 << 20;
    wait("the tables follow", &checkpointed).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(store.damage(), []);
    assert!(replace(&path, "MARKER1", "MARKER7") > 500);
    wait("damage is found", &|| !store.damage().is_empty()).await;
    let first = store.damage()[0].to_string();
    assert!(first.contains("things/k1") && first.contains("does not fit its checksum"), "{first}");
    // Everything is still in memory, and can be saved.
    assert!(store.all().entries.iter().all(|entry| !entry.value.starts_with(b"MARKER7")));
    drop(store);
    assert!(Store::open(&path, Options::default()).is_err());
}
