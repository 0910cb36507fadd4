//! The thin thread: from `kubectl apply` to packets and DNS answers.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run};

use crate::process::Roadstead;

const SECOND: Duration = Duration::from_secs(1);

/// One HTTP request over a connection of its own; the body of the answer.
fn get(address: &str, path: &str) -> std::io::Result<String> {
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, 2 * SECOND)?;
    stream.set_read_timeout(Some(2 * SECOND))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    Ok(body.trim().to_owned())
}

/// The names and addresses of the pods of the deployment.
fn pods(kubectl: &Kubectl) -> BTreeMap<String, String> {
    let path = "{range .items[*]}{.metadata.name} {.status.podIP}{\"\\n\"}{end}";
    let text = kubectl.run(&format!("get pods -l app=web -o jsonpath='{path}'"));
    let pair = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
    text.lines().filter_map(pair).collect()
}

/// The addresses that the slices call ready.
fn ready(kubectl: &Kubectl) -> String {
    let path = "{range .items[*].endpoints[?(@.conditions.ready==true)]}{.addresses[0]} {end}";
    let selector = "-l kubernetes.io/service-name=web";
    kubectl.run(&format!("get endpointslices {selector} -o jsonpath='{path}'"))
}

fn kernel() -> String {
    run("nft list map ip kube-proxy endpoints")
}

#[test]
fn from_apply_to_a_packet_and_a_dns_answer() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.apply("../../examples/web.yaml");
        let done = kubectl.run("rollout status deployment/web --timeout=60s");
        assert!(done.contains("successfully rolled out"), "{done}");
        let log = roadstead.log();
        assert!(!log.contains("WARN"), "a first start gives no reason to worry: {log}");
        let service = kubectl.run("get service web -o jsonpath='{.spec.clusterIP}'");
        let frontend = format!("{service}:80");
        eventually("the proxy knows", 2 * SECOND, || get(&frontend, "/").is_ok(), |ok| *ok);

        spread_evenly(&kubectl, &service);
        named(&kubectl, &service);
        // A pod reaches the Service by name, with the image's own client and the cluster's DNS.
        failing_probe(&kubectl, &frontend);
        deleted_pod(&kubectl, &frontend);
    });
}

fn spread_evenly(kubectl: &Kubectl, service: &str) {
    let answers = run(&format!("for i in $(seq 300); do curl -s -m 2 http://{service}/; done"));
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    answers.lines().for_each(|pod| *counts.entry(pod).or_default() += 1);
    assert_eq!(counts.values().sum::<u32>(), 300, "every request was answered");
    let names: Vec<_> = pods(kubectl).into_keys().collect();
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), names);
    assert!(counts.values().all(|count| (60..=140).contains(count)), "{counts:?}");
    eprintln!("300 requests: {counts:?}");
}

fn named(kubectl: &Kubectl, service: &str) {
    let dns = kubectl.run("get service -n kube-system kube-dns -o jsonpath='{.spec.clusterIP}'");
    let endpoints = kubectl.run("get endpoints -n kube-system kube-dns --no-headers");
    assert!(endpoints.contains("10.244.0.1:53"), "{endpoints}");
    let answer = run(&format!("nslookup web.default.svc.cluster.local {dns}"));
    assert!(answer.contains(&format!("Address: {service}")), "{answer}");
    let output = run(&format!("dig +tcp +short @{dns} web.default.svc.cluster.local"));
    assert_eq!(output, *service);
}

/// A pod whose probe fails gets no more connections, and no request fails meanwhile.
fn failing_probe(kubectl: &Kubectl, frontend: &str) {
    let (name, address) = pods(kubectl).pop_first().unwrap();
    get(&format!("{address}:8080"), "/fail").unwrap();
    let begin = Instant::now();
    let mut requests = 0;
    let condition = "{.status.conditions[?(@.type==\"Ready\")].status}";
    eventually(
        "the probe has failed",
        3 * SECOND,
        || kubectl.run(&format!("get pod {name} -o jsonpath='{condition}'")),
        |status| status == "False",
    );
    let failed = Instant::now();
    eventually("out of the slice", SECOND, || ready(kubectl), |text| !text.contains(&address));
    eventually("out of the kernel", SECOND, kernel, |text| !text.contains(&address));
    eprintln!(
        "probe failed after {:?}, out of the kernel {:?} later",
        failed - begin,
        failed.elapsed()
    );
    while failed.elapsed() < 2 * SECOND {
        let answer = get(frontend, "/").expect("no request fails");
        assert_ne!(answer, name, "no request reaches the pod that failed its probe");
        requests += 1;
    }
    assert!(requests > 20, "only {requests} requests");
    get(&format!("{address}:8080"), "/ok").unwrap();
    eventually("back in the slice", 5 * SECOND, || ready(kubectl), |text| text.contains(&address));
}

/// A pod that is deleted is replaced, and no request fails meanwhile.
fn deleted_pod(kubectl: &Kubectl, frontend: &str) {
    let (name, address) = pods(kubectl).pop_first().unwrap();
    kubectl.run(&format!("delete pod {name} --wait=false"));
    let begin = Instant::now();
    eventually("out of the slice", SECOND, || ready(kubectl), |text| !text.contains(&address));
    eventually("out of the kernel", SECOND, kernel, |text| !text.contains(&address));
    eprintln!("deleted pod out of the kernel after {:?}", begin.elapsed());
    while begin.elapsed() < 4 * SECOND {
        assert_ne!(get(frontend, "/").expect("no request fails"), name);
    }
    let pods = pods(kubectl);
    assert!(pods.len() == 3 && !pods.contains_key(&name), "{pods:?}");
}
