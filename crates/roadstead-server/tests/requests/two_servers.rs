//! Two servers in front of one etcd: what one has written, the other answers at once; a refusal from
//! memory is never the last word; what others have left in etcd is read, or named and kept.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadstead_etcd::client::Client;
use roadstead_etcd::member_url::MemberUrl;
use roadstead_etcd::messages::{Act, PutRequest, RangeRequest, TxnOperation, TxnRequest};
use roadstead_etcd::tls::EtcdTls;
use roadstead_server::etcd_layout::KubernetesLayout;
use roadstead_server::identity::user::User;
use roadstead_store::kv::{EtcdOptions, Store};
use roadstead_store::retention::Limits;
use roadstead_testkit::etcd::Etcd;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::server::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub(crate) fn client(etcd: &Etcd) -> Client {
    let urls: Vec<_> = etcd.urls().iter().map(|url| MemberUrl::parse(url).unwrap()).collect();
    Client::new(&urls, EtcdTls::default().read().unwrap())
}

pub(crate) async fn server(etcd: &Etcd) -> Server {
    let options = EtcdOptions {
        history: Limits::default(),
        patience: Duration::from_secs(30),
        compaction: None,
    };
    let layout = Arc::new(KubernetesLayout::new("/registry"));
    Server::over(Store::etcd(client(etcd), layout, options).await.unwrap()).await
}

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": value}})
}

async fn code(server: &Server, request: &str, body: Value) -> u16 {
    server.ask(request, body).await.code
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_to_any_server() {
    let Some(etcd) = Etcd::start(1) else { return };
    let (one, other) = (server(&etcd).await, server(&etcd).await);
    for round in 0..20 {
        let name = format!("m{round}");
        assert_eq!(code(&one, &format!("POST {MAPS}"), map(&name, "1")).await, 201);
        // Each of these would be refused, now and then, by who believes memory.
        let path = format!("{MAPS}/{name}");
        let found = other.ask(&format!("GET {path}"), "").await;
        assert_eq!((found.code, &found.body["data"]["a"]), (200, &json!("1")), "{found:?}");
        assert_eq!(code(&other, &format!("POST {MAPS}"), map(&name, "1")).await, 409);
        let patched = other.ask(&format!("PATCH {path}"), json!({"data": {"a": "2"}})).await;
        assert_eq!(patched.code, 200, "{patched:?}");
        // What was level with the old state is not with the new one.
        let again = one.ask(&format!("PATCH {path}"), json!({"data": {"a": "1"}})).await;
        assert_eq!(again.code, 200, "{again:?}");
        let listed = other.ask(&format!("GET {MAPS}"), "").await.body;
        let items = listed["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["metadata"]["name"] == *name).unwrap();
        assert_eq!(item["data"]["a"], "1");
        assert_eq!(code(&other, &format!("DELETE {path}"), json!({})).await, 200);
        assert_eq!(code(&one, &format!("GET {path}"), json!({})).await, 404);
        assert_eq!(code(&one, &format!("DELETE {path}"), json!({})).await, 404);

        let space = format!("space-{round}");
        let made = json!({"metadata": {"name": space}});
        assert_eq!(code(&one, "POST /api/v1/namespaces", made).await, 201);
        let inside = format!("/api/v1/namespaces/{space}/configmaps");
        assert_eq!(code(&other, &format!("POST {inside}"), map("a", "1")).await, 201);
        let jane = || User { name: format!("jane-{round}"), ..User::default() };
        let asked = format!("GET {inside}/a");
        assert_eq!(other.ask_by(jane(), &[], &asked).await.code, 403);
        let binding = json!({"metadata": {"name": "viewers"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": jane().name, "apiGroup": "rbac.authorization.k8s.io"}]});
        let bindings =
            format!("POST /apis/rbac.authorization.k8s.io/v1/namespaces/{space}/rolebindings");
        assert_eq!(code(&one, &bindings, binding).await, 201);
        assert_eq!(other.ask_by(jane(), &[], &asked).await.code, 200, "the right holds at once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_address_is_given_out_twice() {
    let Some(etcd) = Etcd::start(1) else { return };
    let servers = [server(&etcd).await, server(&etcd).await];
    let create = async |number: usize| {
        let service = json!({"metadata": {"name": format!("s{number}")},
            "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        let path = "POST /api/v1/namespaces/default/services";
        let made = servers[number % 2].ask(path, service).await;
        assert_eq!(made.code, 201, "{made:?}");
        let spec = &made.body["spec"];
        [spec["clusterIP"].to_string(), spec["ports"][0]["nodePort"].to_string()]
    };
    let mut all = futures::future::join_all((0..40).map(create)).await.concat();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 80);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_etcd() {
    let Some(mut etcd) = Etcd::start(1) else { return };
    let server = server(&etcd).await;
    assert_eq!(code(&server, &format!("POST {MAPS}"), map("a", "1")).await, 201);
    etcd.kill(0);
    sleep(Duration::from_millis(3500)).await;
    let ready = server.ask("GET /readyz", "").await;
    assert!(ready.code == 500 && ready.text.contains("[-]etcd failed"), "{ready:?}");
    assert_eq!(code(&server, "GET /livez", json!({})).await, 200);
    let begin = Instant::now();
    for (request, body) in [
        (format!("GET {MAPS}/a"), json!("")),
        (format!("GET {MAPS}"), json!("")),
        (format!("POST {MAPS}"), map("b", "1")),
    ] {
        let refused = server.ask(&request, body).await;
        let reason = &refused.body["reason"];
        assert_eq!((refused.code, reason), (503, &json!("ServiceUnavailable")), "{refused:?}");
        assert_eq!(refused.retry_after.as_deref(), Some("1"));
    }
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert_eq!(code(&server, &format!("GET {MAPS}/a?resourceVersion=0"), json!({})).await, 200);
    etcd.restart(0);
    let found = timeout(Duration::from_secs(20), async {
        while server.ask("GET /readyz", "").await.code != 200 {
            sleep(Duration::from_millis(50)).await;
        }
    });
    found.await.expect("it is ready again");
    assert_eq!(code(&server, &format!("GET {MAPS}/a"), json!({})).await, 200);
    assert_eq!(code(&server, &format!("POST {MAPS}"), map("b", "1")).await, 201);
}

/// A field of protobuf: its number, its bytes.
pub(crate) fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_have_left() {
    let Some(etcd) = Etcd::start(1) else { return };
    let server = server(&etcd).await;
    let raw = client(&etcd);
    let put = async |name: &str, value: Vec<u8>| {
        let key = Bytes::from(format!("/registry/configmaps/default/{name}"));
        let act = Some(Act::Put(PutRequest { key, value: value.into(), lease: 0 }));
        let txn = TxnRequest { success: vec![TxnOperation { act }], ..TxnRequest::default() };
        raw.txn(&txn).await.unwrap();
    };
    let get = async |name: &str| {
        let key = Bytes::from(format!("/registry/configmaps/default/{name}"));
        let request = RangeRequest { key, ..RangeRequest::default() };
        let found = raw.range(&request, Instant::now() + Duration::from_secs(9)).await.unwrap();
        found.kvs[0].value.clone()
    };
    let protobuf = |name: &str, more: &[u8]| {
        let metadata = [field(1, name.as_bytes()), field(3, b"default")].concat();
        let data = [field(1, b"a"), field(2, b"b")].concat();
        let message = [field(1, &metadata), field(2, &data), more.to_vec()].concat();
        let kind = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
        [b"k8s\0".to_vec(), field(1, &kind), field(2, &message)].concat()
    };
    put("theirs", protobuf("theirs", b"")).await;
    let found = server.ask(&format!("GET {MAPS}/theirs"), "").await;
    assert_eq!((found.code, &found.body["data"]), (200, &json!({"a": "b"})), "{found:?}");
    let patch = json!({"data": {"c": "d"}});
    assert_eq!(code(&server, &format!("PATCH {MAPS}/theirs"), patch).await, 200);
    let now: Value = serde_json::from_slice(&get("theirs").await).unwrap();
    assert_eq!(now["data"], json!({"a": "b", "c": "d"}), "it is JSON now");

    for (name, value, why) in [
        ("newer", protobuf("newer", &field(15, b"x")), "field 15 of"),
        ("secret", b"k8s:enc:aescbc:v1:key:x".to_vec(), "encrypted by kube-apiserver"),
    ] {
        put(name, value.clone()).await;
        for request in [format!("GET {MAPS}/{name}"), format!("GET {MAPS}")] {
            let refused = server.ask(&request, "").await;
            assert_eq!((refused.code, &refused.body["reason"]), (500, &json!("StorageReadError")));
            assert!(refused.text.contains(why) && refused.text.contains(name), "{refused:?}");
        }
        let patch = json!({"data": {"c": "d"}});
        assert_eq!(code(&server, &format!("PATCH {MAPS}/{name}"), patch).await, 500);
        assert_eq!(get(name).await, value, "it is as it was");
        put(name, protobuf(name, b"")).await;
        assert_eq!(code(&server, &format!("GET {MAPS}"), json!({})).await, 200);
    }
}
