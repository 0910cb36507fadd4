//! What the zone says of addresses, of itself and of this server.

use super::*;
use crate::zone::Numbered;

#[test]
fn whose_address_it_is() {
    let mut keeper =
        Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1, Seed::new(1));
    keeper.observe_service(&service("db", &["None"], &[]));
    keeper.observe_slice(&slice("db", "db-1", "198.51.100.7 !198.51.100.8"));
    for (address, known) in [("198.51.100.7", true), ("198.51.100.9", false)] {
        assert_eq!(keeper.zone().has_endpoint(address.parse().unwrap()), known, "{address}");
    }
}

#[test]
fn serial_numbers() {
    // How many Services change, and whether everything is known then; the number before, the time,
    // and the number after.
    let cases = [
        ("a list is no change", 9, false, 1000, 1005, 1000),
        ("it ends with one", 9, true, 1000, 1005, 1005),
        ("many changes at once", 3, true, 1005, 1009, 1009),
        ("another one in the same second", 1, true, 1009, 1009, 1009),
        ("it gets its number in the next", 0, true, 1009, 1010, 1010),
        ("no change", 0, true, 1010, 1011, 1010),
        ("the clock was set back", 1, true, 1010, 7, 1010),
        ("until it is later again", 2, true, 1010, 1010, 1010),
        ("never more than the time", 9, true, 1010, 1012, 1012),
        ("no change", 0, true, 1012, 2000, 1012),
    ];
    let mut keeper =
        Keeper::new(ZoneSettings::new(&Name::parse("cluster.local").unwrap()), 1000, Seed::new(1));
    for (name, changes, synced, last, now, want) in cases {
        assert_eq!(keeper.zone().serial(), last, "{name}");
        (0..changes)
            .for_each(|n| keeper.observe_service(&service(&format!("s{n}"), &["10.0.0.1"], &[])));
        if synced && !keeper.zone().synced() {
            keeper.set_synced();
        }
        let numbered = keeper.number(last, now);
        assert_eq!(keeper.zone().serial(), want, "{name}");
        let later = changes > 0 && synced && want == last;
        assert_eq!(numbered == Numbered::Later, later, "{name}");
    }
    let settings = keeper.zone().settings().clone();
    let mut keeper = Keeper::new(settings, u32::MAX, Seed::new(1));
    keeper.set_synced();
    keeper.number(u32::MAX, 5000);
    assert_eq!(keeper.zone().serial(), 5000, "numbers go round (RFC 1982)");
}

/// Which addresses are ours, and what is said about them before all is known.
#[test]
fn zones_of_addresses() {
    use Reverse::{Authoritative, FallThrough, NotServed};
    let unknown = "1.0.96.10.in-addr.arpa";
    let cases = [
        ("all of them", Authoritative, "", "7.0.96.10.in-addr.arpa", "found found"),
        ("all of them, missing", Authoritative, "", unknown, "missing unknown"),
        ("a part, within", Authoritative, "96.10.in-addr.arpa", unknown, "missing unknown"),
        (
            "a part, known",
            Authoritative,
            "96.10.in-addr.arpa",
            "7.0.96.10.in-addr.arpa",
            "found found",
        ),
        (
            "a part, beyond",
            Authoritative,
            "96.10.in-addr.arpa",
            "1.0.97.10.in-addr.arpa",
            "other other",
        ),
        (
            "a known one beyond",
            Authoritative,
            "97.10.in-addr.arpa",
            "7.0.96.10.in-addr.arpa",
            "other other",
        ),
        ("others may know", FallThrough, "", unknown, "other unknown"),
        ("above a known one", FallThrough, "", "96.10.in-addr.arpa", "empty empty"),
        ("above no known one", FallThrough, "", "97.10.in-addr.arpa", "other unknown"),
        ("the same, ours", Authoritative, "", "97.10.in-addr.arpa", "missing unknown"),
        ("above a known one, ours", Authoritative, "", "10.in-addr.arpa", "empty empty"),
        ("the zone", FallThrough, "", "in-addr.arpa", "empty empty"),
        ("another zone", Authoritative, "96.10.in-addr.arpa", "96.10.in-addr.arpa", "empty empty"),
        ("above the zone", Authoritative, "96.10.in-addr.arpa", "10.in-addr.arpa", "other other"),
        ("not here", NotServed, "", unknown, "other other"),
    ];
    for (what, reverse, zones, name, want) in cases {
        let mut settings = ZoneSettings::new(&Name::parse("cluster.local").unwrap());
        settings.reverse = reverse;
        settings.reverse_zones = zones.split_whitespace().filter_map(Name::parse).collect();
        let mut keeper = Keeper::new(settings, 1, Seed::new(1));
        keeper.observe_service(&service("web", &["10.96.0.7"], &[]));
        let mut known = keeper.snapshot();
        let mut said = Vec::new();
        for _ in 0..2 {
            let name = Name::parse(name).unwrap();
            said.insert(
                0,
                match known.answer(name.wire(), RecordType::Ptr).end {
                    AnswerEnd::Found(..) => "found",
                    AnswerEnd::NoName(_) => "missing",
                    AnswerEnd::NotReady => "unknown",
                    AnswerEnd::NotOurs => "other",
                    AnswerEnd::NoData(_) => "empty",
                    _ => "else",
                },
            );
            keeper.set_synced();
            known = keeper.snapshot();
        }
        assert_eq!(said.join(" "), want, "{what}: when all is known, and before");
    }
}

/// By which Service clients reach the server.
#[test]
fn the_server_itself() {
    let cases = [
        ("it was said", "10.96.0.20", "10.0.0.5", "other.prod 10.96.0.20"),
        ("it was said, and is no Service", "10.9.9.9", "10.0.0.5", "- 10.9.9.9"),
        ("an endpoint", "", "10.0.0.5", "resolver.prod 10.96.0.30"),
        ("no endpoint: the usual one", "", "10.0.0.6", "kube-dns.kube-system 10.96.0.10"),
        ("unknown: the usual one", "", "", "kube-dns.kube-system 10.96.0.10"),
        ("there is none: this machine", "", "127.0.0.1 10.0.0.7", "- 10.0.0.7"),
    ];
    for (name, servers, local, want) in cases {
        let addresses = |text: &str| text.split_whitespace().map(|a| a.parse().unwrap()).collect();
        let mut settings = ZoneSettings::new(&Name::parse("cluster.local").unwrap());
        (settings.servers, settings.local) = (addresses(servers), addresses(local));
        let mut keeper = Keeper::new(settings, 1, Seed::new(1));
        for (name, address) in [
            ("api", "10.96.0.1"),
            ("other", "10.96.0.20"),
            ("peers", "None"),
            ("resolver", "10.96.0.30"),
        ] {
            let port = if name == "api" { 443 } else { 53 };
            keeper.observe_service(&service(name, &[address], &[("dns", "UDP", port)]));
        }
        let mut usual = service("kube-dns", &["10.96.0.10"], &[]);
        usual.metadata.namespace = Some("kube-system".into());
        if !want.starts_with("- 10.0") {
            keeper.observe_service(&usual);
        }
        keeper.observe_slice(&slice("api", "api-1", "10.0.0.5 10.0.0.6"));
        keeper.observe_slice(&slice("peers", "peers-1", "10.0.0.5"));
        keeper.observe_slice(&slice("resolver", "resolver-1", "10.0.0.5"));
        keeper.set_synced();
        let zone = keeper.zone();
        let AnswerEnd::Found(Records::Ns(target), _) =
            zone.answer(zone.origin().wire(), RecordType::Ns).end
        else {
            panic!("{name}: no server")
        };
        let target = target.map_or("-".to_owned(), |target| {
            labels(target.key)
                .map(|label| str::from_utf8(label).unwrap())
                .collect::<Vec<_>>()
                .join(".")
        });
        let servers: Vec<_> = zone.servers().map(|address| address.to_string()).collect();
        assert_eq!(format!("{target} {}", servers.join(" ")), want, "{name}");
    }
}
