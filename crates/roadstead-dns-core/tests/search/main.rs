//! Searches that the server completes: a program gets what it would have got by itself, with fewer
//! round trips.

#![allow(clippy::disallowed_methods, reason = "tests read files and clocks")]

mod resolver;
mod timeline;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, SOA};
use hickory_proto::rr::{Name as HickoryName, RData, Record, RecordType};
use proptest::prelude::*;
use proptest::sample::select;
use roadstead_dns_core::cache::{AnswerCaches, QuestionKey, StoredAnswer};
use roadstead_dns_core::clients::Clients;
use roadstead_dns_core::respond::{MAX_REPLY, QueryContext, Response, Transport, respond};
use roadstead_dns_core::search::Querier;
use roadstead_dns_core::setup::{CacheRule, Setup};
use roadstead_dns_core::upstream::UpstreamGroup;
use roadstead_zone::name::Name;
use roadstead_zone::search::SearchList;
use roadstead_zone::seed::Seed;
use roadstead_zone::settings::ZoneSettings;
use roadstead_zone::zone::Keeper;
use serde_json::json;

use resolver::{DOTS, Outcome, SEARCHES, STYLES, Said, Style, look_up};

const A_RECORD: u16 = 1;
const AAAA_RECORD: u16 = 28;
const BOTH: [u16; 2] = [A_RECORD, AAAA_RECORD];

/// Which families a name outside the cluster has.
type Families = (bool, bool);

/// A cluster, the rest of the world, and a server between them.
struct World {
    keeper: Keeper,
    outside: BTreeMap<String, Families>,
    setup: Setup,
    answers: AnswerCaches,
    clients: RefCell<Clients>,
    now: Cell<Instant>,
    /// The number of the last message.
    id: Cell<u16>,
}

/// A Service: its namespace, its name, and whether it is headless with an endpoint `www`.
type Service = (&'static str, &'static str, bool, Families);

impl World {
    fn new(services: &[Service], outside: BTreeMap<String, Families>) -> Self {
        let mut keeper =
            Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
        keeper.observe_namespace("shop");
        for (namespace, name, headless, families) in services {
            let addresses = addresses(*families, 9);
            let own = if *headless { vec!["None".to_owned()] } else { addresses.clone() };
            let object = json!({"metadata": {"namespace": namespace, "name": name},
                "spec": {"clusterIPs": own}});
            keeper.observe_service(&serde_json::from_value(object).unwrap());
            for address in addresses.iter().filter(|_| *headless) {
                let kind = if address.contains(':') { "IPv6" } else { "IPv4" };
                let slice = json!({"addressType": kind,
                    "metadata": {"namespace": namespace, "name": format!("{name}-{kind}"),
                        "labels": {"kubernetes.io/service-name": name}},
                    "endpoints": [{"addresses": [address], "hostname": "www"}]});
                keeper.observe_slice(&serde_json::from_value(slice).unwrap());
            }
        }
        keeper.set_synced();
        let search = SearchList::new(&SEARCHES.map(str::to_owned), DOTS).unwrap();
        let setup =
            Setup::standard(Some(UpstreamGroup::new(vec!["192.0.2.53:53".parse().unwrap()])));
        Self {
            keeper,
            outside,
            answers: AnswerCaches::new(&setup, 1),
            setup,
            clients: RefCell::new(Clients::of([(client(), search)], Instant::now())),
            now: Cell::new(Instant::now()),
            id: Cell::new(0),
        }
    }

    /// Lets the server know what others say about a name.
    fn remember(&self, name: &str, kind: u16) {
        let families = self.outside.get(name).copied();
        let addresses = families.map(|families| addresses(families, 1));
        let fitting = addresses.iter().flatten().filter(|one| one.contains(':') == (kind == 28));
        let owner = HickoryName::from_ascii(format!("{name}.")).unwrap();
        let mut reply = Message::new(1, MessageType::Response, OpCode::Query);
        reply.add_query(Query::query(owner.clone(), RecordType::from(kind)));
        for address in fitting {
            let data = match address.parse().unwrap() {
                IpAddr::V4(address) => RData::A(A(address)),
                IpAddr::V6(address) => RData::AAAA(AAAA(address)),
            };
            reply.add_answer(Record::from_rdata(owner.clone(), 60, data));
        }
        if reply.answers.is_empty() {
            let root = HickoryName::root();
            let soa = SOA::new(root.clone(), root.clone(), 1, 1, 1, 1, 60);
            reply.add_authority(Record::from_rdata(root, 60, RData::SOA(soa)));
        }
        if families.is_none() {
            reply.metadata.response_code = ResponseCode::NXDomain;
        }
        let bytes = reply.to_vec().unwrap();
        let stored = StoredAnswer::read(&bytes, &CacheRule::default(), self.now.get()).unwrap();
        let name = Name::parse(name).unwrap().wire().into();
        let key = QuestionKey { name, kind, dnssec: false, unchecked: false };
        self.answers.of(&self.setup.blocks()[0]).insert(key, stored.into());
    }

    fn ask(&self, name: &str, kind: u16, help: bool) -> Said {
        self.id.set(self.id.get().wrapping_add(1));
        self.ask_again(name, kind, help)
    }

    /// Sends the last message once more.
    fn ask_again(&self, name: &str, kind: u16, help: bool) -> Said {
        let lower = name.to_lowercase();
        self.remember(&lower, kind);
        if let Some(base) = lower.strip_suffix(&format!(".{}", SEARCHES[0])) {
            self.remember(base, kind);
            SEARCHES.iter().for_each(|domain| self.remember(&format!("{base}.{domain}"), kind));
        }
        let mut query = Message::new(self.id.get(), MessageType::Query, OpCode::Query);
        let owner = HickoryName::from_ascii(format!("{name}.")).unwrap();
        query.add_query(Query::query(owner, RecordType::from(kind)));
        let clients = self.clients.borrow();
        let querier = help.then_some(Querier { clients: &clients, address: client() });
        let context = QueryContext {
            zone: self.keeper.zone(),
            setup: &self.setup,
            answers: &self.answers,
            transport: Transport::Udp,
            turn: 0,
            now: self.now.get(),
            querier,
        };
        let mut buffer = vec![0; MAX_REPLY];
        let response = respond(&context, &query.to_vec().unwrap(), &mut buffer);
        let (Response::Reply(length) | Response::Remembered(length)) = response else {
            panic!("{name}: {response:?}")
        };
        read(&Message::from_vec(&buffer[..length]).unwrap())
    }

    fn look_up(&self, style: Style, kinds: &[u16], name: &str, help: bool) -> (Outcome, usize) {
        look_up(style, kinds, name, |name, kind| self.ask(name, kind, help))
    }
}

fn client() -> IpAddr {
    [10, 244, 0, 2].into()
}

fn addresses((v4, v6): Families, last: u8) -> Vec<String> {
    let all = [(v4, format!("192.0.2.{last}")), (v6, format!("2001:db8::{last}"))];
    all.into_iter().filter(|(has, _)| *has).map(|(_, address)| address).collect()
}

fn read(reply: &Message) -> Said {
    // Every answer must belong to the name before it, or a resolver would not take it.
    let mut name = reply.queries[0].name().clone();
    let mut found = BTreeSet::new();
    for record in &reply.answers {
        assert_eq!(record.name, name, "{reply:?}");
        match &record.data {
            RData::CNAME(target) => name = target.0.clone(),
            data => drop(found.insert(data.to_string())),
        }
    }
    match (reply.metadata.response_code, found.is_empty()) {
        (ResponseCode::NoError, true) if reply.answers.is_empty() => Said::NoData,
        (ResponseCode::NoError, true) => Said::Alias,
        (ResponseCode::NoError, false) => Said::Addresses(found),
        (ResponseCode::NXDomain, _) => Said::NoName,
        (code, _) => panic!("{code}"),
    }
}

fn small_world() -> World {
    let services = [("shop", "db", true, (true, false)), ("other", "web", false, (true, false))];
    let outside = ["example.com", "www.example.com", "intranet", "wiki.corp"];
    let outside = outside.into_iter().map(|name| (name.to_owned(), (true, false)));
    World::new(&services, outside.collect())
}

#[test]
fn names_asked_about_per_lookup() {
    use Outcome::{Addresses, NoName};
    let found = |last| Addresses([format!("192.0.2.{last}")].into());
    // By itself, and with help.
    let cases = [
        ("outside", "www.example.com", found(1), 5, 1),
        ("outside, in other letters", "WWW.Example.com", found(1), 5, 1),
        ("outside, two labels", "example.com", found(1), 5, 1),
        ("outside, in full", "www.example.com.", found(1), 1, 1),
        ("outside, one label", "intranet", found(1), 5, 5),
        ("in the node's domain, one label", "wiki", found(1), 4, 4),
        ("in this namespace", "db", found(9), 1, 1),
        ("an endpoint", "www.db", found(9), 1, 1),
        ("in another namespace", "web.other", found(9), 2, 1),
        ("with svc", "web.other.svc", found(9), 3, 1),
        ("in full, without the last dot", "web.other.svc.cluster.local", found(9), 5, 1),
        ("nowhere", "www.example.org", NoName, 5, 5),
        ("not an endpoint", "mail.db", NoName, 5, 5),
    ];
    let world = small_world();
    for (what, name, want, alone, helped) in cases {
        for style in STYLES {
            assert_eq!(world.look_up(style, &BOTH, name, false), (want.clone(), alone), "{what}");
            assert_eq!(world.look_up(style, &BOTH, name, true), (want.clone(), helped), "{what}");
        }
    }
}

#[test]
fn a_longer_name_is_not_mistaken_for_a_shorter_one() {
    let world = small_world();
    for style in STYLES {
        // The second try for it looks like the first one for www.example.com.
        for name in ["www.example.com.shop", "www.example.com.shop.svc"] {
            assert_eq!(world.look_up(style, &BOTH, name, true).0, Outcome::NoName, "{name}");
        }
    }
}

#[test]
fn strangers_are_not_helped() {
    let world = small_world();
    let search = SearchList::new(&SEARCHES.map(str::to_owned), DOTS).unwrap();
    let clients = Clients::of([([10, 244, 0, 3].into(), search)], Instant::now());
    let world = World { clients: clients.into(), ..world };
    assert_eq!(world.look_up(Style::Glibc, &BOTH, "www.example.com", true).1, 5);
    let other = small_world();
    let name = "www.example.com.other.svc.cluster.local";
    assert_eq!(other.ask(name, A_RECORD, true), Said::NoName, "not its own namespace");
}

fn names() -> impl Strategy<Value = String> {
    let label = select(vec!["www", "a", "com", "shop", "svc", "web", "db", "corp", "other"]);
    let labels = prop::collection::vec(label, 1..=4).prop_map(|labels| labels.join("."));
    // What is spelled out in full is left as it is only where it could be a name of the cluster.
    let short = select(vec!["www", "web", "db", "com"]);
    prop_oneof![
        4 => labels.clone(),
        2 => labels.clone().prop_map(|name| format!("{name}.shop")),
        1 => labels.clone().prop_map(|name| format!("{name}.shop.svc")),
        1 => labels.prop_map(|name| format!("{name}.other.svc.cluster.local")),
        1 => short.prop_map(|name| format!("{name}.shop.svc.cluster.local")),
    ]
}

fn services() -> impl Strategy<Value = Vec<Service>> {
    let namespace = select(vec!["shop", "other", "com", "web"]);
    let name = select(vec!["web", "db", "com", "a", "shop", "svc"]);
    let families = select(vec![(true, false), (false, true), (true, true)]);
    prop::collection::vec((namespace, name, any::<bool>(), families), 0..6)
}

fn outside() -> impl Strategy<Value = BTreeMap<String, Families>> {
    let own = |name: &String| name.ends_with("cluster.local");
    let name = names().prop_filter("others know nothing of the cluster", move |name| !own(name));
    prop::collection::btree_map(name, any::<Families>(), 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { max_local_rejects: u32::MAX, ..ProptestConfig::with_cases(400) })]

    /// Whatever exists inside and outside, and whatever was looked up before.
    #[test]
    fn a_program_gets_the_same(
        services in services(),
        outside in outside(),
        lookups in prop::collection::vec((names(), 0..3_usize, select(STYLES.to_vec())), 1..5),
    ) {
        // Who wants one family may be led to a Service that has only the other (ADR 18).
        let single = lookups.iter().any(|(_, family, _)| *family > 0);
        let whole = |(namespace, name, headless, families): Service| {
            (namespace, name, headless, if single { (true, true) } else { families })
        };
        let services: Vec<_> = services.into_iter().map(whole).collect();
        let world = World::new(&services, outside);
        for (name, family, style) in lookups {
            let kinds: &[u16] = [&BOTH[..], &[A_RECORD], &[AAAA_RECORD]][family];
            let (alone, tries) = world.look_up(style, kinds, &name, false);
            let (helped, fewer) = world.look_up(style, kinds, &name, true);
            prop_assert_eq!(&helped, &alone, "{} {:?} {:?}", name, style, kinds);
            prop_assert!(fewer <= tries, "{}: {} instead of {}", name, fewer, tries);
        }
    }
}
