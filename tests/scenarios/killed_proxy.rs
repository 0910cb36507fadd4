//! The proxy dies again and again, without a word, while clients talk: what it has written stays in
//! the kernel, and its successor changes nothing, so that nobody may notice.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use roadstead_testkit::netns::{inside, laboratory_of, make_node, make_pod, run};

use crate::process::Roadstead;
use crate::proxy::{PATIENCE, Proxy, set_status};

/// How often the proxy is killed.
const KILLS: u64 = 12;
/// How many connections are open meanwhile.
const OPEN: usize = 1_000;
/// Between two calls of a client, or else it runs out of ports.
const PAUSE: Duration = Duration::from_millis(2);

const CLUSTER_IP: &str = "10.96.0.80:80";
const NODE_PORT: &str = "192.168.7.1:30080";

const MANIFEST: &str = "
apiVersion: v1
kind: Node
metadata: {name: node-1}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {type: NodePort, clusterIP: 10.96.0.80, ports: [{port: 80, nodePort: 30080, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-1, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{name: '', port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.0.2], nodeName: node-1}, {addresses: [10.244.0.3], nodeName: node-1}]
";

#[test]
fn killing_the_proxy_breaks_nothing_with_nftables() {
    laboratory_of("L5", || kill_under_traffic("nftables"));
}

#[test]
fn killing_the_proxy_breaks_nothing_with_iptables() {
    laboratory_of("L5", || kill_under_traffic("iptables"));
}

fn kill_under_traffic(mode: &str) {
    make_node();
    [2, 3, 4].into_iter().for_each(|number| drop(make_pod(number)));
    ["pod-2", "pod-3"].into_iter().for_each(echo);
    let server = Roadstead::apiserver();
    let kubectl = server.kubectl();
    kubectl.apply(MANIFEST);
    let address = serde_json::json!({"type": "InternalIP", "address": "192.168.7.1"});
    set_status(&kubectl, "/api/v1/nodes/node-1", &serde_json::json!({"addresses": [address]}));
    let flags = format!(
        "--kubeconfig {} --hostname-override node-1 --cluster-cidr 10.244.0.0/16 --proxy-mode {mode}",
        server.kubeconfig().display()
    );
    let start = || Proxy::launch(None, &server.kubeconfig(), &flags);
    let mut proxy = start();
    proxy.wait_until_serving();
    let before = rules();
    assert!(before.contains("10.96.0.80"), "{before}");
    let open: Vec<_> = (0..OPEN).map(connect).collect();
    let stop = &AtomicBool::new(false);
    thread::scope(|scope| {
        let talk = scope.spawn(|| talk(&open, stop));
        let calls = callers(scope, stop);
        for number in 0..KILLS {
            proxy.kill();
            thread::sleep(Duration::from_millis(50));
            proxy = start();
            // Every third one dies young, before it serves, at whatever it is just doing.
            match number % 3 {
                2 => thread::sleep(Duration::from_millis(8 * number)),
                _ => proxy.wait_until_serving(),
            }
        }
        proxy.wait_until_serving();
        stop.store(true, Ordering::Relaxed);
        let laps = talk.join().unwrap();
        let (calls, longest): (Vec<usize>, Vec<_>) =
            calls.into_iter().map(|caller| caller.join().unwrap()).unzip();
        eprintln!(
            "{mode}: {KILLS} kills, {OPEN} open connections that talked {laps} times each, new ones: \
             {calls:?}, none failed, longest {longest:?}"
        );
        // A connection that met no rules at first is tried again after a second.
        assert!(longest.iter().all(|longest| *longest < Duration::from_secs(1)), "{longest:?}");
        assert!(laps > 1 && calls.iter().all(|calls| *calls > 100), "{laps} {calls:?}");
    });
    assert_eq!(rules(), before, "the successors changed nothing");
}

/// All rules of the kernel, whoever shows them, without their counters.
fn rules() -> String {
    let rules = run("nft list ruleset | sed 's/packets [0-9]* bytes [0-9]*//'; iptables-save");
    let lines = rules.lines().filter(|line| !line.starts_with(['#', ':']));
    lines.collect::<Vec<_>>().join("\n")
}

/// Answers in a pod with whatever it hears.
fn echo(pod: &str) {
    let listener = inside(pod, || TcpListener::bind("0.0.0.0:8080").unwrap());
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut &connection, &mut &connection));
        }
    });
}

fn dial(frontend: &str) -> TcpStream {
    let frontend: SocketAddr = frontend.parse().unwrap();
    let stream = TcpStream::connect_timeout(&frontend, PATIENCE)
        .unwrap_or_else(|error| panic!("{frontend}: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The open connections come from outside and from a pod, to both frontends.
fn connect(number: usize) -> TcpStream {
    match number % 3 {
        0 => inside("outside", || dial(CLUSTER_IP)),
        1 => inside("outside", || dial(NODE_PORT)),
        _ => inside("pod-4", || dial(CLUSTER_IP)),
    }
}

fn exchange(mut stream: &TcpStream, word: &[u8; 8]) {
    let mut answer = [0; 8];
    stream.write_all(word).and_then(|()| stream.read_exact(&mut answer)).unwrap();
    assert_eq!(answer, *word);
}

/// Uses every open connection, one after the other, until told to stop; returns how often.
fn talk(open: &[TcpStream], stop: &AtomicBool) -> u64 {
    let mut laps = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        open.iter().for_each(|stream| exchange(stream, &laps.to_be_bytes()));
        laps += 1;
    }
    open.iter().for_each(|stream| exchange(stream, b"goodbye!"));
    laps
}

/// Clients that make new connections until told to stop; each says how many, and how long the
/// slowest one took.
fn callers<'scope>(
    scope: &'scope Scope<'scope, '_>,
    stop: &'scope AtomicBool,
) -> Vec<ScopedJoinHandle<'scope, (usize, Duration)>> {
    let places = [("outside", CLUSTER_IP), ("outside", NODE_PORT), ("pod-4", CLUSTER_IP)];
    let caller =
        |(place, frontend)| scope.spawn(move || inside(place, || call_until(frontend, stop)));
    places.into_iter().map(caller).collect()
}

fn call_until(frontend: &str, stop: &AtomicBool) -> (usize, Duration) {
    let (mut calls, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let begin = Instant::now();
        exchange(&dial(frontend), b"new here");
        longest = longest.max(begin.elapsed());
        calls += 1;
        thread::sleep(PAUSE);
    }
    (calls, longest)
}
