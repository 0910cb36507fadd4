//! The store over a real etcd.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use roadstead_etcd::member_url::MemberUrl;
use roadstead_etcd::messages::CompactionRequest;
use roadstead_testkit::etcd::Etcd;
use roadstead_testkit::link::Link;
use rustls::{ClientConfig, RootCertStore};

use super::*;
use crate::entry::Key;
use crate::kv::Store;
use crate::log::remote::{BUCKETS, content, follow as follow_all, transaction, wishes};
use crate::state::State;
use bytes::Bytes;

/// Entries by their own names, below a prefix.
#[derive(Debug)]
struct Plain(String);

impl KeyLayout for Plain {
    fn prefix(&self) -> &str {
        &self.0
    }

    fn place(&self, key: &Key) -> String {
        format!("{}{}/{}", self.0, key.bucket, key.path)
    }

    fn key(&self, place: &str) -> Option<Key> {
        let (bucket, path) = place.strip_prefix(&self.0)?.split_once('/')?;
        Some(Key::new(bucket, path))
    }

    fn value(&self, _: &Key, stored: Bytes) -> Bytes {
        stored
    }
}

pub(super) fn client(etcd: &Etcd) -> Client {
    client_at(&etcd.urls())
}

fn client_at(urls: &[String]) -> Client {
    let endpoints: Vec<_> = urls.iter().map(|url| MemberUrl::parse(url).unwrap()).collect();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let tls = builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    Client::new(&endpoints, tls)
}

fn options() -> EtcdOptions {
    let patience = Duration::from_secs(30);
    EtcdOptions { history: Limits::default(), patience, compaction: None }
}

pub(super) async fn store(etcd: &Etcd, prefix: &str) -> Arc<Store> {
    Store::etcd(client(etcd), Arc::new(Plain(prefix.to_owned())), options()).await.unwrap()
}

async fn compact(etcd: &Etcd, revision: Revision) {
    let request = CompactionRequest { revision: revision.0 as i64, physical: true };
    client(etcd).compact(&request).await.unwrap();
}

pub(super) fn key(path: &str) -> Key {
    Key::new("things", path)
}

fn put(path: &str, value: &str) -> Transaction {
    Transaction::new().put(key(path), value.to_owned().into())
}

fn text(store: &Store, at: Option<Revision>) -> String {
    let entries = store.list("things", "", at).unwrap().entries;
    let words = entries.iter().map(|entry| {
        format!("{}={}@{}", entry.key.path, String::from_utf8_lossy(&entry.value), entry.revision)
    });
    words.collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn a_transaction_happens_whole_or_not_at_all() {
    let Some(etcd) = Etcd::start(1) else { return };
    let store = store(&etcd, "/r/").await;
    assert_eq!(store.revision(), Revision(1), "an empty etcd has had one");
    assert_eq!(store.commit(put("a", "1")).await, Ok(Revision(2)));
    let both = put("b", "2").expect(key("a"), None);
    let found = Some(Revision(2));
    let conflict = StoreError::Conflict { key: key("a"), expected: None, found };
    assert_eq!(store.commit(both).await, Err(conflict));
    let three = put("b", "2").put(key("c"), "3".into()).expect(key("a"), found);
    assert_eq!(store.commit(three.put(key("b"), "4".into())).await, Ok(Revision(3)));
    assert_eq!(
        text(&store, None),
        "a=1@2 b=4@3 c=3@3",
        "of two writes to a key the last one counts"
    );
    assert_eq!(text(&store, found), "a=1@2");
    let replaced = Transaction::new().delete(key("a")).put(key("a"), "5".into());
    store.commit(replaced.delete(key("none"))).await.unwrap();
    assert_eq!(text(&store, None), "a=5@4 b=4@3 c=3@3");
    assert_eq!(store.commit(Transaction::new().delete(key("none"))).await, Ok(Revision(4)));
    let many =
        (0..200).fold(Transaction::new(), |all, at| all.put(key(&at.to_string()), "".into()));
    let refused = store.commit(many).await.unwrap_err().to_string();
    assert!(
        refused.starts_with("200 keys are to be written") && refused.ends_with("than 128"),
        "{refused}"
    );
    let refused = store.commit(put("a", &"x".repeat(2 << 20))).await.unwrap_err().to_string();
    assert!(refused.starts_with("the request has 2097"), "{refused}");
}

#[tokio::test]
async fn what_another_server_has_written_is_seen_after_a_barrier() {
    let Some(etcd) = Etcd::start(1) else { return };
    let (one, other) = (store(&etcd, "/r/").await, store(&etcd, "/r/").await);
    let mut feed = other.feed("things", other.revision()).unwrap();
    for round in 0..200 {
        let revision = one.commit(put("a", &round.to_string())).await.unwrap();
        other.fresh().await.unwrap();
        assert_eq!(other.get(&key("a")).unwrap().revision, revision);
    }
    let mut seen = 0;
    while seen < 200 {
        seen += feed.next().await.unwrap().events.len();
    }
    assert_eq!((seen, one.failure(), other.failure()), (200, None, None));
}

#[tokio::test]
async fn servers_that_start_later_have_the_same_past() {
    let Some(etcd) = Etcd::start(1) else { return };
    let first = store(&etcd, "/r/").await;
    for round in 0..20 {
        first.commit(put(["a", "b"][round % 2], &round.to_string())).await.unwrap();
    }
    first.commit(Transaction::new().delete(key("a"))).await.unwrap();
    let second = store(&etcd, "/r/").await;
    for revision in 1..=22 {
        let at = Some(Revision(revision));
        assert_eq!(text(&first, at), text(&second, at), "{revision}");
    }
    compact(&etcd, Revision(10)).await;
    let third = store(&etcd, "/r/").await;
    let gone = StoreError::Compacted { asked: Revision(9), oldest: Revision(10) };
    assert_eq!(third.list("things", "", Some(Revision(9))).unwrap_err(), gone);
    for revision in 10..=22 {
        let at = Some(Revision(revision));
        assert_eq!(text(&first, at), text(&third, at), "{revision}");
    }
    let events = third.feed("things", Revision(10)).unwrap().now().unwrap().events;
    assert_eq!(events.len(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_goes_and_comes_again() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let store = store(&etcd, "/r/").await;
    let mut feed = store.feed("things", store.revision()).unwrap();
    store.commit(put("a", "1").expect(key("a"), None)).await.unwrap();
    etcd.kill(0);
    time::sleep(Duration::from_millis(500)).await;
    let refused = store.commit(put("a", "2")).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable { .. }), "{refused}");
    assert!(matches!(store.fresh().await, Err(StoreError::Unavailable { .. })));
    assert!(store.failure().is_some());
    assert_eq!(text(&store, None), "a=1@2", "reads go on");
    etcd.restart(0);
    store.fresh().await.unwrap();
    store.commit(put("a", "3").expect(key("a"), Some(Revision(2)))).await.unwrap();
    let mut seen = 0;
    while seen < 2 {
        seen += feed.next().await.unwrap().events.len();
    }
    for _ in 0..100 {
        if store.failure().is_none() {
            return;
        }
        time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?}", store.failure());
}

/// Attempts whose answers are lost, though they are carried out: each write happens once, and who wrote is
/// told so.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_found_again() {
    let Some(etcd) = Etcd::start(1) else { return };
    let store = store(&etcd, "/r/").await;
    // What is created first may not be sent again: that it is absent may be so twice.
    let mut guard = Some(store.commit(put("a", "first").expect(key("a"), None)).await.unwrap());
    for round in 0..6 {
        let write = put("a", &round.to_string()).expect(key("a"), guard);
        let before = store.get(&key("a")).map(|entry| entry.revision);
        assert_eq!(before, guard);
        let store = store.clone();
        let writing = tokio::spawn(async move { store.commit(write).await });
        // It is asked, and goes on only when nobody waits for the first attempts any more.
        etcd.pause(0, true);
        time::sleep(Duration::from_millis(900)).await;
        etcd.pause(0, false);
        guard = Some(writing.await.unwrap().unwrap());
    }
    let events = store.feed("things", Revision(1)).unwrap().now().unwrap().events;
    assert_eq!(events.len(), 7, "each write happened once");
    assert_eq!(store.get(&key("a")).map(|entry| entry.revision), guard);
}

/// What is asked arrives, and no answer comes back. Meanwhile somebody else deletes what was created: it
/// must not come again.
#[tokio::test(flavor = "multi_thread")]
async fn a_create_is_not_sent_again() {
    let Some(etcd) = Etcd::start(1) else { return };
    let address = etcd.urls()[0].strip_prefix("http://").unwrap().parse().unwrap();
    let link = Link::to(address);
    let behind = client_at(&[format!("http://{}", link.address())]);
    let layout = Arc::new(Plain("/r/".to_owned()));
    let one = Store::etcd(behind, layout, options()).await.unwrap();
    let other = store(&etcd, "/r/").await;
    link.cut(false, true);
    let create = put("a", "1").expect(key("a"), None);
    let writer = one.clone();
    let writing = tokio::spawn(async move { writer.commit(create).await });
    let created = loop {
        other.fresh().await.unwrap();
        if let Some(entry) = other.get(&key("a")) {
            break entry.revision;
        }
        time::sleep(Duration::from_millis(5)).await;
    };
    let delete = Transaction::new().delete(key("a")).expect(key("a"), Some(created));
    other.commit(delete).await.unwrap();
    let told = writing.await.unwrap();
    link.cut(false, false);
    assert!(matches!(told, Err(StoreError::Unknown { .. })), "nobody could say: {told:?}");
    one.fresh().await.unwrap();
    other.fresh().await.unwrap();
    let events = other.feed("things", Revision(1)).unwrap().now().unwrap().events;
    assert_eq!(events.len(), 2, "it was created and deleted once: {events:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_forgotten_meanwhile_begins_anew() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let store = store(&etcd, "/r/").await;
    store.commit(put("a", "1")).await.unwrap();
    store.commit(put("b", "1")).await.unwrap();
    let mut behind = store.feed("things", Revision(2)).unwrap();
    // Connections end; before the watch comes again, etcd has gone on and forgotten.
    etcd.kill(0);
    etcd.restart(0);
    let other = client(&etcd);
    for round in 0..30 {
        let put = roadstead_etcd::messages::PutRequest {
            key: "/r/things/a".into(),
            value: round.to_string().into(),
            lease: 0,
        };
        let act = Some(roadstead_etcd::messages::Act::Put(put));
        let success = vec![roadstead_etcd::messages::TxnOperation { act }];
        let txn = roadstead_etcd::messages::TxnRequest { success, ..Default::default() };
        other.txn(&txn).await.unwrap();
    }
    compact(&etcd, Revision(20)).await;
    store.fresh().await.unwrap();
    assert_eq!(text(&store, None), "a=29@33 b=1@3");
    // Either it was fast enough and has told everything, or it says that it has not.
    match behind.next().await {
        Ok(batch) => assert_eq!(batch.events[0].revision, Revision(3)),
        Err(error) => assert!(matches!(error, StoreError::Compacted { .. }), "{error}"),
    }
}

#[tokio::test]
async fn a_state_that_takes_the_place_of_another() {
    let contents = |compacted| crate::log::disk::contents::Contents {
        compacted: Revision(compacted),
        ..Default::default()
    };
    let state =
        |compacted| State::load(contents(compacted), &crate::kv::Options::default()).unwrap();
    let replica = Replica::new(state(10));
    let log = crate::log::AnyLog::Memory(crate::log::memory::MemoryLog::new(replica.clone()));
    let store = Store::over(replica.clone(), log);
    let [mut level, mut behind] = [(); 2].map(|()| store.feed("things", Revision(10)).unwrap());
    store.commit(put("a", "1")).await.unwrap();
    level.next().await.unwrap();
    replica.write().replace(state(11));
    assert!(matches!(behind.now(), Err(StoreError::Compacted { .. })), "its events are gone");
    assert_eq!(level.now().unwrap().events.len(), 0);
    let (told, _) = tokio::join!(level.next(), store.commit(put("a", "2")));
    assert_eq!(told.unwrap().events.len(), 1, "it goes on");
    replica.write().replace(state(5));
    let gone = StoreError::Compacted { asked: Revision(12), oldest: Revision(5) };
    assert_eq!(level.next().await.unwrap_err(), gone, "everybody begins again");
}

#[test]
fn a_revision_that_is_left_out_is_noticed() {
    use crate::log::disk::contents::Contents;
    use crate::log::etcd::follow::{Gap, Writes, absorb};
    use crate::log::etcd::told::Told;
    use roadstead_etcd::messages::{KeyEvent, KeyValue};
    let layout = Plain("/r/".to_owned());
    let told = |revision: u64, key: &str| {
        let mod_revision = revision as i64;
        let kv = KeyValue { key: key.to_owned().into(), mod_revision, ..KeyValue::default() };
        let events = vec![KeyEvent { kind: 0, kv: Some(kv) }];
        Writes::of(Told { revision: Revision(revision), events }, &layout)
    };
    let contents = Contents { compacted: Revision(5), ..Contents::default() };
    let mut state = State::load(contents, &crate::kv::Options::default()).unwrap();
    // What is known already is told again; what is about others counts, too.
    let all = [told(5, "/r/things/a"), told(6, "/r/things/b"), told(7, "/elsewhere")];
    absorb(&mut state, all, 0).unwrap();
    assert_eq!((state.revision, state.all().len()), (Revision(7), 1));
    let gap = absorb(&mut state, [told(9, "/r/things/c")], 0);
    assert!(matches!(gap, Err(Gap(Revision(9)))), "{gap:?}");
    assert_eq!((state.revision, state.all().len()), (Revision(7), 1));
}

#[tokio::test]
async fn compaction_is_agreed_on() {
    let Some(etcd) = Etcd::start(1) else { return };
    let mut stores = Vec::new();
    for _ in 0..2 {
        let compaction = Some(Duration::from_millis(400));
        let options = EtcdOptions { compaction, ..options() };
        let layout = Arc::new(Plain("/r/".to_owned()));
        stores.push(Store::etcd(client(&etcd), layout, options).await.unwrap());
    }
    for round in 0..40 {
        stores[round % 2].commit(put("a", &round.to_string())).await.unwrap();
        time::sleep(Duration::from_millis(50)).await;
    }
    // What was new one round ago may be forgotten, and was, by one of them.
    let late = store(&etcd, "/r/").await;
    let Err(StoreError::Compacted { oldest, .. }) = late.feed("things", Revision(2)) else {
        panic!("nothing was forgotten")
    };
    assert!(oldest < late.revision(), "{oldest}");
    for store in &stores {
        store.fresh().await.unwrap();
        assert_eq!(text(store, None), text(&late, None));
    }
}

#[tokio::test]
async fn what_lasts_for_a_time_ends_by_itself() {
    let Some(etcd) = Etcd::start(1) else { return };
    let store = store(&etcd, "/r/").await;
    let time = Duration::from_secs(2);
    store.commit(put("stays", "1")).await.unwrap();
    store.commit(put("goes", "1").put(key("too"), "1".into()).lasting(time)).await.unwrap();
    let mut feed = store.feed("things", store.revision()).unwrap();
    let mut gone = Vec::new();
    while gone.len() < 2 {
        let batch = time::timeout(Duration::from_secs(20), feed.next()).await.unwrap().unwrap();
        gone.extend(batch.events.iter().map(|event| format!("{event:?}")));
    }
    assert!(gone.iter().all(|event| event.contains("deleted")), "{gone:?}");
    assert_eq!(text(&store, None), "stays=1@2");
}

static CASE: AtomicU32 = AtomicU32::new(0);

/// The property of `log/remote.rs`, with an etcd in place of the pretended server.
#[test]
fn a_shared_log_with_several_keys_in_a_revision() {
    let Some(etcd) = Etcd::start(1) else { return };
    let config = ProptestConfig::with_cases(16);
    proptest::test_runner::TestRunner::new(config)
        .run(&(wishes(), 1usize..5), |(wishes, limit)| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let prefix = format!("/case{}/", CASE.fetch_add(1, Ordering::Relaxed));
                let stores = [store(&etcd, &prefix).await, store(&etcd, &prefix).await];
                for (who, writes) in &wishes {
                    let store = &stores[usize::from(*who)];
                    let revision = store.commit(transaction(writes)).await.unwrap();
                    prop_assert!(store.revision() >= revision, "whoever wrote sees it");
                }
                let mut all = Vec::new();
                for store in &stores {
                    store.fresh().await.unwrap();
                    let mut found = BTreeMap::new();
                    for bucket in BUCKETS {
                        let seen = follow_all(store, bucket, limit)?;
                        let last = seen.values().next_back().cloned().unwrap_or_default();
                        prop_assert_eq!(&last, &content(store, bucket, None));
                        for (revision, then) in &seen {
                            prop_assert_eq!(then, &content(store, bucket, Some(*revision)));
                        }
                        found.insert(bucket, seen);
                    }
                    all.push(found);
                }
                prop_assert_eq!(&all[0], &all[1]);
                Ok(())
            })
        })
        .unwrap();
}
