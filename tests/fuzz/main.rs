//! Damaged input of every kind, for a minute: whatever arrives, the server answers with a proper
//! Status and goes on. `ROADSTEAD_FUZZ_SECONDS` sets the time, `ROADSTEAD_SEED` the seed.
//! Requests that are small and want to be expensive (`hostile`), and what fuzzers found (`corpus`).

mod corpus;
mod cost;
#[path = "../../fuzz/src/entries.rs"]
mod entries;
mod hostile;

use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use roadstead_server::api::Api;
use roadstead_server::bootstrap;
use roadstead_server::config::Config;
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::identity::user::User;
use roadstead_server::request::chain::handle;
use roadstead_store::kv::Store;
use serde_json::Value;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

/// Inputs to begin with: a method, a path, a media type and a body.
const SEEDS: [(&str, &str, &str, &str); 29] = [
    (
        "POST",
        "/api/v1/namespaces/default/services",
        "application/json",
        r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"ports":[{"port":80,"targetPort":"http"}],"selector":{"a":"b"}}}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces/default/pods",
        "application/json",
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"p-"},"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":1}]}]}}"#,
    ),
    (
        "POST",
        "/apis/apps/v1/namespaces/default/deployments",
        "application/yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec: {containers: [{name: c, image: i}]}\n",
    ),
    (
        "POST",
        "/api/v1/namespaces/default/endpoints",
        "application/json",
        r#"{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"e"},"subsets":[{"addresses":[{"ip":"10.0.0.1"}],"ports":[{"port":1}]}]}"#,
    ),
    (
        "POST",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        "application/json",
        r#"{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"s"},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"port":1}]}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces",
        "application/vnd.kubernetes.protobuf",
        "k8s\0\n\x0f\n\x02v1\x12\tNamespace\x12\x06\n\x04\n\x02ns",
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/services/kubernetes",
        "application/strategic-merge-patch+json",
        r#"{"spec":{"$setElementOrder/ports":[{"port":443}],"ports":[{"port":443,"name":"x"},{"$patch":"delete","port":80}]}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/services/kubernetes",
        "application/merge-patch+json",
        r#"{"metadata":{"labels":{"a":null,"b":"c"}}}"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/services/kubernetes",
        "application/json-patch+json",
        r#"[{"op":"add","path":"/metadata/labels/x","value":"y"},{"op":"remove","path":"/metadata/labels/x"}]"#,
    ),
    (
        "PATCH",
        "/api/v1/namespaces/default/services/kubernetes?fieldManager=f&force=true",
        "application/apply-patch+yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: kubernetes}\nspec:\n  ports: [{port: 443, name: https}]\n",
    ),
    (
        "PUT",
        "/api/v1/namespaces/default/configmaps/c",
        "application/json",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"b"}}"#,
    ),
    (
        "GET",
        "/api/v1/services?labelSelector=a%20in%20(b,c),!d,e!=f&fieldSelector=spec.type!=ClusterIP&limit=2",
        "",
        "",
    ),
    (
        "GET",
        "/api/v1/pods?continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIvYSJ9&resourceVersion=5&resourceVersionMatch=Exact",
        "",
        "",
    ),
    (
        "GET",
        "/api/v1/services?watch=true&resourceVersion=1&timeoutSeconds=1&sendInitialEvents=true",
        "",
        "",
    ),
    (
        "DELETE",
        "/api/v1/namespaces/default/configmaps/c",
        "application/json",
        r#"{"gracePeriodSeconds":0,"preconditions":{"uid":"x"},"propagationPolicy":"Foreground"}"#,
    ),
    ("DELETE", "/api/v1/namespaces/default/pods?labelSelector=a=b", "", ""),
    (
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        "application/json",
        r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}"#,
    ),
    (
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "application/json",
        r#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"r"},"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]}"#,
    ),
    (
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "application/json",
        r#"{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"things","kind":"Thing"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object"}}}}}]}}"#,
    ),
    (
        "POST",
        "/apis/example.com/v1/namespaces/default/things",
        "application/json",
        r#"{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"t"},"spec":{"a":1}}"#,
    ),
    (
        "PATCH",
        "/apis/apps/v1/namespaces/default/deployments/d/scale",
        "application/merge-patch+json",
        r#"{"spec":{"replicas":3}}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces/default/pods/p/binding",
        "application/json",
        r#"{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p"},"target":{"name":"n"}}"#,
    ),
    (
        "POST",
        "/api/v1/namespaces",
        "application/vnd.kubernetes.protobuf",
        "k8s\0\n\x0e\n\x02v1\x12\x08Quantity\x12\x03\n\x011",
    ),
    (
        "POST",
        "/api/v1/namespaces/default/serviceaccounts/default/token",
        "application/json",
        r#"{"spec":{"audiences":["a"],"boundObjectRef":{"kind":"Pod","apiVersion":"v1","name":"p"},"expirationSeconds":3600}}"#,
    ),
    (
        "DELETE",
        "/api/v1/namespaces/default/configmaps/a?gracePeriodSeconds=0&propagationPolicy=Orphan",
        "application/json",
        r#"{"propagationPolicy":"Foreground","preconditions":{"uid":"x"},"dryRun":["All"]}"#,
    ),
    (
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        "application/json",
        r#"{"metadata":{"name":"things.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"things","kind":"Thing","singular":"thing"},"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.size","statusReplicasPath":".status.size"}},"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}"#,
    ),
    (
        "POST",
        "/apis/example.com/v1/namespaces/default/things",
        "application/json",
        r#"{"metadata":{"name":"t"},"spec":"odd","status":[]}"#,
    ),
    (
        "PUT",
        "/apis/example.com/v1/namespaces/default/things/t/scale",
        "application/json",
        r#"{"metadata":{"name":"t"},"spec":{"replicas":2}}"#,
    ),
    (
        "PATCH",
        "/apis/example.com/v1/namespaces/default/things/t",
        "application/json-patch+json",
        r#"[{"op":"copy","from":"/metadata","path":"/spec"},{"op":"move","from":"/spec","path":"/status"}]"#,
    ),
];

/// Pieces that are interesting in many places.
const PIECES: [&str; 30] = [
    "null",
    "{}",
    "[]",
    "\"\"",
    "-1",
    "0",
    "1e999",
    "99999999999999999999",
    "true",
    "\"\\u0000\"",
    "\"\u{fffd}\"",
    "{\"$patch\":\"delete\"}",
    "{\"$patch\":\"replace\"}",
    "\"$retainKeys\":[1]",
    "%00",
    "%",
    "..",
    "/",
    "&",
    "=",
    "metadata",
    "spec",
    "\"name\":",
    "[[[[[[[[",
    "{{{{",
    "k8s\0",
    "\u{ff}\u{ff}",
    "&a *a",
    "<<: *x",
    "!!binary",
];

fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..random.below(5) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => {
                let piece = random.pick(&PIECES).as_bytes();
                bytes.splice(at..at, piece.iter().copied());
            }
            3 if at < bytes.len() => {
                let end = (at + random.below(12)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + random.below(30)).min(bytes.len());
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                let piece = random.pick(&PIECES).as_bytes();
                let end = (at + piece.len()).min(bytes.len());
                bytes.splice(at..end, piece.iter().copied());
            }
        }
    }
}

async fn check(api: &Arc<Api>, random: &mut Random) -> Option<u16> {
    let (method, path, media_type, body) = SEEDS[random.below(SEEDS.len())];
    let (mut path, mut body) = (path.as_bytes().to_vec(), body.as_bytes().to_vec());
    match random.below(3) {
        0 => damage(random, &mut path),
        1 => damage(random, &mut body),
        _ => {
            damage(random, &mut path);
            damage(random, &mut body);
        }
    }
    let other = SEEDS[random.below(SEEDS.len())].2;
    let media_type = if random.below(10) == 0 { other } else { media_type };
    // What no HTTP parser lets through never reaches us.
    let request = Request::builder()
        .method(method)
        .uri(String::from_utf8_lossy(&path).as_ref())
        .header("content-type", media_type)
        .body(Full::new(Bytes::from(body)))
        .ok()?;
    let watches = request.uri().query().is_some_and(|query| query.contains("watch"));
    let cost = cost::Measure::begin();
    let response = handle(api.clone(), User::component(), request).await;
    let code = response.status();
    if watches && code.is_success() {
        return Some(code.as_u16());
    }
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    assert!(bytes.len() < hostile::LARGEST, "{method} {path:?}: {} bytes", bytes.len());
    assert!(cost.time() < hostile::LONGEST, "{method} {path:?}: {:?}", cost.time());
    if !code.is_success() {
        let status: Value = serde_json::from_slice(&bytes).expect("a refusal is a Status");
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["code"], code.as_u16());
        let message = status["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.contains("panic"), "{message}");
    }
    Some(code.as_u16())
}

#[test]
fn damaged_input_gets_a_proper_answer() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    let seconds = number("ROADSTEAD_FUZZ_SECONDS").unwrap_or(60);
    let seed = number("ROADSTEAD_SEED").unwrap_or(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut random = Random(seed);
        let (begin, mut requests, mut refused) = (Instant::now(), 0u64, 0u64);
        let mut codes = std::collections::BTreeMap::new();
        while begin.elapsed() < Duration::from_secs(seconds) {
            // A fresh server now and then keeps memory flat and the seeds meaningful.
            let range = "10.96.0.0/24".parse().unwrap();
            let config = Config { service_range: range, advertise: None, audit: None };
            let api = Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
            bootstrap::run(&api).await.unwrap();
            for _ in 0..2_000 {
                match check(&api, &mut random).await {
                    Some(code) => *codes.entry(code).or_insert(0u64) += 1,
                    None => refused += 1,
                }
                requests += 1;
            }
        }
        eprintln!("{requests} requests, {refused} not even HTTP, answers by code: {codes:?}");
        assert!(!codes.keys().any(|code| *code == 500 && codes[code] > requests / 2));
        assert!(
            codes.contains_key(&200) && codes.contains_key(&400),
            "both kinds of answers occur"
        );
    });
}
