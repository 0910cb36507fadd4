//! Kernels that lack something, and one that has SCTP. All of these tests need a kernel of
//! their own, in which `scripts/lab` runs them.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::{fs, thread};

use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_forwarding::service::IpFamily;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::agent::{Agent, cleanup};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_proxy::health::Health;
use roadstead_testkit::lab::{NODE, PORT, TIMEOUT, call, start_pod};
use roadstead_testkit::netns::{inside, laboratory, make_node, run};
use roadstead_watch::informer::Change;
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

const CLUSTER_IP: &str = "10.96.0.1:80";
const NODE_PORT: &str = "192.168.7.1:30080";

fn agent(mode: ProxyMode, families: Vec<IpFamily>, health: Arc<Health>) -> Agent {
    let networks = vec!["10.244.0.0/16".parse().unwrap()];
    let node_addresses = ["192.168.7.1", "10.244.0.1", "127.0.0.1"].map(|a| a.parse().unwrap());
    let node_network = NodeNetwork {
        detect_local: DetectLocal::Networks(networks),
        node_addresses: node_addresses.into(),
        ..NodeNetwork::default()
    };
    let node_name = NODE.into();
    let config = Config { node_name, mode, node_network, families, ..Config::default() };
    Agent::new(config, Outputs { health, ..Outputs::default() }).unwrap()
}

/// A Service of one port, with these endpoints.
fn observe(agent: &mut Agent, protocol: &str, pods: &[String]) {
    let port = |number: u16| json!({"name": "p", "port": number, "protocol": protocol});
    let mut service_port = port(80);
    service_port["nodePort"] = json!(30080);
    let service = json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"type": "NodePort", "clusterIPs": ["10.96.0.1"], "ports": [service_port]},
    });
    agent.observe_service(&Change::Set(serde_json::from_value(service).unwrap()));
    let endpoint = |pod: &String| json!({"addresses": [pod], "nodeName": NODE});
    let slice = json!({
        "metadata": {"namespace": "default", "name": "web-1",
            "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [port(PORT)],
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    });
    agent.observe_slice(&Change::Set(serde_json::from_value(slice).unwrap()));
}

/// Loads modules of this kernel, which looks for none itself.
fn load(modules: &str) {
    let place = std::env::var("ROADSTEAD_MODULES").expect("scripts/lab says where they are");
    run(&format!("for module in {modules}; do modprobe -d {place} $module || exit 1; done"));
}

#[test]
#[ignore = "needs a kernel without nft_nat, see scripts/lab"]
fn a_kernel_without_nftables() {
    laboratory(|| {
        make_node();
        let pod = start_pod(2).address.to_string();
        let health = Arc::<Health>::default();
        let both = vec![IpFamily::V4, IpFamily::V6];
        let mut by_nftables = agent(ProxyMode::Nftables, both, health.clone());
        observe(&mut by_nftables, "TCP", std::slice::from_ref(&pod));
        let mut said = || {
            let text = by_nftables.commit().unwrap_err().full_text();
            assert!(text.contains("for V4") && text.contains("--proxy-mode iptables"), "{text}");
            let (code, page) = health.page(true);
            let page: Value = serde_json::from_str(&page).unwrap();
            assert_eq!((code, &page["status"]["IPv4"]["error"]), (503, &json!(text)));
            text
        };
        let text = said();
        assert!(text.contains("loaded it: nf_tables:"), "{text}");
        // It has nftables for other purposes.
        load("nf_tables");
        let text = said();
        // Debian's kernels have that part built in, and lack the next.
        let lacks = |part: &str| text.contains(&format!("loaded it: {part}"));
        assert!(lacks("nf_tables_ipv4:") || lacks("nft_ct, "), "{text}");

        // The mode that the message recommends works, though nftables can be listed now.
        run("nft list tables");
        let mut by_iptables = agent(ProxyMode::Iptables, vec![IpFamily::V4], Arc::default());
        observe(&mut by_iptables, "TCP", std::slice::from_ref(&pod));
        // The kernel has counters, but not for iptables: the second attempt does without.
        run("rmmod xt_nfacct");
        by_iptables.commit().unwrap_err();
        by_iptables.commit().unwrap();
        assert!(!run("iptables-legacy-save").contains("nfacct"));
        load("xt_nfacct");
        assert!(run("iptables-legacy-save").contains("KUBE-SVC-"), "where the kernel can do it");
        for (place, to) in [("outside", CLUSTER_IP), ("outside", NODE_PORT), ("pod-2", CLUSTER_IP)]
        {
            let answer = inside(place, || call("TCP", to.parse().unwrap()));
            assert_eq!(answer.unwrap().0, "pod-2", "{place} to {to}");
        }
        assert!(by_iptables.is_intact());
        cleanup().unwrap();
        assert_eq!(run("iptables-legacy-save | grep KUBE; true"), "");
    });
}

/// SCTP, one connection per socket: from there on all is as with TCP.
fn sctp() -> Socket {
    const SCTP: i32 = 132;
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(SCTP))).unwrap()
}

fn serve_sctp(name: &str) {
    let listener: TcpListener = inside(name, || {
        // This kernel has no algorithm to sign cookies with.
        fs::write("/proc/sys/net/sctp/cookie_hmac_alg", "none").unwrap();
        let socket = sctp();
        let any: SocketAddr = SocketAddr::from(([0, 0, 0, 0], PORT));
        socket.bind(&any.into()).unwrap();
        socket.listen(16).unwrap();
        socket.into()
    });
    let own = name.to_owned();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let peer = connection.peer_addr().map(|peer| peer.ip());
            let _ = peer.and_then(|peer| write!(&connection, "{own} {peer}"));
        }
    });
}

fn call_sctp(to: &str) -> io::Result<String> {
    let to: SocketAddr = to.parse().unwrap();
    let socket = sctp();
    // SCTP repeats a packet after three seconds, and in an emulator one is late now and then.
    let patience = 5 * TIMEOUT;
    socket.connect_timeout(&to.into(), patience)?;
    socket.set_read_timeout(Some(patience))?;
    let mut answer = String::new();
    TcpStream::from(socket).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Everybody who answers, and whom they see.
fn callees(place: &str, to: &str, calls: usize) -> BTreeSet<String> {
    let all = || (0..calls).map(|_| call_sctp(to)).collect::<Result<_, _>>();
    let answers: io::Result<BTreeSet<String>> = inside(place, all);
    answers.unwrap_or_else(|error| panic!("from {place} to {to}: {error}"))
}

#[test]
#[ignore = "needs a kernel with SCTP and IPVS, see scripts/lab"]
fn sctp_is_carried() {
    laboratory(|| {
        make_node();
        let pods = [2, 3].map(|number| {
            let pod = start_pod(number);
            serve_sctp(&pod.name);
            pod.address.to_string()
        });
        for mode in [ProxyMode::Iptables, ProxyMode::Ipvs] {
            carries_sctp(mode, &pods);
        }
    });
}

fn carries_sctp(mode: ProxyMode, pods: &[String; 2]) {
    let mut agent = agent(mode, vec![IpFamily::V4], Arc::default());
    observe(&mut agent, "SCTP", pods);
    agent.commit().unwrap();
    // IPVS takes turns; otherwise one of two stays unseen once in a thousand times.
    let calls = if mode == ProxyMode::Ipvs { 4 } else { 11 };
    let set = |pods: [&str; 2]| BTreeSet::from(pods.map(str::to_owned));
    let masqueraded = set(["pod-2 10.244.0.1", "pod-3 10.244.0.1"]);
    assert_eq!(callees("outside", CLUSTER_IP, calls), masqueraded, "{mode}");
    assert_eq!(callees("outside", NODE_PORT, calls), masqueraded, "{mode}");
    let hairpin = set(["pod-2 10.244.0.1", "pod-3 10.244.0.2"]);
    assert_eq!(callees("pod-2", CLUSTER_IP, calls), hairpin, "{mode}");
    // One endpoint less.
    observe(&mut agent, "SCTP", &pods[1..]);
    agent.commit().unwrap();
    let rest = BTreeSet::from(["pod-3 10.244.0.1".to_owned()]);
    assert_eq!(callees("outside", NODE_PORT, calls), rest, "{mode}");
}
