//! Small requests that want large answers, or much time: none gets them.
//!
//! Every request has fewer than 10 kB and no list of much data is asked for, so no answer has more
//! than 1 MB. Each attack begins on a server of its own, because what an attack has built up there is
//! itself an attack.

use std::sync::Arc;
use std::time::Duration;

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
use serde_json::{Value, json};

use crate::cost::Measure;

/// No answer has more bytes.
pub(crate) const LARGEST: usize = 1 << 20;
/// No answer takes longer on a processor, without an optimiser.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);
/// No request needs more memory at once.
const MOST_MEMORY: usize = 128 << 20;
/// No request of an attacker has more bytes.
const SMALL: usize = 10_000;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";
const THINGS: &str = "/apis/example.com/v1/namespaces/default/things";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

/// What one attacker sends, in order: method, path, media type and body.
type Attack = Vec<(&'static str, String, &'static str, Vec<u8>)>;

fn one(method: &'static str, path: &str, media: &'static str, body: impl ToString) -> Attack {
    vec![(method, path.to_owned(), media, body.to_string().into_bytes())]
}

/// As many pieces as fit into a small request beside what is around them.
fn many(piece: impl Fn(usize) -> String, around: usize) -> String {
    let mut all = String::new();
    for number in 0.. {
        let next = piece(number);
        if all.len() + next.len() + 1 > SMALL - around {
            break;
        }
        if number > 0 {
            all.push(',');
        }
        all.push_str(&next);
    }
    all
}

fn definition(schema: &Value, columns: &Value) -> Value {
    json!({"metadata": {"name": "things.example.com"}, "spec": {"group": "example.com",
        "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "additionalPrinterColumns": columns, "schema": {"openAPIV3Schema": schema}}]}})
}

fn anything() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Objects with very many mistakes, each of which is named in the answer.
fn mistakes() -> Vec<(&'static str, Attack)> {
    let map = |field: &str, piece: fn(usize) -> String| {
        let body =
            format!("{{\"metadata\":{{\"name\":\"a\",\"{field}\":{{{}}}}}}}", many(piece, 99));
        one("POST", MAPS, JSON, body)
    };
    let list = |path: &str, start: &str, end: &str, piece: fn(usize) -> String| {
        one("POST", path, JSON, format!("{start}{}{end}", many(piece, 300)))
    };
    let pod = "{\"metadata\":{\"name\":\"a\"},\"spec\":{\"containers\":[";
    let long = "!".repeat(SMALL / 2);
    vec![
        ("labels", map("labels", |n| format!("\"!{n}\":\"!\""))),
        ("annotations", map("annotations", |n| format!("\"!{n}\":\"\""))),
        (
            "finalizers",
            list(MAPS, "{\"metadata\":{\"name\":\"a\",\"finalizers\":[", "]}}", |n| {
                format!("\"!{n}\"")
            }),
        ),
        (
            "owners",
            list(MAPS, "{\"metadata\":{\"name\":\"a\",\"ownerReferences\":[", "]}}", |_| {
                "{}".into()
            }),
        ),
        ("containers", list(PODS, pod, "]}}", |_| "{}".into())),
        ("equal containers", list(PODS, pod, "]}}", |_| "{\"name\":\"a\",\"image\":\"i\"}".into())),
        (
            "variables",
            list(PODS, &format!("{pod}{{\"name\":\"a\",\"image\":\"i\",\"env\":["), "]}]}}", |n| {
                format!("{{\"name\":\"{n}=\"}}")
            }),
        ),
        ("unknown fields", {
            let body = format!(
                "{{\"metadata\":{{\"name\":\"a\"}},{}}}",
                many(|n| format!("\"x{n}\":0"), 99)
            );
            one("POST", &format!("{MAPS}?fieldValidation=Strict"), JSON, body)
        }),
        ("equal fields", {
            let body = format!("{{{}}}", many(|_| "\"data\":{}".into(), 99));
            one("POST", &format!("{MAPS}?fieldValidation=Strict"), JSON, body)
        }),
        (
            "a long name",
            one("POST", MAPS, JSON, json!({"metadata": {"name": long, "namespace": long}})),
        ),
        (
            "a long selector",
            one("GET", &format!("{MAPS}?labelSelector={}", "%21".repeat(3000)), JSON, ""),
        ),
        (
            "a long field",
            one("GET", &format!("{MAPS}?fieldSelector={}", "a%3Db,".repeat(1500)), JSON, ""),
        ),
        ("a long path", one("GET", &format!("{MAPS}/{long}"), JSON, "")),
        (
            "reviews",
            one(
                "POST",
                "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
                JSON,
                json!({"spec": {"namespace": "default"}}),
            ),
        ),
    ]
}

/// Texts that mean more than they say.
fn texts() -> Vec<(&'static str, Attack)> {
    let mut laughs =
        "metadata: {name: a}\ndata:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..20 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        laughs.push_str(&format!("  a{level}: &a{level} [{before}]\n"));
    }
    let merges = (1..200).map(|n| format!("  a{n}: &b{n} {{<<: *b{}, k{n}: v}}\n", n - 1));
    let merges =
        format!("metadata: {{name: a}}\ndata:\n  a0: &b0 {{k: v}}\n{}", merges.collect::<String>());
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(4000), close.repeat(4000));
    let tree = |depth: usize| format!("{}0{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    let wide_and_deep = format!(
        "{{\"metadata\":{{\"name\":\"a\"}},\"spec\":{}[{}]{}}}",
        "{\"a\":".repeat(90),
        many(|_| "0".into(), 1200),
        "}".repeat(90)
    );
    let pretty = |path: &str| {
        let mut attack = one("POST", DEFINITIONS, JSON, definition(&anything(), &json!([])));
        attack.extend(one("POST", &format!("{THINGS}?pretty=true"), JSON, &wide_and_deep));
        attack.extend(one("GET", path, JSON, ""));
        attack
    };
    let nested = |depth: usize| {
        let mut body = vec![0x0a, 0x00];
        for _ in 0..depth {
            let mut outer = vec![0x0a];
            let mut length = body.len();
            while length >= 0x80 {
                outer.push((length & 0x7f) as u8 | 0x80);
                length >>= 7;
            }
            outer.push(length as u8);
            outer.extend(body);
            body = outer;
        }
        let head: &[u8] = b"k8s\0\n\x0f\n\x02v1\x12\tNamespace\x12";
        vec![("POST", "/api/v1/namespaces".to_owned(), PROTOBUF, [head, &body].concat())]
    };
    vec![
        ("laughs", one("POST", MAPS, YAML, &laughs)),
        ("applied laughs", one("PATCH", &format!("{MAPS}/a?fieldManager=f"), APPLY, &laughs)),
        ("merges", one("POST", MAPS, YAML, merges)),
        ("deep lists", one("POST", MAPS, JSON, deep("[", "]"))),
        ("deep YAML", one("POST", MAPS, YAML, deep("[", "]"))),
        ("deep maps", one("POST", MAPS, JSON, tree(1500))),
        ("nested messages", nested(2000)),
        ("a pretty object", pretty(&format!("{THINGS}/a?pretty=true"))),
        ("much YAML", {
            let body = format!("a: {}", "- ".repeat(4500));
            one("POST", MAPS, YAML, body)
        }),
    ]
}

/// Patches that make much of little, and definitions that say it of every object.
fn growth() -> Vec<(&'static str, Attack)> {
    let thing = json!({"metadata": {"name": "a"}, "spec": {"a": ["x".repeat(2000)]}});
    let with = |attack: Attack| {
        let mut all = one("POST", DEFINITIONS, JSON, definition(&anything(), &json!([])));
        all.extend(one("POST", THINGS, JSON, &thing));
        all.extend(attack);
        all
    };
    let patch = |body: String| one("PATCH", &format!("{THINGS}/a"), JSON_PATCH, body);
    let doubling = |_| r#"{"op":"copy","from":"/spec","path":"/spec/a/-"}"#.to_owned();
    let defaults = json!({"type": "object", "properties": {"spec": {"type": "array", "items":
        {"type": "object", "properties": {"t": {"type": "string", "default": "x".repeat(9000)}}}}}});
    let columns: Vec<_> = (0..90)
        .map(|n| json!({"name": format!("c{n}"), "type": "string", "jsonPath": ".spec"}))
        .collect();
    let mut managers = with(Vec::new());
    for number in 0..150 {
        let (path, body) = (
            format!("{THINGS}/a?fieldManager=m{number}&force=true"),
            json!({
                "apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"},
                "spec": (0..30).map(|n| (format!("f{n}"), json!(number))).collect::<serde_json::Map<_, _>>(),
            }),
        );
        managers.extend(one("PATCH", &path, APPLY, body));
    }
    let spec = json!({"metadata": {"name": "a"}, "spec": many(|n| n.to_string(), 200)});
    vec![
        ("doubling", with(patch(format!("[{}]", many(doubling, 10))))),
        (
            "copies",
            with(patch(format!(
                "[{}]",
                many(|n| format!(r#"{{"op":"copy","from":"/spec/a/0","path":"/spec/{n}"}}"#), 10)
            ))),
        ),
        (
            "failing tests",
            with(patch(format!(
                "[{}]",
                many(|_| r#"{"op":"test","path":"/spec","value":1}"#.into(), 10)
            ))),
        ),
        (
            "order",
            one(
                "PATCH",
                "/api/v1/namespaces/default/services/kubernetes",
                STRATEGIC,
                format!(
                    "{{\"spec\":{{\"$setElementOrder/ports\":[{}]}}}}",
                    many(|n| format!("{{\"port\":{n}}}"), 99)
                ),
            ),
        ),
        ("defaults", {
            let mut all = one("POST", DEFINITIONS, JSON, definition(&defaults, &json!([])));
            let body = format!(
                "{{\"metadata\":{{\"name\":\"a\"}},\"spec\":[{}]}}",
                many(|_| "{}".into(), 99)
            );
            all.extend(one("POST", THINGS, JSON, body));
            all.extend(one("GET", &format!("{THINGS}/a"), JSON, ""));
            all
        }),
        ("columns", {
            let mut all = one("POST", DEFINITIONS, JSON, definition(&anything(), &json!(columns)));
            all.extend(one("POST", THINGS, JSON, spec));
            all.extend(one("GET", &format!("{THINGS}/a"), "table", ""));
            all
        }),
        ("columns of a grown object", {
            let mut all = one("POST", DEFINITIONS, JSON, definition(&anything(), &json!(columns)));
            all.extend(one("POST", THINGS, JSON, &thing));
            let copy = |_| r#"{"op":"copy","from":"/spec/a/0","path":"/spec/a/-"}"#.to_owned();
            all.extend(patch(format!("[{}]", many(copy, 10))));
            all.extend(one("GET", &format!("{THINGS}/a"), "table", ""));
            all
        }),
        ("managers", managers),
        (
            "no end of a watch",
            one("GET", &format!("{MAPS}?watch=1&timeoutSeconds={}", u64::MAX), JSON, ""),
        ),
        ("grace", {
            let pod = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "n",
                "terminationGracePeriodSeconds": i64::MAX, "containers": [{"name": "c", "image": "i"}]}});
            let mut all = one("POST", PODS, JSON, pod);
            all.extend(one("DELETE", &format!("{PODS}/a"), JSON, ""));
            all
        }),
    ]
}

async fn server() -> Arc<Api> {
    let range = "10.96.0.0/24".parse().unwrap();
    let config = Config { service_range: range, advertise: None, audit: None };
    let api = Api::new(Store::memory(), config, Tokens::ephemeral().unwrap());
    bootstrap::run(&api).await.unwrap();
    api
}

#[test]
fn small_requests_have_small_answers() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut requests, mut largest, mut slowest) = (0, (0, ""), (Duration::ZERO, ""));
        for (name, attack) in [mistakes(), texts(), growth()].into_iter().flatten() {
            let api = server().await;
            for (method, path, media, body) in attack {
                let asked = path.len() + body.len();
                assert!(asked < SMALL + 2000, "{name} is not small: {asked}");
                let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
                let accept = if media == "table" { table } else { "application/json" };
                let request = Request::builder().method(method).uri(&path);
                let request = request.header("content-type", media).header("accept", accept);
                let request = request.body(Full::new(Bytes::from(body))).unwrap();
                let cost = Measure::begin();
                let answer = handle(api.clone(), User::component(), request).await;
                let code = answer.status();
                assert_ne!(code, 500, "{name}");
                requests += 1;
                if path.contains("watch=1") && code.is_success() {
                    continue;
                }
                let size = answer.into_body().collect().await.unwrap().to_bytes().len();
                let (took, most) = (cost.time(), cost.memory());
                let what = format!("{name}: {method} {path}, {asked} bytes: {code}");
                assert!(size < LARGEST, "{what}: {size} bytes");
                assert!(took < LONGEST, "{what}: {took:?}");
                assert!(most < MOST_MEMORY, "{what}: {most} bytes of memory");
                largest = largest.max((size, name));
                slowest = slowest.max((took, name));
            }
        }
        eprintln!(
            "{requests} hostile requests; the largest answer {largest:?}, the slowest {slowest:?}"
        );
    });
}
