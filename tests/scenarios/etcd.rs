//! Two API servers in front of one etcd, and the real kubectl: what is written by one is read by the other;
//! a server that is killed leaves nothing behind but its clients, who go on at the other; without etcd
//! nobody is ready, and afterwards nothing is lost.

mod operating;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use roadstead_testkit::etcd::Etcd;
use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::is_left_out;

use crate::process::Roadstead;

const SOON: Duration = Duration::from_secs(20);

/// A server of the cluster in this etcd; all have the keys of the first.
fn server(etcd: &Etcd, first: Option<&Roadstead>) -> Roadstead {
    let directory = tempfile::tempdir().unwrap();
    if let Some(first) = first {
        let copied = std::process::Command::new("cp")
            .arg("-r")
            .arg(first.directory().join("data/pki"))
            .arg({
                std::fs::create_dir(directory.path().join("data")).unwrap();
                directory.path().join("data/pki")
            })
            .status();
        assert!(copied.unwrap().success());
    }
    let servers = etcd.urls().join(",");
    Roadstead::start_in(
        directory,
        &format!("apiserver --listen 127.0.0.1:0 --etcd-servers {servers}"),
    )
}

fn map(name: &str, value: &str) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{a: {value}}}}}")
}

fn value(kubectl: &Kubectl, name: &str) -> String {
    kubectl.run(&format!("get configmap {name} -o jsonpath='{{.data.a}}'"))
}

/// `kubectl get --watch`, line by line.
struct Following {
    child: Child,
    lines: Receiver<String>,
}

impl Following {
    fn start(kubectl: &Kubectl, command: &str) -> Self {
        let mut child = kubectl.command(command).stdout(Stdio::piped()).spawn().unwrap();
        let output: ChildStdout = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    #[track_caller]
    fn next(&self) -> String {
        self.lines.recv_timeout(SOON).expect("an event comes")
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_servers_in_front_of_one_etcd() {
    if is_left_out("L5") {
        return;
    }
    let Some(mut etcd) = Etcd::start(1) else { return };
    let mut one = server(&etcd, None);
    let other = server(&etcd, Some(&one));
    let (first, second) = (one.kubectl(), other.kubectl());

    // What is written by one is what the other answers, at once and every time.
    for round in 0..10 {
        first.apply(&map("shared", &format!("r{round}")));
        assert_eq!(value(&second, "shared"), format!("r{round}"));
    }
    second.run("delete configmap shared");
    assert!(first.fails("get configmap shared").contains("NotFound"));
    // Rights, kinds and namespaces that one has made hold at the other in the next moment.
    first.run("create namespace shop");
    second.run("-n shop create configmap a --from-literal=a=b");
    first.run("create clusterrole reader --verb=get --resource=configmaps");
    first.run("create clusterrolebinding readers --clusterrole=reader --user=jane");
    assert_eq!(second.run("auth can-i get configmaps --as jane -n shop").trim(), "yes");
    second.run("-n shop get configmap a --as jane");
    // No address is given out twice.
    let mut addresses: Vec<_> = (0..10)
        .map(|at| {
            let kubectl = if at % 2 == 0 { &first } else { &second };
            kubectl.run(&format!("create service nodeport s{at} --tcp=80"));
            kubectl.run(&format!(
                "get service s{at} -o jsonpath='{{.spec.clusterIP}}:{{.spec.ports[0].nodePort}}'"
            ))
        })
        .collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 10, "{addresses:?}");

    // A watch of the one that is killed goes on at the other, from where it was.
    first.apply(&map("watched", "v0"));
    let revision = first.run("get configmap watched -o jsonpath='{.metadata.resourceVersion}'");
    let path = |after: &str| {
        let query =
            format!("watch=true&fieldSelector=metadata.name=watched&resourceVersion={after}");
        format!("get --raw '/api/v1/namespaces/default/configmaps?{query}'")
    };
    let here = Following::start(&first, &path(&revision));
    second.apply(&map("watched", "v1"));
    let event = here.next();
    assert!(event.contains("\"MODIFIED\"") && event.contains("\"a\":\"v1\""), "{event}");
    let seen = event.split("\"resourceVersion\":\"").nth(1).unwrap().split('"').next().unwrap();
    one.kill();
    second.apply(&map("watched", "v2"));
    second.apply(&map("watched", "v3"));
    let there = Following::start(&second, &path(seen));
    for want in ["v2", "v3"] {
        let event = there.next();
        assert!(event.contains(&format!("\"a\":\"{want}\"")), "{want}: {event}");
    }
    // The one that comes again has all of it, the past too.
    one.start_again();
    let first = one.kubectl();
    assert_eq!(value(&first, "watched"), "v3");
    let again = Following::start(&first, &path(&revision));
    for want in ["v1", "v2", "v3"] {
        let event = again.next();
        assert!(event.contains(&format!("\"a\":\"{want}\"")), "{want}: {event}");
    }

    // Without etcd nobody is ready, and nobody answers what may be old; who asks for anything is answered.
    etcd.kill(0);
    for kubectl in [&first, &second] {
        eventually(
            "it is not ready",
            SOON,
            || kubectl.try_run("get --raw /readyz").status.success(),
            |ok| !ok,
        );
        assert!(kubectl.run("get --raw /livez").contains("ok"));
        let any = kubectl
            .run("get --raw '/api/v1/namespaces/default/configmaps/watched?resourceVersion=0'");
        assert!(any.contains("\"a\":\"v3\""), "{any}");
    }
    let begin = Instant::now();
    // kubectl asks again as long as it may, since it is told to; that it is told: `two_servers.rs` of the server.
    let refused = first.fails("create configmap late --from-literal=a=b --request-timeout=8s");
    eprintln!("without etcd, after {:?}: {refused}", begin.elapsed());
    etcd.restart(0);
    for kubectl in [&first, &second] {
        eventually(
            "it is ready again",
            SOON,
            || kubectl.try_run("get --raw /readyz").status.success(),
            |ok| *ok,
        );
        assert_eq!(value(kubectl, "watched"), "v3");
        kubectl.run("-n shop get configmap a");
    }
    second.apply(&map("watched", "v4"));
    for following in [&there, &again] {
        let event = following.next();
        assert!(event.contains("\"a\":\"v4\""), "the watch is still there: {event}");
    }
}

#[test]
fn a_server_with_keys_of_its_own_is_no_server_of_this_cluster() {
    if is_left_out("L5") {
        return;
    }
    let Some(etcd) = Etcd::start(1) else { return };
    let one = server(&etcd, None);
    let directory = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_roadstead"))
        .args(["apiserver", "--listen", "127.0.0.1:0", "--etcd-servers", &etcd.urls().join(",")])
        .arg("--data-dir")
        .arg(directory.path().join("data"))
        .arg("--kubeconfig-out")
        .arg(directory.path().join("kubeconfig"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("copy the directory pki of the first server"), "{said}");
    assert!(one.kubectl().run("get --raw /readyz").contains("ok"));
}

#[test]
fn three_members_of_etcd_the_leader_killed() {
    if is_left_out("L5") {
        return;
    }
    let Some(mut etcd) = Etcd::start(3) else { return };
    let one = server(&etcd, None);
    let other = server(&etcd, Some(&one));
    let (first, second) = (one.kubectl(), other.kubectl());
    first.apply(&map("a", "v0"));
    // One after the other: one of them leads.
    for member in 0..3 {
        etcd.kill(member);
        let begin = Instant::now();
        // No request fails that waits; nothing is lost.
        first.apply(&map("a", &format!("v{member}x")));
        assert_eq!(value(&second, "a"), format!("v{member}x"));
        eprintln!("member {member} killed: written and read after {:?}", begin.elapsed());
        etcd.restart(member);
        assert_eq!(value(&first, "a"), format!("v{member}x"));
    }
}
