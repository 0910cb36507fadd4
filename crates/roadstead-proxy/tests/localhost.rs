//! Node ports called by 127.0.0.1: in mode iptables, who may not call that address, and what is
//! counted; in the others, who listens there.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::service::IpFamily;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::agent::{Agent, cleanup};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_proxy::localhost;
use roadstead_proxy::metrics::Metrics;
use roadstead_testkit::lab::{NODE, PORT, call, start_pod};
use roadstead_testkit::netns::{inside, laboratory, make_node, run};
use roadstead_watch::informer::Change;
use serde_json::json;

fn agent(localhost_node_ports: bool, pod: &str, metrics: &Arc<Metrics>) -> Agent {
    let config = Config {
        node_name: NODE.into(),
        mode: ProxyMode::Iptables,
        families: vec![IpFamily::V4],
        localhost_node_ports,
        ..Config::default()
    };
    let outputs = Outputs { metrics: metrics.clone(), ..Outputs::default() };
    let mut agent = Agent::new(config, outputs).unwrap();
    fill(&mut agent, pod);
    agent
}

/// A Service with a node port and one endpoint.
fn fill(agent: &mut Agent, pod: &str) {
    let port = |name: &str, number: u16| json!({"name": name, "port": number, "protocol": name});
    let node_port = |name: &str| {
        let mut port = port(name, 80);
        port["nodePort"] = json!(30080);
        port
    };
    let service = json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"type": "NodePort", "clusterIPs": ["10.96.0.1"],
            "ports": [node_port("TCP"), node_port("UDP")]},
    });
    agent.observe_service(&Change::Set(serde_json::from_value(service).unwrap()));
    let slice = json!({
        "metadata": {"namespace": "default", "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [port("TCP", PORT), port("UDP", PORT)],
        "endpoints": [{"addresses": [pod], "nodeName": NODE}],
    });
    agent.observe_slice(&Change::Set(serde_json::from_value(slice).unwrap()));
    agent.commit().unwrap();
}

fn route_localnet() -> String {
    run("cat /proc/sys/net/ipv4/conf/all/route_localnet")
}

fn figure(metrics: &Metrics, name: &str) -> Option<u64> {
    let page = metrics.page();
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("kubeproxy_{name} ")))?;
    line.parse().ok()
}

#[test]
fn node_ports_on_localhost() {
    const ACCEPTED: &str = "iptables_localhost_nodeports_accepted_packets_total";
    laboratory(|| {
        make_node();
        let pod = start_pod(2).address.to_string();
        let localhost: SocketAddr = "127.0.0.1:30080".parse().unwrap();
        let metrics = Arc::<Metrics>::default();
        assert_eq!(figure(&metrics, ACCEPTED), None, "nobody counts yet");
        let mut not_here = agent(false, &pod, &metrics);
        assert_eq!(route_localnet(), "0");
        call("TCP", localhost).unwrap_err();
        assert!(not_here.is_intact());

        let mut agent = agent(true, &pod, &metrics);
        assert_eq!(route_localnet(), "1");
        for protocol in ["TCP", "UDP"] {
            let (name, seen) = call(protocol, localhost).unwrap();
            assert_eq!((name.as_str(), seen.to_string().as_str()), ("pod-2", "10.244.0.1"));
        }
        assert_eq!(figure(&metrics, ACCEPTED), Some(2), "the first packet of each");
        assert!(agent.is_intact());
        assert_eq!(agent.commit().map_err(|error| error.full_text()), Ok(()));
        guarded();
        cleanup().unwrap();
        assert_eq!(run("iptables-save | grep KUBE; true"), "");
        assert_eq!(figure(&metrics, ACCEPTED), None, "the counters are gone, too");
        assert_eq!(route_localnet(), "0");
    });
}

/// A machine that sends to 127.0.0.1 over the network is not let in, but for the guard it would be.
fn guarded() {
    run("ip -n outside address flush dev lo");
    run("ip -n outside route add 127.0.0.1 via 192.168.7.1");
    run("ip netns exec outside sh -c 'echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet'");
    let listener = TcpListener::bind("127.0.0.1:7777").unwrap();
    let private = listener.local_addr().unwrap();
    let connect = || {
        let patience = Duration::from_millis(400);
        inside("outside", || TcpStream::connect_timeout(&private, patience)).is_ok()
    };
    assert!(!connect());
    run("iptables -F KUBE-FIREWALL");
    assert!(connect(), "this is what the guard is for");
}

#[test]
fn packets_that_fit_no_connection() {
    const DROPPED: &str = "iptables_ct_state_invalid_dropped_packets_total";
    laboratory(|| {
        make_node();
        let pod = start_pod(2).address.to_string();
        let metrics = Arc::<Metrics>::default();
        let _agent = agent(true, &pod, &metrics);
        assert_eq!(figure(&metrics, DROPPED), Some(0));
        let direct = SocketAddr::new(pod.parse().unwrap(), PORT);
        let mut connection = inside("outside", || TcpStream::connect(direct).unwrap());
        run("echo 0 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose");
        run("conntrack -F");
        connection.write_all(b"hello").unwrap();
        let started = Instant::now();
        while figure(&metrics, DROPPED) == Some(0) {
            assert!(started.elapsed() < Duration::from_secs(3), "nothing was dropped");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Whoever tells the kernel to be liberal wants them to pass.
        run("echo 1 > /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal");
        let _successor = agent(true, &pod, &metrics);
        assert!(!run("iptables-save -t filter").contains("INVALID"));
    });
}

/// In the other modes we listen ourselves, if the operator asks for it.
#[test]
fn node_ports_on_localhost_without_rules() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2);
        let outputs = Outputs::default();
        let config = |addresses: &str| Config {
            node_name: NODE.into(),
            mode: ProxyMode::Nftables,
            families: vec![IpFamily::V4],
            node_port_addresses: addresses.split(' ').map(str::to_owned).collect(),
            ..Config::default()
        };
        let node = json!({"metadata": {"name": NODE}, "status": {"addresses": [
            {"type": "InternalIP", "address": "192.168.7.1"},
        ]}});
        let node = Change::Set(serde_json::from_value(node).unwrap());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.spawn(localhost::serve(outputs.relays.subscribe()));
        let to: SocketAddr = "127.0.0.1:30080".parse().unwrap();
        let waited = |answers: bool| {
            let deadline = Instant::now() + Duration::from_secs(5);
            while call("TCP", to).is_ok() != answers {
                assert!(Instant::now() < deadline, "{to} answers: {}", !answers);
                std::thread::sleep(Duration::from_millis(20));
            }
        };

        let mut agent = Agent::new(config("primary"), outputs.clone()).unwrap();
        agent.observe_node(&node);
        fill(&mut agent, &pod.address.to_string());
        assert!(call("TCP", to).is_err(), "only on the primary address");
        let mut agent = Agent::new(config("primary localhost"), outputs).unwrap();
        fill(&mut agent, &pod.address.to_string());
        agent.observe_node(&node);
        waited(true);
        assert_eq!(call("TCP", to).unwrap().0, pod.name);
        assert_eq!(call("TCP", "192.168.7.1:30080".parse().unwrap()).unwrap().0, pod.name);
        assert_eq!(route_localnet(), "0", "and nobody else's packets are believed");
        agent.observe_service(&Change::Gone(ObjectKey::new("default", "web"), 0));
        agent.commit().unwrap();
        waited(false);
        cleanup().unwrap();
    });
}
