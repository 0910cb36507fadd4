//! DNS as pods see it: their resolv.conf, names that resolve when they are acknowledged, searches
//! that cost one round trip, and a disk that is full.

use std::fs;
use std::io;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};
use serde_json::json;

use crate::process::Roadstead;

const SECOND: Duration = Duration::from_secs(1);
const DNS: &str = "10.96.0.10";

const PODS: &str = "
apiVersion: v1
kind: Service
metadata: {name: nest}
spec: {clusterIP: None, selector: {app: bird}}
---
apiVersion: v1
kind: Pod
metadata: {name: plain}
spec: {containers: [{name: c, image: roadstead/echo}]}
---
apiVersion: v1
kind: Pod
metadata: {name: owl, labels: {app: bird}}
spec:
  hostname: owl
  subdomain: nest
  dnsConfig: {searches: [lan], options: [{name: ndots, value: '2'}, {name: edns0}]}
  containers: [{name: c, image: roadstead/echo}]
---
apiVersion: v1
kind: Pod
metadata: {name: own}
spec:
  dnsPolicy: None
  dnsConfig: {nameservers: [192.0.2.9], searches: [a.example]}
  containers: [{name: c, image: roadstead/echo}]
---
apiVersion: v1
kind: Pod
metadata: {name: outer}
spec: {dnsPolicy: Default, containers: [{name: c, image: roadstead/echo}]}
";

/// A name server for the rest of the world, where www.example.com has an IPv4 address and nothing
/// else exists; the laboratory's resolv.conf leads to it.
pub(crate) fn the_world() {
    let socket = UdpSocket::bind("127.0.0.53:53").unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((_, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&reply(&buffer), peer);
        }
    });
    let path = "/run/world.conf";
    fs::write(path, "search corp.example\nnameserver 127.0.0.53\n").unwrap();
    // Pods that start in the second in which it is written might have an older one.
    run(&format!("touch -d '1 hour ago' {path} && mount --bind {path} /etc/resolv.conf"));
}

fn reply(query: &[u8]) -> Vec<u8> {
    const WWW: &[u8] = b"\x03www\x07example\x03com\0";
    let name = query[12..].iter().position(|byte| *byte == 0).unwrap() + 13;
    let exists = query[12..name].eq_ignore_ascii_case(WWW);
    let has = exists && query[name..name + 2] == [0, 1];
    let code = if exists { 0x80 } else { 0x83 };
    let mut bytes = query[..2].to_vec();
    bytes.extend([0x81, code, 0, 1, 0, u8::from(has), 0, u8::from(!has), 0, 0]);
    bytes.extend(&query[12..name + 4]);
    if has {
        bytes.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\xc0\0\x02\x50");
    } else {
        bytes.extend(b"\0\0\x06\0\x01\0\0\0\x3c\0\x16\0\0");
        bytes.extend([0, 0, 0, 60].repeat(5));
    }
    bytes
}

fn address(kubectl: &Kubectl, pod: &str) -> String {
    kubectl.run(&format!("get pod {pod} -o jsonpath='{{.status.podIP}}'"))
}

/// A process of a pod, by its address, which is in the pod's own /etc/hosts only.
fn process(address: &str) -> String {
    let hosts = "/proc/[0-9]*/root/etc/hosts";
    run(&format!("grep -ls '^{address}[[:space:]]' {hosts} | head -n 1 | cut -d/ -f3"))
}

/// A file as a pod sees it, its lines joined.
fn file(kubectl: &Kubectl, pod: &str, path: &str) -> String {
    let process = process(&address(kubectl, pod));
    let text = fs::read_to_string(format!("/proc/{process}/root{path}")).unwrap();
    text.trim_end().replace('\n', " | ")
}

/// Runs a program of this machine with the network and the resolv.conf of a pod.
fn inside(kubectl: &Kubectl, pod: &str, command: &str) -> String {
    let process = process(&address(kubectl, pod));
    let conf = format!("/proc/{process}/root/etc/resolv.conf");
    run(&format!(
        "cat {conf} > /run/resolv.conf && unshare -m sh -c 'mount --bind /run/resolv.conf \
         /etc/resolv.conf && nsenter -t {process} -n {command}'"
    ))
}

#[test]
fn pods_have_dns_by_themselves() {
    laboratory_of("L5", || {
        the_world();
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.apply(PODS);
        kubectl.run("wait --for=condition=Ready --timeout=60s pod plain owl own outer");
        configured(&kubectl);
        named(&kubectl);
        searched(&kubectl);
    });
}

fn configured(kubectl: &Kubectl) {
    let cluster = "default.svc.cluster.local svc.cluster.local cluster.local corp.example";
    let cases = [
        ("plain", format!("search {cluster} | nameserver {DNS} | options ndots:5")),
        ("owl", format!("search {cluster} lan | nameserver {DNS} | options ndots:2 edns0")),
        ("own", "search a.example | nameserver 192.0.2.9".into()),
        ("outer", "search corp.example | nameserver 127.0.0.53".into()),
    ];
    for (pod, want) in cases {
        assert_eq!(file(kubectl, pod, "/etc/resolv.conf"), want, "{pod}");
    }
    let hosts = file(kubectl, "owl", "/etc/hosts");
    let own = format!("{}\towl.nest.default.svc.cluster.local\towl", address(kubectl, "owl"));
    assert!(hosts.contains(&own), "{hosts}");
}

/// By the pod's own resolver, through the ClusterIP of kube-dns.
fn named(kubectl: &Kubectl) {
    let owl = address(kubectl, "owl");
    for name in ["owl.nest", "nest", "owl.nest.default.svc.cluster.local"] {
        let text = inside(kubectl, "plain", &format!("getent ahostsv4 {name}"));
        assert!(text.starts_with(&owl), "{name}: {text}");
    }
}

/// How many queries the server has had.
fn queries() -> u64 {
    let sum = "awk '/^coredns_dns_requests_total/ {sum += $2} END {print sum + 0}'";
    run(&format!("curl -s http://127.0.0.1:9153/metrics | {sum}")).parse().unwrap()
}

/// A name from outside costs a pod one round trip, and others as many as before.
fn searched(kubectl: &Kubectl) {
    let lookup = "getent ahostsv4 www.example.com";
    let count = |pod: &str| {
        let before = queries();
        let text = inside(kubectl, pod, lookup);
        assert!(text.contains("192.0.2.80"), "{pod}: {text}");
        queries() - before
    };
    // It is helped some time after it has become known, whatever it asks until then.
    eventually("the pod is helped", 40 * SECOND, || count("plain"), |count| *count == 1);
    assert_eq!(count("owl"), 1, "with as many dots as it wants, it is asked as it is");
    // The same list, but from an address that is not a pod's.
    let conf = format!(
        "search default.svc.cluster.local svc.cluster.local cluster.local corp.example\n\
         nameserver {DNS}\noptions ndots:5\n"
    );
    fs::write("/run/resolv.conf", conf).unwrap();
    let before = queries();
    run(&format!("unshare -m sh -c 'mount --bind /run/resolv.conf /etc/resolv.conf && {lookup}'"));
    assert_eq!(queries() - before, 5, "as many as there are names");
}

/// A client of the admin's.
pub(crate) async fn client(roadstead: &Roadstead) -> Client {
    let kubeconfig = Kubeconfig::read_from(roadstead.kubeconfig()).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Asks once; returns the code and the last four bytes, which are the address.
fn ask(name: &str) -> (u8, [u8; 4]) {
    try_ask(name).expect("DNS answers")
}

/// The same when the server may not be there yet.
fn try_ask(name: &str) -> io::Result<(u8, [u8; 4])> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.set_read_timeout(Some(2 * SECOND))?;
    let mut query = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).unwrap());
        query.extend(label.as_bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    socket.send_to(&query, (DNS, 53))?;
    let mut buffer = [0; 512];
    let (length, _) = socket.recv_from(&mut buffer)?;
    let last = buffer[length - 4..length].try_into().unwrap();
    Ok((buffer[3] & 15, last))
}

fn dns_answers(name: &str) {
    let code = || try_ask(name).map(|(code, _)| code).ok();
    eventually("DNS answers", 5 * SECOND, code, |code| *code == Some(0));
}

#[test]
fn a_service_resolves_when_it_is_acknowledged() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up_ephemeral();
        let kubectl = roadstead.kubectl();
        dns_answers("kubernetes.default.svc.cluster.local");
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let services: Api<Service> = Api::default_namespaced(client(&roadstead).await);
            for n in 0..100 {
                let name = format!("s{n}");
                let object = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
                let object = serde_json::from_value(object).unwrap();
                let created = services.create(&PostParams::default(), &object).await.unwrap();
                let found = ask(&format!("{name}.default.svc.cluster.local"));
                let ip = created.spec.as_ref().and_then(|spec| spec.cluster_ip.clone()).unwrap();
                let want: std::net::Ipv4Addr = ip.parse().unwrap();
                assert_eq!(found, (0, want.octets()), "{}", created.name_any());
            }
        });
        // And by hand.
        for n in 0..3 {
            kubectl.run(&format!("create service clusterip hand{n} --tcp=80"));
            let text = run(&format!("dig +short @{DNS} hand{n}.default.svc.cluster.local"));
            assert!(text.starts_with("10."), "hand{n}: {text}");
        }
    });
}

#[test]
fn dns_goes_on_when_the_disk_is_full() {
    laboratory_of("L5", || {
        let mut roadstead = Roadstead::up_on_a_small_disk(24);
        let kubectl = roadstead.kubectl();
        kubectl.run("create service clusterip web --tcp=80");
        let name = "web.default.svc.cluster.local";
        dns_answers(name);
        let median = || {
            let one = |_| {
                let began = Instant::now();
                assert_eq!(ask(name).0, 0);
                began.elapsed()
            };
            let mut times: Vec<_> = (0..200).map(one).collect();
            times.sort_unstable();
            times[100]
        };
        let before = median();
        let filler = roadstead.directory().join("filler");
        let _ = try_run(&format!("cat /dev/zero > {}", filler.display()));
        // Until nothing fits any more, each gets a little further.
        let refused = (0..50).find_map(|n| {
            let output = kubectl.try_run(&format!("create service clusterip more{n} --tcp=80"));
            (!output.status.success()).then(|| String::from_utf8_lossy(&output.stderr).into_owned())
        });
        let refused = refused.expect("the disk is full");
        assert!(refused.contains("read-only"), "{refused}");
        let after = median();
        assert!(after < (before * 10).max(Duration::from_millis(5)), "{after:?}, not {before:?}");
        assert_eq!(ask("nothing.default.svc.cluster.local").0, 3);
        assert!(roadstead.is_running());
        fs::remove_file(&filler).unwrap();
    });
}
