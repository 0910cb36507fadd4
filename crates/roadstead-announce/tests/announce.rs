//! A load balancer's address that no interface has: whoever is on the same network reaches the
//! pods behind it, as long as somebody answers for it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use roadstead_announce::interfaces::{interfaces, on_link};
use roadstead_announce::responder::{Held, HeldOn, respond};
use roadstead_proxy::agent::Agent;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_testkit::lab::{NODE, PORT, call, start_pod};
use roadstead_testkit::netns::{inside, laboratory, make_node, run, try_run};
use roadstead_watch::informer::Change;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::sync::watch;

const ADDRESSES: [&str; 2] = ["192.168.7.100", "fd00:7::64"];

fn agent() -> Agent {
    let mut agent =
        Agent::new(Config { node_name: NODE.into(), ..Config::default() }, Outputs::default())
            .unwrap();
    let port = |number: u16| json!([{"name": "tcp", "protocol": "TCP", "port": number}]);
    let service = json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"type": "LoadBalancer", "clusterIPs": ["10.96.0.1", "fd00:96::1"],
            "ports": port(80)},
        "status": {"loadBalancer": {"ingress": ADDRESSES.map(|ip| json!({"ip": ip}))}},
    });
    agent.observe_service(&Change::Set(serde_json::from_value(service).unwrap()));
    let pod = start_pod(2);
    for (family, address) in [("IPv4", pod.address.to_string()), ("IPv6", pod.v6.to_string())] {
        let slice = json!({
            "metadata": {"namespace": "default", "name": format!("web-{}", family.to_lowercase()),
                "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": family, "ports": port(PORT),
            "endpoints": [{"addresses": [address], "nodeName": NODE}],
        });
        agent.observe_slice(&Change::Set(serde_json::from_value(slice).unwrap()));
    }
    agent.commit().unwrap();
    agent
}

fn reach(address: &str) -> Option<String> {
    let frontend = SocketAddr::new(address.parse().unwrap(), 80);
    inside("outside", || call("TCP", frontend)).ok().map(|(pod, _)| pod)
}

fn forget_neighbours() {
    run("ip -n outside neigh flush all; ip -n outside -6 neigh flush all");
}

fn neighbour(address: &str) -> String {
    run(&format!("ip -n outside neigh show to {address}"))
}

#[test]
fn who_answers_gets_the_traffic() {
    laboratory(|| {
        make_node();
        // A client that learns of a better way would never ask.
        run("ip -n outside route del default; ip -n outside -6 route del default");
        let _agent = agent();
        let (sender, held) = watch::channel(Arc::<Held>::default());
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let around = interfaces().unwrap();
        thread::spawn(move || runtime.block_on(respond(held)));
        for address in ADDRESSES {
            assert_eq!(reach(address), None, "nobody answers for {address}");
        }
        let place = |address: &str| -> (IpAddr, HeldOn) {
            let address: IpAddr = address.parse().unwrap();
            (address, on_link(&around, address).unwrap().into())
        };
        sender.send_replace(Arc::new(ADDRESSES.map(place).into()));
        forget_neighbours();
        for address in ADDRESSES {
            assert_eq!(reach(address).as_deref(), Some("pod-2"), "{address}");
            assert!(try_run(&format!("ip address | grep -q {address}/")).status.code() == Some(1));
        }
        // Neighbours that are not sure any more ask the holder itself.
        for address in ADDRESSES {
            run(&format!("ip -n outside neigh change {address} dev eth0 nud probe"));
        }
        thread::sleep(Duration::from_millis(200));
        for address in ADDRESSES {
            assert!(neighbour(address).ends_with("REACHABLE"), "{}", neighbour(address));
        }
        sender.send_replace(Arc::default());
        thread::sleep(Duration::from_millis(100));
        forget_neighbours();
        for address in ADDRESSES {
            assert_eq!(reach(address), None, "{address} is no longer ours");
        }
    });
}

/// Whoever remembers another holder is told at once, without having asked.
#[test]
fn a_new_holder_makes_itself_known() {
    laboratory(|| {
        make_node();
        for address in ADDRESSES {
            run(&format!(
                "ip -n outside neigh add {address} lladdr 02:00:00:00:00:99 dev eth0 nud stale"
            ));
        }
        let (sender, held) = watch::channel(Arc::<Held>::default());
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let around = interfaces().unwrap();
        thread::spawn(move || runtime.block_on(respond(held)));
        let place = |address: &str| -> (IpAddr, HeldOn) {
            let address: IpAddr = address.parse().unwrap();
            (address, on_link(&around, address).unwrap().into())
        };
        sender.send_replace(Arc::new(ADDRESSES.map(place).into()));
        let ours = run(
            "cat /sys/class/net/outside0/address 2>/dev/null || ip -br link show outside0 | awk '{print $3}'",
        );
        let begin = std::time::Instant::now();
        for address in ADDRESSES {
            while !neighbour(address).contains(&ours) {
                let known = neighbour(address);
                assert!(begin.elapsed() < Duration::from_secs(3), "{known}, not {ours}");
                thread::sleep(Duration::from_millis(20));
            }
        }
    });
}
