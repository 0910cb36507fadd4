//! Changes under traffic: nobody who calls may notice them, and nobody may be sent to what is gone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use roadstead_proxy::agent::Agent;
use roadstead_proxy::agent::config::{Config, Outputs};
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_testkit::lab::{NODE, PORT, call, start_pod};
use roadstead_testkit::netns::{inside, laboratory, make_node, run};
use roadstead_watch::informer::Change;
use serde_json::{Value, json};

/// The Service, and the port behind which connections are held open.
const ADDRESS: &str = "10.96.0.1";
const HOLD: u16 = 9090;
const OPEN: usize = 1_000;
/// Between two changes.
const TICK: Duration = Duration::from_millis(10);

fn vip(port: u16) -> SocketAddr {
    SocketAddr::new(ADDRESS.parse().unwrap(), port)
}

fn port(name: &str, protocol: &str, port: u16) -> Value {
    json!({"name": name, "protocol": protocol, "port": port})
}

fn new_agent() -> Agent {
    agent_of(ProxyMode::default())
}

fn agent_of(mode: ProxyMode) -> Agent {
    let config = Config { node_name: NODE.into(), mode, ..Config::default() };
    let mut agent = Agent::new(config, Outputs::default()).unwrap();
    let service = json!({
        "metadata": {"namespace": "default", "name": "web"},
        "spec": {"clusterIP": ADDRESS, "clusterIPs": [ADDRESS],
            "ports": [port("tcp", "TCP", 80), port("udp", "UDP", 80), port("hold", "TCP", 81)]},
    });
    agent.observe_service(&Change::Set(serde_json::from_value(service).unwrap()));
    agent
}

/// Makes these the endpoints of the Service.
fn set(agent: &mut Agent, addresses: &[String]) {
    observe(agent, "web", addresses);
    agent.commit().unwrap();
}

fn observe(agent: &mut Agent, service: &str, addresses: &[String]) {
    let endpoint = |address: &String| json!({"addresses": [address], "nodeName": NODE, "conditions": {"ready": true}});
    let slice = json!({
        "metadata": {"namespace": "default", "name": service,
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [port("tcp", "TCP", PORT), port("udp", "UDP", PORT), port("hold", "TCP", HOLD)],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    });
    agent.observe_slice(&Change::Set(serde_json::from_value(slice).unwrap()));
}

/// Clients outside and in a pod that call the Service until told to stop, and count their calls.
fn callers<'scope>(
    scope: &'scope Scope<'scope, '_>,
    stop: &'scope AtomicBool,
) -> [ScopedJoinHandle<'scope, usize>; 2] {
    ["outside", "pod-2"].map(|place| {
        scope.spawn(move || {
            let mut calls = 0;
            while !stop.load(Ordering::Relaxed) {
                inside(place, || call("TCP", vip(80))).unwrap();
                calls += 1;
            }
            calls
        })
    })
}

/// A client that asks over UDP, always from the same port, so that the kernel keeps its flow.
struct Sticky(UdpSocket);

/// Two pods, the first of which serves, and a client in a third.
fn two_pods() -> ([String; 2], Agent, Sticky) {
    make_node();
    let pods = [2, 3].map(|number| start_pod(number).address.to_string());
    start_pod(4);
    let mut agent = new_agent();
    set(&mut agent, &pods[..1]);
    let socket = inside("pod-4", || UdpSocket::bind("0.0.0.0:4000").unwrap());
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    (pods, agent, Sticky(socket))
}

impl Sticky {
    /// The pod that answers, as soon as it is the wanted one. Flows are forgotten right after the
    /// commit, on a thread of their own.
    fn soon(&self, want: Option<&str>) -> Option<String> {
        let started = Instant::now();
        loop {
            let answer = self.ask();
            if answer.as_deref() == want || started.elapsed() > Duration::from_secs(2) {
                return answer;
            }
        }
    }

    fn ask(&self) -> Option<String> {
        self.0.send_to(b"hello", vip(80)).ok()?;
        let mut buffer = [0; 64];
        let length = self.0.recv(&mut buffer).ok()?;
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        text.split(' ').next().map(str::to_owned)
    }
}

/// A flow must be moved when its target goes, and when the first one comes.
#[test]
fn datagrams_follow_their_service() {
    laboratory(|| {
        let ([here, there], mut agent, client) = two_pods();
        for (addresses, want) in [
            (vec![here.clone()], Some("pod-2")),
            (vec![there.clone()], Some("pod-3")),
            (vec![], None),
            (vec![here.clone()], Some("pod-2")),
            (vec![here, there], Some("pod-2")),
        ] {
            set(&mut agent, &addresses);
            assert_eq!(client.soon(want).as_deref(), want, "{addresses:?}");
        }
    });
}

/// What changed while no proxy ran is not known to anybody, but where a flow may go is.
#[test]
fn datagrams_follow_after_a_restart() {
    laboratory(|| {
        let ([here, there], agent, client) = two_pods();
        assert_eq!(client.soon(Some("pod-2")).as_deref(), Some("pod-2"));
        drop(agent);
        let mut successor = new_agent();
        set(&mut successor, &[here, there.clone()]);
        assert_eq!(client.ask().as_deref(), Some("pod-2"), "it may stay");
        drop(successor);
        let mut successor = new_agent();
        set(&mut successor, &[there]);
        assert_eq!(client.soon(Some("pod-3")).as_deref(), Some("pod-3"), "nobody is there");
    });
}

/// The kernel refuses a change at first: the flows stay where they are, and move when it is taken.
#[test]
fn datagrams_follow_after_a_refusal() {
    laboratory(|| {
        let ([_, there], mut agent, client) = two_pods();
        let leads_to = |pod: &str| client.soon(Some(pod)).as_deref() == Some(pod);
        assert!(leads_to("pod-2"));
        // Somebody puts an element where ours has to go: the kernel calls that busy.
        run("nft add element ip kube-proxy service-ips '{ 10.96.0.9 . tcp . 80 : 7:7 }'");
        let next = json!({
            "metadata": {"namespace": "default", "name": "next"},
            "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
                "ports": [port("tcp", "TCP", 80)]},
        });
        agent.observe_service(&Change::Set(serde_json::from_value(next).unwrap()));
        observe(&mut agent, "next", std::slice::from_ref(&there));
        observe(&mut agent, "web", &[there]);
        agent.commit().unwrap_err();
        assert!(leads_to("pod-2"), "the last good state serves");
        agent.commit().unwrap();
        assert!(leads_to("pod-3"), "the flow has moved");
    });
}

/// Endpoints come and go a hundred times a second, then the proxy is replaced ten times, while a
/// thousand connections are open; nobody may notice. `ROADSTEAD_CHURN_SECONDS` makes it longer.
#[test]
fn no_request_is_lost() {
    laboratory(|| {
        make_node();
        let names = [2, 3, 4].map(start_pod);
        let pods = names.each_ref().map(|pod| pod.address.to_string());
        let held: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        names.iter().for_each(|pod| hold(&pod.name, held.clone()));
        let seconds = std::env::var("ROADSTEAD_CHURN_SECONDS").ok().and_then(|s| s.parse().ok());
        let changes: usize = 100 * seconds.unwrap_or(3);
        let mut agent = new_agent();
        set(&mut agent, &pods);
        let open: Vec<_> =
            (0..OPEN).map(|_| inside("outside", || TcpStream::connect(vip(81)).unwrap())).collect();
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients = callers(scope, stop);
            let begin = Instant::now();
            for (change, due) in (0..changes).zip(1..) {
                // Never the same two in a row, never none.
                let gone = change % 4;
                let present = pods.iter().enumerate().filter(|(number, _)| *number != gone);
                set(&mut agent, &present.map(|(_, pod)| pod.clone()).collect::<Vec<_>>());
                std::thread::sleep((TICK * due).saturating_sub(begin.elapsed()));
            }
            let per_second = changes as f64 / begin.elapsed().as_secs_f64();
            for _ in 0..10 {
                drop(agent);
                agent = new_agent();
                set(&mut agent, &pods);
                std::thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, Ordering::Relaxed);
            let calls: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
            eprintln!(
                "{changes} changes, {per_second:.0} per second, 10 restarts, {OPEN} open connections: \
                 {calls} calls, none failed"
            );
            assert!(calls > changes, "only {calls} calls were made");
        });
        still_alive(&held.lock().unwrap(), &open);
    });
}

/// The mode changes and changes back under open connections and new ones; nobody may notice.
#[test]
fn a_change_of_mode_breaks_nothing() {
    laboratory(|| {
        make_node();
        let names = [2, 3].map(start_pod);
        let pods = names.each_ref().map(|pod| pod.address.to_string());
        let held: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        names.iter().for_each(|pod| hold(&pod.name, held.clone()));
        let mut agent = new_agent();
        set(&mut agent, &pods);
        let mut open = Vec::new();
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients = callers(scope, stop);
            for mode in
                [ProxyMode::Iptables, ProxyMode::Nftables, ProxyMode::Iptables, ProxyMode::Nftables]
            {
                let connect = || TcpStream::connect(vip(81)).unwrap();
                open.extend((0..OPEN / 4).map(|_| inside("outside", connect)));
                drop(agent);
                agent = agent_of(mode);
                set(&mut agent, &pods);
                let tables = run("nft list tables | grep -c kube-proxy; true");
                assert_eq!(tables != "0", mode == ProxyMode::Nftables, "only one mode has rules");
                std::thread::sleep(Duration::from_millis(200));
            }
            stop.store(true, Ordering::Relaxed);
            let calls: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
            assert!(calls > 20, "only {calls} calls were made");
        });
        still_alive(&held.lock().unwrap(), &open);
    });
}

/// Takes connections in a namespace and keeps them.
fn hold(namespace: &str, held: Arc<Mutex<Vec<TcpStream>>>) {
    let listener = inside(namespace, || TcpListener::bind(("::", HOLD)).unwrap());
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            held.lock().unwrap().push(connection);
        }
    });
}

/// What a server says now reaches its client, and the other way round.
fn still_alive(servers: &[TcpStream], clients: &[TcpStream]) {
    assert_eq!(servers.len(), OPEN);
    servers.iter().for_each(|mut server| server.write_all(b"?").unwrap());
    for mut client in clients {
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        client.read_exact(&mut [0]).unwrap();
        client.write_all(b"!").unwrap();
    }
    for mut server in servers {
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        server.read_exact(&mut [0]).unwrap();
    }
}
