//! Real packets through the real kernel, in a laboratory of network namespaces.
//!
//! The laboratory is a node with pods that answer every connection with their own name and the
//! address they see. Objects are fed to the agent directly; no API server is needed.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_proxy::agent::config::{Config, Follow, Outputs};
use roadstead_proxy::agent::{self, Agent, cleanup};
use roadstead_testkit::cluster::FakeCluster;
use roadstead_testkit::lab::{NODE, PORT, call, start_pod};
use roadstead_testkit::netns::{inside, laboratory, make_node, run};
use roadstead_watch::informer::Change;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// How often each pod answered, when called from a namespace or from the node itself.
fn counts(
    from: Option<&str>,
    protocol: &str,
    frontend: SocketAddr,
    times: usize,
) -> BTreeMap<String, usize> {
    let calls = || {
        let mut counts = BTreeMap::new();
        for _ in 0..times {
            let (name, _) = call(protocol, frontend).unwrap();
            *counts.entry(name).or_default() += 1;
        }
        counts
    };
    match from {
        Some(namespace) => inside(namespace, calls),
        None => calls(),
    }
}

fn agent() -> Agent {
    let networks = vec!["10.244.0.0/16".parse().unwrap(), "fd00:244::/48".parse().unwrap()];
    let node_network =
        NodeNetwork { detect_local: DetectLocal::Networks(networks), ..NodeNetwork::default() };
    Agent::new(
        Config { node_name: NODE.into(), node_network, ..Config::default() },
        Outputs::default(),
    )
    .unwrap()
}

/// A Service with one TCP and one UDP port, both 80 to 8080.
fn service(name: &str, address: &str) -> Change<Service> {
    Change::Set(serde_json::from_value(service_object(name, address)).unwrap())
}

fn service_object(name: &str, address: &str) -> Value {
    let port =
        |protocol: &str| json!({"name": protocol.to_lowercase(), "port": 80, "protocol": protocol});
    json!({
        "metadata": {"namespace": "default", "name": name},
        "spec": {"clusterIP": address, "clusterIPs": [address], "ports": [port("TCP"), port("UDP")]},
    })
}

fn slice<A: Into<IpAddr> + Copy>(service: &str, addresses: &[A]) -> Change<EndpointSlice> {
    Change::Set(serde_json::from_value(slice_object(service, addresses)).unwrap())
}

fn slice_object<A: Into<IpAddr> + Copy>(service: &str, addresses: &[A]) -> Value {
    let addresses: Vec<IpAddr> = addresses.iter().map(|address| (*address).into()).collect();
    let family = if addresses.iter().any(IpAddr::is_ipv6) { "IPv6" } else { "IPv4" };
    let port = |protocol: &str| json!({"name": protocol.to_lowercase(), "port": PORT, "protocol": protocol});
    let endpoint = |address: &IpAddr| json!({"addresses": [address.to_string()], "nodeName": NODE, "conditions": {"ready": true}});
    json!({
        "metadata": {
            "namespace": "default",
            "name": format!("{service}-{family}").to_lowercase(),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": family,
        "ports": [port("TCP"), port("UDP")],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

fn frontend(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn connections_reach_targets_through_the_cluster_ip() {
    laboratory(|| {
        make_node();
        let pods = [2, 3, 4].map(start_pod);
        let addresses: Vec<_> = pods.iter().map(|pod| pod.address).collect();
        let mut agent = agent();
        agent.observe_service(&service("web", "10.96.0.20"));
        agent.observe_slice(&slice("web", &addresses));
        agent.commit().unwrap();

        let web = frontend("10.96.0.20:80");
        for (from, protocol) in
            [(None, "TCP"), (None, "UDP"), (Some("pod-2"), "TCP"), (Some("pod-2"), "UDP")]
        {
            let counts = counts(from, protocol, web, 300);
            assert_eq!(counts.len(), 3, "{from:?} {protocol}: {counts:?}");
            // One hundred each is expected; five standard deviations are 41.
            let plausible = counts.values().all(|count| (59..=141).contains(count));
            assert!(plausible, "{from:?} {protocol}: {counts:?}");
        }

        // Pods see pods as they are; whoever comes from outside appears as the node.
        let seen_by = |from: &str, protocol| inside(from, || call(protocol, web).unwrap());
        for protocol in ["TCP", "UDP"] {
            let (name, peer) = (0..50)
                .map(|_| seen_by("pod-2", protocol))
                .find(|(name, _)| name != "pod-2")
                .expect("one of fifty calls goes to another pod");
            assert_eq!(peer, pods[0].address, "{name} must see the pod itself");
            assert_eq!(seen_by("outside", protocol).1, Ipv4Addr::new(10, 244, 0, 1));
        }

        let text = run("nft list ruleset");
        assert!(
            text.contains("10.96.0.20 . tcp . 80") && text.contains("default/web:tcp/tcp"),
            "{text}"
        );
        assert!(run("nft -j list ruleset").contains("10.96.0.20"));
    });
}

/// Flows of datagrams to an endpoint that is gone are forgotten aside, a moment after the commit;
/// until then a client that happens to use the port of one of them follows it.
fn wait_until_forgotten(endpoint: Ipv4Addr) {
    let flows =
        || run(&format!("conntrack -L -p udp 2>/dev/null | grep -c src={endpoint} || true"));
    let until = Instant::now() + Duration::from_secs(5);
    while flows() != "0" {
        assert!(Instant::now() < until, "flows to {endpoint} are still there: {}", flows());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_removed_endpoint_gets_no_new_connection() {
    laboratory(|| {
        make_node();
        let pods = [2, 3, 4].map(start_pod);
        let addresses: Vec<_> = pods.iter().map(|pod| pod.address).collect();
        let mut agent = agent();
        agent.observe_service(&service("web", "10.96.0.20"));
        agent.observe_slice(&slice("web", &addresses));
        agent.commit().unwrap();
        let web = frontend("10.96.0.20:80");
        for gone in 0..3 {
            let rest: Vec<_> =
                addresses.iter().filter(|a| **a != addresses[gone]).copied().collect();
            agent.observe_slice(&slice("web", &rest));
            agent.commit().unwrap();
            wait_until_forgotten(addresses[gone]);
            for protocol in ["TCP", "UDP"] {
                let counts = counts(Some("outside"), protocol, web, 40);
                assert!(!counts.contains_key(&pods[gone].name), "{protocol}: {counts:?}");
                assert_eq!(counts.len(), 2, "{protocol}: {counts:?}");
            }
            agent.observe_slice(&slice("web", &addresses));
            agent.commit().unwrap();
        }
        assert_eq!(counts(None, "TCP", web, 60).len(), 3, "all are back");
    });
}

#[test]
fn without_endpoints_connections_are_refused() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2);
        let mut agent = agent();
        agent.observe_service(&service("empty", "10.96.0.30"));
        agent.observe_service(&service("web", "10.96.0.20"));
        agent.observe_slice(&slice("web", &[pod.address]));
        agent.commit().unwrap();
        let refused = |from: Option<&str>, protocol: &str, text: &str| {
            let started = Instant::now();
            let attempt = || call(protocol, frontend(text)).map_err(|error| error.kind());
            let outcome = from.map_or_else(attempt, |namespace| inside(namespace, attempt));
            // The kernel tells a local sender of datagrams so in its own way.
            let want = match (from, protocol) {
                (None, "UDP") => io::ErrorKind::PermissionDenied,
                _ => io::ErrorKind::ConnectionRefused,
            };
            assert_eq!(outcome, Err(want), "{from:?} {protocol} {text}");
            assert!(started.elapsed() < Duration::from_millis(500), "refused at once");
        };
        for from in [None, Some("pod-2"), Some("outside")] {
            for protocol in ["TCP", "UDP"] {
                refused(from, protocol, "10.96.0.30:80");
                refused(from, protocol, "10.96.0.20:81");
            }
        }

        agent.observe_slice(&slice("empty", &[pod.address]));
        agent.commit().unwrap();
        assert_eq!(call("TCP", frontend("10.96.0.30:80")).unwrap().0, "pod-2", "served now");
        agent.observe_slice(&slice::<Ipv4Addr>("empty", &[]));
        agent.commit().unwrap();
        refused(None, "TCP", "10.96.0.30:80");
    });
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2);
        let mut agent = agent();
        agent.observe_service(&service("web", "10.96.0.20"));
        agent.observe_slice(&slice("web", &[pod.address]));
        agent.commit().unwrap();
        for protocol in ["TCP", "UDP"] {
            let (name, peer) =
                inside("pod-2", || call(protocol, frontend("10.96.0.20:80"))).unwrap();
            assert_eq!((name.as_str(), peer), ("pod-2", Ipv4Addr::new(10, 244, 0, 1).into()));
        }
    });
}

#[test]
fn the_other_family() {
    laboratory(|| {
        make_node();
        let pods = [2, 3].map(start_pod);
        let mut agent = agent();
        agent.observe_service(&service("web", "fd00:96::20"));
        agent.observe_slice(&slice("web", &pods.each_ref().map(|pod| pod.v6)));
        agent.observe_service(&service("own", "fd00:96::21"));
        agent.observe_slice(&slice("own", &[pods[0].v6]));
        agent.observe_service(&service("empty", "fd00:96::30"));
        agent.commit().unwrap();
        let node: IpAddr = "fd00:244::1".parse().unwrap();
        for protocol in ["TCP", "UDP"] {
            for from in [None, Some("pod-2"), Some("outside")] {
                let counts = counts(from, protocol, frontend("[fd00:96::20]:80"), 60);
                assert_eq!(counts.len(), 2, "{from:?} {protocol}: {counts:?}");
            }
            let own = frontend("[fd00:96::21]:80");
            assert_eq!(inside("pod-2", || call(protocol, own)).unwrap().1, node, "to itself");
            assert_eq!(inside("outside", || call(protocol, own)).unwrap().1, node, "masqueraded");
            assert_eq!(inside("pod-3", || call(protocol, own)).unwrap().1, pods[1].v6, "as it is");
            let refused = inside("pod-3", || call(protocol, frontend("[fd00:96::30]:80")));
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        }
    });
}

#[test]
fn restart_and_cleanup() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2);
        let web = frontend("10.96.0.20:80");
        let mut listings = Vec::new();
        for _ in 0..2 {
            let mut agent = agent();
            agent.observe_service(&service("web", "10.96.0.20"));
            agent.observe_slice(&slice("web", &[pod.address]));
            agent.commit().unwrap();
            assert_eq!(call("TCP", web).unwrap().0, "pod-2");
            // With handles, which would change if anything were written again.
            listings.push(run("nft -a list ruleset"));
        }
        assert_eq!(listings[0], listings[1], "a restart changes nothing");
        // Somebody else's flush is noticed; an edit, too. The next commit heals both.
        let mut agent = agent();
        agent.observe_service(&service("web", "10.96.0.20"));
        agent.observe_slice(&slice("web", &[pod.address]));
        agent.commit().unwrap();
        assert!(agent.is_intact());
        let element = "10.96.0.20 . tcp . 80";
        for harm in [
            "nft flush ruleset".to_owned(),
            format!("nft delete element ip kube-proxy service-ips '{{ {element} }}'"),
            "nft flush chain ip kube-proxy services".to_owned(),
            "nft add element ip kube-proxy cluster-ips '{ 10.96.0.99 }'".to_owned(),
        ] {
            let before = run("nft list table ip kube-proxy");
            run(&harm);
            assert!(!agent.is_intact(), "{harm}");
            agent.commit().unwrap();
            assert!(agent.is_intact(), "{harm}");
            assert_eq!(run("nft list table ip kube-proxy"), before, "{harm}");
            assert_eq!(call("TCP", web).unwrap().0, "pod-2", "{harm}");
        }

        cleanup().unwrap();
        assert_eq!(run("nft list ruleset"), "");
        cleanup().unwrap();
    });
}

#[test]
fn the_agent_follows_the_cluster() {
    const SERVICES: &str = "/api/v1/services";
    const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
    laboratory(|| {
        make_node();
        let pods = [2, 3].map(start_pod);
        let web = frontend("10.96.0.20:80");
        let cluster = FakeCluster::default();
        cluster.put(SERVICES, service_object("web", "10.96.0.20"));
        cluster.put(SLICES, slice_object("web", &[pods[0].address]));
        Runtime::new().unwrap().block_on(async {
            let config = Config { node_name: NODE.into(), ..Config::default() };
            let outputs = Outputs::default();
            let mut programmed = outputs.programmed.subscribe();
            let stop = CancellationToken::new();
            let task = tokio::spawn(agent::run(cluster.client(), config, outputs, stop.clone()));
            let first = *programmed.wait_for(|state| state.revision >= 2).await.unwrap();
            assert_eq!((first.service_ports, first.targets, first.commits), (2, 2, 1));
            assert_eq!(call("TCP", web).unwrap().0, "pod-2");

            let started = Instant::now();
            let revision = cluster.put(SLICES, slice_object("web", &[pods[1].address]));
            programmed.wait_for(|state| state.revision >= revision).await.unwrap();
            eprintln!("from the watch event to the kernel: {:?}", started.elapsed());
            assert_eq!(call("TCP", web).unwrap().0, "pod-3");

            // Somebody else's flush is healed by itself, in less than a second.
            run("nft flush ruleset");
            let started = Instant::now();
            while !run("nft list ruleset").contains("10.96.0.20") {
                assert!(started.elapsed() < Duration::from_secs(1), "not healed");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            eprintln!("flush healed after {:?}", started.elapsed());
            let revision = cluster.put(SERVICES, service_object("api", "10.96.0.21"));
            programmed.wait_for(|state| state.revision >= revision).await.unwrap();
            assert_eq!(call("TCP", web).unwrap().0, "pod-3");

            let revision = cluster.delete(SERVICES, service_object("web", "10.96.0.20"));
            programmed.wait_for(|state| state.revision >= revision).await.unwrap();
            assert!(!run("nft list ruleset").contains("10.96.0.20"));
            stop.cancel();
            task.await.unwrap().unwrap();
            assert!(run("nft list ruleset").contains("10.96.0.21"), "the rules stay");
        });
    });
}

/// An address that no Service has is not sent to the machine's router, and its unused ports are
/// refused.
#[test]
fn unused_addresses_of_services() {
    const NETWORKS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
    let network =
        |cidr: &str| json!({"metadata": {"name": "kubernetes"}, "spec": {"cidrs": [cidr]}});
    laboratory(|| {
        make_node();
        let cluster = FakeCluster::default();
        cluster.put("/api/v1/services", service_object("web", "10.96.0.20"));
        cluster.put(NETWORKS, network("10.96.0.0/16"));
        Runtime::new().unwrap().block_on(async {
            let follow = Follow { service_networks: true, ..Follow::default() };
            let config = Config { follow, ..Config::default() };
            let outputs = Outputs::default();
            let mut programmed = outputs.programmed.subscribe();
            let stop = CancellationToken::new();
            let task = tokio::spawn(agent::run(cluster.client(), config, outputs, stop.clone()));
            programmed.wait_for(|state| state.commits == 1).await.unwrap();
            assert!(run("nft list ruleset").contains("ip daddr 10.96.0.0/16 drop"));
            cluster.put(NETWORKS, network("10.96.0.0/12"));
            programmed.wait_for(|state| state.commits == 2).await.unwrap();
            assert!(run("nft list ruleset").contains("ip daddr 10.96.0.0/12 drop"));
            stop.cancel();
            task.await.unwrap().unwrap();
        });
    });
}

#[test]
fn one_change_among_a_thousand_services() {
    laboratory(|| {
        let mut agent = agent();
        let address = |n: usize| Ipv4Addr::from(0x0a60_0000 + u32::try_from(n).unwrap());
        let pod = |n: usize| Ipv4Addr::from(0x0af4_0000 + u32::try_from(n).unwrap());
        for n in 1..=1000 {
            agent.observe_service(&service(&format!("s{n}"), &address(n).to_string()));
            agent.observe_slice(&slice(&format!("s{n}"), &[pod(2 * n), pod(2 * n + 1)]));
        }
        let started = Instant::now();
        agent.commit().unwrap();
        eprintln!("1000 services x 2 ports x 2 endpoints: first commit {:?}", started.elapsed());

        let mut measure = |what: &str, change: &dyn Fn(usize) -> Vec<Ipv4Addr>| {
            let mut times: Vec<_> = (1..=500)
                .map(|n| {
                    let change = slice(&format!("s{n}"), &change(n));
                    let started = Instant::now();
                    agent.observe_slice(&change);
                    agent.commit().unwrap();
                    started.elapsed()
                })
                .collect();
            times.sort();
            eprintln!("{what}: p50 {:?}, p99 {:?}", times[250], times[495]);
            assert!(times[250] < Duration::from_millis(5), "{what} is far too slow");
        };
        measure("one endpoint replaced", &|n| vec![pod(2 * n), pod(9000 + n)]);
        measure("one endpoint added", &|n| vec![pod(2 * n), pod(9000 + n), pod(2 * n + 1)]);
        measure("one endpoint removed", &|n| vec![pod(9000 + n), pod(2 * n + 1)]);
        run("nft list ruleset > /dev/null && nft -j list ruleset > /dev/null");
    });
}
