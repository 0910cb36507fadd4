//! Tables of questions and answers about one small cluster.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_api::key::ObjectKey;
use serde_json::json;

use super::*;
use crate::entry::{V4_RECORD, V6_RECORD};
use crate::name::labels;
use crate::records::Glue;
use crate::seed::Seed;
use crate::settings::{Namespaces, Outside, ZoneSettings};
use crate::view::Dashed;
use crate::zone::Keeper;

mod headless;
mod own;

fn service(name: &str, addresses: &[&str], ports: &[(&str, &str, u16)]) -> Service {
    let port = |(name, protocol, port): &(&str, &str, u16)| json!({"name": name, "protocol": protocol, "port": port});
    serde_json::from_value(json!({
        "metadata": {"namespace": "prod", "name": name},
        "spec": {
            "clusterIPs": addresses,
            "ports": ports.iter().map(port).collect::<Vec<_>>(),
        },
    }))
    .unwrap()
}

fn external(name: &str, target: &str) -> Service {
    serde_json::from_value(json!({
        "metadata": {"namespace": "prod", "name": name},
        "spec": {"type": "ExternalName", "externalName": target},
    }))
    .unwrap()
}

/// Endpoints as `address`, `address=hostname`, and with `!` in front if they are not ready.
fn slice(service: &str, name: &str, endpoints: &str) -> EndpointSlice {
    let endpoint = |word: &str| {
        let ready = !word.starts_with('!');
        let word = word.trim_start_matches('!');
        let (address, host) = word.split_once('=').unwrap_or((word, ""));
        let mut endpoint = json!({"addresses": [address], "conditions": {"ready": ready}});
        if !host.is_empty() {
            endpoint["hostname"] = host.into();
        }
        endpoint
    };
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "prod",
            "name": name,
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": if endpoints.contains(':') { "IPv6" } else { "IPv4" },
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints.split_whitespace().map(endpoint).collect::<Vec<_>>(),
    }))
    .unwrap()
}

fn zone() -> Keeper {
    let mut settings = ZoneSettings::new(&Name::parse("Cluster.Local").unwrap());
    settings.servers = vec!["10.96.0.10".parse().unwrap()];
    let mut zone = Keeper::new(settings, 1, Seed::new(1));
    zone.observe_namespace("prod");
    zone.observe_namespace("empty");
    let ports = [("http", "TCP", 80), ("", "UDP", 81)];
    zone.observe_service(&service("web", &["10.96.0.1", "fd96::1"], &ports));
    zone.observe_slice(&slice("web", "web-1", "10.0.0.1 10.0.0.2=alpha"));
    zone.observe_service(&service("db", &["None"], &[("http", "TCP", 80)]));
    zone.observe_slice(&slice("db", "db-1", "10.0.1.1 !10.0.1.2 10.0.1.3=db-0"));
    zone.observe_slice(&slice("db", "db-2", "10.0.1.4=db-0 10.0.1.1"));
    zone.observe_slice(&slice("db", "db-3", "fd00::5"));
    zone.observe_service(&service("asleep", &["None"], &[]));
    zone.observe_slice(&slice("asleep", "asleep-1", "!10.0.2.1"));
    zone.observe_service(&external("outer", "Example.org"));
    zone.observe_service(&external("inner", "web.prod.svc.cluster.local"));
    zone.observe_service(&external("dangling", "nothing.prod.svc.cluster.local"));
    zone.observe_service(&external("circle", "circle.prod.svc.cluster.local"));
    zone.observe_service(&external("number", "192.0.2.1"));
    for n in 1..=17 {
        let next = if n == 1 { "web".into() } else { format!("deep{}", n - 1) };
        let target = format!("{next}.prod.svc.cluster.local");
        zone.observe_service(&external(&format!("deep{n}"), &target));
    }
    zone.set_synced();
    zone
}

fn target(target: RecordTarget<'_>) -> String {
    let host = match target.host {
        HostLabel::Service => String::new(),
        HostLabel::Name(name) => format!("{name}."),
        HostLabel::Address(address) => {
            format!("{}.", String::from_utf8_lossy(Dashed::new(address).bytes()))
        }
    };
    let labels: Vec<_> = labels(target.key).map(String::from_utf8_lossy).collect();
    format!("{host}{}", labels.join("."))
}

/// The addresses at the ends of records.
fn addresses(records: &[u8], length: usize) -> Vec<String> {
    let v4 = |octets: &[u8]| <[u8; 4]>::try_from(octets).map(IpAddr::from);
    let v6 = |octets: &[u8]| <[u8; 16]>::try_from(octets).map(IpAddr::from);
    let address = |record: &[u8]| v4(&record[12..]).or_else(|_| v6(&record[12..])).unwrap();
    records.chunks(length).map(|record| address(record).to_string()).collect()
}

fn glue(glue: &Glue<'_>) -> String {
    let (name, all): (_, Vec<_>) = match glue {
        Glue::Own(name, own) => (name, own.iter().collect()),
        Glue::Host(name, host) => (name, host.addresses().collect()),
    };
    let v4 = all.iter().filter(|address| address.is_ipv4()).count();
    format!("{}={}+{}", target(*name), v4, all.len() - v4)
}

fn ask(zone: &Keeper, name: &str, kind: RecordType) -> String {
    let name = Name::parse(name).unwrap().to_lowercase();
    let answer = zone.zone().answer(name.wire(), kind);
    let mut words: Vec<String> =
        answer.aliases.iter().map(|alias| format!("alias:{alias}")).collect();
    match answer.end {
        AnswerEnd::Found(records, lifetime) => {
            match records {
                Records::V4(all) => words.extend(addresses(all, V4_RECORD)),
                Records::V6(all) => words.extend(addresses(all, V6_RECORD)),
                Records::HostV4(host) => {
                    words.extend(host.addresses().filter(IpAddr::is_ipv4).map(|a| a.to_string()));
                }
                Records::HostV6(host) => {
                    words.extend(host.addresses().filter(IpAddr::is_ipv6).map(|a| a.to_string()));
                }
                Records::One(address) => words.push(address.to_string()),
                Records::Services(all) => {
                    words.extend(all.iter().map(|r| format!("{}:{}", target(r.target), r.port)));
                    words.extend(all.glue().map(|(one, _)| glue(&one)));
                }
                Records::Pointers(all) => words.extend(all.iter().map(target)),
                Records::Alias => {}
                Records::Ns(name) | Records::NsOfAddresses(name) => {
                    words.push(name.map_or("ns".into(), target))
                }
                other => words.push(format!("{other:?}").to_lowercase()),
            }
            words.push(format!("for {lifetime}s"));
        }
        other => words.push(format!("{other:?}").to_lowercase()),
    }
    words.join(" ")
}

#[test]
fn questions_and_answers() {
    use RecordType::{A, Aaaa, Any, Cname, Ns, Other, Ptr, Soa, Srv, Txt};
    let cases = [
        (A, "web.prod.svc.cluster.local", "10.96.0.1 for 30s"),
        (A, "WEB.Prod.SVC.cluster.LOCAL", "10.96.0.1 for 30s"),
        (Aaaa, "web.prod.svc.cluster.local", "fd96::1 for 30s"),
        (Any, "web.prod.svc.cluster.local", "10.96.0.1 for 30s"),
        (Txt, "web.prod.svc.cluster.local", "nodata(1)"),
        (Other, "web.prod.svc.cluster.local", "nodata(1)"),
        (A, "db.prod.svc.cluster.local", "10.0.1.1 10.0.1.3 10.0.1.4 for 5s"),
        (Aaaa, "db.prod.svc.cluster.local", "fd00::5 for 5s"),
        (A, "asleep.prod.svc.cluster.local", "noname(1)"),
        (A, "none.prod.svc.cluster.local", "noname(5)"),
        (A, "web.none.svc.cluster.local", "noname(5)"),
        (A, "db-0.db.prod.svc.cluster.local", "10.0.1.3 10.0.1.4 for 5s"),
        (A, "10-0-1-1.db.prod.svc.cluster.local", "10.0.1.1 for 5s"),
        (Aaaa, "10-0-1-1.db.prod.svc.cluster.local", "nodata(1)"),
        (Aaaa, "fd00--5.db.prod.svc.cluster.local", "fd00::5 for 5s"),
        (A, "10-0-1-3.db.prod.svc.cluster.local", "noname(1)"),
        (A, "10-0-1-2.db.prod.svc.cluster.local", "noname(1)"),
        (A, "alpha.web.prod.svc.cluster.local", "10.0.0.2 for 5s"),
        (A, "a.b.c.web.prod.svc.cluster.local", "noname(1)"),
        (A, "a.b.c.d.e.f.g.h.web.prod.svc.cluster.local", "noname(5)"),
        (A, "a.pin._zone.db.prod.svc.cluster.local", "noname(1)"),
        // The tree above Services.
        (A, "cluster.local", "nodata(5)"),
        (Soa, "cluster.local", "soa for 30s"),
        (Ns, "cluster.local", "ns for 30s"),
        (A, "ns.dns.cluster.local", "10.96.0.10 for 30s"),
        (A, "dns.cluster.local", "nodata(5)"),
        (A, "svc.cluster.local", "nodata(5)"),
        (Txt, "prod.svc.cluster.local", "nodata(5)"),
        (A, "empty.svc.cluster.local", "nodata(5)"),
        (A, "none.svc.cluster.local", "noname(5)"),
        (A, "other.cluster.local", "noname(5)"),
        (Txt, "dns-version.cluster.local", "version for 28800s"),
        (A, "dns-version.cluster.local", "nodata(5)"),
        // Ports.
        (Srv, "_http._tcp.web.prod.svc.cluster.local", "web.prod:80 web.prod=1+1 for 30s"),
        (A, "_http._tcp.web.prod.svc.cluster.local", "10.96.0.1 for 30s"),
        (Srv, "web.prod.svc.cluster.local", "web.prod:80 web.prod:81 web.prod=1+1 for 30s"),
        (Srv, "_http._udp.web.prod.svc.cluster.local", "noname(1)"),
        (Srv, "_._udp.web.prod.svc.cluster.local", "noname(1)"),
        (Srv, "http.tcp.web.prod.svc.cluster.local", "noname(1)"),
        (Srv, "_tcp.web.prod.svc.cluster.local", "nodata(1)"),
        (Srv, "_udp.web.prod.svc.cluster.local", "noname(1)"),
        (
            Srv,
            "_http._tcp.db.prod.svc.cluster.local",
            "10-0-1-1.db.prod:8080 fd00--5.db.prod:8080 db-0.db.prod:8080 \
             10-0-1-1.db.prod=1+0 fd00--5.db.prod=0+1 db-0.db.prod=2+0 for 5s",
        ),
        // Aliases.
        (A, "outer.prod.svc.cluster.local", "alias:Example.org. elsewhere"),
        (Cname, "outer.prod.svc.cluster.local", "alias:Example.org. for 5s"),
        (A, "x.outer.prod.svc.cluster.local", "noname(5)"),
        (A, "inner.prod.svc.cluster.local", "alias:web.prod.svc.cluster.local. 10.96.0.1 for 30s"),
        (Txt, "inner.prod.svc.cluster.local", "alias:web.prod.svc.cluster.local. nodata(1)"),
        (A, "dangling.prod.svc.cluster.local", "alias:nothing.prod.svc.cluster.local. noname(5)"),
        (A, "circle.prod.svc.cluster.local", "loop"),
        (A, "number.prod.svc.cluster.local", "noname(5)"),
        (A, "deep17.prod.svc.cluster.local", "toolong"),
        // Pods.
        (A, "10-0-0-9.prod.pod.cluster.local", "10.0.0.9 for 5s"),
        (Aaaa, "10-0-0-9.prod.pod.cluster.local", "nodata(5)"),
        (Aaaa, "fd00--9.prod.pod.cluster.local", "fd00::9 for 5s"),
        (A, "10-0-0-9.none.pod.cluster.local", "noname(5)"),
        (A, "web.prod.pod.cluster.local", "noname(5)"),
        (A, "x.10-0-0-9.prod.pod.cluster.local", "noname(5)"),
        (A, "prod.pod.cluster.local", "nodata(5)"),
        // The way back.
        (Ptr, "1.0.96.10.in-addr.arpa", "web.prod for 5s"),
        (Ptr, "1.1.0.10.in-addr.arpa", "10-0-1-1.db.prod for 5s"),
        (Ptr, "3.1.0.10.in-addr.arpa", "db-0.db.prod for 5s"),
        (Ptr, "2.1.0.10.in-addr.arpa", "notours"),
        (Ptr, "01.0.96.10.in-addr.arpa", "notours"),
        (Ptr, "x.1.0.96.10.in-addr.arpa", "notours"),
        // And what is above it.
        (Soa, "in-addr.arpa", "soa for 30s"),
        (Soa, "ip6.arpa", "soa for 30s"),
        (Any, "ip6.arpa", "soa for 30s"),
        (Ns, "in-addr.arpa", "ns for 30s"),
        (A, "in-addr.arpa", "nodata(5)"),
        (A, "10.in-addr.arpa", "nodata(5)"),
        (Ptr, "96.10.in-addr.arpa", "nodata(5)"),
        (Ptr, "0.96.10.in-addr.arpa", "nodata(5)"),
        (Ptr, "1.0.10.in-addr.arpa", "nodata(5)"),
        (Ptr, "2.0.10.in-addr.arpa", "notours"),
        (Ptr, "97.10.in-addr.arpa", "notours"),
        (Ptr, "010.in-addr.arpa", "notours"),
        (Ptr, "d.f.ip6.arpa", "nodata(5)"),
        (Ptr, "6.9.d.f.ip6.arpa", "nodata(5)"),
        (Ptr, "7.9.d.f.ip6.arpa", "notours"),
        (Ptr, "69.d.f.ip6.arpa", "notours"),
        (A, "arpa", "notours"),
        (
            Ptr,
            "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.d.f.ip6.arpa",
            "web.prod for 5s",
        ),
        (A, "example.org", "notours"),
        (A, "local", "notours"),
    ];
    let zone = zone();
    for (kind, name, want) in cases {
        assert_eq!(ask(&zone, name, kind), want, "{kind:?} {name}");
    }
}

#[test]
fn changes_show_at_once() {
    let mut zone = zone();
    let serial = zone.zone().serial();
    let key = |name| ObjectKey::new("prod", name);
    let ask =
        |zone: &Keeper, name: &str| ask(zone, &format!("{name}.cluster.local"), RecordType::A);

    zone.observe_slice(&slice("db", "db-1", "10.0.1.9"));
    assert_eq!(ask(&zone, "db.prod.svc"), "10.0.1.1 10.0.1.4 10.0.1.9 for 5s");
    zone.remove_slice(&key("db-2"));
    assert_eq!(ask(&zone, "db.prod.svc"), "10.0.1.9 for 5s");
    zone.observe_slice(&slice("asleep", "db-1", "10.0.1.9"));
    assert_eq!(ask(&zone, "db.prod.svc"), "nodata(1)", "only IPv6 is left");
    assert_eq!(ask(&zone, "asleep.prod.svc"), "10.0.1.9 for 5s", "the slice has moved here");
    zone.remove_service(&key("web"));
    assert_eq!(ask(&zone, "web.prod.svc"), "noname(5)");
    assert_eq!(ask(&zone, "alpha.web.prod.svc"), "noname(5)", "the slices alone are no Service");
    zone.remove_namespace("empty");
    assert_eq!(ask(&zone, "empty.svc"), "noname(5)");
    assert!(zone.zone().serial() > serial);
}

#[test]
fn a_port_that_only_unready_endpoints_have_is_no_name() {
    let mut zone = zone();
    let mut old = slice("db", "db-4", "!10.0.1.7");
    old.ports.as_mut().unwrap()[0].name = Some("admin".to_owned());
    old.ports.as_mut().unwrap()[0].protocol = Some("UDP".to_owned());
    zone.observe_slice(&old);
    for name in ["_admin._udp.db.prod.svc.cluster.local", "_udp.db.prod.svc.cluster.local"] {
        assert_eq!(ask(&zone, name, RecordType::Srv), "noname(1)", "{name}");
    }
    old.endpoints.as_mut().unwrap()[0].conditions = None;
    zone.observe_slice(&old);
    let known = ask(&zone, "_admin._udp.db.prod.svc.cluster.local", RecordType::Srv);
    assert!(known.starts_with("10-0-1-7.db.prod:8080 "), "{known}");
}

#[test]
fn before_everything_is_listed_nobody_knows() {
    let origin = Name::parse("cluster.local").unwrap();
    let mut zone = Keeper::new(ZoneSettings::new(&origin), 1, Seed::new(1));
    zone.observe_service(&service("web", &["10.96.0.1"], &[]));
    assert_eq!(ask(&zone, "web.prod.svc.cluster.local", RecordType::A), "10.96.0.1 for 30s");
    assert_eq!(ask(&zone, "db.prod.svc.cluster.local", RecordType::A), "notready");
    zone.set_synced();
    assert_eq!(ask(&zone, "db.prod.svc.cluster.local", RecordType::A), "noname(5)");
}

#[test]
fn an_empty_answer_has_a_reason() {
    use RecordType::{A, Aaaa, Srv};
    let cases = [
        (A, "web.empty.svc", "Service web exists in namespace prod, you asked in empty"),
        (A, "web.nowhere.svc", "Service web exists in namespace prod, you asked in nowhere"),
        (A, "nothing.prod.svc", "there is no Service nothing in namespace prod"),
        (A, "nothing.nowhere.svc", "there is no namespace nowhere"),
        (A, "nowhere.svc", "there is no namespace nowhere"),
        (A, "asleep.prod.svc", "Service prod/asleep has 0 of 1 endpoints ready"),
        (A, "x.db.prod.svc", "Service prod/db has no ready endpoint called x"),
        (Srv, "_x._tcp.db.prod.svc", "Service prod/db has no port of that name and protocol"),
        (A, "x.outer.prod.svc", "prod/outer is an ExternalName, there is nothing below it"),
        (A, "number.prod.svc", "the externalName of prod/number is not a domain name"),
        (A, "circle.prod.svc", "ExternalName Services point at each other in a circle"),
        (A, "deep17.prod.svc", "more than 16 ExternalName Services lead from one to the next"),
        (A, "dangling.prod.svc", "there is no Service nothing in namespace prod"),
        (Aaaa, "10-0-1-1.db.prod.svc", "the name exists, but has no IPv6 address"),
        (A, "web.prod.pod", "there is no pod of that name"),
        (A, "a.b.c.d.e.f.g.h.i.j.svc", "no name in the cluster has that form"),
        (A, "web.prod.svc", ""),
    ];
    let keeper = zone();
    for (kind, name, want) in cases {
        let name = Name::parse(&format!("{name}.cluster.local")).unwrap();
        let answer = keeper.zone().answer(name.wire(), kind);
        let reason = keeper.zone().explain(name.wire(), kind, &answer);
        assert_eq!(reason.map(|r| r.to_string()).unwrap_or_default(), want, "{name}");
    }
}

#[test]
fn settings_change_which_names_exist() {
    use RecordType::{A, Ptr, Srv, Txt};
    type Edit = fn(&mut ZoneSettings);
    let cases: [(&str, Edit, RecordType, &str, &str); 23] = [
        ("pods off", |s| s.pods = PodNames::Disabled, A, "10-0-0-9.prod.pod", "noname(5)"),
        ("pods checked", |s| s.pods = PodNames::Verified, A, "10-0-0-9.prod.pod", "noname(5)"),
        ("a pod", |s| s.pods = PodNames::Verified, A, "10-9-9-9.prod.pod", "10.9.9.9 for 5s"),
        ("another place", |s| s.pods = PodNames::Verified, A, "10-9-9-9.empty.pod", "noname(5)"),
        ("hidden", |s| s.namespaces = listed("empty"), A, "web.prod.svc", "noname(5)"),
        (
            "hidden way back",
            |s| s.namespaces = listed("empty"),
            Ptr,
            "!1.0.96.10.in-addr.arpa",
            "notours",
        ),
        ("listed", |s| s.namespaces = listed("prod"), A, "web.prod.svc", "10.96.0.1 for 30s"),
        (
            "no way back",
            |s| s.reverse = Reverse::NotServed,
            Ptr,
            "!1.0.96.10.in-addr.arpa",
            "notours",
        ),
        (
            "all ways back are ours",
            |s| s.reverse = Reverse::Authoritative,
            Ptr,
            "!1.2.3.4.in-addr.arpa",
            "noname(5)",
        ),
        ("full", |s| s.ignore_empty_services = true, A, "web.prod.svc", "10.96.0.1 for 30s"),
        ("empty", |s| s.ignore_empty_services = true, A, "idle.prod.svc", "noname(1)"),
        ("empty but there", |_| {}, A, "idle.prod.svc", "10.96.0.7 for 30s"),
        ("lifetimes", |s| s.lifetimes.cluster_ip = 9, A, "web.prod.svc", "10.96.0.1 for 9s"),
        ("compat: TXT above Services", compat, Txt, "prod.svc", "noname(5)"),
        ("compat: TXT at the top", compat, Txt, "", "noname(5)"),
        ("compat: A of the version", compat, A, "dns-version", "noname(5)"),
        ("compat: dns", compat, A, "dns", "noname(5)"),
        ("compat: protocols", compat, A, "_tcp.web.prod.svc", "noname(1)"),
        ("compat: dangling", compat, A, "dangling.prod.svc", "nodata(5)"),
        ("compat: circles", compat, A, "circle.prod.svc", "nodata(5)"),
        ("compat: more labels", compat, A, "x.y.10-0-0-9.prod.pod", "10.0.0.9 for 5s"),
        (
            "compat: no underscores",
            compat,
            Srv,
            "http.tcp.web.prod.svc",
            "web.prod:80 web.prod=1+1 for 30s",
        ),
        ("compat: no name", compat, Srv, "_._udp.web.prod.svc", "web.prod:81 web.prod=1+1 for 30s"),
    ];
    for (what, edit, kind, name, want) in cases {
        let mut keeper = zone();
        keeper.observe_service(&service("idle", &["10.96.0.7"], &[]));
        keeper.observe_pod("prod", "10.9.9.9".parse().unwrap());
        let mut settings = keeper.zone().settings().clone();
        edit(&mut settings);
        keeper.configure(settings);
        let name = match name.strip_prefix('!') {
            Some(whole) => whole.to_owned(),
            None if name.is_empty() => "cluster.local".into(),
            None => format!("{name}.cluster.local"),
        };
        assert_eq!(ask(&keeper, &name, kind), want, "{what}");
    }
}

/// Names of the endpoints in a zone.
#[test]
fn zonal_names() {
    use RecordType::{A, Aaaa, Srv, Txt};
    let mut settings = ZoneSettings::new(&Name::parse("cluster.local").unwrap());
    settings.zonal = true;
    let mut zone = Keeper::new(settings, 1, Seed::new(1));
    zone.observe_namespace("prod");
    let placed = |service: &str, name: &str, endpoints: &str| {
        let mut slice = slice(service, name, endpoints);
        let zones = ["Eu-1a", "eu-1b", "eu-1b", "rack.2"].map(|zone| Some(zone.to_owned()));
        for (endpoint, zone) in slice.endpoints.iter_mut().flatten().zip(zones) {
            endpoint.zone = zone;
        }
        slice
    };
    zone.observe_service(&service("web", &["10.96.0.1"], &[]));
    zone.observe_slice(&placed("web", "web-1", "10.0.0.1"));
    zone.observe_service(&service("db", &["None"], &[]));
    zone.observe_slice(&placed("db", "db-1", "10.0.1.1 10.0.1.2 10.0.1.3=db-0 10.0.1.4 10.0.1.5"));
    zone.set_synced();
    let all = "10.0.1.1 10.0.1.2 10.0.1.3 10.0.1.4 10.0.1.5 for 5s";
    let cases = [
        (A, "db", all),
        (A, "eu-1a.pin._zone.db", "10.0.1.1 for 5s"),
        (A, "eu-1b.pin._zone.db", "10.0.1.2 10.0.1.3 for 5s"),
        (A, "rack.2.pin._zone.db", "10.0.1.4 for 5s"),
        (A, "eu-1c.pin._zone.db", "nodata(1)"),
        (A, "eu-1b.prefer._zone.db", "10.0.1.2 10.0.1.3 for 5s"),
        (A, "eu-1c.prefer._zone.db", all),
        (Aaaa, "eu-1b.pin._zone.db", "nodata(1)"),
        (Txt, "eu-1c.pin._zone.db", "nodata(1)"),
        (
            Srv,
            "eu-1b.pin._zone.db",
            "10-0-1-2.db.prod:8080 db-0.db.prod:8080 10-0-1-2.db.prod=1+0 db-0.db.prod=1+0 for 5s",
        ),
        (A, "pin._zone.db", "nodata(1)"),
        (A, "_zone.db", "nodata(1)"),
        (A, "eu-1a.near._zone.db", "noname(1)"),
        (A, "eu-1a.pin._zone.web", "noname(1)"),
        (A, "eu-1a.pin._zone.none", "noname(5)"),
    ];
    for (kind, name, want) in cases {
        assert_eq!(ask(&zone, &format!("{name}.prod.svc.cluster.local"), kind), want, "{name}");
    }
    zone.observe_slice(&placed("db", "db-1", "10.0.1.7"));
    let name = |zone: &str| format!("{zone}.pin._zone.db.prod.svc.cluster.local");
    assert_eq!(ask(&zone, &name("eu-1a"), A), "10.0.1.7 for 5s");
    assert_eq!(ask(&zone, &name("eu-1b"), A), "nodata(1)");
}

/// Names for outsiders.
#[test]
fn outside_names() {
    use RecordType::{A, Aaaa, Ns, Soa, Srv, Txt};
    let mut settings = ZoneSettings::new(&Name::parse("cluster.local").unwrap());
    settings.servers = vec!["10.96.0.10".parse().unwrap()];
    let origin = Name::parse("example.com").unwrap();
    settings.outside = Some(Outside { origin, lifetime: 60, headless: true });
    let mut zone = Keeper::new(settings, 1, Seed::new(1));
    zone.observe_namespace("prod");
    let ports = [("http", "TCP", 80)];
    let balanced = |name: &str, ingress: serde_json::Value| {
        let mut service = service(name, &["10.96.0.1"], &ports);
        let status = json!({"loadBalancer": {"ingress": ingress}});
        service.status = Some(serde_json::from_value(status).unwrap());
        service
    };
    let ingress = json!([{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}, {"ip": "192.0.2.3"}]);
    zone.observe_service(&balanced("web", ingress));
    zone.observe_service(&balanced("named", json!([{"hostname": "lb.example.net"}])));
    zone.observe_service(&service("inner", &["10.96.0.2"], &ports));
    zone.observe_service(&service("db", &["None"], &ports));
    zone.observe_slice(&slice("db", "db-1", "10.0.1.1 10.0.1.2=db-0"));
    zone.set_synced();
    let cases = [
        (A, "web.prod", "192.0.2.1 192.0.2.3 for 60s"),
        (Aaaa, "web.prod", "2001:db8::1 for 60s"),
        (Txt, "web.prod", "nodata(1)"),
        (Srv, "_http._tcp.web.prod", "web.prod:80 web.prod=2+1 for 60s"),
        (A, "x.web.prod", "noname(1)"),
        (A, "named.prod", "alias:lb.example.net. elsewhere"),
        (A, "inner.prod", "noname(5)"),
        (A, "db.prod", "10.0.1.1 10.0.1.2 for 5s"),
        (A, "db-0.db.prod", "10.0.1.2 for 5s"),
        (A, "none.prod", "noname(5)"),
        (A, "web.none", "noname(5)"),
        (A, "prod", "nodata(5)"),
        (A, "none", "noname(5)"),
        (A, "a.b.c.d.e.f.g.h.i.j.k", "noname(5)"),
        (A, "a.b.c.d.e.f.g.h.i.prod", "noname(5)"),
        (A, "", "nodata(5)"),
        (Soa, "", "soa for 30s"),
        (Ns, "", "ns for 30s"),
        (A, "ns.dns", "10.96.0.10 for 30s"),
        (A, "dns", "nodata(5)"),
    ];
    for (kind, name, want) in cases {
        let name = format!("{name}.example.com");
        assert_eq!(ask(&zone, name.trim_start_matches('.'), kind), want, "{kind:?} {name}");
    }
    assert_eq!(ask(&zone, "web.prod.svc.cluster.local", A), "10.96.0.1 for 30s");
    zone.observe_service(&balanced("web", json!([])));
    assert_eq!(ask(&zone, "web.prod.example.com", A), "noname(5)", "it has lost its addresses");
}

fn compat(settings: &mut ZoneSettings) {
    settings.coredns_compat = true;
}

fn listed(name: &str) -> Namespaces {
    Namespaces::Listed([name.to_owned()].into())
}

#[test]
fn chains_of_aliases() {
    let zone = zone();
    for n in [1, 8, 9, 11, 16] {
        let text = ask(&zone, &format!("deep{n}.prod.svc.cluster.local"), RecordType::A);
        assert!(text.ends_with(" 10.96.0.1 for 30s"), "{n}: {text}");
        assert_eq!(text.matches("alias:").count(), n, "{text}");
    }
}
