//! What is fuzzed: each entry takes bytes as a stranger may send them, and returns how many bytes they
//! became. The fuzzer calls them, and the test that replays what it found (`tests/fuzz/corpus.rs`).
//!
//! An entry panics if what comes out cannot be right; too much time and memory is for the caller to
//! notice. Requests are dry runs: the server is the same for every input.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use roadstead_api::selector::{Selector, parse_fields};
use roadstead_dns_core::cache::{AnswerCaches, StoredAnswer};
use roadstead_dns_core::corefile::{self, CorefileEnvironment};
use roadstead_dns_core::respond::{MAX_REPLY, QueryContext, Response, Transport, respond};
use roadstead_dns_core::setup::{CacheRule, Setup};
use roadstead_dns_core::upstream::UpstreamGroup;
use roadstead_netlink::attributes::{address_of, attribute, attributes, text_of};
use roadstead_netlink::socket::read_outcomes;
use roadstead_server::api::Api;
use roadstead_server::bootstrap;
use roadstead_server::config::Config;
use roadstead_server::identity::tokens::Tokens;
use roadstead_server::identity::user::User;
use roadstead_server::request::chain::handle;
use roadstead_store::entry::Key;
use roadstead_store::kv::{Options, Store};
use roadstead_store::snapshot;
use roadstead_store::transaction::Transaction;
use roadstead_zone::name::Name;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::{Value, json};

/// What one input becomes.
pub(crate) type Entry = fn(&[u8]) -> usize;

/// No answer has more bytes.
pub(crate) const LARGEST: usize = 1 << 20;

/// All of them, by name.
pub(crate) const ENTRIES: [(&str, Entry); 13] = [
    ("apply", |input| patch("application/apply-patch+yaml", "?fieldManager=f&dryRun=All", input)),
    ("corefile", read_corefile),
    ("dns", answer_dns),
    ("json", |input| {
        create("application/json", "/apis/apps/v1/namespaces/default/deployments", input)
    }),
    ("json-patch", |input| patch("application/json-patch+json", "?dryRun=All", input)),
    ("merge-patch", |input| patch("application/merge-patch+json", "?dryRun=All", input)),
    ("netlink", read_netlink),
    ("protobuf", |input| {
        create("application/vnd.kubernetes.protobuf", "/api/v1/namespaces/default/pods", input)
    }),
    ("rbac", create_role),
    ("record", read_record),
    ("selector", read_selector),
    ("strategic-patch", |input| {
        patch("application/strategic-merge-patch+json", "?dryRun=All", input)
    }),
    ("yaml", |input| create("application/yaml", "/api/v1/namespaces/default/pods", input)),
];

/// The entry of that name.
pub(crate) fn find(name: &str) -> Option<Entry> {
    ENTRIES.iter().find(|(known, _)| *known == name).map(|(_, entry)| *entry)
}

/// A server, and the thread that asks it.
struct Server {
    api: Arc<Api>,
    runtime: tokio::runtime::Runtime,
}

thread_local! {
    static SERVER: Server = Server::new();
    static CLUSTER: (Keeper, Setup, AnswerCaches) = cluster();
    static STORE: (tempfile::TempDir, [Vec<u8>; 4]) = store();
}

impl Server {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime can be made");
        let config = Config {
            service_range: "10.96.0.0/24".parse().expect("this is a range"),
            advertise: None,
            audit: None,
        };
        let tokens = Tokens::ephemeral().expect("there are random numbers");
        let api = Api::new(Store::memory(), config, tokens);
        runtime.block_on(bootstrap::run(&api)).expect("an empty store takes the first objects");
        let server = Self { api, runtime };
        for (path, object) in [
            (
                "clusterroles",
                json!({"metadata": {"name": "bob"}, "rules": [
                {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list"]},
                {"nonResourceURLs": ["/healthz", "/livez/*"], "verbs": ["get"]},
                {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
                    "verbs": ["create"]}]}),
            ),
            (
                "clusterrolebindings",
                json!({"metadata": {"name": "bob"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bob"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}]}),
            ),
        ] {
            let path = format!("/apis/rbac.authorization.k8s.io/v1/{path}");
            let asked = Asked { method: "POST", path: &path, media: "application/json" };
            let (code, said) = server.ask(User::component(), asked, object.to_string().as_bytes());
            assert_eq!(code, StatusCode::CREATED, "{said:?}");
        }
        server
    }

    fn ask(&self, user: User, asked: Asked<'_>, body: &[u8]) -> (StatusCode, Bytes) {
        let request = Request::builder().method(asked.method).uri(asked.path);
        let request = request.header("content-type", asked.media);
        let request = request.body(Full::new(Bytes::copy_from_slice(body)));
        let request = request.expect("the path is ours");
        self.runtime.block_on(async {
            let answer = handle(self.api.clone(), user, request).await;
            let code = answer.status();
            let bytes = answer.into_body().collect().await.expect("bodies do not fail").to_bytes();
            (code, bytes)
        })
    }
}

/// What is asked of the server, but for the body.
struct Asked<'a> {
    method: &'static str,
    path: &'a str,
    media: &'static str,
}

/// Asks, and looks at the answer.
fn ask(user: User, asked: Asked<'_>, body: &[u8]) -> (StatusCode, Bytes) {
    let (code, bytes) = SERVER.with(|server| server.ask(user, asked, body));
    let answer: Value = serde_json::from_slice(&bytes).expect("an answer is JSON");
    if !code.is_success() {
        assert_eq!((&answer["kind"], &answer["code"]), (&json!("Status"), &json!(code.as_u16())));
    }
    // An applied configuration that does not fit its schema is answered like that upstream, too.
    let is_fault = code == StatusCode::INTERNAL_SERVER_ERROR && answer["reason"] == "InternalError";
    assert!(!is_fault, "{answer}");
    (code, bytes)
}

fn create(media: &'static str, path: &str, input: &[u8]) -> usize {
    let path = format!("{path}?dryRun=All");
    ask(User::component(), Asked { method: "POST", path: &path, media }, input).1.len()
}

fn patch(media: &'static str, query: &str, input: &[u8]) -> usize {
    let path = format!("/api/v1/namespaces/default/services/kubernetes{query}");
    ask(User::component(), Asked { method: "PATCH", path: &path, media }, input).1.len()
}

/// Bob makes a role; it must not have what he has not.
fn create_role(input: &[u8]) -> usize {
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles?dryRun=All";
    // He is in no group: he has his role and nothing else.
    let bob = User::new("bob", Vec::new());
    let asked = Asked { method: "POST", path, media: "application/json" };
    let (code, bytes) = ask(bob, asked, input);
    let role: Value = serde_json::from_slice(&bytes).expect("an answer is JSON");
    let texts = |value: &Value| {
        let all = value.as_array().into_iter().flatten();
        all.map(|text| text.as_str().expect("it was validated").to_owned()).collect::<Vec<_>>()
    };
    for rule in role["rules"].as_array().into_iter().flatten().filter(|_| code.is_success()) {
        let within = |field: &str, held: &dyn Fn(&str) -> bool| {
            texts(&rule[field]).iter().all(|text| held(text))
        };
        let is = |held: &'static [&'static str]| move |text: &str| held.contains(&text);
        let has = |field: &str| !texts(&rule[field]).is_empty();
        let of_group = |group: &'static [&'static str], all: &'static [&'static str]| {
            !has("nonResourceURLs")
                && within("apiGroups", &is(group))
                && within("resources", &is(all))
        };
        let reads =
            of_group(&[""], &["pods", "services"]) && within("verbs", &is(&["get", "list"]));
        let makes = of_group(&["rbac.authorization.k8s.io"], &["clusterroles"])
            && within("verbs", &is(&["create"]));
        let health = !has("resources")
            && within("verbs", &is(&["get"]))
            && within("nonResourceURLs", &|path| path == "/healthz" || path.starts_with("/livez/"));
        let names = has("nonResourceURLs") || (has("apiGroups") && has("resources"));
        let (grants, held) = (has("verbs") && names, reads || makes || health);
        assert!(!grants || held, "bob made {rule}");
    }
    bytes.len()
}

fn read_selector(input: &[u8]) -> usize {
    let text = String::from_utf8_lossy(input);
    let label = |name: &str| name.len().is_multiple_of(2).then_some("value");
    let matched = Selector::parse(&text).map(|selector| selector.matches(label));
    let fields = parse_fields(&text);
    matched.err().map_or(0, |why| why.len()) + fields.map_or_else(|why| why.len(), |all| all.len())
}

fn cluster() -> (Keeper, Setup, AnswerCaches) {
    let name = Name::parse("cluster.local").expect("this is a name");
    let mut keeper = Keeper::new(ZoneSettings::new(&name), 1, Seed::new(1));
    let spec =
        json!({"clusterIPs": ["10.96.0.1", "fd96::1"], "ports": [{"name": "http", "port": 80}]});
    let object = json!({"metadata": {"namespace": "prod", "name": "web"}, "spec": spec});
    keeper.observe_service(&serde_json::from_value(object).expect("this is a Service"));
    let endpoints: Vec<_> =
        (0..60).map(|n| json!({"addresses": [format!("10.0.0.{n}")]})).collect();
    let slice = json!({
        "metadata": {"namespace": "prod", "name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints,
    });
    keeper.observe_slice(&serde_json::from_value(slice).expect("this is an EndpointSlice"));
    keeper.set_synced();
    let server = "192.0.2.53:53".parse().expect("this is an address");
    let setup = Setup::standard(Some(UpstreamGroup::new(vec![server])));
    let answers = AnswerCaches::new(&setup, 1);
    (keeper, setup, answers)
}

/// A query of a client; and the same bytes as the answer of another server.
fn answer_dns(input: &[u8]) -> usize {
    let rule = CacheRule {
        success: Duration::from_secs(3600),
        denial: Duration::from_secs(1800),
        ..CacheRule::default()
    };
    let now = Instant::now();
    let learnt = StoredAnswer::read(input, &rule, now).map_or(0, |answer| answer.bytes.len());
    let mut buffer = vec![0; MAX_REPLY];
    CLUSTER.with(|(keeper, setup, answers)| {
        let (zone, transport) = (keeper.zone(), Transport::Tcp);
        let context = QueryContext { zone, setup, answers, transport, turn: 1, now, querier: None };
        match respond(&context, input, &mut buffer) {
            Response::Reply(length) => {
                assert!(length >= 12, "a reply has a header");
                length + learnt
            }
            _ => learnt,
        }
    })
}

fn read_corefile(input: &[u8]) -> usize {
    let text = String::from_utf8_lossy(input);
    let none = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    match corefile::read(&text, false, &CorefileEnvironment::files(&none)) {
        Ok(corefile) => corefile.setup.blocks().len(),
        Err(error) => error.to_string().len(),
    }
}

/// A datagram of the kernel, as answers to a batch and as attributes of attributes.
fn read_netlink(input: &[u8]) -> usize {
    fn inside(bytes: &[u8], depth: usize) -> usize {
        let count = attributes(bytes).map(|(kind, value)| {
            let (_, _) = (attribute(bytes, kind), address_of(value));
            let within = if depth < 4 { inside(value, depth + 1) } else { 0 };
            text_of(value).len() + within
        });
        count.sum()
    }
    let _ = read_outcomes(input);
    // A value may be an attribute at each of five depths, and three times as long as text.
    let size = inside(input, 0);
    assert!(size <= 15 * input.len(), "{size}");
    size
}

/// A store with one write, and its files.
fn store() -> (tempfile::TempDir, [Vec<u8>; 4]) {
    let directory = tempfile::tempdir().expect("there is a place for files");
    let path = directory.path().join("store.redb");
    let store = Store::open(&path, Options::default()).expect("an empty store opens");
    let write = Transaction::new().put(Key::new("things", "a"), Bytes::from_static(b"value"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(store.commit(write)).expect("it is written");
    drop(store);
    let read = |extension: &str| {
        std::fs::read(path.with_extension(extension)).expect("a store has this file")
    };
    (directory, ["redb", "ahead0", "ahead1", "mark"].map(read))
}

/// The payload of a record of the log behind the last one, with a checksum that fits; and the
/// contents of a snapshot.
fn read_record(input: &[u8]) -> usize {
    let sum = |parts: &[&[u8]]| {
        let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
        parts.iter().for_each(|part| context.update(part));
        context.finish()
    };
    let mut saved = b"roadstead snapshot\n".to_vec();
    saved.extend(1_u64.to_le_bytes());
    saved.extend(input);
    saved.extend(sum(&[&saved.clone()]).as_ref());
    let objects = snapshot::read(&Bytes::from(saved)).map_or(0, |saved| saved.objects());
    let shown = STORE.with(|(directory, files)| {
        let [tables, first, second, mark] = files;
        let path = directory.path().join("store.redb");
        // Behind the records of the file that is in use.
        let is_used = |file: &[u8]| file.get(4096..4104).is_some_and(|head| head != [0; 8]);
        let (mut first, mut second) = (first.clone(), second.clone());
        let file = if is_used(&second) { &mut second } else { &mut first };
        let salt: [u8; 16] = file[32..48].try_into().expect("these are sixteen bytes");
        let mut at = 4096;
        while file.get(at..at + 8) == Some(&salt[..8]) {
            let length: [u8; 8] = file[at + 8..at + 16].try_into().expect("these are eight");
            at += (32 + u64::from_le_bytes(length) as usize).next_multiple_of(8);
        }
        file.truncate(at);
        file.extend(&salt[..8]);
        file.extend((input.len() as u64).to_le_bytes());
        file.extend(&sum(&[&salt, input]).as_ref()[..16]);
        file.extend(input);
        file.resize(file.len().next_multiple_of(8), 0);
        for (extension, bytes) in
            [("redb", tables), ("ahead0", &first), ("ahead1", &second), ("mark", mark)]
        {
            std::fs::write(path.with_extension(extension), bytes).expect("there is room");
        }
        match Store::open(&path, Options::default()) {
            Ok(store) => store.all().entries.iter().map(|entry| entry.value.len() + 64).sum(),
            Err(error) => error.to_string().len(),
        }
    });
    objects + shown
}
