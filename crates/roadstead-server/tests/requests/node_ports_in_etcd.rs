//! Node ports in etcd: one key of kube-apiserver's, from which servers of both kinds give them out.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use roadstead_etcd::messages::{Act, PutRequest, RangeRequest, TxnOperation, TxnRequest};
use roadstead_testkit::etcd::Etcd;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use crate::server::Server;
use crate::two_servers::{client, field, server};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const KEY: &str = "/registry/ranges/servicenodeports";

async fn get(etcd: &Etcd, key: &str) -> Option<Bytes> {
    let key = Bytes::from(key.to_owned());
    let request = RangeRequest { key, ..RangeRequest::default() };
    let found = client(etcd).range(&request, Instant::now() + Duration::from_secs(9)).await;
    found.unwrap().kvs.pop().map(|kv| kv.value)
}

async fn put(etcd: &Etcd, key: &str, value: Vec<u8>) {
    let act = PutRequest { key: key.to_owned().into(), value: value.into(), lease: 0 };
    let success = vec![TxnOperation { act: Some(Act::Put(act)) }];
    client(etcd).txn(&TxnRequest { success, ..TxnRequest::default() }).await.unwrap();
}

/// The ports whose bits are set, as kube-apiserver would find them.
async fn taken(etcd: &Etcd) -> BTreeSet<u64> {
    let stored: Value = serde_json::from_slice(&get(etcd, KEY).await.unwrap()).unwrap();
    assert_eq!(
        (&stored["kind"], &stored["apiVersion"], &stored["range"]),
        (&json!("RangeAllocation"), &json!("v1"), &json!("30000-32767"))
    );
    let number = STANDARD.decode(stored["data"].as_str().unwrap()).unwrap();
    assert_ne!(number.first(), Some(&0), "Go writes no zeros before a number");
    let bytes = number.iter().rev().enumerate();
    let bits = bytes.flat_map(|(at, byte)| (0..8).map(move |bit| (at * 8 + bit, byte >> bit & 1)));
    bits.filter(|(_, set)| *set == 1).map(|(at, _)| 30_000 + at as u64).collect()
}

/// What kube-apiserver stores.
fn theirs(range: &str, number: &[u8]) -> Vec<u8> {
    let message = [field(1, &field(1, b"")), field(2, range.as_bytes()), field(3, number)].concat();
    let kind = [field(1, b"v1"), field(2, b"RangeAllocation")].concat();
    [b"k8s\0".to_vec(), field(1, &kind), field(2, &message), field(3, b""), field(4, b"")].concat()
}

fn service(name: &str, spec: Value) -> Value {
    json!({"metadata": {"name": name}, "spec": spec})
}

fn on_nodes(name: &str, port: u64) -> Value {
    service(name, json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}))
}

async fn create(server: &Server, service: Value) -> (u16, String) {
    let answer = server.ask(&format!("POST {SERVICES}"), service).await;
    (answer.code, answer.text)
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_one_key() {
    let Some(etcd) = Etcd::start(1) else { return };
    let (one, other) = (server(&etcd).await, server(&etcd).await);
    assert_eq!(taken(&etcd).await, [].into());
    assert_eq!(create(&one, on_nodes("a", 30_080)).await.0, 201);
    assert_eq!(taken(&etcd).await, [30_080].into());
    let (code, text) = create(&other, on_nodes("b", 30_080)).await;
    assert!(code == 422 && text.contains("provided port is already allocated"), "{text}");

    // kube-apiserver takes another one (30083), and keeps ours (30080).
    let number = [&[0b1001][..], &[0; 10]].concat();
    put(&etcd, KEY, theirs("30000-32767", &number)).await;
    let (code, text) = create(&one, on_nodes("b", 30_083)).await;
    assert!(code == 422 && text.contains("provided port is already allocated"), "{text}");
    assert_eq!(create(&one, on_nodes("b", 30_081)).await.0, 201);
    assert_eq!(taken(&etcd).await, [30_080, 30_081, 30_083].into());

    // What is changed and what goes gives back what it held, and nothing else.
    let patch = json!({"spec": {"ports": [{"port": 80, "nodePort": 30_090}]}});
    assert_eq!(other.ask(&format!("PATCH {SERVICES}/b"), patch).await.code, 200);
    assert_eq!(taken(&etcd).await, [30_080, 30_083, 30_090].into());
    let patch = json!({"spec": {"type": "ClusterIP", "ports": null}});
    let patched = one.ask(&format!("PATCH {SERVICES}/a"), patch).await;
    assert_eq!(patched.code, 422, "a Service needs ports: {patched:?}");
    assert_eq!(taken(&etcd).await, [30_080, 30_083, 30_090].into(), "nothing is given back for it");
    let patch = json!({"spec": {"type": "ClusterIP"}});
    assert_eq!(one.ask(&format!("PATCH {SERVICES}/a"), patch).await.code, 200);
    assert_eq!(other.ask(&format!("DELETE {SERVICES}/b"), json!({})).await.code, 200);
    assert_eq!(taken(&etcd).await, [30_083].into());

    // As many ports as a Service can have are one comparison.
    let ports = (0..600).map(|at| json!({"name": format!("p{at}"), "port": at + 1}));
    let ports: Vec<_> = ports.collect();
    let (code, text) =
        create(&one, service("many", json!({"type": "NodePort", "ports": ports}))).await;
    assert_eq!(code, 201, "{text}");
    assert_eq!(taken(&etcd).await.len(), 601);
    // A dry run takes nothing.
    let dry = one.ask(&format!("POST {SERVICES}?dryRun=All"), on_nodes("dry", 31_000)).await;
    assert_eq!((dry.code, taken(&etcd).await.len()), (201, 601));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_of_two_servers() {
    let Some(etcd) = Etcd::start(1) else { return };
    let servers = [server(&etcd).await, server(&etcd).await];
    let act = async |number: usize| {
        let server = &servers[number % 2];
        let spec = json!({"type": "NodePort", "ports": [{"port": 80}, {"name": "b", "port": 81}]});
        let mut named = service(&format!("s{number}"), spec);
        named["spec"]["ports"][0]["name"] = "a".into();
        let (code, text) = create(server, named).await;
        assert_eq!(code, 201, "{text}");
        if number.is_multiple_of(3) {
            let path = format!("DELETE {SERVICES}/s{number}");
            let deleted = servers[(number + 1) % 2].ask(&path, json!({})).await;
            assert_eq!(deleted.code, 200, "{deleted:?}");
        }
    };
    futures::future::join_all((0..90).map(act)).await;
    let listed = servers[0].ask(&format!("GET {SERVICES}"), "").await.body;
    let items = listed["items"].as_array().unwrap().iter();
    let ports = items.flat_map(|service| service["spec"]["ports"].as_array().unwrap());
    let ports: Vec<_> = ports.filter_map(|port| port["nodePort"].as_u64()).collect();
    assert_eq!(ports.len(), 120);
    assert_eq!(taken(&etcd).await, ports.into_iter().collect(), "each once, and no others");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_kept_otherwise() {
    let Some(etcd) = Etcd::start(1) else { return };
    let first = server(&etcd).await;
    assert_eq!(create(&first, on_nodes("a", 30_080)).await.0, 201);
    drop(first);
    // An earlier version has left rows; kube-apiserver had another range, and a port beyond ours.
    let row = |port: u64| format!("/registry/ranges/roadstead-nodeports/{port}");
    for port in 30_110..30_320 {
        put(&etcd, &row(port), b"default/x".to_vec()).await;
    }
    let number = [&[0b10][..], &[0; 13], &[1]].concat();
    put(&etcd, KEY, theirs("29992-30191", &number)).await;
    let next = server(&etcd).await;
    let expected = (30_110..30_320).chain([30_105]).collect::<BTreeSet<_>>();
    assert_eq!(taken(&etcd).await, expected);
    assert_eq!(get(&etcd, &row(30_110)).await, None);
    assert_eq!(create(&next, on_nodes("b", 30_105)).await.0, 422);
    assert_eq!(create(&next, on_nodes("b", 30_330)).await.0, 201);
    // Another server with another range gives out nothing from this one.
    put(&etcd, KEY, theirs("29992-30191", &number)).await;
    let (code, text) = create(&next, on_nodes("c", 30_331)).await;
    assert!(code == 500 && text.contains("all servers need the same"), "{text}");
}
