//! The proxy and DNS where readers of tutorials look for them: ConfigMaps, pods, logs; and what happens
//! when they edit the one and delete the other.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

const SECOND: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

/// The pods with a label, as `name ready phase`.
fn pods(kubectl: &Kubectl, label: &str) -> String {
    let path = "{range .items[*]}{.metadata.name} {.status.containerStatuses[0].ready} \
                {.status.phase}{\"\\n\"}{end}";
    kubectl.run(&format!("get pods -n kube-system -l {label} -o jsonpath='{path}'"))
}

/// Waits until the only pod with a label is another one, and ready; returns its name.
fn another(kubectl: &Kubectl, label: &str, before: &str) -> String {
    let is_there = |text: &String| {
        let words: Vec<_> = text.split_whitespace().collect();
        matches!(words[..], [name, "true", "Running"] if name != before)
    };
    let text = eventually("a pod is ready", PATIENCE, || pods(kubectl, label), is_there);
    text.split_whitespace().next().unwrap().to_owned()
}

fn proxy_log(kubectl: &Kubectl) -> String {
    // A pod that kubectl has just found may be gone before it is asked.
    kubectl.run("logs -n kube-system -l k8s-app=kube-proxy --tail=-1 || true")
}

/// What the documents do: an editor, and the pods deleted.
fn edit_and_delete(roadstead: &Roadstead, expression: &str, pod: &str) -> String {
    let kubectl = &roadstead.kubectl();
    let editor = std::env::temp_dir().join(format!("roadstead-editor-{}", std::process::id()));
    std::fs::write(&editor, format!("#!/bin/sh\nsed -i '{expression}' \"$1\"\n")).unwrap();
    run(&format!("chmod +x {}", editor.display()));
    let edit = "edit configmap kube-proxy -n kube-system";
    let edited = run(&format!(
        "KUBE_EDITOR={} KUBECONFIG={} {} {edit}",
        editor.display(),
        roadstead.kubeconfig().display(),
        Kubectl::program()
    ));
    std::fs::remove_file(&editor).unwrap();
    assert!(edited.contains("configmap/kube-proxy edited"), "{edited}");
    let deleted = kubectl.run("delete pod -l k8s-app=kube-proxy -n kube-system");
    assert!(deleted.contains(&format!("pod \"{pod}\" deleted")), "{deleted}");
    another(kubectl, "k8s-app=kube-proxy", pod)
}

/// A line over a connection that stays open, to a pod that sends it back.
fn say(stream: &mut TcpStream, path: &str) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: web\r\n\r\n").unwrap();
    let mut answer = [0; 4096];
    let count = stream.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

fn events(kubectl: &Kubectl) -> String {
    let fields = "--field-selector involvedObject.name=kube-proxy";
    kubectl.run(&format!("get events -n kube-system {fields} -o wide"))
}

#[test]
fn the_proxy_is_where_its_readers_look() {
    laboratory_of("L5", || {
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        let first = another(&kubectl, "k8s-app=kube-proxy", "");
        assert!(first.starts_with("kube-proxy-"), "{first}");
        let description = kubectl.run("-n kube-system describe configmap kube-proxy");
        for part in ["config.conf:", "kind: KubeProxyConfiguration", "mode: \"nftables\""] {
            assert!(description.contains(part), "{part}: {description}");
        }
        let log = kubectl.run("logs -n kube-system -l k8s-app=kube-proxy");
        let line = log.lines().find(|line| line.contains("\"proxy starts\"")).unwrap();
        assert!(line.starts_with('I') && line.contains("] \"proxy starts\" mode=\"nftables\""));
        let daemon_set = "get daemonset kube-proxy -n kube-system --no-headers";
        assert!(kubectl.run(daemon_set).split_whitespace().take(4).eq([
            "kube-proxy",
            "1",
            "1",
            "1"
        ]));

        kubectl.apply("../../examples/web.yaml");
        kubectl.run("rollout status deployment/web --timeout=60s");
        let address = kubectl.run("get service web -o jsonpath='{.spec.clusterIP}'");
        let curl = format!("curl -s -m 2 http://{address}/");
        let answers = || try_run(&curl).status.success();
        eventually("the proxy knows", 5 * SECOND, answers, |ok| *ok);
        let mut open = TcpStream::connect(format!("{address}:80")).unwrap();
        open.set_read_timeout(Some(5 * SECOND)).unwrap();
        say(&mut open, "/");

        // Another mode: the old rules go when the new ones are there. Where the kernel has no IPVS it is
        // iptables, and the log says so.
        let second = edit_and_delete(&roadstead, "s/mode: .*/mode: \"ipvs\"/", &first);
        let ipvs = || try_run("grep -q TCP /proc/net/ip_vs").status.success();
        let listed = format!("iptables-save -t nat | grep -q -- '-d {address}/32'");
        let iptables = || {
            let log = proxy_log(&kubectl);
            log.contains("falling back to mode iptables") && try_run(&listed).status.success()
        };
        eventually("another mode", PATIENCE, || ipvs() || iptables(), |switched| *switched);
        let old = || try_run("nft list table ip kube-proxy").status.success();
        eventually("nftables has not", PATIENCE, old, |there| !there);
        run(&curl);
        say(&mut open, "/");
        assert!(proxy_log(&kubectl).contains("mode=\"ipvs\""));

        // One that makes no sense costs nothing, and says so.
        let third = edit_and_delete(&roadstead, "s/mode: .*/mode: \"sideways\"/", &second);
        let refused = |text: &String| text.contains("unknown mode \"sideways\"");
        eventually("the event", PATIENCE, || events(&kubectl), refused);
        let refused = |text: &String| text.contains("\"configuration refused\" why=\"unknown mode");
        let log = eventually("the log", PATIENCE, || proxy_log(&kubectl), refused);
        assert!(log.lines().any(|line| line.starts_with('E')), "{log}");
        run(&curl);
        say(&mut open, "/");

        // The document's own configuration has little, and one field that nobody knows.
        kubectl.apply(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kube-proxy, namespace: kube-system}\n\
             data:\n  config.conf: |\n    apiVersion: kubeproxy.config.k8s.io/v1alpha1\n    \
             kind: KubeProxyConfiguration\n    mode: nftables\n    \
             healthzBindAddress: 127.0.0.1:10266\n    logging:\n      level: 4\n",
        );
        kubectl.run("delete pod -l k8s-app=kube-proxy -n kube-system");
        another(&kubectl, "k8s-app=kube-proxy", &third);
        let named = |text: &String| text.contains("unknown field logging.level");
        eventually("the unknown field is named", PATIENCE, || proxy_log(&kubectl), named);
        eventually("and by an event", PATIENCE, || events(&kubectl), named);
        eventually("nftables has it again", PATIENCE, old, |there| *there);
        run(&curl);
        say(&mut open, "/");
    });
}

/// How many connections are open, and how many new ones are made in a second: `ROADSTEAD_CONNECTIONS`.
fn connections() -> u32 {
    std::env::var("ROADSTEAD_CONNECTIONS").map_or(200, |text| text.parse().unwrap())
}

/// Who make new connections.
const CALLERS: u32 = 10;

/// Makes new connections at a steady pace until told to stop; returns how many. All of them are answered.
fn call_until(stop: &AtomicBool, frontends: &[String]) -> usize {
    let (begin, mut calls) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(&frontends[calls % frontends.len()]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        say(&mut stream, "/");
        calls += 1;
        // Who is late makes up for it.
        let next = SECOND * CALLERS * u32::try_from(calls).unwrap() / connections();
        std::thread::sleep(next.saturating_sub(begin.elapsed()));
    }
    calls
}

/// The reader edits the ConfigMap and deletes the pod, there and back, while many connections are open and many new
/// ones are made.
#[test]
fn a_switch_of_modes_loses_no_connection() {
    laboratory_of("L5", || {
        // A port that was used rests for a minute: a thousand callers a second need more than the usual ones.
        run("sysctl -qw net.ipv4.ip_local_port_range='1024 65535' net.ipv4.tcp_tw_reuse=1");
        let roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        let first = another(&kubectl, "k8s-app=kube-proxy", "");
        kubectl.apply("../../examples/web.yaml");
        kubectl.run("patch service web --type=merge -p '{\"spec\":{\"type\":\"NodePort\"}}'");
        kubectl.run("rollout status deployment/web --timeout=60s");
        let field = |path: &str| kubectl.run(&format!("get service web -o jsonpath='{path}'"));
        let node = kubectl.run("get node node -o jsonpath='{.status.addresses[0].address}'");
        // Each has its own ports for those who call.
        let frontends = [
            format!("{}:80", field("{.spec.clusterIP}")),
            format!("{node}:{}", field("{.spec.ports[0].nodePort}")),
        ];
        for frontend in &frontends {
            let dial = || TcpStream::connect(frontend).is_ok();
            eventually("the proxy knows", PATIENCE, dial, |ok| *ok);
        }
        let mut open: Vec<_> = (0..connections() as usize)
            .map(|number| TcpStream::connect(&frontends[number % frontends.len()]).unwrap())
            .collect();
        let mut talk = || {
            open.iter_mut().for_each(|stream| {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                say(stream, "/");
            });
        };
        talk();
        let (stop, frontends, begin) = (&AtomicBool::new(false), &frontends, Instant::now());
        let calls: usize = std::thread::scope(|scope| {
            let call = |_| scope.spawn(move || call_until(stop, frontends));
            let callers: Vec<_> = (0..CALLERS).map(call).collect();
            let second = edit_and_delete(&roadstead, "s/mode: .*/mode: \"iptables\"/", &first);
            let old = || try_run("nft list table ip kube-proxy").status.success();
            eventually("nftables has not", PATIENCE, old, |there| !there);
            talk();
            edit_and_delete(&roadstead, "s/mode: .*/mode: \"nftables\"/", &second);
            eventually("nftables has it again", PATIENCE, old, |there| *there);
            let iptables = || run("iptables-save").contains("KUBE-SVC-");
            eventually("iptables has not", PATIENCE, iptables, |there| !there);
            talk();
            stop.store(true, Ordering::Relaxed);
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        let rate = calls as f64 / begin.elapsed().as_secs_f64();
        eprintln!(
            "two switches: {} connections open, {calls} new ones, {rate:.0} a second: 0 lost",
            connections()
        );
        // A machine that does other things, too, and a program that is not optimized, are slower.
        assert!(rate > f64::from(connections()) / 4.0, "{rate} a second");
    });
}

#[test]
fn the_parts_survive_a_restart_of_all_and_flags_do_not_undo_edits() {
    laboratory_of("L5", || {
        let mut roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        let proxy = another(&kubectl, "k8s-app=kube-proxy", "");
        let dns = another(&kubectl, "k8s-app=kube-dns", "");
        assert!(dns.starts_with("coredns-"), "{dns}");
        let corefile = "get configmap coredns -n kube-system -o jsonpath='{.data.Corefile}'";
        assert!(kubectl.run(corefile).contains("kubernetes cluster.local"));
        let log = kubectl.run("logs -n kube-system -l k8s-app=kube-dns --tail=-1");
        assert!(log.contains("\"DNS starts\""), "{log}");
        assert!(!log.contains("] \"configuration refused"), "{log}");

        // DNS begins anew with its pod; nobody who asks meanwhile is refused.
        let ask = "dig +short +tries=1 +time=5 @10.96.0.10 kubernetes.default.svc.cluster.local";
        eventually("DNS answers", 5 * SECOND, || run(ask), |answer| answer == "10.96.0.1");
        kubectl.run("delete pod -l k8s-app=kube-dns -n kube-system --wait=false");
        for _ in 0..30 {
            assert_eq!(run(ask), "10.96.0.1");
        }
        let dns = another(&kubectl, "k8s-app=kube-dns", &dns);
        let log = || kubectl.run("logs -n kube-system -l k8s-app=kube-dns --tail=-1");
        eventually("it began anew", PATIENCE, log, |log| log.contains("\"DNS starts\""));
        assert_eq!(run(ask), "10.96.0.1");

        roadstead.start_with("--proxy-mode=iptables");
        assert_eq!(another(&kubectl, "k8s-app=kube-proxy", ""), proxy);
        assert_eq!(another(&kubectl, "k8s-app=kube-dns", ""), dns);
        let warned = "says mode nftables: --proxy-mode iptables does not count";
        assert!(roadstead.log().contains(warned), "{}", roadstead.log());
        let path = "{.items[0].status.containerStatuses[0].restartCount}";
        let restarts = || {
            kubectl
                .run(&format!("get pods -n kube-system -l k8s-app=kube-dns -o jsonpath='{path}'"))
        };
        eventually("counted", PATIENCE, restarts, |count| count == "1");
    });
}
