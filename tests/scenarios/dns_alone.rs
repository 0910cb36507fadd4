//! `roadstead dns` as a process of its own, in the place of CoreDNS: it follows a cluster over
//! HTTPS and its configuration in a ConfigMap.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run};

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(10);

/// `roadstead dns`, stopped when it goes out of scope.
struct Dns(Child);

impl Dns {
    fn start(kubeconfig: &Path, log: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadstead"));
        command.arg("dns").arg("--kubeconfig").arg(kubeconfig);
        command.args(["--configmap", "--listen", "127.0.0.1:53", "--lease", "dns-of-node"]);
        command.args(["--upstream", "127.0.0.9", "--cluster-ip", "10.96.0.10"]);
        Self::spawn(&mut command, log)
    }

    fn with_corefile(corefile: &Path, log: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadstead"));
        command.args(["dns", "--lease", "", "--corefile"]).arg(corefile);
        Self::spawn(&mut command, log)
    }

    fn spawn(command: &mut Command, log: &Path) -> Self {
        let child = command.stdin(Stdio::null()).stderr(File::create(log).unwrap()).spawn();
        Self(child.unwrap())
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.1.1, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: shop}
spec: {clusterIP: None, ports: [{name: pg, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: inner, namespace: shop}
spec: {type: ExternalName, externalName: web.shop.svc.cluster.local}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-1, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv4
ports: [{name: pg, port: 5432}]
endpoints:
- {addresses: [10.244.0.5], hostname: db-0, conditions: {ready: true}}
- {addresses: [10.244.0.6], hostname: db-1, conditions: {ready: false}}
";

/// What there is; complaints about a server that does not answer are something else than that.
fn dig(what: &str) -> String {
    run(&format!("dig +time=3 +tries=1 +short @127.0.0.1 {what} || true"))
}

fn corefile(kubectl: &Kubectl, rules: &str) {
    let rules = rules.replace('\n', "\n    ");
    let map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: coredns, namespace: kube-system}}\n\
         data:\n  Corefile: |\n    {rules}\n"
    );
    kubectl.apply(&map);
}

#[test]
fn in_the_place_of_coredns() {
    laboratory_of("L5", || {
        let server = Roadstead::apiserver();
        let kubectl = server.kubectl();
        kubectl.apply(OBJECTS);
        example(&kubectl);
        let log = server.directory().join("dns.log");
        let _dns = Dns::start(&server.kubeconfig(), &log);
        let ready = "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:8181/ready || true";
        eventually("DNS is ready", PATIENCE, || run(ready), |code| code == "200");
        answers();
        follows_the_cluster(&kubectl);
        follows_its_configuration(&kubectl, &log);
        says_how_far_it_is(&kubectl);
    });
}

/// A Corefile may say which cluster it is about, beside it or anywhere else; a ConfigMap may not.
#[test]
fn the_corefile_names_the_cluster() {
    laboratory_of("L5", || {
        let server = Roadstead::apiserver();
        server.kubectl().apply(OBJECTS);
        let directory = server.directory();
        fs::copy(server.kubeconfig(), directory.join("cluster.yaml")).unwrap();
        let rules = ".:53 {\n  bind 127.0.0.1\n  kubernetes cluster.local {\n    \
                     kubeconfig cluster.yaml\n  }\n  prometheus 127.0.0.1:9153\n}\n";
        let (corefile, log) = (directory.join("Corefile"), directory.join("dns.log"));
        fs::write(&corefile, rules).unwrap();
        let dns = Dns::with_corefile(&corefile, &log);
        let web = "web.shop.svc.cluster.local";
        eventually("it follows it", PATIENCE, || dig(web), |found| found == "10.96.1.1");
        let counted =
            run("curl -s http://127.0.0.1:9153/metrics | grep ^coredns_dns_requests_total");
        let labels = r#"{server="dns://:53",zone=".",view="",proto="udp",family="1",type="A"}"#;
        assert!(counted.contains(labels), "{counted}");
        fs::write(&corefile, rules.replace("cluster.yaml", "other.yaml")).unwrap();
        let log = || fs::read_to_string(&log).unwrap();
        eventually("it says so", PATIENCE, log, |log| log.contains("names another kubeconfig"));
        drop(dns);
        let other = directory.join("other.log");
        let _dns = Dns::with_corefile(&corefile, &other);
        let log = || fs::read_to_string(&other).unwrap();
        eventually("it is missing", PATIENCE, log, |log| log.contains("other.yaml"));
    });
}

/// The example is valid, and its account may do what the server does.
fn example(kubectl: &Kubectl) {
    kubectl.apply("../../examples/dns-in-the-place-of-coredns.yaml");
    let account = "--as=system:serviceaccount:kube-system:roadstead-dns";
    for what in [
        "list namespaces",
        "watch services --all-namespaces",
        "watch pods --all-namespaces",
        "list endpointslices.discovery.k8s.io --all-namespaces",
        "watch configmaps -n kube-system",
        "patch leases.coordination.k8s.io -n kube-system",
        "create leases.coordination.k8s.io -n kube-system",
    ] {
        assert_eq!(kubectl.run(&format!("auth can-i {what} {account}")).trim(), "yes", "{what}");
    }
    kubectl.run("delete -f ../../examples/dns-in-the-place-of-coredns.yaml");
}

fn answers() {
    let cases = [
        ("web.shop.svc.cluster.local", "10.96.1.1"),
        ("-x 10.96.1.1", "web.shop.svc.cluster.local."),
        ("SRV _http._tcp.web.shop.svc.cluster.local", "0 100 80 web.shop.svc.cluster.local."),
        ("db.shop.svc.cluster.local", "10.244.0.5"),
        ("db-0.db.shop.svc.cluster.local", "10.244.0.5"),
        ("db-1.db.shop.svc.cluster.local", ""),
        ("SRV _pg._tcp.db.shop.svc.cluster.local", "0 100 5432 db-0.db.shop.svc.cluster.local."),
        ("inner.shop.svc.cluster.local", "web.shop.svc.cluster.local.\n10.96.1.1"),
        ("TXT dns-version.cluster.local", "\"1.1.0\""),
        ("NS cluster.local", "ns.dns.cluster.local."),
    ];
    for (what, want) in cases {
        assert_eq!(dig(what), want, "{what}");
    }
}

fn follows_the_cluster(kubectl: &Kubectl) {
    let ready =
        r#"[{"addresses": ["10.244.0.6"], "hostname": "db-1", "conditions": {"ready": true}}]"#;
    kubectl.run(&format!(
        "patch endpointslice db-1 -n shop --type=merge -p '{{\"endpoints\": {ready}}}'"
    ));
    let name = "db.shop.svc.cluster.local";
    eventually("the other endpoint", PATIENCE, || dig(name), |found| found == "10.244.0.6");
    kubectl.run("delete service web -n shop");
    let web = "web.shop.svc.cluster.local";
    eventually("the Service is gone", PATIENCE, || dig(web), |found| found.is_empty());
}

/// What makes no sense is refused with its line and reason, and the last good one goes on.
fn follows_its_configuration(kubectl: &Kubectl, log: &Path) {
    let good = ".:53 {\n  hosts {\n    192.0.2.1 db.corp\n    fallthrough\n  }\n  kubernetes cluster.local\n}";
    corefile(kubectl, good);
    eventually("the table of hosts", PATIENCE, || dig("db.corp"), |found| found == "192.0.2.1");
    let log = || fs::read_to_string(log).unwrap();
    let bad = [
        (good.replace("fallthrough", "fallthru"), "line 4: hosts: unknown option"),
        (
            good.replace("cluster.local", "cluster.local {\n    kubeconfig x\n  }"),
            "line 7: kubeconfig: a ConfigMap cannot say which cluster it is in",
        ),
        (good.replace("kubernetes", "kubernets"), "line 6: unknown plugin"),
        (format!("{good}\n}}"), "line 8: a closing brace without an opening one"),
    ];
    for (text, want) in bad {
        corefile(kubectl, &text);
        eventually("it is refused", PATIENCE, log, |log| log.contains(want));
        assert_eq!(dig("db.corp"), "192.0.2.1", "{want}");
        assert_eq!(dig("db.shop.svc.cluster.local"), "10.244.0.6", "{want}");
    }
    corefile(kubectl, &good.replace("192.0.2.1", "192.0.2.2"));
    eventually("the next good one", PATIENCE, || dig("db.corp"), |found| found == "192.0.2.2");
    kubectl.run("delete configmap coredns -n kube-system");
    eventually("back to the flags", PATIENCE, || dig("db.corp"), |found| found != "192.0.2.2");
}

/// The revision that is answered from, in the Lease and among the metrics.
fn says_how_far_it_is(kubectl: &Kubectl) {
    let version = "get endpointslice db-1 -n shop -o jsonpath='{.metadata.resourceVersion}'";
    let version: u64 = kubectl.run(version).parse().unwrap();
    let path = "{.metadata.annotations.roadstead\\.dev/programmed-revision}";
    let lease =
        || kubectl.run(&format!("get lease dns-of-node -n kube-system -o jsonpath='{path}'"));
    let reached = |text: &String| text.parse::<u64>().is_ok_and(|found| found >= version);
    eventually("the Lease says so", PATIENCE, lease, reached);
    let metric = "curl -s http://127.0.0.1:9153/metrics | grep ^roadstead_dns_programmed_revision";
    let found = run(&format!("{metric} | cut -d' ' -f2"));
    assert!(reached(&found), "{found}");
}
