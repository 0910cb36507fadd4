//! Machines that forward nothing unless told to: pods and Services work there all the same.

use std::net::SocketAddr;

use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_proxy::agent::Agent;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_proxy::forward_policy::{self, CHAIN, ForwardPolicy};
use roadstead_testkit::lab::{NODE, PORT, Pod, call, serve, start_pod};
use roadstead_testkit::netns::{inside, laboratory, make_node, run};
use roadstead_watch::informer::Change;
use serde_json::json;

fn node_network() -> NodeNetwork {
    let networks = vec!["10.244.0.0/16".parse().unwrap()];
    NodeNetwork { detect_local: DetectLocal::Networks(networks), ..NodeNetwork::default() }
}

fn agent(mode: ProxyMode, pod: &Pod) -> Agent {
    let config =
        Config { node_name: NODE.into(), mode, node_network: node_network(), ..Config::default() };
    let mut agent = Agent::new(config, Outputs::default()).unwrap();
    for (name, number, policy) in [("web", 1, "Cluster"), ("local", 2, "Local")] {
        let address = format!("10.96.0.{number}");
        let port = json!([{"name": "tcp", "protocol": "TCP", "port": 80,
            "nodePort": 30080 + number}]);
        let service = json!({
            "metadata": {"namespace": "default", "name": name},
            "spec": {"type": "NodePort", "clusterIP": address, "clusterIPs": [address],
                "externalTrafficForwardPolicy": policy, "ports": port},
        });
        agent.observe_service(&Change::Set(serde_json::from_value(service).unwrap()));
        let slice = json!({
            "metadata": {"namespace": "default", "name": name,
                "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "tcp", "protocol": "TCP", "port": PORT}],
            "endpoints": [{"addresses": [pod.address.to_string()], "nodeName": NODE}],
        });
        agent.observe_slice(&Change::Set(serde_json::from_value(slice).unwrap()));
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
        serve("outside");
        for mode in [ProxyMode::Nftables, ProxyMode::Iptables] {
            let _agent = agent(mode, &pod);
            for program in ["iptables-nft", "iptables-legacy"] {
                assert_eq!(reachable(&pod), [true; 4], "{mode}, before {program} forbids it");
                run(&format!("{program} -P FORWARD DROP"));
                assert!(!calls_out(&pod), "{mode}: {program} forbids it");
                assert!(
                    forward_policy::open(&node_network()).is_empty(),
                    "nobody else is in the way"
                );
                assert_eq!(reachable(&pod), [true; 4], "{mode}, {program}");
                let listing = run(&format!("{program}-save -t filter"));
                forward_policy::open(&node_network());
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
        serve("outside");
        let _agent = agent(ProxyMode::Nftables, &pod);
        run("nft add table inet firewall");
        run("nft 'add chain inet firewall forward \
             { type filter hook forward priority 0; policy drop; }'");
        let foreign = forward_policy::open(&node_network());
        let policy =
            ForwardPolicy { family: "inet", table: "firewall".into(), chain: "forward".into() };
        assert_eq!(foreign, std::slice::from_ref(&policy));
        assert!(!calls_out(&pod));
        run(&policy.remedy(&node_network()));
        assert_eq!(reachable(&pod), [true; 4]);
    });
}
