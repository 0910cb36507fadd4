//! What IPVS lists is what we compiled. All but one of these tests need a kernel that has IPVS;
//! `scripts/lab` runs them in one.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use std::{io, thread};

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::iptables::diff::Kept;
use roadstead_forwarding::ipvs::model::{Scheduler, Timeouts};
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_forwarding::service::{
    IpFamily, Locality, Protocol, ServicePort, ServicePortName, Target,
};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::agent::{Agent, ProxyError};
use roadstead_proxy::data_plane::{Committed, ProxyMode};
use roadstead_proxy::ipvs::{IpvsError, IpvsOptions, IpvsPlane};
use roadstead_testkit::netns::{inside, laboratory, make_node, make_pod, run};
use roadstead_watch::informer::Change;
use rustix::net::sockopt::set_socket_linger;
use serde_json::json;

fn table() -> ForwardingTable {
    let networks = vec!["10.0.0.0/8".parse().unwrap()];
    let node_network =
        NodeNetwork { detect_local: DetectLocal::Networks(networks), ..NodeNetwork::default() };
    ForwardingTable::new(IpFamily::V4, &node_network)
}

fn set(table: &mut ForwardingTable, name: &str, frontend: &str, targets: &str) {
    change(table, name, frontend, targets, |_| {});
}

fn change(
    table: &mut ForwardingTable,
    name: &str,
    frontend: &str,
    targets: &str,
    change: impl FnOnce(&mut ServicePort),
) {
    let frontend: SocketAddr = frontend.parse().unwrap();
    let target = |word: &str| {
        let socket: SocketAddr = word.parse().unwrap();
        Target { address: socket.ip(), port: socket.port(), locality: Locality::Elsewhere }
    };
    let mut port = ServicePort {
        port: frontend.port(),
        cluster_ips: vec![frontend.ip()],
        cluster: targets.split_whitespace().map(target).collect(),
        ..ServicePort::default()
    };
    change(&mut port);
    let name = ServicePortName {
        namespace: "week".into(),
        name: name.into(),
        port: String::new(),
        protocol: Protocol::Tcp,
    };
    table.replace(&ObjectKey::new("week", &*name.name), vec![(name, port)]);
}

/// Says that all service ports may have changed.
fn commit(plane: &mut IpvsPlane, table: &ForwardingTable) -> Result<Committed, IpvsError> {
    plane.commit(table, table.iter().map(|(name, _)| name.clone()).collect())
}

const TUTORIAL: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  172.16.73.164:80 rr
  -> 10.42.234.135:80             Masq    1      0          0         
  -> 10.208.67.129:80             Masq    1      0          0         
  -> 10.208.67.130:80             Masq    1      0          0";

const ENDPOINTS: &str = "10.208.67.129:80 10.208.67.130:80 10.42.234.135:80";

#[test]
#[ignore = "needs a kernel with IPVS, see scripts/lab"]
fn the_listing_of_the_tutorial() {
    laboratory(|| {
        let mut table = table();
        set(&mut table, "nginx-svc", "172.16.73.164:80", ENDPOINTS);
        let mut plane = IpvsPlane::open(IpFamily::V4, IpvsOptions::default()).unwrap();
        commit(&mut plane, &table).unwrap();
        assert_eq!(run("ipvsadm -ln"), TUTORIAL);
        assert!(run("ip -o address show dev kube-ipvs0").contains("172.16.73.164/32"));
        let link = run("ip -o link show kube-ipvs0");
        assert!(link.contains("NOARP") && link.contains("state DOWN"), "{link}");
        assert!(run("ipset list KUBE-CLUSTER-IP").contains("172.16.73.164,tcp:80"));
        // A successor finds everything as it should be, and so does somebody who asks again.
        let mut successor = IpvsPlane::open(IpFamily::V4, IpvsOptions::default()).unwrap();
        assert!(commit(&mut successor, &table).unwrap().whole);
        assert_eq!(run("ipvsadm -ln"), TUTORIAL);
        assert_eq!(commit(&mut successor, &table).unwrap().operations, 0);
        successor.remove(&Kept::nothing()).unwrap();
        assert_eq!(run("ipvsadm -Sn"), "");
        assert_eq!(
            run("ipset list -n; ip -o link | grep ipvs0; iptables-legacy-save | grep KUBE; true"),
            ""
        );
        successor.remove(&Kept::nothing()).unwrap();
    });
}

#[test]
#[ignore = "needs a kernel with IPVS, see scripts/lab"]
fn settings_reach_the_kernel() {
    laboratory(|| {
        let mut table = table();
        change(&mut table, "sticky", "10.96.0.1:80", ENDPOINTS, |port| {
            port.affinity = Some(Duration::from_secs(600));
        });
        let seconds = Duration::from_secs;
        let timeouts = Timeouts { tcp: seconds(901), tcp_fin: seconds(121), udp: seconds(301) };
        let options = IpvsOptions {
            scheduler: Scheduler::Maglev,
            timeouts,
            strict_arp: true,
            ..IpvsOptions::default()
        };
        let mut plane = IpvsPlane::open(IpFamily::V4, options.clone()).unwrap();
        commit(&mut plane, &table).unwrap();
        let listed = run("ipvsadm -Sn");
        let wanted = "-A -t 10.96.0.1:80 -s mh -p 600 -b mh-port";
        assert_eq!(listed.lines().next().unwrap(), wanted);
        assert_eq!(run("ipvsadm -l --timeout"), "Timeout (tcp tcpfin udp): 901 121 301");
        for (name, value) in [("vs/conntrack", "1"), ("conf/all/arp_ignore", "1")] {
            assert_eq!(run(&format!("cat /proc/sys/net/ipv4/{name}")), value, "{name}");
        }
        // Another scheduler, on the server that is there.
        let options = IpvsOptions { scheduler: Scheduler::LeastConnection, ..options };
        commit(&mut IpvsPlane::open(IpFamily::V4, options).unwrap(), &table).unwrap();
        assert!(run("ipvsadm -Sn").starts_with("-A -t 10.96.0.1:80 -s lc -p 600"));
    });
}

#[test]
#[ignore = "needs a kernel with IPVS, see scripts/lab"]
fn what_somebody_else_clears_comes_back() {
    laboratory(|| {
        let mut table = table();
        set(&mut table, "nginx-svc", "172.16.73.164:80", ENDPOINTS);
        let mut plane = IpvsPlane::open(IpFamily::V4, IpvsOptions::default()).unwrap();
        commit(&mut plane, &table).unwrap();
        assert!(plane.check().unwrap(), "nobody has done anything");
        let flush = "iptables-legacy -t nat -F; iptables-legacy -t nat -X";
        for damage in ["ipvsadm -C", flush] {
            let rules = run("iptables-legacy-save | grep -v '^[#:]'");
            run(damage);
            assert!(!plane.check().unwrap(), "{damage} must be noticed");
            commit(&mut plane, &table).unwrap();
            assert_eq!(run("ipvsadm -ln"), TUTORIAL, "{damage}");
            assert_eq!(run("iptables-legacy-save | grep -v '^[#:]'"), rules, "{damage}");
        }
        run("ipvsadm -d -t 172.16.73.164:80 -r 10.42.234.135:80");
        assert!(!plane.check().unwrap(), "a destination is missing");
        commit(&mut plane, &table).unwrap();
        assert_eq!(run("ipvsadm -ln"), TUTORIAL);
        // Elements come back without a word.
        run("ipset flush KUBE-CLUSTER-IP");
        assert!(plane.check().unwrap());
        assert!(run("ipset list KUBE-CLUSTER-IP").contains("172.16.73.164,tcp:80"));
    });
}

#[test]
#[ignore = "needs a kernel with IPVS, see scripts/lab"]
fn a_connection_outlives_its_endpoint() {
    laboratory(|| {
        make_node();
        let pods = echoing_pods();
        let mut table = table();
        let both = pods.map(|pod| pod.to_string()).join(" ");
        set(&mut table, "echo", "10.96.0.1:80", &both);
        let mut plane = IpvsPlane::open(IpFamily::V4, IpvsOptions::default()).unwrap();
        commit(&mut plane, &table).unwrap();
        let open = || inside("outside", || TcpStream::connect("10.96.0.1:80").unwrap());
        let mut connections = [open(), open()];
        let lists = |pod: &SocketAddr| run("ipvsadm -ln").contains(&pod.to_string());

        // The first endpoint goes: its connection stays, but it gets no more.
        set(&mut table, "echo", "10.96.0.1:80", &pods[1].to_string());
        commit(&mut plane, &table).unwrap();
        assert!(plane.check().unwrap() && lists(&pods[0]), "it drains");
        for connection in &mut connections {
            echo(connection).unwrap();
        }
        let later = [open(), open(), open()];
        let busy = run("ipvsadm -Ln | grep 10.244.0.3:80");
        assert!(busy.contains("Masq    1      4"), "all new ones go to the other: {busy}");

        // It comes back before it has drained, and goes again; a successor drains it, too.
        set(&mut table, "echo", "10.96.0.1:80", &both);
        commit(&mut plane, &table).unwrap();
        set(&mut table, "echo", "10.96.0.1:80", &pods[1].to_string());
        commit(&mut plane, &table).unwrap();
        let mut successor = IpvsPlane::open(IpFamily::V4, IpvsOptions::default()).unwrap();
        commit(&mut successor, &table).unwrap();
        assert!(lists(&pods[0]), "its connection is still there");
        echo(&mut connections[0]).unwrap();
        // A connection that ends well is remembered for two minutes, an aborted one for ten seconds.
        for connection in connections.iter().chain(&later) {
            set_socket_linger(connection, Some(Duration::ZERO)).unwrap();
        }
        drop((connections, later));
        let gone = (0..40).any(|_| {
            thread::sleep(Duration::from_millis(500));
            successor.check().unwrap();
            !lists(&pods[0])
        });
        assert!(gone, "it has drained: {}", run("ipvsadm -ln; ipvsadm -lnc"));
    });
}

/// An agent that serves 10.96.0.1:80 with two pods.
fn agent(mode: ProxyMode, pods: [SocketAddr; 2]) -> Agent {
    let networks = vec!["10.0.0.0/8".parse().unwrap()];
    let node_network =
        NodeNetwork { detect_local: DetectLocal::Networks(networks), ..NodeNetwork::default() };
    let families = vec![IpFamily::V4];
    let config = Config { mode, node_network, families, ipvs_fallback: false, ..Config::default() };
    let mut agent = Agent::new(config, Outputs::default()).unwrap();
    let endpoints = pods.map(|pod| json!({"addresses": [pod.ip()]}));
    let service = json!({
        "metadata": {"namespace": "week", "name": "echo"},
        "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": [{"port": 80}]},
    });
    let slice = json!({
        "metadata": {"namespace": "week", "name": "echo-1",
            "labels": {"kubernetes.io/service-name": "echo"}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 80}], "endpoints": endpoints,
    });
    agent.observe_service(&Change::Set(serde_json::from_value(service).unwrap()));
    agent.observe_slice(&Change::Set(serde_json::from_value(slice).unwrap()));
    agent.commit().unwrap();
    agent
}

#[test]
#[ignore = "needs a kernel with IPVS, see scripts/lab"]
fn a_connection_outlives_its_mode() {
    laboratory(|| {
        make_node();
        let pods = echoing_pods();
        drop(agent(ProxyMode::Ipvs, pods));
        let open = || inside("outside", || TcpStream::connect("10.96.0.1:80").unwrap());
        let mut old = [open(), open(), open()];
        let mut successor = agent(ProxyMode::Iptables, pods);
        let servers = run("ipvsadm -Ln");
        assert!(servers.contains("Masq    0      2"), "they get no more connections: {servers}");
        assert_eq!(run("ipset list -n"), "", "connections do not need the sets");
        let mut new = open();
        for connection in old.iter_mut().chain([&mut new]) {
            echo(connection).unwrap();
        }
        assert_eq!(run("ipvsadm -Lnc | grep -c ESTABLISHED"), "3", "the new one goes elsewhere");

        // Another one who comes meanwhile waits for the last connection, too.
        assert!(successor.is_intact());
        drop(successor);
        let mut last = agent(ProxyMode::Iptables, pods);
        old.iter_mut().for_each(|connection| echo(connection).unwrap());
        for connection in &old {
            set_socket_linger(connection, Some(Duration::ZERO)).unwrap();
        }
        drop(old);
        let gone = (0..40).any(|_| {
            thread::sleep(Duration::from_millis(500));
            assert!(last.is_intact());
            run("ipvsadm -Sn").is_empty()
        });
        assert!(gone, "nobody needs it any more: {}", run("ipvsadm -ln; ipvsadm -lnc"));
        assert!(!run("ip link").contains("kube-ipvs0"));
        echo(&mut new).unwrap();
        echo(&mut open()).unwrap();
    });
}

fn echoing_pods() -> [SocketAddr; 2] {
    [2, 3].map(|number| {
        let (name, address, _) = make_pod(number);
        let listener = inside(&name, || TcpListener::bind(("0.0.0.0", 80)).unwrap());
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                thread::spawn(move || io::copy(&mut &connection, &mut &connection));
            }
        });
        SocketAddr::new(address.into(), 80)
    })
}

fn echo(connection: &mut TcpStream) -> io::Result<()> {
    use std::io::{Read, Write};
    connection.set_read_timeout(Some(Duration::from_secs(3)))?;
    connection.write_all(b"hello")?;
    let mut answer = [0; 5];
    connection.read_exact(&mut answer)
}

#[test]
fn without_ipvs_iptables_takes_its_place() {
    laboratory(|| {
        let config =
            |ipvs_fallback| Config { mode: ProxyMode::Ipvs, ipvs_fallback, ..Config::default() };
        let there = Path::new("/proc/net/ip_vs").exists();
        let wanted = if there { ProxyMode::Ipvs } else { ProxyMode::Iptables };
        assert_eq!(Agent::new(config(true), Outputs::default()).unwrap().mode(), wanted);
        match Agent::new(config(false), Outputs::default()) {
            Ok(agent) => assert!(there && agent.mode() == ProxyMode::Ipvs),
            Err(ProxyError::Open { mode: ProxyMode::Ipvs, source }) => {
                assert!(!there && source.to_string().contains("no IPVS"), "{source}");
            }
            Err(other) => panic!("{other}"),
        }
    });
}

/// Virtual servers of others stay if the operator says which they are, and only then.
#[test]
#[ignore = "needs a kernel with IPVS, see scripts/lab"]
fn excluded_servers_stay() {
    laboratory(|| {
        run("ip link set lo up");
        run("ipvsadm -A -t 10.9.0.1:80 -s rr && ipvsadm -A -t 10.8.0.1:80 -s rr");
        let excluded = vec!["10.9.0.0/16".parse().unwrap()];
        let options = IpvsOptions { excluded, ..IpvsOptions::default() };
        let mut plane = IpvsPlane::open(IpFamily::V4, options).unwrap();
        plane.try_out().unwrap();
        let mut table = table();
        set(&mut table, "nginx-svc", "172.16.73.164:80", ENDPOINTS);
        commit(&mut plane, &table).unwrap();
        let listing = run("ipvsadm -ln");
        assert!(listing.contains("10.9.0.1:80") && !listing.contains("10.8.0.1:80"), "{listing}");
        assert!(plane.check().unwrap());
        run("ip address del 172.16.73.164/32 dev kube-ipvs0");
        assert!(!plane.check().unwrap(), "an address is missing");
        commit(&mut plane, &table).unwrap();
        assert!(plane.check().unwrap());
        plane.remove(&Kept::nothing()).unwrap();
        assert!(run("ipvsadm -ln").contains("10.9.0.1:80"));
    });
}

/// IPVS alone is not enough.
#[test]
#[ignore = "needs a kernel with IPVS, see scripts/lab"]
fn a_kernel_without_the_scheduler() {
    laboratory(|| {
        let ipvs = IpvsOptions { scheduler: Scheduler::NeverQueue, ..IpvsOptions::default() };
        let config = |ipvs_fallback| Config {
            mode: ProxyMode::Ipvs,
            ipvs_fallback,
            ipvs: ipvs.clone(),
            ..Config::default()
        };
        assert_eq!(
            Agent::new(config(true), Outputs::default()).unwrap().mode(),
            ProxyMode::Iptables
        );
        let error = Agent::new(config(false), Outputs::default()).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("lacks the scheduler nq"), "{source}");
        assert!(!run("ip link").contains("kube-ipvs0"), "nothing is left behind");
    });
}
