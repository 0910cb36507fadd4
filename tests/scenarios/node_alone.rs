//! Every part as a process of its own: API server, controllers, DNS, proxy and the node agent.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::process::Roadstead;

const PATIENCE: Duration = Duration::from_secs(60);
/// The machine, to others and to itself.
const MACHINE: &str = "192.0.2.1";

const DNS: &str = "
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {clusterIP: 10.96.0.10, ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1], conditions: {ready: true}}]
ports: [{name: dns, port: 53, protocol: UDP}]
";

/// A part of the cluster; ended when it goes out of scope.
struct Part {
    child: Child,
    log: std::path::PathBuf,
}

impl Part {
    fn start(directory: &Path, command: &str) -> Self {
        let name = command.split(' ').next().unwrap();
        let log = directory.join(format!("{name}.log"));
        let child = Command::new(env!("CARGO_BIN_EXE_roadstead"))
            .args(command.split_whitespace())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn();
        Self { child: child.unwrap(), log }
    }

    fn stop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            run(&format!("kill -INT {}", self.child.id()));
            self.child.wait().unwrap();
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {}", self.log.display(), fs::read_to_string(&self.log).unwrap());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A certificate of the cluster's authority for the agent's port.
fn certificate(pki: &Path, directory: &Path) -> String {
    let (pki, here) = (pki.display(), directory.display());
    let names = format!("subjectAltName=IP:{MACHINE}\\nextendedKeyUsage=serverAuth\\n");
    run(&format!(
        "cd {here} && openssl req -newkey rsa:2048 -nodes -keyout node.key -out node.csr \
         -subj /O=system:nodes/CN=system:node:worker 2>/dev/null && printf '{names}' > names && \
         openssl x509 -req -in node.csr -CA {pki}/ca.crt -CAkey {pki}/ca.key -CAcreateserial -days 1 \
         -extfile names -out node.crt 2>/dev/null"
    ));
    format!(
        "--tls-cert-file {here}/node.crt --tls-private-key-file {here}/node.key \
         --client-ca-file {pki}/ca.crt"
    )
}

#[test]
fn every_part_in_a_process_of_its_own() {
    laboratory_of("L5", || {
        run(&format!(
            "ip link add out0 type veth peer name out1 && ip address add {MACHINE}/24 dev out0"
        ));
        run("ip link set out1 up && ip link set out0 up && ip route add default dev out0");
        let server = Roadstead::start_in(
            tempfile::tempdir().unwrap(),
            &format!("apiserver --listen {MACHINE}:6443 --serve-metrics"),
        );
        let (kubectl, here) = (server.kubectl(), server.directory());
        kubectl.apply(DNS);
        let admin = format!("--kubeconfig {}", server.kubeconfig().display());
        // Each with the rights of its name, and no others.
        let own = |part: &str| {
            let name = part.split(' ').next().unwrap();
            let file = here.join(format!("{name}.kubeconfig"));
            let out = format!("--data-dir {}/data --out {}", here.display(), file.display());
            let command = format!("certificates kubeconfig {part} {admin} {out}");
            run(&format!("{} {command} 2>/dev/null", env!("CARGO_BIN_EXE_roadstead")));
            format!("--kubeconfig {}", file.display())
        };
        let _controllers = Part::start(here, &format!("controllers {admin}"));
        let tls = certificate(&here.join("data/pki"), here);
        let node = format!(
            "node --node-name worker --data-dir {}/worker --pod-cidr 10.244.1.0/24 \
             --service-cidr 10.96.0.0/12 --eviction-hard= --system-reserved cpu=100m,memory=64Mi {tls}",
            here.display()
        );
        let config = own("node --node-name worker");
        let start = |command: &str| Part::start(here, &format!("{command} {config}"));
        let mut agent = start(&node);
        let ready =
            "get node worker -o jsonpath='{.status.conditions[?(@.type==\"Ready\")].status}'";
        let asked = || String::from_utf8(kubectl.try_run(ready).stdout).unwrap();
        eventually("the node is ready", PATIENCE, asked, |found| found == "True");
        let dns = format!("dns --listen {MACHINE}:53 {}", own("dns"));
        let _dns = Part::start(here, &dns);
        let proxy = "proxy --hostname-override worker --cluster-cidr 10.244.0.0/16";
        let _proxy = Part::start(here, &format!("{proxy} {}", own("proxy")));

        kubectl.apply("../../examples/web.yaml");
        kubectl.run("rollout status deployment/web --timeout=60s");
        let address = kubectl.run("get service web -o jsonpath='{.spec.clusterIP}'");
        let page = || {
            let asked = try_run(&format!("curl -s -m 2 http://{address}/"));
            String::from_utf8(asked.stdout).unwrap()
        };
        eventually("the Service answers", PATIENCE, page, |said| said.starts_with("web-"));
        looked_into(&kubectl);
        survives(&kubectl, &mut agent, || start(&node));
        agent.stop();
        for part in ["dns", "proxy"] {
            let said = fs::read_to_string(here.join(format!("{part}.log"))).unwrap();
            assert!(!said.contains("is forbidden"), "{part}: {said}");
        }
        let cleaned = Part::start(here, &format!("{node} {config} --cleanup")).child.wait();
        assert!(cleaned.unwrap().success());
        let left = run("ip link; ls /run/netns 2>/dev/null || true");
        assert!(!left.contains("roadstead0"), "{left}");
    });
}

/// By the port of the agent, since it is in another process.
fn looked_into(kubectl: &Kubectl) {
    let said = kubectl.run("exec deployment/web -- nslookup web");
    assert!(said.contains("web.default.svc.cluster.local"), "{said}");
    kubectl.run("logs deployment/web");
    let less = kubectl.run("get node worker -o jsonpath='{.status.allocatable.cpu}'");
    assert!(less.ends_with("900m"), "what is reserved is not for pods: {less}");
    let pods = || String::from_utf8(kubectl.try_run("top pods").stdout).unwrap();
    eventually("pods are measured", PATIENCE, pods, |text| text.matches("web-").count() == 3);
    let nodes = kubectl.run("top nodes");
    assert!(nodes.contains("worker"), "{nodes}");
}

/// The agent ends and begins again; its pods go on.
fn survives(kubectl: &Kubectl, agent: &mut Part, start: impl Fn() -> Part) {
    agent.stop();
    *agent = start();
    let exec = || kubectl.try_run("exec deployment/web -- nslookup web").status.success();
    eventually("the next agent answers", PATIENCE, exec, |fine| *fine);
    let path = "{.items[*].status.containerStatuses[*].restartCount}";
    assert_eq!(kubectl.run(&format!("get pods -o jsonpath='{path}'")), "0 0 0");
}
