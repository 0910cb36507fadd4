use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

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

#[tokio::test]
async fn a_transaction_happens_whole_or_not_at_all() {
    let store = Store::new();
    store.commit(put("a", "1")).await.unwrap();
    let both = put("b", "2").expect(key("a"), None);
    let error = store.commit(both).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "things/a is at revision Some(Revision(1)), the write expected None"
    );
    assert_eq!(text(&store.list("things", "", None).unwrap()), "a=1@1");
    let both = put("b", "2").put(key("c"), Bytes::from("3")).expect(key("a"), Some(Revision(1)));
    assert_eq!(store.commit(both).await, Ok(Revision(3)));
    assert_eq!(text(&store.list("things", "", None).unwrap()), "a=1@1 b=2@2 c=3@3");
}

#[tokio::test]
async fn the_past_can_be_read_until_it_is_forgotten() {
    let store = Store::new();
    for round in 0..HISTORY + 2 {
        store.commit(put("a", &round.to_string())).await.unwrap();
    }
    let list = |at| store.list("things", "", Some(Revision(at)));
    assert_eq!(text(&list(5).unwrap()), "a=4@5");
    assert_eq!(text(&list(2).unwrap()), "a=1@2", "the state after the last forgotten event");
    let gone = StoreError::Compacted { asked: Revision(1), oldest: Revision(2) };
    assert_eq!(list(1).unwrap_err(), gone);
    assert_eq!(store.feed("things", Revision(1)).unwrap_err(), gone);
    let future = HISTORY as u64 + 9;
    assert!(matches!(list(future), Err(StoreError::Future { .. })));
}

#[tokio::test]
async fn a_feed_wakes_for_its_own_bucket_only() {
    let store = Store::new();
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

/// What a writer may do to one of a few keys.
fn operations() -> impl Strategy<Value = Vec<(u8, Option<u8>)>> {
    proptest::collection::vec((0u8..6, proptest::option::weighted(0.7, any::<u8>())), 1..60)
}

proptest! {
    /// Whatever is written, a reader that follows the feed from any revision at which it read a
    /// snapshot ends with the same content as a fresh snapshot.
    #[test]
    fn snapshot_plus_feed_is_the_present(operations in operations(), start in 0usize..60) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = Store::new();
            let mut revisions = vec![Revision(0)];
            for (name, value) in operations {
                let key = key(&format!("k{name}"));
                let change = match value {
                    Some(value) => Transaction::new().put(key, Bytes::copy_from_slice(&[value])),
                    None => Transaction::new().delete(key),
                };
                revisions.push(store.commit(change).await.unwrap());
            }
            let start = revisions[start % revisions.len()];
            let snapshot = store.list("things", "", Some(start)).unwrap();
            let mut model: BTreeMap<_, _> =
                snapshot.entries.iter().map(|e| (e.key.path.clone(), e.value.clone())).collect();
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
            let now = store.list("things", "", None).unwrap();
            let now: BTreeMap<_, _> =
                now.entries.iter().map(|e| (e.key.path.clone(), e.value.clone())).collect();
            prop_assert_eq!(model, now);
            Ok(())
        })?;
    }
}
