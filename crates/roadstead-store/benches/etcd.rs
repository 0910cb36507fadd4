//! What the store loses on top of etcd: creations of entries of 1 kB by 1, 16 and 64 writers, through the
//! store (checked, committed, seen in memory) and by transactions alone, in turns on the same etcd.
//!
//! `cargo bench -p roadstead-store --bench etcd`

#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use roadstead_etcd::client::Client;
use roadstead_etcd::member_url::MemberUrl;
use roadstead_etcd::messages::{Act, Compare, PutRequest, TxnOperation, TxnRequest};
use roadstead_etcd::tls::EtcdTls;
use roadstead_store::entry::Key;
use roadstead_store::kv::{EtcdOptions, Store};
use roadstead_store::layout::KeyLayout;
use roadstead_store::retention::Limits;
use roadstead_store::transaction::Transaction;
use roadstead_testkit::etcd::Etcd;
use tokio::task::JoinSet;

const LASTS: Duration = Duration::from_secs(4);

#[derive(Debug)]
struct Plain;

impl KeyLayout for Plain {
    fn prefix(&self) -> &str {
        "/bench/"
    }

    fn place(&self, key: &Key) -> String {
        format!("/bench/{}/{}", key.bucket, key.path)
    }

    fn key(&self, place: &str) -> Option<Key> {
        let (bucket, path) = place.strip_prefix("/bench/")?.split_once('/')?;
        Some(Key::new(bucket, path))
    }

    fn value(&self, _: &Key, stored: Bytes) -> Bytes {
        stored
    }
}

fn client(etcd: &Etcd) -> Client {
    let urls: Vec<_> = etcd.urls().iter().map(|url| MemberUrl::parse(url).unwrap()).collect();
    Client::new(&urls, EtcdTls::default().read().unwrap())
}

/// How often `work` is done in a second by so many at a time.
async fn rate<F: Future<Output = ()> + Send>(
    writers: usize,
    work: impl Fn(String) -> F + Clone + Send + 'static,
) -> f64 {
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let (work, stamp) = (work.clone(), format!("{:?}", std::time::SystemTime::now()));
        let stamp: String = stamp.chars().filter(char::is_ascii_digit).collect();
        tasks.spawn(async move {
            let mut count = 0;
            while begin.elapsed() < LASTS {
                work(format!("{stamp}-{writer}-{count}")).await;
                count += 1;
            }
            count
        });
    }
    let total: u64 = tasks.join_all().await.into_iter().sum();
    total as f64 / begin.elapsed().as_secs_f64()
}

#[tokio::main]
async fn main() {
    let etcd = Etcd::start(1).expect("etcd is there");
    let value = Bytes::from(vec![b'x'; 1000]);
    let raw = Arc::new(client(&etcd));
    let options = EtcdOptions {
        history: Limits::default(),
        patience: Duration::from_secs(20),
        compaction: None,
    };
    let store = Store::etcd(client(&etcd), Arc::new(Plain), options).await.unwrap();
    println!("writers  etcd alone  store over etcd  share");
    for writers in [1, 16, 64] {
        let (client, bytes) = (raw.clone(), value.clone());
        let alone = rate(writers, move |name| {
            let (client, value) = (client.clone(), bytes.clone());
            async move {
                let key = Bytes::from(format!("/elsewhere/{name}"));
                let put = Act::Put(PutRequest { key: key.clone(), value, lease: 0 });
                let compare = vec![Compare::at_revision(key, 0)];
                let success = vec![TxnOperation { act: Some(put) }];
                let txn = TxnRequest { compare, success, ..TxnRequest::default() };
                assert!(client.txn(&txn).await.unwrap().succeeded);
            }
        });
        let alone = alone.await;
        let (kept, bytes) = (store.clone(), value.clone());
        let over = rate(writers, move |name| {
            let (store, value) = (kept.clone(), bytes.clone());
            async move {
                let key = Key::new("things", format!("shop/{name}"));
                let create = Transaction::new().expect(key.clone(), None).put(key, value);
                store.commit(create).await.unwrap();
            }
        });
        let over = over.await;
        println!("{writers:>7}  {alone:>8.0}/s  {over:>13.0}/s  {:>4.0} %", 100.0 * over / alone);
    }
    let begin = Instant::now();
    const BARRIERS: u32 = 2000;
    for _ in 0..BARRIERS {
        store.fresh().await.unwrap();
    }
    println!("a barrier, alone: {:?}", begin.elapsed() / BARRIERS);
}
