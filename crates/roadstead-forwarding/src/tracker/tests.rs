//! Tables for the tracker, in a small notation.
//!
//! A story is a list of words. `web=10.96.0.1:http/tcp/80` is a Service with one port, further
//! flags after commas. `web/s1=http/tcp/8080,10.0.0.1=ready` is the slice s1 of web. `-web` and
//! `-web/s1` delete. The outcome lists each carried port with its frontends and targets.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    LoadBalancerIngress, LoadBalancerStatus, ServicePort as ApiPort, ServiceSpec, ServiceStatus,
};
use k8s_openapi::api::discovery::v1::{EndpointConditions, EndpointPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use crate::service::{Frontend, Handling, Host};

fn metadata(name: &str, labels: &[(&str, &str)]) -> ObjectMeta {
    let labels: BTreeMap<_, _> =
        labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    ObjectMeta {
        namespace: Some("ns".into()),
        name: Some(name.into()),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

/// `http/tcp/80` as name, protocol and number.
fn port(text: &str) -> (String, String, i32) {
    let parts: Vec<_> = text.split('/').collect();
    (parts[0].to_owned(), parts[1].to_uppercase(), parts[2].parse().unwrap())
}

fn service(name: &str, text: &str) -> Service {
    let mut labels = Vec::new();
    let mut spec = ServiceSpec::default();
    let mut ingress = Vec::new();
    for word in text.split(',') {
        match word {
            "local" => spec.internal_traffic_policy = Some("Local".into()),
            "external-name" => spec.type_ = Some("ExternalName".into()),
            "external-local" => spec.external_traffic_policy = Some("Local".into()),
            "sticky" => spec.session_affinity = Some("ClientIP".into()),
            "other-proxy" => labels.push((PROXY_NAME_LABEL, "other")),
            _ if word.starts_with("ext:") => {
                spec.external_ips.get_or_insert_default().push(word[4..].into());
            }
            _ if word.starts_with("np:") => {
                let ports = spec.ports.as_mut().unwrap();
                ports.last_mut().unwrap().node_port = word[3..].parse().ok();
            }
            _ if word.starts_with("check:") => {
                spec.health_check_node_port = word[6..].parse().ok();
            }
            _ if word.starts_with("from:") => {
                let range = word[5..].replace('_', " ");
                spec.load_balancer_source_ranges.get_or_insert_default().push(range);
            }
            _ if word.starts_with("lb:") => {
                let (address, mode) = word[3..].split_once('!').unwrap_or((&word[3..], "VIP"));
                ingress.push(LoadBalancerIngress {
                    ip: Some(address.into()),
                    ip_mode: Some(mode.into()),
                    ..LoadBalancerIngress::default()
                });
            }
            _ if word.contains('/') => {
                let (name, protocol, port) = port(word);
                spec.ports.get_or_insert_default().push(ApiPort {
                    name: Some(name),
                    protocol: Some(protocol),
                    port,
                    ..ApiPort::default()
                });
            }
            _ => spec.cluster_ips.get_or_insert_default().push(word.into()),
        }
    }
    let status = ServiceStatus {
        load_balancer: Some(LoadBalancerStatus { ingress: Some(ingress) }),
        ..ServiceStatus::default()
    };
    Service { metadata: metadata(name, &labels), spec: Some(spec), status: Some(status) }
}

fn slice(service: &str, name: &str, text: &str) -> EndpointSlice {
    let mut slice = EndpointSlice {
        metadata: metadata(name, &[(SERVICE_NAME_LABEL, service)]),
        address_type: if text.contains("::") { "IPv6" } else { "IPv4" }.into(),
        ..EndpointSlice::default()
    };
    for word in text.split(',') {
        if let Some((address, rest)) = word.split_once('=') {
            let (state, node) = rest.split_once('@').unwrap_or((rest, ""));
            let conditions = |ready, serving, terminating| {
                Some(EndpointConditions {
                    ready: Some(ready),
                    serving: Some(serving),
                    terminating: Some(terminating),
                })
            };
            slice.endpoints.get_or_insert_default().push(discovery::Endpoint {
                addresses: address.split('+').map(str::to_owned).collect(),
                conditions: match state {
                    "nil" => None,
                    "ready" => conditions(true, true, false),
                    "unready" => conditions(false, false, false),
                    "draining" => conditions(false, true, true),
                    "ended" => conditions(false, false, true),
                    other => panic!("no state {other}"),
                },
                node_name: (!node.is_empty()).then(|| node.to_owned()),
                ..discovery::Endpoint::default()
            });
        } else {
            let (name, protocol, number) = port(word);
            slice.ports.get_or_insert_default().push(EndpointPort {
                name: Some(name),
                protocol: Some(protocol),
                port: Some(number),
                ..EndpointPort::default()
            });
        }
    }
    slice
}

fn tell(tracker: &mut Tracker, word: &str) {
    let key = |name: &str| ObjectKey::new("ns", name);
    match word.split_once('=') {
        Some((name, text)) => match name.split_once('/') {
            Some((owner, name)) => tracker.observe_slice(&slice(owner, name, text)),
            None => tracker.observe_service(&service(name, text)),
        },
        None => match word.trim_start_matches('-').split_once('/') {
            Some((_, name)) => tracker.remove_slice(&key(name)),
            None => tracker.remove_service(&key(word.trim_start_matches('-'))),
        },
    }
}

fn node() -> NodeView {
    NodeView { name: "n1".into(), zone: None }
}

fn carried(tracker: &Tracker, family: IpFamily) -> String {
    let mut words = Vec::new();
    for key in tracker.services.keys() {
        for (name, port) in tracker.service_ports(key, family) {
            let word = |(frontend, _): (Frontend, _)| match frontend.host {
                Host::Address(address) => format!("{address}:{}", frontend.port),
                Host::Node => format!("node:{}", frontend.port),
            };
            let frontends = port.frontends(name.protocol).map(word).collect::<Vec<_>>().join("+");
            let targets = match port.handling(port.internal_policy) {
                Handling::Forward(targets) => {
                    let words = targets.iter().map(|t| t.socket().to_string());
                    words.collect::<Vec<_>>().join(",")
                }
                other => format!("{other:?}").to_lowercase(),
            };
            words.push(format!(
                "{}:{}/{} {frontends}>{targets}",
                name.name, name.port, name.protocol
            ));
        }
    }
    words.join("; ")
}

/// As upstream has it; an API server fills in the empty name.
#[test]
fn a_port_of_a_slice_must_say_its_name() {
    let mut tracker = Tracker::new(node());
    tell(&mut tracker, "w=10.9.0.1,/tcp/80");
    let mut slice = slice("w", "a", "/tcp/8080,10.0.0.1=ready");
    slice.ports.as_mut().unwrap()[0].name = None;
    tracker.observe_slice(&slice);
    assert_eq!(carried(&tracker, IpFamily::V4), "w:/tcp 10.9.0.1:80>reject");
}

#[test]
fn stories() {
    let cases = [
        (
            "a service and its slice",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/8080,10.0.0.1=ready",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:8080",
        ),
        (
            "in any order",
            "w/a=p/tcp/8080,10.0.0.1=ready w=10.9.0.1,p/tcp/80",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:8080",
        ),
        ("no slices at all", "w=10.9.0.1,p/tcp/80", "w:p/tcp 10.9.0.1:80>reject"),
        ("headless", "w=None,p/tcp/80 w/a=p/tcp/80,10.0.0.1=ready", ""),
        ("external name", "w=external-name,p/tcp/80", ""),
        ("another proxy's", "w=10.9.0.1,p/tcp/80,other-proxy", ""),
        ("became another proxy's", "w=10.9.0.1,p/tcp/80 w=10.9.0.1,p/tcp/80,other-proxy", ""),
        ("deleted service", "w=10.9.0.1,p/tcp/80 -w", ""),
        (
            "deleted slice",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/80,10.0.0.1=ready -w/a",
            "w:p/tcp 10.9.0.1:80>reject",
        ),
        (
            "sorted as text",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/80,10.0.0.9=ready,10.0.0.10=ready",
            "w:p/tcp 10.9.0.1:80>10.0.0.10:80,10.0.0.9:80",
        ),
        (
            "twice in two slices",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/80,10.0.0.1=ready w/b=p/tcp/80,10.0.0.1=ready,10.0.0.2=nil",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:80,10.0.0.2:80",
        ),
        (
            "a reused address belongs to the living",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/80,10.0.0.1=draining w/b=p/tcp/80,10.0.0.1=unready",
            "w:p/tcp 10.9.0.1:80>reject",
        ),
        (
            "whatever the order",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/80,10.0.0.1=ready w/b=p/tcp/80,10.0.0.1=draining",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:80",
        ),
        (
            "only the first address",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/80,10.0.0.1+10.0.0.2=ready",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:80",
        ),
        (
            "draining if nothing is ready",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/80,10.0.0.1=draining,10.0.0.2=ended",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:80",
        ),
        (
            "ports meet by name and protocol",
            "w=10.9.0.1,p/tcp/80,p/udp/80,q/tcp/81 w/a=p/tcp/8080,p/udp/5353,10.0.0.1=ready",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:8080; w:p/udp 10.9.0.1:80>10.0.0.1:5353; w:q/tcp 10.9.0.1:81>reject",
        ),
        (
            "a name with two numbers",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/8080,10.0.0.1=ready w/b=p/tcp/9090,10.0.0.2=ready",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:8080,10.0.0.2:9090",
        ),
        (
            "an unnamed port",
            "w=10.9.0.1,/tcp/80 w/a=/tcp/8080,10.0.0.1=ready",
            "w:/tcp 10.9.0.1:80>10.0.0.1:8080",
        ),
        (
            "the other family stays out",
            "w=10.9.0.1,p/tcp/80 w/a=p/tcp/80,10.0.0.1=ready w/b=p/tcp/80,fd00::1=ready",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:80",
        ),
        (
            "local policy",
            "w=10.9.0.1,p/tcp/80,local w/a=p/tcp/80,10.0.0.1=ready@n1,10.0.0.2=ready@n2",
            "w:p/tcp 10.9.0.1:80>10.0.0.1:80",
        ),
        (
            "local policy without a local endpoint",
            "w=10.9.0.1,p/tcp/80,local w/a=p/tcp/80,10.0.0.2=ready@n2",
            "w:p/tcp 10.9.0.1:80>drop",
        ),
        (
            "local policy without any endpoint",
            "w=10.9.0.1,p/tcp/80,local w/a=p/tcp/80,10.0.0.2=ended@n2",
            "w:p/tcp 10.9.0.1:80>reject",
        ),
    ];
    for (name, story, want) in cases {
        let mut tracker = Tracker::new(node());
        story.split_whitespace().for_each(|word| tell(&mut tracker, word));
        assert_eq!(carried(&tracker, IpFamily::V4), want, "{name}");
    }
}

#[test]
fn external_frontends_and_policies() {
    let slices = "w/a=p/tcp/80,10.0.0.1=ready@n1,10.0.0.2=ready@n2";
    let cases = [
        ("node port", "np:30080", "10.9.0.1:80+node:30080"),
        ("absurd node port", "np:70000", "10.9.0.1:80"),
        ("external address", "ext:6.6.6.6,ext:nonsense", "10.9.0.1:80+6.6.6.6:80"),
        ("the other family's", "ext:fd00::6,lb:fd00::5", "10.9.0.1:80"),
        ("load balancer", "lb:5.5.5.5", "10.9.0.1:80+5.5.5.5:80"),
        ("behind a load balancer's own proxy", "lb:5.5.5.5!Proxy", "10.9.0.1:80"),
    ];
    for (name, flags, want) in cases {
        let mut tracker = Tracker::new(node());
        tell(&mut tracker, &format!("w=10.9.0.1,p/tcp/80,{flags}"));
        tell(&mut tracker, slices);
        let got = carried(&tracker, IpFamily::V4);
        assert!(got.starts_with(&format!("w:p/tcp {want}>")), "{name}: {got}");
    }
    let flags = "np:30080,external-local,sticky,check:32000,from:1.0.0.0/8,from:_2.0.0.0/8_";
    let mut tracker = Tracker::new(node());
    tell(&mut tracker, &format!("w=10.9.0.1,p/tcp/80,{flags},from:nonsense,from:fd00::/8"));
    tell(&mut tracker, slices);
    let key = ObjectKey::new("ns", "w");
    let (_, port) = tracker.service_ports(&key, IpFamily::V4).remove(0);
    assert_eq!((port.cluster.len(), port.local.len()), (2, 1));
    assert_eq!(port.affinity, Some(Duration::from_secs(10_800)));
    assert_eq!(port.source_ranges.map(|ranges| ranges.len()), Some(2));
    assert_eq!(tracker.unread_ranges(&key), ["nonsense"]);
    assert_eq!(tracker.health_check(&key), Some(HealthCheck { port: 32000, local_endpoints: 1 }));
    tracker.take_dirty();
    tracker.observe_node(NodeView { name: "n3".into(), zone: None });
    assert_eq!(tracker.take_dirty().len(), 1);
    assert!(tracker.service_ports(&key, IpFamily::V4)[0].1.local.is_empty(), "another node");
    tell(&mut tracker, "w=10.9.0.1,p/tcp/80,from:1.0.0.0/8,from:0.0.0.0/0,check:32000");
    let ports = tracker.service_ports(&key, IpFamily::V4);
    assert_eq!(ports[0].1.source_ranges, None, "everybody is allowed");
    assert_eq!(tracker.health_check(&key), None, "only under policy Local");
}

#[test]
fn dual_stack() {
    let mut tracker = Tracker::new(node());
    tell(&mut tracker, "w=10.9.0.1,fd99::1,p/tcp/80");
    tell(&mut tracker, "w/a=p/tcp/80,10.0.0.1=ready");
    tell(&mut tracker, "w/b=p/tcp/80,fd00::1=ready");
    assert_eq!(carried(&tracker, IpFamily::V4), "w:p/tcp 10.9.0.1:80>10.0.0.1:80");
    assert_eq!(carried(&tracker, IpFamily::V6), "w:p/tcp fd99::1:80>[fd00::1]:80");
}

#[test]
fn only_what_changed_is_dirty() {
    let cases = [
        ("a first sight", "", "w=10.9.0.1,p/tcp/80", "w"),
        ("the same again", "w=10.9.0.1,p/tcp/80", "w=10.9.0.1,p/tcp/80", ""),
        ("the same slice again", "w/a=p/tcp/80,10.0.0.1=ready", "w/a=p/tcp/80,10.0.0.1=ready", ""),
        ("a slice that moves to another service", "w/a=p/tcp/80", "v/a=p/tcp/80", "v w"),
        ("a slice that goes", "w/a=p/tcp/80", "-w/a", "w"),
        ("one that we never carried", "w=None,p/tcp/80", "-w", ""),
    ];
    for (name, before, word, want) in cases {
        let mut tracker = Tracker::new(node());
        before.split_whitespace().for_each(|word| tell(&mut tracker, word));
        tracker.take_dirty();
        tell(&mut tracker, word);
        let dirty: Vec<_> = tracker.take_dirty().into_iter().map(|key| key.name).collect();
        assert_eq!(dirty.join(" "), want, "{name}");
    }
}

#[test]
fn names_of_nodes_are_kept_once_and_not_for_ever() {
    let mut nodes = NodeNames::default();
    let here = nodes.shared("here");
    for n in 0..1000 {
        nodes.shared(&format!("gone-{n}"));
    }
    assert!(nodes.known.len() < 110, "{} names are kept", nodes.known.len());
    assert!(Arc::ptr_eq(&here, &nodes.shared("here")));
}

/// As upstream reads them (`ParseIPSloppy`), because clusters have them from times of old.
#[test]
fn numbers_with_zeros_before_them() {
    let mut tracker = Tracker::new(node());
    tell(
        &mut tracker,
        "w=172.30.0.041,p/tcp/80,ext:192.168.099.022,lb:1.2.3.004,from:203.0.113.000/025",
    );
    tell(&mut tracker, "w/a=p/tcp/80,10.180.00.001=ready");
    let want = "w:p/tcp 172.30.0.41:80+1.2.3.4:80+192.168.99.22:80>10.180.0.1:80";
    assert_eq!(carried(&tracker, IpFamily::V4), want);
    let ports = tracker.service_ports(&ObjectKey::new("ns", "w"), IpFamily::V4);
    assert_eq!(ports[0].1.source_ranges, Some(vec!["203.0.113.0/25".parse().unwrap()]));
}

#[test]
fn who_may_call_a_load_balancer() {
    let cases = [
        ("nothing is said", "", "anybody", "anybody"),
        ("a network", "from:1.0.0.0/8", "1.0.0.0/8", "anybody"),
        (
            "order and repetition stay",
            "from:2.0.0.0/8,from:1.0.0.0/8,from:_2.0.0.0/8_",
            "2.0.0.0/8 1.0.0.0/8 2.0.0.0/8",
            "anybody",
        ),
        ("nothing can be read", "from:all", "", ""),
        ("something can be read", "from:all,from:1.0.0.0/8", "1.0.0.0/8", ""),
        ("everybody is named", "from:all,from:0.0.0.0/0", "anybody", ""),
        ("bits beyond the prefix", "from:1.2.3.4/28", "1.2.3.0/28", "anybody"),
    ];
    for (name, ranges, v4, v6) in cases {
        let mut tracker = Tracker::new(node());
        let text = format!("w=10.9.0.1,fd99::1,p/tcp/80,{ranges}");
        tell(&mut tracker, text.trim_end_matches(','));
        for (family, want) in [(IpFamily::V4, v4), (IpFamily::V6, v6)] {
            let (_, port) = tracker.service_ports(&ObjectKey::new("ns", "w"), family).remove(0);
            let text = |ranges: Vec<IpNet>| {
                ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(port.source_ranges.map_or("anybody".into(), text), want, "{name}");
        }
    }
}
