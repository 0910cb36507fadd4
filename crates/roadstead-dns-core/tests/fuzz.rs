//! Damaged queries, configurations and replies of other servers: whatever comes, nothing breaks,
//! and what is sent can be read. `ROADSTEAD_FUZZ_SECONDS` sets the time of each,
//! `ROADSTEAD_DNS_FUZZ_SECONDS` only of these; `ROADSTEAD_SEED` sets the seed.

#![allow(clippy::disallowed_methods, reason = "tests read files and clocks")]

use std::env;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use roadstead_dns_core::cache::{AnswerCaches, QuestionKey, StoredAnswer};
use roadstead_dns_core::clients::Clients;
use roadstead_dns_core::corefile::{self, CorefileEnvironment};
use roadstead_dns_core::respond::{MAX_REPLY, QueryContext, Response, Transport, respond};
use roadstead_dns_core::search::Querier;
use roadstead_dns_core::setup::{CacheRule, Setup};
use roadstead_dns_core::upstream::UpstreamGroup;
use roadstead_dns_core::upstream::question::{belongs, query};
use roadstead_zone::name::Name;
use roadstead_zone::search::SearchList;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::json;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound.max(1) as u64).unwrap()
    }

    /// Changes, cuts, repeats and joins bytes.
    fn damage(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(7) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, u8::try_from(self.below(256)).unwrap()),
                2 => drop((at < bytes.len()).then(|| bytes.remove(at))),
                3 => bytes.extend_from_slice(&other[self.below(other.len() + 1)..]),
                4 => {
                    let copy = bytes[at..].to_vec();
                    bytes.extend(copy.iter().take(40));
                }
                _ if bytes.is_empty() => {}
                _ => {
                    let at = at % bytes.len();
                    let odd = [0, 1, 0x3f, 0x40, 0x80, 0xc0, 0xff];
                    bytes[at] = match self.below(2) {
                        0 => odd[self.below(odd.len())],
                        _ => bytes[at] ^ (1 << self.below(8)),
                    };
                }
            }
            bytes.truncate(4000);
        }
    }
}

fn seconds() -> Duration {
    let text =
        env::var("ROADSTEAD_DNS_FUZZ_SECONDS").or_else(|_| env::var("ROADSTEAD_FUZZ_SECONDS"));
    let text = text.ok();
    Duration::from_secs(text.and_then(|text| text.parse().ok()).unwrap_or(5))
}

fn seed() -> u64 {
    let text = env::var("ROADSTEAD_SEED").ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Runs with ever new chances until the time is over.
fn repeat(mut one: impl FnMut(&mut Random, u64)) {
    let (begin, mut number) = (Instant::now(), 0);
    while begin.elapsed() < seconds() {
        let round = seed().wrapping_mul(1_000_003).wrapping_add(number);
        one(&mut Random(round), round);
        number += 1;
    }
    assert!(number > 100, "too slow to find anything");
}

fn keeper() -> Keeper {
    let mut keeper =
        Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
    for (name, spec) in [
        (
            "web",
            json!({"clusterIPs": ["10.96.0.1", "fd96::1"], "ports": [{"name": "http", "port": 80}]}),
        ),
        ("db", json!({"clusterIPs": ["None"]})),
        ("outer", json!({"type": "ExternalName", "externalName": "example.org"})),
    ] {
        let object = json!({"metadata": {"namespace": "prod", "name": name}, "spec": spec});
        keeper.observe_service(&serde_json::from_value(object).unwrap());
    }
    let endpoints: Vec<_> =
        (0..200).map(|n| json!({"addresses": [format!("10.0.0.{n}")]})).collect();
    let slice = json!({
        "metadata": {"namespace": "prod", "name": "db-1", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints,
    });
    keeper.observe_slice(&serde_json::from_value(slice).unwrap());
    keeper.set_synced();
    keeper
}

fn setup() -> Setup {
    Setup::standard(Some(UpstreamGroup::new(vec!["192.0.2.53:53".parse().unwrap()])))
}

fn key(name: &str, kind: u16) -> QuestionKey {
    let name = Name::parse(name).unwrap().wire().into();
    QuestionKey { name, kind, dnssec: false, unchecked: false }
}

#[test]
fn damaged_queries() {
    let (keeper, setup) = (keeper(), setup());
    let answers = AnswerCaches::new(&setup, 1);
    let names = [
        ("web.prod.svc.cluster.local", 1),
        ("_http._tcp.db.prod.svc.cluster.local", 33),
        ("outer.prod.svc.cluster.local", 28),
        ("3.0.0.10.in-addr.arpa", 12),
        ("10-0-0-1.prod.pod.cluster.local", 1),
        ("www.example.org.prod.svc.cluster.local", 1),
        ("web.prod.svc.prod.svc.cluster.local", 28),
    ];
    let searches = ["prod.svc.cluster.local", "svc.cluster.local", "cluster.local"];
    let search = SearchList::new(&searches.map(str::to_owned), 5).unwrap();
    let clients = Clients::of([([10, 244, 0, 2].into(), search)], Instant::now());
    let mut buffer = vec![0; MAX_REPLY];
    repeat(|random, round| {
        let (name, kind) = names[random.below(names.len())];
        let mut bytes = query(&key(name, kind), 7);
        random.damage(&mut bytes, &[0, 0, 41, 16, 0, 0, 0, 0, 0, 0, 0]);
        let transport = if random.below(2) == 0 { Transport::Udp } else { Transport::Tcp };
        let turn = random.below(1000);
        let address = [10, 244, 0, 2].into();
        let (querier, now) = (Some(Querier { clients: &clients, address }), Instant::now());
        let context = QueryContext {
            zone: keeper.zone(),
            setup: &setup,
            answers: &answers,
            transport,
            turn,
            now,
            querier,
        };
        if let Response::Reply(length) = respond(&context, &bytes, &mut buffer) {
            assert!(transport == Transport::Tcp || length <= 1232, "round {round}");
            let read = Message::from_vec(&buffer[..length]);
            assert!(read.is_ok(), "round {round}: {read:?}");
            assert_eq!(buffer[..2], bytes[..2], "round {round}");
        }
    });
}

#[test]
fn damaged_replies() {
    let (keeper, setup) = (keeper(), setup());
    let answers = AnswerCaches::new(&setup, 1);
    let asked = query(&key("example.org", 1), 7);
    let mut good = asked.clone();
    good[2] |= 0x80;
    good[7] = 2;
    good.truncate(asked.len() - 11);
    good[11] = 0;
    good.extend(b"\xc0\x0c\0\x05\0\x01\0\0\0\x3c\0\x06\x03www\xc0\x0c");
    good.extend(b"\xc0\x29\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x01");
    assert!(belongs(&good, &asked), "the undamaged one is good");
    let mut buffer = vec![0; MAX_REPLY];
    let mut kept = 0;
    repeat(|random, round| {
        let mut bytes = good.clone();
        random.damage(&mut bytes, &good);
        if !belongs(&bytes, &asked) {
            return;
        }
        let Some(stored) = StoredAnswer::read(&bytes, &CacheRule::default(), Instant::now()) else {
            return;
        };
        if stored.lifetime.is_zero() {
            return;
        }
        kept += 1;
        answers.of(&setup.blocks()[0]).insert(key("example.org", 1), stored.into());
        for transport in [Transport::Udp, Transport::Tcp] {
            let context = QueryContext {
                zone: keeper.zone(),
                setup: &setup,
                answers: &answers,
                transport,
                turn: 0,
                now: Instant::now(),
                querier: None,
            };
            let response = respond(&context, &asked, &mut buffer);
            if let Response::Reply(length) | Response::Remembered(length) = response {
                assert!(transport == Transport::Tcp || length <= 1232, "round {round}");
                assert_eq!(buffer[..2], asked[..2], "round {round}");
            }
        }
    });
    assert!(kept > 10, "some damage goes unnoticed, or nothing is tested");
}

#[test]
fn damaged_configurations() {
    const GOOD: &str = ".:53 {\n errors\n health :8080 {\n  lameduck 5s\n }\n kubernetes cluster.local \
        in-addr.arpa {\n  pods insecure\n  ttl 30\n  fallthrough\n }\n forward . 192.0.2.1 {\n  \
        max_concurrent 1000\n }\n cache 30 {\n  serve_stale 1h\n }\n hosts {\n  192.0.2.2 a.b\n }\n \
        rewrite name suffix .a .b\n rewrite name regex (.*)[a-c]{2,3}\\.x$ {1}.y\n loop\n reload 30s\n}\nacme:53 {\n log\n}\n";
    let lines = GOOD.lines().count();
    repeat(|random, round| {
        let mut bytes = GOOD.as_bytes().to_vec();
        random.damage(&mut bytes, b" { }\n \"x\n{\n}\n 99999999999999999999h -1 \0");
        let text = String::from_utf8_lossy(&bytes);
        let read = corefile::read(
            &text,
            false,
            &CorefileEnvironment::files(&|_| Err(std::io::ErrorKind::NotFound.into())),
        );
        if let Err(error) = read {
            assert!(error.line >= 1 && error.line <= lines * 8, "round {round}: {error}");
            assert!(!error.reason.is_empty(), "round {round}");
        }
    });
}
