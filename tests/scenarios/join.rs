//! More than one machine: tokens, machines that join and leave, pods that reach each other from node to node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(90);
pub(crate) const SERVER: &str = "https://192.0.2.1:6443";

/// A wire with this machine at one end; others are put onto it.
pub(crate) fn wire() {
    run(
        "ip link add wire type bridge && ip link set wire up && ip address add 192.0.2.1/24 dev wire",
    );
    run("ip route add default via 192.0.2.254");
}

/// Puts another machine onto the wire, with this last number in its address.
pub(crate) fn plug_in(name: &str, number: u8) {
    run(&format!(
        "ip netns add {name} && ip link add {name} type veth peer name eth0 netns {name}"
    ));
    run(&format!("ip link set {name} master wire up && ip -n {name} link set lo up"));
    run(&format!("ip -n {name} link set eth0 up"));
    run(&format!("ip -n {name} address add 192.0.2.{number}/24 dev eth0"));
    run(&format!("ip -n {name} route add default via 192.0.2.254"));
}

fn first_node(flags: &str) -> Roadstead {
    Roadstead::start_in(
        tempfile::tempdir().unwrap(),
        &format!("up --ephemeral --listen 0.0.0.0:6443 --node-name n1 {flags}"),
    )
}

pub(crate) fn roadstead(command: &str) -> String {
    format!("{} {command}", env!("CARGO_BIN_EXE_roadstead"))
}

pub(crate) fn token(server: &Roadstead, flags: &str) -> String {
    let kubeconfig = server.kubeconfig();
    run(&roadstead(&format!(
        "token create --quiet --kubeconfig {} {flags} 2>/dev/null",
        kubeconfig.display()
    )))
}

/// A machine that joins; ended when it goes out of scope.
pub(crate) struct Joined {
    name: &'static str,
    child: Child,
    directory: PathBuf,
}

impl Joined {
    pub(crate) fn start(here: &Path, name: &'static str, flags: &str) -> Self {
        let directory = here.join(name);
        fs::create_dir_all(&directory).unwrap();
        let log = fs::File::create(directory.join("log")).unwrap();
        let data = directory.join("data");
        let command = format!(
            "--net=/run/netns/{name} {} --node-name {name} --eviction-hard= --data-dir {} {flags}",
            roadstead("join"),
            data.display()
        );
        // Only the network is another one: what is mounted is seen by the next one, too.
        let mut process = Command::new("nsenter");
        process.args(command.split_whitespace()).stdin(Stdio::null()).stderr(log);
        let child = process.env_remove("KUBECONFIG").spawn().unwrap();
        Self { name, child, directory }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap()
    }

    /// Waits until it is a node, or has said why not.
    fn outcome(&mut self) -> String {
        let name = self.name;
        eventually(
            &format!("{name} joins, or says why not"),
            PATIENCE,
            || (self.log(), self.child.try_wait().unwrap().is_some()),
            |(log, ended)| *ended || log.contains("ready: node"),
        )
        .0
    }

    pub(crate) fn once_ready(mut self) -> Self {
        let said = self.outcome();
        assert!(said.contains("ready: node"), "{said}");
        self
    }

    /// Ends it; its pods go on.
    pub(crate) fn end(&mut self) {
        run(&format!("kill -INT {}", self.child.id()));
        self.child.wait().unwrap();
    }

    fn leave(&mut self, flags: &str) -> String {
        let data = self.directory.join("data");
        let leave = roadstead(&format!("leave --data-dir {} {flags}", data.display()));
        let said = run(&format!("nsenter --net=/run/netns/{} {leave} 2>&1", self.name));
        assert!(self.child.wait().unwrap().success(), "{}", self.log());
        said
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} said:\n{}", self.name, self.log());
        }
        if let Ok(None) = self.child.try_wait() {
            let _ = try_run(&format!("kill -INT {}", self.child.id()));
        }
        let _ = self.child.wait();
    }
}

/// A pod on a node, behind the Service `both`.
pub(crate) fn pod(name: &str, node: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: both}}}}\n\
         spec:\n  nodeSelector: {{kubernetes.io/hostname: {node}}}\n  terminationGracePeriodSeconds: 1\n  \
         containers: [{{name: web, image: roadstead/echo}}]\n---\n"
    )
}

pub(crate) const BOTH: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: both}\n\
    spec: {selector: {app: both}, ports: [{port: 80, targetPort: 8080}]}\n";

/// Asks the Service until each of the pods has answered.
pub(crate) fn each_answers(place: &str, address: &str, pods: &[&str]) {
    let ask = || {
        let asked = (0..16).map(|_| try_run(&format!("{place} curl -s -m 2 http://{address}/")));
        let said: Vec<_> =
            asked.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).collect();
        said.join("\n")
    };
    eventually(&format!("all of {pods:?} answer to {place:?}"), PATIENCE, ask, |said| {
        pods.iter().all(|pod| said.contains(pod))
    });
}

fn endpoints(kubectl: &Kubectl) -> String {
    let path = "{.items[*].endpoints[?(@.conditions.ready==true)].targetRef.name}";
    kubectl
        .run(&format!("get endpointslices -l kubernetes.io/service-name=both -o jsonpath='{path}'"))
}

#[test]
fn a_machine_joins_and_leaves() {
    laboratory_of("L5", || {
        wire();
        plug_in("n2", 2);
        let before = run("ip -n n2 route; ip -n n2 link | grep -o '^[0-9]*: [a-z0-9]*'");
        let server = first_node("--node-monitor-grace-period 25");
        let (kubectl, here) = (server.kubectl(), server.directory().to_owned());
        let good = token(&server, "");

        // Who is not to join is told why.
        let wrong_secret =
            format!("{}{}", &good[..good.len() - 1], if good.ends_with('a') { "b" } else { "a" });
        let wrong_pin = good.replacen(&good[4..8], "AAAA", 1);
        let over = token(&server, "--ttl 1s");
        let bound = token(&server, "--node n9");
        std::thread::sleep(Duration::from_secs(1));
        let bare = good.splitn(3, '.').nth(2).unwrap().to_owned();
        for (token, why) in [
            (&wrong_secret, "the token is not (or no longer) good"),
            (&over, "the token is not (or no longer) good"),
            (&wrong_pin, "is another cluster than the one of this token"),
            (&bare, "nothing says by what this cluster is known"),
            (&bound, "this token is for the node n9, not for \"n2\""),
        ] {
            let said =
                Joined::start(&here, "n2", &format!("--server {SERVER} --token {token}")).outcome();
            assert!(said.contains(why), "{why}: {said}");
            assert!(!here.join("n2/data/join/node.pem").exists(), "{why}");
        }
        let listed =
            run(&roadstead(&format!("token list --kubeconfig {}", server.kubeconfig().display())));
        assert!(!listed.contains(&good[good.len() - 16..]), "no secrets: {listed}");

        let joining = format!("--server {SERVER} --token {good}");
        let mut other = Joined::start(&here, "n2", &joining).once_ready();
        kubectl.apply(&format!("{}{}{BOTH}", pod("one", "n1"), pod("two", "n2")));
        kubectl.run("wait --for=condition=Ready pod/one pod/two --timeout=60s");
        let address = kubectl.run("get service both -o jsonpath='{.spec.clusterIP}'");
        for place in ["", "ip netns exec n2"] {
            each_answers(place, &address, &["one", "two"]);
        }
        // From pod to pod, by name, on both; and what the API server shows of pods elsewhere.
        for pod in ["one", "two"] {
            let said = kubectl.run(&format!("exec {pod} -- nslookup both"));
            assert!(said.contains(&address), "{said}");
            kubectl.run(&format!("exec {pod} -- curl -s -m 5 http://both/"));
            kubectl.run(&format!("logs {pod}"));
        }
        let ranges = kubectl.run("get nodes -o jsonpath='{.items[*].spec.podCIDRs}'");
        assert_eq!(ranges, "[\"10.244.0.0/24\"] [\"10.244.1.0/24\"]");

        // A token takes nobody's place while he lives.
        plug_in("n3", 3);
        let thief = here.join("thief");
        fs::create_dir_all(&thief).unwrap();
        let taking = roadstead(&format!(
            "join {joining} --node-name n2 --data-dir {}/data 2>&1",
            thief.display()
        ));
        let said = try_run(&format!("ip netns exec n3 {taking}"));
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(
            said.contains("the Node \\\"n2\\\" lives") || said.contains("the Node \"n2\" lives"),
            "{said}"
        );

        hostile_requests(&server, &bare);

        // It begins again without a token; then it dies, and its endpoints go.
        other.end();
        let mut other = Joined::start(&here, "n2", "").once_ready();
        each_answers("", &address, &["one", "two"]);
        let restarts = "get pod two -o jsonpath='{.status.containerStatuses[0].restartCount}'";
        assert_eq!(kubectl.run(restarts), "0", "pods go on");
        run(&format!("kill -KILL {}", other.child.id()));
        other.child.wait().unwrap();
        eventually(
            "endpoints of a dead node go",
            PATIENCE,
            || endpoints(&kubectl),
            |found| found == "one",
        );
        let mut other = Joined::start(&here, "n2", "").once_ready();
        eventually(
            "and come back",
            PATIENCE,
            || endpoints(&kubectl),
            |found| found.contains("two"),
        );

        // It leaves, and nothing of it stays.
        let admin = format!("--kubeconfig {}", server.kubeconfig().display());
        let said = other.leave(&admin);
        assert!(
            said.contains("evicting pod default/two") && said.contains("removed: the Node n2"),
            "{said}"
        );
        assert_eq!(kubectl.run("get nodes -o name").trim(), "node/n1");
        let after = run("ip -n n2 route; ip -n n2 link | grep -o '^[0-9]*: [a-z0-9]*'");
        assert_eq!(after, before);
        let rules = run("ip netns exec n2 nft list ruleset 2>/dev/null || true");
        assert!(!rules.contains("kube-proxy") && !rules.contains("roadstead"), "{rules}");
        assert!(!here.join("n2/data").exists());
        eventually(
            "its routes go",
            PATIENCE,
            || run("ip route"),
            |routes| !routes.contains("10.244.1.0/24"),
        );
        let log = fs::read_to_string(here.join("n2/log")).unwrap();
        assert!(!log.contains("is forbidden") && !log.contains("panicked"), "{log}");
    });
}

/// What somebody asks for who has a token and no good intentions.
fn hostile_requests(server: &Roadstead, token: &str) {
    let (kubectl, here) = (server.kubectl(), server.directory());
    let authority = here.join("ca.pem");
    fs::write(&authority, server.credentials().authority).unwrap();
    let file = here.join("token.kubeconfig");
    let config = format!("--kubeconfig {}", file.display());
    for command in [
        format!("set-cluster c --server {SERVER} --certificate-authority {}", authority.display()),
        format!("set-credentials u --token {token}"),
        "set-context x --cluster c --user u".to_owned(),
        "use-context x".to_owned(),
    ] {
        run(&format!("kubectl config {config} {command}"));
    }
    let newcomer = Kubectl::new(&file);
    newcomer.fails("get secrets -n kube-system");
    newcomer.fails("get nodes");
    for (name, subject, usage, why) in [
        (
            "masters",
            "/O=system:masters/CN=system:node:n9",
            "client auth",
            "nodes have system:nodes alone",
        ),
        ("admin", "/O=system:nodes/CN=admin", "client auth", "is no name of a node"),
        ("usage", "/O=system:nodes/CN=system:node:n9", "server auth", "is not for this"),
        ("victim", "/O=system:nodes/CN=system:node:n1", "client auth", "lives"),
        (
            "server",
            "/O=system:nodes/CN=system:node:kubernetes.default.svc",
            "client auth",
            "API server",
        ),
    ] {
        let csr = run(&format!(
            "openssl req -newkey rsa:2048 -nodes -keyout /dev/null -subj '{subject}' 2>/dev/null | base64 -w0"
        ));
        newcomer.apply(&format!(
            "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\n\
             metadata: {{name: {name}}}\nspec:\n  request: {csr}\n  \
             signerName: kubernetes.io/kube-apiserver-client-kubelet\n  \
             usages: [digital signature, {usage}]\n"
        ));
        let asked = || kubectl.run(&format!("get csr {name} -o jsonpath='{{.status}}'"));
        let said =
            eventually("the request is decided", PATIENCE, asked, |said| said.contains("Denied"));
        assert!(said.contains(why) && !said.contains("certificate\":"), "{name}: {said}");
    }
}

/// The same where the network between machines drops what is not from a machine.
#[test]
fn pods_reach_each_other_in_vxlan() {
    laboratory_of("L5", || {
        wire();
        plug_in("n2", 2);
        // Only machines may speak on the wire.
        for (table, link) in [("ip netns exec n2 nft", "eth0"), ("nft", "wire")] {
            run(&format!("{table} add table ip strict"));
            let chain = "'{ type filter hook prerouting priority -300; }'";
            run(&format!("{table} add chain ip strict pre {chain}"));
            run(&format!(
                "{table} add rule ip strict pre iifname {link} ip saddr 10.244.0.0/16 drop"
            ));
        }
        let server = first_node("--pod-network vxlan");
        let (kubectl, here) = (server.kubectl(), server.directory().to_owned());
        let flags = format!("--server {SERVER} --pod-network vxlan --token {}", token(&server, ""));
        let _other = Joined::start(&here, "n2", &flags).once_ready();
        kubectl.apply(&format!("{}{}{BOTH}", pod("one", "n1"), pod("two", "n2")));
        kubectl.run("wait --for=condition=Ready pod/one pod/two --timeout=60s");
        let address = kubectl.run("get service both -o jsonpath='{.spec.clusterIP}'");
        for place in ["", "ip netns exec n2"] {
            each_answers(place, &address, &["one", "two"]);
        }
        let routes = run("ip route");
        assert!(routes.contains("10.244.1.0/24 via 10.244.1.0 dev roadstead-vx"), "{routes}");
        let said = kubectl.run("get node n2 -o jsonpath='{.metadata.annotations}'");
        assert!(said.contains("\"flannel.alpha.coreos.com/public-ip\":\"192.0.2.2\""), "{said}");
    });
}

const SPREAD: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: spread}
spec:
  replicas: 3
  selector: {matchLabels: {app: spread}}
  template:
    metadata: {labels: {app: spread}}
    spec:
      terminationGracePeriodSeconds: 1
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - labelSelector: {matchLabels: {app: spread}}
            topologyKey: kubernetes.io/hostname
      containers: [{name: web, image: roadstead/echo}]
";

#[test]
fn three_nodes_with_one_command() {
    laboratory_of("L5", || {
        wire();
        let links = || run("ip link | grep -o '^[0-9]*: [a-z0-9-]*' | cut -d' ' -f2");
        let before = links();
        let mut server = first_node("--nodes 3");
        let kubectl = server.kubectl();
        let names = kubectl.run("get nodes -o jsonpath='{.items[*].metadata.name}'");
        assert_eq!(names, "n1 n1-2 n1-3");
        kubectl.run("wait --for=condition=Ready nodes --all --timeout=30s");
        kubectl.apply(SPREAD);
        kubectl.run("rollout status deployment/spread --timeout=60s");
        let nodes = |app: &str| {
            let path = "{.items[?(@.status.phase==\"Running\")].spec.nodeName}";
            let found = kubectl.run(&format!("get pods -l app={app} -o jsonpath='{path}'"));
            let mut nodes: Vec<_> = found.split_whitespace().map(str::to_owned).collect();
            nodes.sort();
            nodes.join(" ")
        };
        assert_eq!(nodes("spread"), "n1 n1-2 n1-3");
        let zones = kubectl.run(
            "get nodes -o jsonpath='{.items[*].metadata.labels.topology\\.kubernetes\\.io/zone}'",
        );
        assert_eq!(zones, "zone-1 zone-2 zone-3");
        kubectl.run("expose deployment spread --port 80 --target-port 8080");
        for pod in kubectl.run("get pods -l app=spread -o name").lines() {
            let said = kubectl.run(&format!("exec {pod} -- curl -s -m 5 http://spread/"));
            assert!(said.starts_with("spread-"), "{pod}: {said}");
        }
        kubectl.run("drain n1-3 --ignore-daemonsets --delete-emptydir-data --force --timeout=60s");
        let left = || nodes("spread");
        eventually("the drained node is empty", PATIENCE, left, |nodes| nodes == "n1 n1-2");
        server.stop();
        assert_eq!(links(), before, "{}", server.log());
        let rules = run("nft list ruleset 2>/dev/null || true");
        assert!(!rules.contains("roadstead-nodes"), "{rules}");
    });
}
