//! Headless Services whose endpoints are not all alike.

use super::*;

/// A slice with other ports than usual: `name/protocol/number`.
fn with_ports(mut slice: EndpointSlice, ports: &str) -> EndpointSlice {
    let port = |word: &str| {
        let [name, protocol, port] = word.split('/').collect::<Vec<_>>().try_into().unwrap();
        let port: u16 = port.parse().unwrap();
        json!({"name": name, "protocol": protocol, "port": port})
    };
    let ports: Vec<_> = ports.split_whitespace().map(port).collect();
    slice.ports = Some(serde_json::from_value(ports.into()).unwrap());
    slice
}

/// Not all endpoints of a headless Service have all of its ports.
#[test]
fn ports_of_some_endpoints() {
    use RecordType::{A, Aaaa, Srv};
    let mut zone = zone();
    zone.observe_service(&service("mix", &["None"], &[]));
    let one = slice("mix", "mix-1", "10.0.3.1 10.0.3.2=two");
    zone.observe_slice(&with_ports(one, "dns/UDP/53 web/TCP/80"));
    zone.observe_slice(&with_ports(slice("mix", "mix-2", "10.0.3.3"), "web/TCP/80"));
    zone.observe_slice(&with_ports(slice("mix", "mix-3", "10.0.3.4"), ""));
    let cases = [
        (
            Srv,
            "_dns._udp.mix",
            "10-0-3-1.mix.prod:53 two.mix.prod:53 10-0-3-1.mix.prod=1+0 two.mix.prod=1+0 for 5s",
        ),
        (A, "_dns._udp.mix", "10.0.3.1 10.0.3.2 for 5s"),
        (Aaaa, "_dns._udp.mix", "nodata(1)"),
        (A, "_web._tcp.mix", "10.0.3.1 10.0.3.2 10.0.3.3 for 5s"),
        (A, "mix", "10.0.3.1 10.0.3.2 10.0.3.3 10.0.3.4 for 5s"),
        // One that has no port is not the target of anything.
        (
            Srv,
            "mix",
            "10-0-3-1.mix.prod:53 10-0-3-1.mix.prod:80 10-0-3-3.mix.prod:80 two.mix.prod:53 \
            two.mix.prod:80 10-0-3-1.mix.prod=1+0 10-0-3-3.mix.prod=1+0 two.mix.prod=1+0 for 5s",
        ),
    ];
    for (kind, name, want) in cases {
        let name = format!("{name}.prod.svc.cluster.local");
        assert_eq!(ask(&zone, &name, kind), want, "{kind:?} {name}");
    }
}

/// An endpoint is called what another one is called by its address.
#[test]
fn a_host_name_like_an_address() {
    use RecordType::{A, Ptr, Srv};
    let mut zone = zone();
    zone.observe_service(&service("caps", &["None"], &[]));
    zone.observe_slice(&slice(
        "caps",
        "caps-1",
        "10.64.1.2=10-64-1-3 10.64.1.3 10.64.1.4=10-64-1-4",
    ));
    let both = [
        (A, "10-64-1-3.caps.prod.svc.cluster.local", "10.64.1.2 10.64.1.3 for 5s"),
        (A, "10-64-1-4.caps.prod.svc.cluster.local", "10.64.1.4 for 5s"),
        (Ptr, "3.1.64.10.in-addr.arpa", "10-64-1-3.caps.prod for 5s"),
        (Ptr, "2.1.64.10.in-addr.arpa", "10-64-1-3.caps.prod for 5s"),
        (
            Srv,
            "_http._tcp.caps.prod.svc.cluster.local",
            "10-64-1-4.caps.prod:8080 10-64-1-3.caps.prod:8080 10-64-1-4.caps.prod=1+0 \
             10-64-1-3.caps.prod=2+0 for 5s",
        ),
    ];
    for (kind, name, want) in both {
        assert_eq!(ask(&zone, name, kind), want, "{kind:?} {name}");
    }
    zone.observe_slice(&slice("caps", "caps-1", "10.64.1.3 10.64.1.4"));
    let name = "10-64-1-3.caps.prod.svc.cluster.local";
    assert_eq!(ask(&zone, name, A), "10.64.1.3 for 5s", "when the other one is gone");
}
