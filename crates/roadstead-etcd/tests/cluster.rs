//! The client against a real etcd.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use roadstead_etcd::client::Client;
use roadstead_etcd::failure::Failure;
use roadstead_etcd::member_url::MemberUrl;
use roadstead_etcd::messages::{
    Act, CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, TxnOperation,
    TxnRequest, TxnResponse, WatchCreate,
};
use roadstead_testkit::etcd::Etcd;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::{Instant, sleep};

fn no_tls() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth()
}

fn client(etcd: &Etcd, tls: ClientConfig) -> Client {
    let endpoints: Vec<_> = etcd.urls().iter().map(|url| MemberUrl::parse(url).unwrap()).collect();
    Client::new(&endpoints, tls)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn put(key: &'static str, expected: i64, value: &str) -> TxnRequest {
    let key = key.as_bytes().into();
    let act = Act::Put(PutRequest { key, value: value.to_owned().into(), lease: 0 });
    guarded(expected, act)
}

fn delete(key: &'static str, expected: i64) -> TxnRequest {
    guarded(expected, Act::Delete(DeleteRangeRequest { key: key.as_bytes().into() }))
}

fn guarded(expected: i64, act: Act) -> TxnRequest {
    let key = match &act {
        Act::Put(put) => put.key.clone(),
        Act::Delete(delete) => delete.key.clone(),
        Act::Range(range) => range.key.clone(),
    };
    let look = Act::Range(RangeRequest { key: key.clone(), ..RangeRequest::default() });
    TxnRequest {
        compare: vec![Compare::at_revision(key, expected)],
        success: vec![TxnOperation { act: Some(act) }],
        failure: vec![TxnOperation { act: Some(look) }],
    }
}

/// The revision of a transaction, and whether it happened.
fn told(response: &TxnResponse) -> (i64, bool) {
    (response.header.as_ref().unwrap().revision, response.succeeded)
}

fn everything(start_revision: i64) -> WatchCreate {
    let all = || b"\0"[..].into();
    WatchCreate { key: all(), range_end: all(), start_revision, fragment: true }
}

#[tokio::test]
async fn keys_transactions_watches_and_leases() {
    let Some(etcd) = Etcd::start(1) else { return };
    let client = client(&etcd, no_tls());
    let mut watch = client.watch(everything(1)).await.unwrap();
    assert!(watch.next().await.unwrap().created);
    assert_eq!(told(&client.txn(&put("/a", 0, "one")).await.unwrap()), (2, true));
    let refused = client.txn(&put("/a", 0, "two")).await.unwrap();
    assert_eq!(told(&refused), (2, false));
    let found = refused.responses[0].range.as_ref().unwrap().kvs[0].clone();
    assert_eq!((&found.value[..], found.mod_revision, found.version), (&b"one"[..], 2, 1));
    assert_eq!(told(&client.txn(&delete("/a", 2)).await.unwrap()), (3, true));
    let mut seen = Vec::new();
    while seen.len() < 2 {
        for event in watch.next().await.unwrap().events {
            let kv = event.kv.unwrap();
            seen.push((event.kind, kv.mod_revision, kv.value));
        }
    }
    assert_eq!(seen, [(0, 2, "one".into()), (1, 3, "".into())]);

    let lease = client.grant(30, soon()).await.unwrap();
    let mut leased = put("/b", 0, "for a while");
    let Some(Act::Put(leased_put)) = &mut leased.success[0].act else { panic!() };
    leased_put.lease = lease.id;
    assert!(client.txn(&leased).await.unwrap().succeeded);
    assert_eq!(client.keep_alive(lease.id, soon()).await, Ok(30));
    client.revoke(lease.id, soon()).await.unwrap();
    let all = RangeRequest {
        key: b"\0"[..].into(),
        range_end: b"\0"[..].into(),
        ..RangeRequest::default()
    };
    assert_eq!(client.range(&all, soon()).await.unwrap().kvs, []);
    assert_eq!(client.keep_alive(lease.id, soon()).await, Ok(0), "it has ended");

    client.compact(&CompactionRequest { revision: 4, physical: true }).await.unwrap();
    let past = RangeRequest { revision: 3, ..all };
    assert!(matches!(client.range(&past, soon()).await, Err(Failure::Compacted(_))));
    let mut late = client.watch(everything(1)).await.unwrap();
    assert!(late.next().await.unwrap().created);
    let end = late.next().await.unwrap();
    assert!(end.canceled);
    assert_eq!(end.compact_revision, 4);

    let many = TxnRequest {
        success: (0..129)
            .map(|at| TxnOperation {
                act: Some(Act::Put(PutRequest {
                    key: format!("/{at}").into(),
                    ..PutRequest::default()
                })),
            })
            .collect(),
        ..TxnRequest::default()
    };
    assert!(matches!(client.txn(&many).await, Err(Failure::TooLarge(_))));
    let large = put("/large", 0, &"x".repeat(2 << 20));
    assert!(matches!(client.txn(&large).await, Err(Failure::TooLarge(_))));
    let status = client.status().await;
    assert!(status[0].as_ref().unwrap().version.starts_with("3."), "{status:?}");
    assert_eq!(client.alarms(soon()).await.unwrap().alarms, []);
}

#[tokio::test]
async fn nobody_answers() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let client = client(&etcd, no_tls());
    client.txn(&put("/a", 0, "one")).await.unwrap();
    etcd.kill(0);
    sleep(Duration::from_millis(300)).await;
    let refused = client.txn(&put("/b", 0, "two")).await;
    assert!(matches!(refused, Err(Failure::Nothing(_))), "{refused:?}");
    etcd.restart(0);
    let key = RangeRequest { key: "/a".into(), ..RangeRequest::default() };
    assert_eq!(client.range(&key, soon()).await.unwrap().count, 1);
    etcd.pause(0, true);
    let silent = client.txn(&put("/b", 0, "two")).await;
    etcd.pause(0, false);
    assert!(matches!(silent, Err(Failure::Unknown(_))), "{silent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_gone_is_avoided() {
    let Some(mut etcd) = Etcd::start(3) else { return };
    let client = client(&etcd, no_tls());
    let status = client.status().await;
    let leads = status.iter().position(|status| {
        let status = status.as_ref().unwrap();
        status.header.as_ref().unwrap().member_id == status.leader
    });
    let mut revision = 0;
    let mut longest = Duration::ZERO;
    for round in 0..300 {
        if round == 50 {
            etcd.kill(leads.unwrap());
        }
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < Duration::from_secs(20), "no member answers");
            match client.txn(&put("/a", revision, &round.to_string())).await {
                Ok(done) if done.succeeded => break revision = told(&done).0,
                // An attempt whose answer was lost had been carried out.
                Ok(done) => {
                    let found = &done.responses[0].range.as_ref().unwrap().kvs[0];
                    assert_eq!(found.value, round.to_string());
                    break revision = found.mod_revision;
                }
                Err(failure) => assert!(failure.is_passing(), "{failure:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
        longest = longest.max(begin.elapsed());
    }
    assert!(longest < Duration::from_secs(8), "the gap was {longest:?}");
    eprintln!("the leader was killed: no write for {longest:?}");
}

#[tokio::test]
async fn both_sides_show_certificates() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let issue = || {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let (certificate, key) = issue();
    let arguments = [
        format!("--cert-file={}", file("server.pem", &certificate)),
        format!("--key-file={}", file("server.key", &key)),
        format!("--trusted-ca-file={}", file("ca.pem", &authority.pem())),
        "--client-cert-auth".to_owned(),
    ];
    let Some(etcd) = Etcd::start_with(1, &arguments, "https") else { return };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let configure = |roots| {
        let builder = ClientConfig::builder_with_provider(provider.clone());
        builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots)
    };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let (certificate, key) = issue();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let known = configure(roots.clone()).with_client_auth_cert(chain, key).unwrap();
    let known = client(&etcd, known);
    let key = RangeRequest { key: "/a".into(), ..RangeRequest::default() };
    known.range(&key, soon()).await.unwrap();
    assert!(known.txn(&put("/a", 0, "one")).await.unwrap().succeeded);
    for (who, tls) in [
        ("nobody", configure(roots).with_no_client_auth()),
        ("one who does not know the server", no_tls()),
    ] {
        let soon = Instant::now() + Duration::from_millis(500);
        assert!(client(&etcd, tls).range(&key, soon).await.is_err(), "{who}");
    }
}
