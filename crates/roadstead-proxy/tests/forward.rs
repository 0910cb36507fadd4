//! Machines that forward nothing unless told to: pods and Services work there all the same.

mod lab;

use std::net::SocketAddr;
use std::sync::Arc;

use roadstead_forwarding::surroundings::{DetectLocal, Surroundings};
use roadstead_proxy::agent::{Agent, Config};
use roadstead_proxy::forward::{self, CHAIN, Policy};
use roadstead_proxy::plane::Mode;
use roadstead_testkit::netns::{inside, laboratory, make_node, run};
use roadstead_watch::informer::Change;
use serde_json::json;

use self::lab::{NODE, PORT, Pod, call, start_pod};

fn surroundings() -> Surroundings {
    let networks = vec!["10.244.0.0/16".parse().unwrap()];
    Surroundings { detect_local: DetectLocal::Networks(networks), ..Surroundings::default() }
}

fn agent(mode: Mode, pod: &Pod) -> Agent {
    let config =
        Config { node_name: NODE.into(), mode, surroundings: surroundings(), ..Config::default() };
    let mut agent = Agent::new(config).unwrap();
    for (name, number, policy) in [("web", 1, "Cluster"), ("local", 2, "Local")] {
        let address = format!("10.96.0.{number}");
        let port = json!([{"name": "tcp", "protocol": "TCP", "port": 80,
            "nodePort": 30080 + number}]);
        let service = json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"type": "NodePort", "clusterIP": address, "clusterIPs": [address],
                "externalTrafficPolicy": policy, "ports": port},
        });
        agent.observe_service(&Change::Set(Arc::new(serde_json::from_value(service).unwrap())));
        let slice = json!({
            "metadata": {"namespace": "default", "name": name,
                "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "tcp", "protocol": "TCP", "port": PORT}],
            "endpoints": [{"addresses": [pod.address.to_string()], "nodeName": NODE}],
        });
        agent.observe_slice(&Change::Set(Arc::new(serde_json::from_value(slice).unwrap())));
    }
    agent.commit().unwrap();
    agent
}

/// Whether the pod reaches the machine outside.
fn calls_out(pod: &Pod) -> bool {
    inside(&pod.name, || call("TCP", ([192, 168, 7, 2], PORT).into())).is_ok()
}

/// What can be reached: node ports from outside, the pod from outside, the outside from the pod.
fn reachable(pod: &Pod) -> [bool; 4] {
    let ask = |from: &str, to: SocketAddr| inside(from, || call("TCP", to)).is_ok();
    let node = |port| SocketAddr::from(([192, 168, 7, 1], port));
    [
        ask("outside", node(30081)),
        ask("outside", node(30082)),
        ask("outside", (pod.address, PORT).into()),
        calls_out(pod),
    ]
}

#[test]
fn a_policy_of_iptables_is_overruled() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2);
        lab::serve("outside");
        for mode in [Mode::Nftables, Mode::Iptables] {
            let _agent = agent(mode, &pod);
            for program in ["iptables-nft", "iptables-legacy"] {
                assert_eq!(reachable(&pod), [true; 4], "{mode}, before {program} forbids it");
                run(&format!("{program} -P FORWARD DROP"));
                assert!(!calls_out(&pod), "{mode}: {program} forbids it");
                assert!(forward::open(&surroundings()).is_empty(), "nobody else is in the way");
                assert_eq!(reachable(&pod), [true; 4], "{mode}, {program}");
                let listing = run(&format!("{program}-save -t filter"));
                forward::open(&surroundings());
                assert_eq!(strip(&run(&format!("{program}-save -t filter"))), strip(&listing));
                run(&format!("{program} -P FORWARD ACCEPT"));
            }
            roadstead_proxy::agent::cleanup().unwrap();
            for program in ["iptables-nft", "iptables-legacy"] {
                assert!(!run(&format!("{program}-save")).contains(CHAIN), "{program}");
            }
        }
    });
}

/// Without dates and counts of packets.
fn strip(listing: &str) -> Vec<&str> {
    let lines = listing.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split('[').next().unwrap_or_default()).collect()
}

#[test]
fn the_policies_of_others_are_told_with_a_remedy() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2);
        lab::serve("outside");
        let _agent = agent(Mode::Nftables, &pod);
        run("nft add table inet firewall");
        run("nft 'add chain inet firewall forward \
             { type filter hook forward priority 0; policy drop; }'");
        let foreign = forward::open(&surroundings());
        let policy = Policy { family: "inet", table: "firewall".into(), chain: "forward".into() };
        assert_eq!(foreign, std::slice::from_ref(&policy));
        assert!(!calls_out(&pod));
        run(&policy.remedy(&surroundings()));
        assert_eq!(reachable(&pod), [true; 4]);
    });
}
