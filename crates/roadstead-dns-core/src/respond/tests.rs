//! Questions and replies, written and read by an independent codec.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query as HickoryQuery, ResponseCode};
use hickory_proto::rr::{
    DNSClass, Name as HickoryName, Record as HickoryRecord, RecordType as Kind,
};
use proptest::prelude::*;
use roadstead_zone::name::Name;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::{Outside, ZoneSettings};
use roadstead_zone::zone::Keeper;
use serde_json::json;

use super::*;
use crate::cache::StoredAnswer;
use crate::message;
use crate::setup::CacheRule;
use crate::upstream::UpstreamGroup;

fn zone() -> Keeper {
    let mut settings = ZoneSettings::new(&Name::parse("cluster.local").unwrap());
    settings.servers = vec!["10.96.0.10".parse().unwrap()];
    let mut zone = Keeper::new(settings, 7, Seed::new(1));
    zone.observe_namespace("prod");
    let service = |name: &str, spec: serde_json::Value| {
        let object = json!({"metadata": {"namespace": "prod", "name": name}, "spec": spec});
        serde_json::from_value(object).unwrap()
    };
    let ports = json!([{"name": "http", "port": 80}]);
    let web = json!({"clusterIPs": ["10.96.0.1", "fd96::1"], "ports": ports});
    zone.observe_service(&service("web", web));
    zone.observe_service(&service("big", json!({"clusterIPs": ["None"], "ports": ports})));
    let outer = json!({"type": "ExternalName", "externalName": "example.org"});
    zone.observe_service(&service("outer", outer));
    let inner = json!({"type": "ExternalName", "externalName": "web.prod.svc.cluster.local"});
    zone.observe_service(&service("inner", inner));
    let endpoints: Vec<_> =
        (0..250).map(|n| json!({"addresses": [format!("10.0.0.{n}")]})).collect();
    let slice = json!({
        "metadata": {
            "namespace": "prod",
            "name": "big-1",
            "labels": {"kubernetes.io/service-name": "big"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": endpoints,
    });
    zone.observe_slice(&serde_json::from_value(slice).unwrap());
    zone.set_synced();
    zone
}

/// A query; `edns` is the size that the client takes.
fn query(name: &str, kind: Kind, edns: Option<u16>) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(HickoryQuery::query(HickoryName::from_ascii(name).unwrap(), kind));
    if let Some(size) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
    }
    message
}

/// Whom nobody will ask.
fn setup() -> Setup {
    Setup::standard(Some(UpstreamGroup::new(vec!["192.0.2.53:53".parse().unwrap()])))
}

fn respond_to(
    keeper: &Keeper,
    bytes: &[u8],
    transport: Transport,
    turn: usize,
    buffer: &mut [u8],
) -> Response {
    let setup = setup();
    let context = QueryContext {
        zone: keeper.zone(),
        setup: &setup,
        answers: &AnswerCaches::new(&setup, 1),
        transport,
        turn,
        now: Instant::now(),
        querier: None,
    };
    respond(&context, bytes, buffer)
}

fn exchange(bytes: &[u8], transport: Transport) -> Option<(Vec<u8>, Message)> {
    let mut buffer = vec![0; MAX_REPLY];
    match respond_to(&zone(), bytes, transport, 0, &mut buffer) {
        Response::Reply(length) => {
            buffer.truncate(length);
            let message = Message::from_vec(&buffer).expect("others can read it");
            Some((buffer, message))
        }
        _ => None,
    }
}

/// Who answers, and why there is nothing, side by side.
#[test]
fn options() {
    let keeper = zone();
    let setup = Setup { identity: "node-1".into(), ..setup() };
    let context = QueryContext {
        zone: keeper.zone(),
        setup: &setup,
        answers: &AnswerCaches::new(&setup, 1),
        transport: Transport::Udp,
        turn: 0,
        now: Instant::now(),
        querier: None,
    };
    let other: &[u8] = &[0, 12, 0, 2, 9, 9];
    let identity: &[u8] = &[0, 3, 0, 0];
    let (who, why) = (b"\0\x03\0\x06node-1".as_slice(), b"\0\x0f\0".as_slice());
    let cases = [
        ("nothing asked", "web", vec![], (false, false)),
        ("something else", "web", other.to_vec(), (false, false)),
        ("who", "web", identity.to_vec(), (true, false)),
        ("who, behind something else", "web", [other, identity].concat(), (true, false)),
        ("both", "none", identity.to_vec(), (true, true)),
    ];
    for (what, name, options, want) in cases {
        let name = format!("{name}.prod.svc.cluster.local.");
        let mut bytes = query(&name, Kind::A, None).to_vec().unwrap();
        bytes[11] = 1;
        bytes.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0]);
        bytes.push(u8::try_from(options.len()).unwrap());
        bytes.extend(options);
        let mut buffer = vec![0; MAX_REPLY];
        let Response::Reply(length) = respond(&context, &bytes, &mut buffer) else {
            panic!("{what}: an answer")
        };
        let reply = Message::from_vec(&buffer[..length]).unwrap();
        assert!(reply.edns.is_some(), "{what}");
        let has = |part: &[u8]| buffer[..length].windows(part.len()).any(|found| found == part);
        assert_eq!((has(who), has(why)), want, "{what}");
    }
}

#[test]
fn names_for_outsiders() {
    let mut settings = zone().zone().settings().clone();
    let origin = Name::parse("example.com").unwrap();
    settings.outside = Some(Outside { origin, lifetime: 60, headless: false });
    let mut keeper = Keeper::new(settings, 7, Seed::new(1));
    let web = json!({
        "metadata": {"namespace": "prod", "name": "web"},
        "spec": {"clusterIPs": ["10.96.0.1"], "externalIPs": ["192.0.2.1"], "ports": [{"name": "http", "port": 80}]},
    });
    keeper.observe_service(&serde_json::from_value(web).unwrap());
    keeper.set_synced();
    let mut buffer = vec![0; MAX_REPLY];
    let mut ask = |name, kind| {
        let bytes = query(name, kind, None).to_vec().unwrap();
        let Response::Reply(length) = respond_to(&keeper, &bytes, Transport::Udp, 0, &mut buffer)
        else {
            panic!("it is answered")
        };
        let message = Message::from_vec(&buffer[..length]).unwrap();
        [message.answers, message.additionals, message.authorities].map(|part| text(&part))
    };
    let [srv, glue, _] = ask("_http._tcp.web.prod.Example.com.", Kind::SRV);
    assert_eq!(srv, "_http._tcp.web.prod.Example.com. 60 0 100 80 web.prod.example.com.");
    assert_eq!(glue, "web.prod.example.com. 60 192.0.2.1");
    let [_, _, soa] = ask("none.prod.example.com.", Kind::A);
    assert!(
        soa.starts_with("example.com. 5 ns.dns.example.com. hostmaster.example.com. "),
        "{soa}"
    );
    let [inside, ..] = ask("web.prod.svc.cluster.local.", Kind::A);
    assert_eq!(inside, "web.prod.svc.cluster.local. 30 10.96.0.1");
}

fn ask(name: &str, kind: Kind) -> Message {
    exchange(&query(name, kind, None).to_vec().unwrap(), Transport::Udp).unwrap().1
}

fn text(records: &[HickoryRecord]) -> String {
    let word = |r: &HickoryRecord| format!("{} {} {}", r.name, r.ttl, r.data);
    records.iter().map(word).collect::<Vec<_>>().join("; ")
}

#[test]
fn replies() {
    let soa = |owner: &str, lifetime: u32| {
        format!(
            "{owner} {lifetime} ns.dns.{owner} hostmaster.{owner} 14 7200 1800 86400 {lifetime}"
        )
    };
    let cluster = |lifetime| soa("cluster.local.", lifetime);
    let cases = [
        (
            Kind::A,
            "web.prod.svc.cluster.local.",
            "web.prod.svc.cluster.local. 30 10.96.0.1",
            "".to_owned(),
        ),
        (
            Kind::A,
            "wEb.ProD.sVc.cluster.LOCAL.",
            "wEb.ProD.sVc.cluster.LOCAL. 30 10.96.0.1",
            "".into(),
        ),
        (
            Kind::AAAA,
            "web.prod.svc.cluster.local.",
            "web.prod.svc.cluster.local. 30 fd96::1",
            "".into(),
        ),
        (Kind::TXT, "web.prod.svc.cluster.local.", "", cluster(1)),
        (Kind::HTTPS, "web.prod.svc.cluster.local.", "", cluster(1)),
        (Kind::A, "prod.svc.CLUSTER.local.", "", soa("CLUSTER.local.", 5)),
        (
            Kind::TXT,
            "dns-version.cluster.local.",
            "dns-version.cluster.local. 28800 1.1.0",
            "".into(),
        ),
        (Kind::SOA, "cluster.local.", "SOA", "".into()),
        (Kind::NS, "cluster.local.", "cluster.local. 30 ns.dns.cluster.local.", "".into()),
        (Kind::A, "ns.dns.cluster.local.", "ns.dns.cluster.local. 30 10.96.0.10", "".into()),
        (
            Kind::SRV,
            "_http._tcp.web.prod.svc.cluster.local.",
            "_http._tcp.web.prod.svc.cluster.local. 30 0 50 80 web.prod.svc.cluster.local.",
            "".into(),
        ),
        (
            Kind::A,
            "inner.prod.svc.cluster.local.",
            "inner.prod.svc.cluster.local. 5 web.prod.svc.cluster.local.; \
             web.prod.svc.cluster.local. 30 10.96.0.1",
            "".into(),
        ),
        (
            Kind::CNAME,
            "outer.prod.svc.cluster.local.",
            "outer.prod.svc.cluster.local. 5 example.org.",
            "".into(),
        ),
        (Kind::PTR, "96.10.IN-addr.arpa.", "", soa("IN-addr.arpa.", 5)),
        (Kind::NS, "in-addr.arpa.", "in-addr.arpa. 30 ns.dns.cluster.local.", "".into()),
        (
            Kind::PTR,
            "1.0.96.10.in-addr.arpa.",
            "1.0.96.10.in-addr.arpa. 5 web.prod.svc.cluster.local.",
            "".into(),
        ),
    ];
    for (kind, name, answers, authorities) in cases {
        let reply = ask(name, kind);
        let answers = if answers == "SOA" { cluster(30) } else { answers.into() };
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError, "{kind} {name}");
        assert_eq!(
            (text(&reply.answers), text(&reply.authorities)),
            (answers, authorities),
            "{kind} {name}"
        );
        let flags = reply.metadata;
        assert!(flags.authoritative && flags.recursion_available && flags.recursion_desired);
        assert_eq!((flags.id, flags.truncation), (4711, false));
        assert_eq!(reply.queries[0].name().to_string(), name, "the case of letters is kept");
    }
    let reply = ask("none.prod.svc.cluster.local.", Kind::A);
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(text(&reply.authorities), cluster(5));
}

#[test]
fn services_come_with_their_addresses() {
    let reply = ask("_http._tcp.web.prod.svc.cluster.local.", Kind::SRV);
    let want = "web.prod.svc.cluster.local. 30 10.96.0.1; web.prod.svc.cluster.local. 30 fd96::1";
    assert_eq!(text(&reply.additionals), want);
}

/// What is wrong with an OPT record is wrong with the query (RFC 6891).
#[test]
fn damaged_options() {
    let opt = |options: &[u8]| {
        let length = u8::try_from(options.len()).unwrap();
        [&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, length], options].concat()
    };
    let whole = opt(&[0, 12, 0, 2, 9, 9]);
    let cases = [
        ("whole", whole.clone(), 11, (0, true)),
        ("among the answers", whole.clone(), 7, (0, false)),
        ("cut short", whole[..whole.len() - 1].to_vec(), 11, (1, false)),
        ("an option that is longer", opt(&[0, 12, 0, 3, 9, 9]), 11, (1, false)),
        ("a half option", opt(&[0, 12, 0]), 11, (1, false)),
    ];
    for (name, record, counted, want) in cases {
        let mut bytes = query("web.prod.svc.cluster.local.", Kind::A, None).to_vec().unwrap();
        bytes[counted] = 1;
        bytes.extend(record);
        let (reply, message) = exchange(&bytes, Transport::Udp).unwrap();
        assert_eq!((reply[3] & 0x0f, message.edns.is_some()), want, "{name}");
    }
}

/// Every address belongs to a name that was given before, and points to it, however far that is.
#[test]
fn owners_of_addresses_are_not_repeated() {
    let mut keeper = zone();
    let endpoints: Vec<_> =
        (0..250).map(|n| json!({"addresses": [format!("10.0.1.{n}")]})).collect();
    let slice = json!({
        "metadata": {"namespace": "prod", "name": "big-2",
            "labels": {"kubernetes.io/service-name": "big"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}, {"name": "more", "port": 8081}],
        "endpoints": endpoints,
    });
    keeper.observe_slice(&serde_json::from_value(slice).unwrap());
    for name in ["_http._tcp.big", "_more._tcp.big", "big"] {
        let bytes = query(&format!("{name}.prod.svc.cluster.local."), Kind::SRV, None);
        let mut buffer = vec![0; MAX_REPLY];
        let bytes = bytes.to_vec().unwrap();
        let response = respond_to(&keeper, &bytes, Transport::Tcp, 0, &mut buffer);
        let Response::Reply(length) = response else { panic!("{response:?}") };
        let reply = Message::from_vec(&buffer[..length]).unwrap();
        let target = |record: &HickoryRecord| match &record.data {
            hickory_proto::rr::RData::SRV(srv) => srv.target.clone(),
            other => panic!("{other:?}"),
        };
        let targets: std::collections::BTreeSet<_> = reply.answers.iter().map(target).collect();
        let owners: Vec<_> = reply.additionals.iter().map(|record| record.name.clone()).collect();
        assert_eq!(owners.len(), targets.len(), "{name}");
        assert!(owners.iter().all(|owner| targets.contains(owner)), "{name}");
        // A name in full takes more than thirty bytes.
        let answers: usize = 55 * reply.answers.len();
        assert!(length < answers + 29 * owners.len() + 100, "{name}: {length}");
    }
}

/// With nobody to ask there is no recursion.
#[test]
fn recursion_is_available_if_there_is_anybody_to_ask() {
    let keeper = zone();
    let bytes = query("web.prod.svc.cluster.local.", Kind::A, None).to_vec().unwrap();
    for (setup, want) in [(setup(), 0x80), (Setup::standard(None), 0)] {
        let context = QueryContext {
            zone: keeper.zone(),
            setup: &setup,
            answers: &AnswerCaches::new(&setup, 1),
            transport: Transport::Udp,
            turn: 0,
            now: Instant::now(),
            querier: None,
        };
        let mut buffer = vec![0; MAX_REPLY];
        assert!(matches!(respond(&context, &bytes, &mut buffer), Response::Reply(_)));
        assert_eq!(buffer[3] & 0x80, want);
    }
}

#[test]
fn long_answers_are_cut_between_records() {
    let cases = [
        ("no size given", None, Transport::Udp, 512, 29),
        ("a small size", Some(100), Transport::Udp, 512, 28),
        ("a medium size", Some(1000), Transport::Udp, 1000, 59),
        ("more than we send", Some(4096), Transport::Udp, 1232, 73),
        ("tcp", None, Transport::Tcp, 65_535, 250),
    ];
    for (name, edns, transport, size, want) in cases {
        let query = query("big.prod.svc.cluster.local.", Kind::A, edns).to_vec().unwrap();
        let (bytes, reply) = exchange(&query, transport).unwrap();
        assert!(bytes.len() <= size, "{name}: {} bytes", bytes.len());
        assert_eq!(reply.answers.len(), want, "{name}");
        assert_eq!(reply.metadata.truncation, want < 250, "{name}");
        assert_eq!(reply.edns.is_some(), edns.is_some(), "{name}");
    }
    // Only the courtesy is left out here, so nothing is missing.
    let query = query("_http._tcp.big.prod.svc.cluster.local.", Kind::SRV, None).to_vec().unwrap();
    let (_, reply) = exchange(&query, Transport::Tcp).unwrap();
    assert_eq!((reply.answers.len(), reply.metadata.truncation), (250, false));
}

#[test]
fn turns_spread_clients() {
    let bytes = query("big.prod.svc.cluster.local.", Kind::A, None).to_vec().unwrap();
    let (zone, mut buffer) = (zone(), vec![0; MAX_REPLY]);
    let mut first = |turn| {
        let Response::Reply(length) = respond_to(&zone, &bytes, Transport::Udp, turn, &mut buffer)
        else {
            panic!("not ours?");
        };
        Message::from_vec(&buffer[..length]).unwrap().answers[0].data.to_string()
    };
    assert_eq!(
        (first(0), first(1), first(251)),
        ("10.0.0.0".into(), "10.0.0.1".into(), "10.0.0.1".into())
    );
}

#[test]
fn what_we_do_not_answer() {
    let good = || query("web.prod.svc.cluster.local.", Kind::A, None);
    let mut chaos = good();
    chaos.queries[0].set_query_class(DNSClass::CH);
    let mut two = good();
    two.add_query(chaos.queries[0].clone());
    let mut update = good();
    update.metadata.op_code = OpCode::Update;
    let mut future = query("web.prod.svc.cluster.local.", Kind::A, Some(1232));
    future.edns.as_mut().unwrap().set_version(1);
    let transfer = query("cluster.local.", Kind::AXFR, None);
    let cases = [
        ("another class", chaos, ResponseCode::Refused),
        ("two questions", two, ResponseCode::FormErr),
        ("an update", update, ResponseCode::NotImp),
        ("a later EDNS", future, ResponseCode::BADVERS),
        ("a transfer", transfer, ResponseCode::Refused),
    ];
    for (name, query, want) in cases {
        let (_, reply) = exchange(&query.to_vec().unwrap(), Transport::Udp).unwrap();
        let high = reply.edns.as_ref().map_or(0, Edns::rcode_high);
        // Compared as numbers, because two codes share one.
        let code = ResponseCode::from(high, reply.metadata.response_code.low());
        assert_eq!((u16::from(code), reply.metadata.id), (u16::from(want), 4711), "{name}");
    }
    let mut buffer = vec![0; MAX_REPLY];
    let mut respond = |bytes: &[u8]| respond_to(&zone(), bytes, Transport::Udp, 0, &mut buffer);
    let mut answer = good().to_vec().unwrap();
    answer[2] |= 0x80;
    assert_eq!(respond(&answer), Response::Ignore, "an answer is not a question");
    assert_eq!(respond(&answer[..11]), Response::Ignore, "not even a header");
    assert_eq!(respond(&query("example.org.", Kind::A, None).to_vec().unwrap()), Response::Forward);
    let outer = query("outer.prod.svc.cluster.local.", Kind::A, None).to_vec().unwrap();
    assert_eq!(respond(&outer), Response::Forward);
}

#[test]
fn questions_that_nobody_can_read() {
    let good = query("web.prod.svc.cluster.local.", Kind::A, None).to_vec().unwrap();
    type Change = fn(&mut Vec<u8>);
    let with = |change: Change| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let cases: [(&str, Change); 7] = [
        ("none at all", |bytes| bytes.truncate(12)),
        ("none, says the header", |bytes| bytes[5] = 0),
        ("cut short in its name", |bytes| bytes.truncate(15)),
        ("without type", |bytes| bytes.truncate(bytes.len() - 4)),
        ("without class", |bytes| bytes.truncate(bytes.len() - 1)),
        ("a name that points to itself", |bytes| bytes.splice(12..14, [0xc0, 12]).for_each(drop)),
        ("a label that is too long", |bytes| bytes[12] = 64),
    ];
    for (name, change) in cases {
        let mut buffer = vec![0; MAX_REPLY];
        let asked = with(change);
        let response = respond_to(&zone(), &asked, Transport::Udp, 0, &mut buffer);
        let Response::Reply(length) = response else { panic!("{name}: {response:?}") };
        let reply = Message::from_vec(&buffer[..length]).expect(name);
        let code = ResponseCode::FormErr;
        assert_eq!((reply.metadata.response_code, reply.metadata.id), (code, 4711), "{name}");
        assert!(reply.answers.is_empty() && length <= good.len(), "{name}: {length} bytes");
    }
}

/// That another server could not read what we asked is no fault of whoever asked us.
#[test]
fn the_codes_of_others() {
    let asked = query("outer.prod.svc.cluster.local.", Kind::A, None).to_vec().unwrap();
    for (theirs, ours) in [
        (ResponseCode::FormErr, ResponseCode::ServFail),
        (ResponseCode::ServFail, ResponseCode::ServFail),
        (ResponseCode::NXDomain, ResponseCode::NXDomain),
        (ResponseCode::NotImp, ResponseCode::NotImp),
        (ResponseCode::Refused, ResponseCode::Refused),
        (ResponseCode::NotAuth, ResponseCode::ServFail),
    ] {
        let mut found = query("example.org.", Kind::A, None).into_response();
        found.metadata.response_code = theirs;
        let mut buffer = vec![0; MAX_REPLY];
        let length = complete_with(&asked, &found.to_vec().unwrap(), &mut buffer);
        let length = length.unwrap_or_else(|| panic!("{theirs} is no answer"));
        let reply = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!(reply.metadata.response_code, ours, "{theirs}");
    }
}

#[test]
fn an_alias_is_completed_with_what_others_say() {
    let asked = query("outer.prod.svc.cluster.local.", Kind::A, None).to_vec().unwrap();
    let mut found = query("example.org.", Kind::A, None).into_response();
    let name = HickoryName::from_ascii("example.org.").unwrap();
    let other = HickoryName::from_ascii("www.example.org.").unwrap();
    use hickory_proto::rr::RData;
    use hickory_proto::rr::rdata::{A, CNAME};
    found.add_answer(HickoryRecord::from_rdata(name, 60, RData::CNAME(CNAME(other.clone()))));
    found.add_answer(HickoryRecord::from_rdata(other, 61, RData::A(A::new(192, 0, 2, 1))));
    let mut buffer = vec![0; MAX_REPLY];
    let found = found.to_vec().unwrap();
    let length = complete_with(&asked, &found, &mut buffer).unwrap();
    let reply = Message::from_vec(&buffer[..length]).unwrap();
    let want = "outer.prod.svc.cluster.local. 5 example.org.; \
                example.org. 60 www.example.org.; www.example.org. 61 192.0.2.1";
    assert_eq!(text(&reply.answers), want);
}

/// Names in the data of other servers may be pointers, which would lead elsewhere here.
#[test]
fn what_others_say_is_retold_in_full() {
    use hickory_proto::rr::RData;
    use hickory_proto::rr::rdata::SOA;
    let asked = query("outer.prod.svc.cluster.local.", Kind::SOA, None).to_vec().unwrap();
    let mut found = query("example.org.", Kind::SOA, None).into_response();
    let name = |text| HickoryName::from_ascii(text).unwrap();
    let soa = SOA::new(name("ns.example.org."), name("me.example.org."), 1, 2, 3, 4, 5);
    let record = HickoryRecord::from_rdata(name("example.org."), 60, RData::SOA(soa.clone()));
    found.add_answer(record);
    let mut buffer = vec![0; MAX_REPLY];
    let length = complete_with(&asked, &found.to_vec().unwrap(), &mut buffer).unwrap();
    let reply = Message::from_vec(&buffer[..length]).unwrap();
    assert_eq!(reply.answers.last().unwrap().data, RData::SOA(soa));
}

/// A chain of aliases that is longer than a datagram is cut between two of them.
#[test]
fn too_many_aliases() {
    let (namespace, long) = ("n".repeat(60), |n: usize| format!("{n}{}", "x".repeat(60)));
    let mut keeper = zone();
    for n in 0..5 {
        let target = format!("{}.{namespace}.svc.cluster.local", long(n + 1));
        let spec = match n {
            4 => json!({"clusterIPs": ["10.96.0.9"]}),
            _ => json!({"type": "ExternalName", "externalName": target}),
        };
        let service = json!({"metadata": {"namespace": namespace, "name": long(n)}, "spec": spec});
        keeper.observe_service(&serde_json::from_value(service).unwrap());
    }
    let name = format!("{}.{namespace}.svc.cluster.local.", long(0));
    let asked = query(&name, Kind::A, None).to_vec().unwrap();
    for (transport, truncated, answers) in [(Transport::Udp, true, 2), (Transport::Tcp, false, 5)] {
        let mut buffer = vec![0; MAX_REPLY];
        let response = respond_to(&keeper, &asked, transport, 0, &mut buffer);
        let Response::Reply(length) = response else { panic!("{response:?}") };
        let reply = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!((reply.metadata.truncation, reply.answers.len()), (truncated, answers));
    }
}

fn complete_with(asked: &[u8], found: &[u8], buffer: &mut [u8]) -> Option<usize> {
    let (keeper, setup) = (zone(), setup());
    let stored = StoredAnswer::read(found, &CacheRule::default(), Instant::now())?;
    let (zone, transport) = (keeper.zone(), Transport::Udp);
    let context = QueryContext {
        zone,
        setup: &setup,
        answers: &AnswerCaches::new(&setup, 1),
        transport,
        turn: 0,
        now: Instant::now(),
        querier: None,
    };
    let query = Query::parse(asked).ok()?;
    Some(context.complete(&query, None, Some(stored.aged(stored.received)), buffer))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_hurt(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let mut buffer = vec![0; MAX_REPLY];
        respond_to(&zone(), &bytes, Transport::Udp, 0, &mut buffer);
        complete_with(&bytes, &bytes, &mut buffer);
        message::answers(&bytes).count();
    }

    #[test]
    fn damaged_queries_never_hurt(
        edns in any::<Option<u16>>(),
        damage in proptest::collection::vec((0..64usize, any::<u8>()), 0..6),
        cut in 0..64usize,
    ) {
        let mut bytes = query("_http._tcp.big.prod.svc.cluster.local.", Kind::SRV, edns).to_vec().unwrap();
        let length = bytes.len();
        for (at, value) in damage {
            bytes[at % length] = value;
        }
        bytes.truncate(length.saturating_sub(cut % 16));
        if let Some((reply, _)) = exchange(&bytes, Transport::Udp) {
            prop_assert!(reply.len() <= 1232);
        }
    }
}
