//! The proxy as a process of its own, over HTTPS, in the place of kube-proxy: what it makes of a
//! cluster, and what the commands around it say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const BINARY: &str = env!("CARGO_BIN_EXE_roadstead");

/// `roadstead proxy`, killed when it goes out of scope.
pub(crate) struct Proxy {
    child: Child,
    log: PathBuf,
}

impl Proxy {
    /// Starts one in a network namespace, or where the test is, and waits until it serves.
    fn start(namespace: Option<&str>, kubeconfig: &Path, flags: &str) -> Self {
        let proxy = Self::launch(namespace, kubeconfig, flags);
        proxy.wait_until_serving();
        proxy
    }

    /// Starts one in a network namespace, or where the test is.
    pub(crate) fn launch(namespace: Option<&str>, kubeconfig: &Path, flags: &str) -> Self {
        let name = namespace.unwrap_or("here");
        let log = kubeconfig.with_file_name(format!("proxy-{name}-{}", flags.len()));
        let enter = namespace.map(|name| format!("ip netns exec {name} ")).unwrap_or_default();
        let command = format!("exec {enter}{BINARY} proxy {flags}");
        let child = Command::new("sh")
            .args(["-c", &command])
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    pub(crate) fn wait_until_serving(&self) {
        eventually("the proxy serves", PATIENCE, || self.said(), |log| log.contains("serving"));
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Asks it to stop, and waits until it has.
    fn stop(mut self) {
        run(&format!("kill -TERM {}", self.child.id()));
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.said());
    }

    /// Ends it at once; it does not get to know.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} said:\n{}", self.log.display(), self.said());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MANIFEST: &str = "
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: za}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ports: [{port: 80, nodePort: 30080, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: '', port: 8080, protocol: TCP}]
endpoints: [{addresses: [192.168.9.2], nodeName: n1}, {addresses: [10.244.1.7], nodeName: n2}]
";

pub(crate) fn set_status(kubectl: &Kubectl, path: &str, status: &serde_json::Value) {
    let object = kubectl.run(&format!("get --raw {path}"));
    let mut object: serde_json::Value = serde_json::from_str(&object).unwrap();
    object["status"] = status.clone();
    kubectl.run(&format!("replace --raw {path}/status -f - <<'END'\n{object}\nEND"));
}

/// Runs a roadstead command; what it printed, and what it complained about.
fn roadstead(command: &str) -> (bool, String, String) {
    let output = try_run(&format!("{BINARY} {command}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// A machine with one network, where nothing but the API server runs yet.
fn make_machine() {
    run("ip link add net0 type bridge && ip link set net0 up");
    run("ip address add 192.168.9.1/24 dev net0");
    run("ip route add default via 192.168.9.254");
}

#[test]
fn in_the_place_of_kube_proxy() {
    laboratory_of("L5", || {
        make_machine();
        let server = Roadstead::apiserver();
        let kubectl = server.kubectl();
        let kubeconfig = server.kubeconfig();
        kubectl.apply(MANIFEST);
        let address = serde_json::json!({"type": "InternalIP", "address": "192.168.9.1"});
        let status = serde_json::json!({"addresses": [address]});
        set_status(&kubectl, "/api/v1/nodes/n1", &status);
        // As kubeadm's DaemonSet starts it: everything is in the file.
        let file = kubeconfig.with_file_name("config.conf");
        let configuration = format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n\
             clientConnection: {{kubeconfig: {}}}\nclusterCIDR: 10.244.0.0/16\nfuture: 1\n",
            kubeconfig.display()
        );
        fs::write(&file, configuration).unwrap();
        let flags = format!("--v=2 --config {} --hostname-override n1", file.display());
        let proxy = Proxy::start(None, &kubeconfig, &flags);
        let at = format!("--kubeconfig {}", kubeconfig.display());
        let (done, said, _) = roadstead(&format!("wait --programmed svc/web {at}"));
        assert!(done && said.contains("programmed on 1 node(s)"), "{said}");
        let events = kubectl.run("get events -A");
        assert!(events.contains("ignored: unknown field future"), "{events}");

        changes_are_waited_for(&kubectl, &at);
        questions(&kubectl, &at);
        metrics();
        proxy.stop();
        assert!(run("nft list ruleset").contains("kube-proxy"), "the rules stay");
        run(&format!("{BINARY} proxy --cleanup"));
        assert!(!run("nft list ruleset").contains("kube-proxy"));
    });
}

fn changes_are_waited_for(kubectl: &Kubectl, at: &str) {
    for number in 1..=5 {
        let external = format!("203.0.113.{number}");
        let patch = format!("'{{\"spec\":{{\"externalIPs\":[\"{external}\"]}}}}'");
        kubectl.run(&format!("patch service web --type=merge -p {patch}"));
        let (done, said, complaint) = roadstead(&format!("wait --programmed svc/web {at}"));
        assert!(done, "{said}{complaint}");
        assert!(run("nft list map ip kube-proxy service-ips").contains(&external), "{external}");
    }
    let (done, _, complaint) = roadstead(&format!("wait --programmed svc/none {at}"));
    assert!(!done && complaint.trim() == "roadstead: services \"none\" not found", "{complaint}");
}

fn questions(kubectl: &Kubectl, at: &str) {
    let vip = kubectl.run("get service web -o jsonpath='{.spec.clusterIP}'");
    let cases = [
        (format!("--from 10.244.0.5 --to {vip}:80/tcp"), "forward  192.168.9.2:8080 (1 in 2)"),
        (format!("--from 10.244.0.5 --to {vip}:81/tcp"), "no Service port of this ClusterIP"),
        // The API server knows the addresses of the node.
        ("--from 192.0.2.1 --to 192.168.9.1:30080 --node n1".into(), "which sees the node"),
        ("--from 192.0.2.1 --to 192.168.9.1:30080".into(), "not for a Service"),
    ];
    for (question, want) in cases {
        let (_, answer, complaint) = roadstead(&format!("trace {at} {question}"));
        assert!(answer.contains(want), "{question}: {answer}{complaint}");
    }
    for (mode, want) in [("nftables", "elements"), ("iptables", "KUBE-SVC-"), ("ipvs", "-A -t ")] {
        let (_, text, complaint) = roadstead(&format!("render {at} --mode {mode} --node n1"));
        assert!(text.contains(want) && text.contains(&vip), "{mode}: {text}{complaint}");
    }
    let (_, _, complaint) = roadstead(&format!("render {at} --node nobody"));
    assert!(complaint.contains("there is no node nobody"), "{complaint}");
}

fn metrics() {
    let page = run("curl -s http://127.0.0.1:10249/metrics");
    for line in [
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv4\"} 0",
        "kubeproxy_programmed_revision ",
    ] {
        assert!(page.contains(line), "{line} is missing in\n{page}");
    }
    assert_eq!(run("curl -s http://127.0.0.1:10249/proxyMode"), "nftables");
    assert!(run("curl -s http://127.0.0.1:10256/healthz").contains("\"healthy\":true"));
}

const BALANCED: &str = "
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: balanced-1, labels: {kubernetes.io/service-name: balanced}}
addressType: IPv4
ports: [{name: '', port: 8080, protocol: TCP}]
endpoints: [{addresses: [192.168.9.50]}]
";

/// A machine on the network of the test, with this last part of its address.
fn join(name: &str, last: u8) {
    run(&format!("ip netns add {name} && ip link add {name} type veth peer eth0 netns {name}"));
    run(&format!("ip link set {name} master net0 up && ip -n {name} link set lo up"));
    run(&format!("ip -n {name} address add 192.168.9.{last}/24 dev eth0"));
    run(&format!("ip -n {name} link set eth0 up"));
    run(&format!("ip -n {name} route add default via 192.168.9.1"));
}

/// Whose Ethernet address the client believes to be that of the load balancer.
fn holder() -> Option<String> {
    let known = run("ip -n client neigh show to 192.168.9.200");
    let hardware = known.split("lladdr ").nth(1)?.split(' ').next()?.to_owned();
    ["n1", "n2"]
        .into_iter()
        .find(|name| run(&format!("ip -n {name} link show eth0")).contains(&hardware))
        .map(str::to_owned)
}

fn curl() -> bool {
    let curl = "ip netns exec client curl -s -o /dev/null -m 1 http://192.168.9.200/";
    try_run(curl).status.success()
}

#[test]
fn a_load_balancer_moves_when_its_node_dies() {
    laboratory_of("L5", || {
        make_machine();
        for (name, last) in [("n1", 11), ("n2", 12), ("client", 13), ("backend", 50)] {
            join(name, last);
        }
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("index.html"), "hello").unwrap();
        let mut backend = Command::new("ip")
            .args(["netns", "exec", "backend", "python3", "-m", "http.server", "8080"])
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Roadstead::apiserver_at("192.168.9.1:6443");
        let kubectl = server.kubectl();
        kubectl.apply(BALANCED);
        let ingress = serde_json::json!([{"ip": "192.168.9.200"}]);
        let status = serde_json::json!({"loadBalancer": {"ingress": ingress}});
        set_status(&kubectl, "/api/v1/namespaces/default/services/balanced", &status);

        let start = |name: &str| {
            let flags = format!(
                "--kubeconfig {} --hostname-override {name} --announce",
                server.kubeconfig().display()
            );
            kubectl.apply(&format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}"));
            Proxy::start(Some(name), &server.kubeconfig(), &flags)
        };
        let mut proxies = [("n1", start("n1")), ("n2", start("n2"))];
        eventually("the client gets through", PATIENCE, curl, |through| *through);
        let first = holder().expect("somebody answered");
        if first == "n2" {
            proxies.reverse();
        }
        let [(_, dying), (other, living)] = proxies;
        let events = kubectl.run("get events -A");
        let told = format!("node {first} answers for 192.168.9.200 on its interface eth0 (ARP)");
        assert!(events.contains(&told), "{events}");

        // Nobody says good-bye: the others notice by themselves.
        let begin = Instant::now();
        dying.kill();
        eventually("another takes over", PATIENCE, holder, |now| now.as_deref() == Some(other));
        eventually("the client gets through", PATIENCE, curl, |through| *through);
        eprintln!("taken over {:?} after a kill", begin.elapsed());

        // One who is asked to stop says so, and whoever is there takes over at once.
        let back = start(&first);
        eventually("it is back", PATIENCE, holder, |now| now.as_ref() == Some(&first));
        let begin = Instant::now();
        back.stop();
        eventually("another takes over", PATIENCE, holder, |now| now.as_deref() == Some(other));
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        assert!(curl(), "the client gets through");
        living.stop();
        backend.kill().unwrap();
        backend.wait().unwrap();
    });
}
