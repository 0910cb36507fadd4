//! For random clusters and questions, what the server sends, read by two decoders that are not
//! ours, is what a naive resolver says that knows nothing but a list of all records.

#![allow(clippy::disallowed_methods, reason = "tests read files and clocks")]

mod reference;

use std::collections::BTreeSet;
use std::time::Instant;

use domain::base::{Message as OtherMessage, ParsedName};
use domain::rdata::AllRecordData;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name as HickoryName, RecordType as HickoryType};
use proptest::prelude::*;
use roadstead_api::key::ObjectKey;
use roadstead_dns_core::cache::AnswerCaches;
use roadstead_dns_core::respond::{MAX_REPLY, QueryContext, Response, Transport, respond};
use roadstead_dns_core::setup::Setup;
use roadstead_zone::name::Name;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;

use reference::{Cluster, Outcome, Records, ServiceSpec, SliceSpec};

const KINDS: [(u16, &str); 7] =
    [(1, "A"), (28, "AAAA"), (33, "SRV"), (5, "CNAME"), (16, "TXT"), (65, "HTTPS"), (12, "PTR")];

fn keeper(cluster: &Cluster) -> Keeper {
    let mut keeper =
        Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
    observe(&mut keeper, cluster);
    keeper.set_synced();
    keeper
}

fn observe(keeper: &mut Keeper, cluster: &Cluster) {
    cluster.namespaces.iter().for_each(|name| keeper.observe_namespace(name));
    for service in &cluster.services {
        keeper.observe_service(&serde_json::from_value(service.object()).unwrap());
    }
    for (at, slice) in cluster.slices.iter().enumerate() {
        keeper.observe_slice(&serde_json::from_value(slice.object(at)).unwrap());
    }
}

/// Brings the zone from one cluster to another; slices of the same number are the same object if
/// they are in the same namespace.
fn turn_into(keeper: &mut Keeper, old: &Cluster, new: &Cluster) {
    old.namespaces.difference(&new.namespaces).for_each(|name| keeper.remove_namespace(name));
    let key = |service: &ServiceSpec| ObjectKey::new(service.namespace, service.name);
    for gone in
        old.services.iter().map(key).filter(|old| !new.services.iter().any(|s| key(s) == *old))
    {
        keeper.remove_service(&gone);
    }
    for (at, slice) in old.slices.iter().enumerate() {
        if new.slices.get(at).is_none_or(|new| new.namespace != slice.namespace) {
            keeper.remove_slice(&ObjectKey::new(slice.namespace, format!("slice-{at}")));
        }
    }
    observe(keeper, new);
}

/// A query in mixed letters; the size is what the client takes.
fn query(name: &str, kind: u16, size: Option<u16>) -> Vec<u8> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    let name: String = name
        .chars()
        .enumerate()
        .map(|(at, c)| if at % 2 == 0 { c.to_ascii_uppercase() } else { c })
        .collect();
    let name = HickoryName::from_ascii(&name).unwrap();
    message.add_query(Query::query(name, HickoryType::from(kind)));
    if let Some(size) = size {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

fn ask(keeper: &Keeper, bytes: &[u8], transport: Transport, turn: usize) -> Option<Vec<u8>> {
    let setup = Setup::standard(None);
    let context = QueryContext {
        zone: keeper.zone(),
        setup: &setup,
        answers: &AnswerCaches::new(&setup, 1),
        transport,
        turn,
        now: Instant::now(),
        querier: None,
    };
    let mut buffer = vec![0; MAX_REPLY];
    match respond(&context, bytes, &mut buffer) {
        Response::Reply(length) => Some(buffer[..length].to_vec()),
        _ => None,
    }
}

/// What a reply says: the code, whether it is cut short, and the answers in order.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    code: u8,
    cut: bool,
    answers: Vec<String>,
}

fn read_with_hickory(bytes: &[u8]) -> Said {
    let message = Message::from_vec(bytes).expect("hickory can read it");
    let answers = message.answers.iter().map(|record| {
        let data = record.data.to_string().to_lowercase().replace('"', "");
        format!("{} {} {data}", record.name.to_string().to_lowercase(), record.record_type())
    });
    let answers = answers.collect();
    Said { code: message.metadata.response_code.low(), cut: message.metadata.truncation, answers }
}

fn read_with_domain(bytes: &[u8]) -> Said {
    let message = OtherMessage::from_octets(bytes).expect("domain can read it");
    let records = message.answer().unwrap().limit_to::<AllRecordData<_, ParsedName<_>>>();
    let answers = records.map(|record| {
        let record = record.expect("a readable record");
        let data = record.data().to_string().to_lowercase().replace('"', "");
        // Names are written without the last dot here.
        let owner = format!("{}.", record.owner().to_string().to_lowercase());
        let dotted = match record.rtype().to_string().as_str() {
            "SRV" | "CNAME" | "PTR" | "NS" if !data.ends_with('.') => format!("{data}."),
            _ => data,
        };
        format!("{owner} {} {dotted}", record.rtype())
    });
    let answers = answers.collect();
    Said { code: message.header().rcode().to_int(), cut: message.header().tc(), answers }
}

fn clusters() -> impl Strategy<Value = Cluster> {
    let name = || prop::sample::select(vec!["web", "db", "api"]);
    let namespace = || prop::sample::select(vec!["shop", "prod", "ghost"]);
    let ports = || {
        let port = (prop::sample::select(vec!["http", "dns", ""]), any::<bool>(), 1..4_u16);
        prop::collection::vec(port, 0..4)
    };
    let kind = prop_oneof![
        prop::collection::vec(0..6_u8, 1..3).prop_map(reference::Kind::ClusterIps),
        Just(reference::Kind::Headless),
        Just(reference::Kind::Headless),
        prop::sample::select(vec![
            "web.shop.svc.cluster.local",
            "db.prod.svc.cluster.local",
            "api.ghost.svc.Cluster.Local",
            "example.org",
        ])
        .prop_map(|target| reference::Kind::External(target.into())),
    ];
    let service = (namespace(), name(), kind, ports())
        .prop_map(|(namespace, name, kind, ports)| ServiceSpec { namespace, name, kind, ports });
    let host = prop::option::of(prop::sample::select(vec!["db-0", "db-1"]));
    let endpoint = (host, 0..40_u8, prop::bool::weighted(0.8));
    let slice =
        (namespace(), name(), any::<bool>(), prop::collection::vec(endpoint, 0..30), ports())
            .prop_map(|(namespace, name, v6, endpoints, ports)| SliceSpec {
                namespace,
                name,
                v6,
                endpoints,
                ports,
            });
    let namespaces = prop::collection::btree_set(namespace(), 0..3);
    (namespaces, prop::collection::vec(service, 0..6), prop::collection::vec(slice, 0..6)).prop_map(
        |(namespaces, services, slices)| {
            let mut seen = BTreeSet::new();
            let fresh =
                services.into_iter().filter(|s: &ServiceSpec| seen.insert((s.namespace, s.name)));
            Cluster { namespaces, services: fresh.collect(), slices }
        },
    )
}

/// Names that exist, names that nearly do, and names that do not.
fn names() -> impl Strategy<Value = String> {
    let words = vec![
        "web",
        "db",
        "api",
        "shop",
        "prod",
        "ghost",
        "svc",
        "pod",
        "dns",
        "ns",
        "_http",
        "_dns",
        "_tcp",
        "_udp",
        "db-0",
        "db-1",
        "10-0-0-3",
        "10-0-0-17",
        "fd00--3",
        "dns-version",
        "_",
        "x",
    ];
    let any = prop::collection::vec(prop::sample::select(words.clone()), 0..6)
        .prop_map(|labels| labels.join("."));
    let below = (
        prop::collection::vec(prop::sample::select(words), 0..3),
        prop::sample::select(vec!["web", "db", "api"]),
        prop::sample::select(vec!["shop", "prod", "ghost"]),
    )
        .prop_map(|(front, service, namespace)| {
            let front: String = front.iter().map(|label| format!("{label}.")).collect();
            format!("{front}{service}.{namespace}.svc")
        });
    let port = (
        prop::sample::select(vec!["_http._tcp.", "_dns._udp.", "db-0.", "10-0-0-3.", ""]),
        prop::sample::select(vec!["web", "db", "api"]),
        prop::sample::select(vec!["shop", "prod"]),
    )
        .prop_map(|(front, service, namespace)| format!("{front}{service}.{namespace}.svc"));
    prop_oneof![any, below, port].prop_map(|front| match front.is_empty() {
        true => "cluster.local.".to_owned(),
        false => format!("{front}.cluster.local."),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_server_says_what_the_records_say(
        before in prop::option::of(clusters()),
        cluster in clusters(),
        questions in prop::collection::vec((names(), 0..KINDS.len()), 1..40),
        size in prop::option::of(400..2000_u16),
        turn in 0..100_usize,
    ) {
        let mut keeper = keeper(before.as_ref().unwrap_or(&cluster));
        before.iter().for_each(|before| turn_into(&mut keeper, before, &cluster));
        let records = Records::of(&cluster);
        for (name, kind) in questions {
            let (number, kind) = KINDS[kind];
            let whole = ask(&keeper, &query(&name, number, size), Transport::Tcp, turn).unwrap();
            let said = read_with_hickory(&whole);
            prop_assert_eq!(&said, &read_with_domain(&whole), "two decoders, {} {}", &name, kind);
            let (code, want) = match records.resolve(&name, kind) {
                Outcome::Found(want) => (0, want),
                Outcome::NoName(want) => (3, want),
                Outcome::UpstreamFailure => (2, Vec::new()),
            };
            prop_assert_eq!(said.code, code, "{} {} in {:?}", &name, kind, &cluster);
            let got: BTreeSet<_> = said.answers.iter().cloned().collect();
            prop_assert_eq!(got.len(), said.answers.len(), "no record twice");
            prop_assert_eq!(&got, &want.iter().cloned().collect(), "{} {} in {:?}", &name, kind, &cluster);
            prop_assert!(!said.cut, "nothing is missing over TCP");
            let first_other = said.answers.iter().position(|a| !a.contains(" CNAME "));
            let last_alias = said.answers.iter().rposition(|a| a.contains(" CNAME "));
            prop_assert!(first_other.is_none() || last_alias < first_other, "aliases come first");
            if code == 3 {
                prop_assert!(!records.exists_below(&name), "nothing is below a missing name");
            }
            // Over UDP the same, as far as it fits.
            let short = ask(&keeper, &query(&name, number, size), Transport::Udp, turn).unwrap();
            let limit = usize::from(size.unwrap_or(512).clamp(512, 1232));
            prop_assert!(short.len() <= limit, "{} bytes of {limit}", short.len());
            let short = read_with_hickory(&short);
            prop_assert_eq!(short.cut, short.answers.len() < said.answers.len());
            prop_assert!(short.answers.iter().all(|answer| got.contains(answer)));
        }
    }

    #[test]
    fn both_families_agree_on_existence_and_the_way_back_leads_home(cluster in clusters()) {
        let keeper = keeper(&cluster);
        let records = Records::of(&cluster);
        for name in records.names() {
            let code = |kind| {
                let reply = ask(&keeper, &query(name, kind, None), Transport::Tcp, 0);
                reply.map(|reply| read_with_hickory(&reply).code)
            };
            prop_assert_eq!(code(1) == Some(3), code(28) == Some(3), "{}", name);
        }
        for (address, targets) in records.pointers() {
            let reply = ask(&keeper, &query(address, 12, None), Transport::Tcp, 0).unwrap();
            let said = read_with_domain(&reply);
            let got: BTreeSet<_> = said.answers.iter().map(|a| a.rsplit(' ').next().unwrap().to_owned()).collect();
            prop_assert_eq!(&got, targets, "{}", address);
        }
    }
}
