//! Several API servers in front of one etcd, and clients that go on when one of them stops, dies or stands still;
//! and a node that goes on when all of them are gone.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use roadstead_testkit::etcd::Etcd;
use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{laboratory_of, run, try_run};

use crate::join::{BOTH, Joined, SERVER, each_answers, plug_in, pod, roadstead, token, wire};
use crate::process::Roadstead;
use client::Clients;

mod client;

const SOON: Duration = Duration::from_secs(30);

/// Several API servers, each at an address of its own, all with the keys of the first.
struct Servers {
    servers: Vec<Roadstead>,
    etcd: Etcd,
}

impl Servers {
    fn start(number: usize, flags: &str) -> Option<Self> {
        let etcd = Etcd::start(1)?;
        let mut all = Self { servers: Vec::new(), etcd };
        for at in 1..=number {
            run(&format!("ip address add 192.0.2.{at}/32 dev lo"));
            all.start_one(at, flags);
        }
        Some(all)
    }

    fn start_one(&mut self, at: usize, flags: &str) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display().to_string();
        if let Some(first) = self.servers.first() {
            let pki = first.directory().join("data/pki");
            run(&format!("mkdir {path}/data && cp -r {} {path}/data/pki", pki.display()));
        }
        let urls = self.etcd.urls().join(",");
        let command = format!(
            "apiserver --listen 192.0.2.{at}:6443 --etcd-servers {urls} --audit-log {path}/audit {flags}"
        );
        self.servers.push(Roadstead::start_in(directory, command.trim()));
    }

    fn kubectl(&self, at: usize) -> Kubectl {
        self.servers[at].kubectl()
    }

    /// How often anybody has asked for a whole state again, by what is in the audit logs.
    fn lists(&self) -> usize {
        let count = |server: &Roadstead| {
            let log = fs::read_to_string(server.directory().join("audit")).unwrap();
            log.lines().filter(|line| line.contains("sendInitialEvents=true")).count()
        };
        self.servers.iter().map(count).sum()
    }
}

/// Where the Service `kubernetes` leads.
fn endpoints(kubectl: &Kubectl) -> String {
    let path = "{.endpoints[*].addresses[0]}";
    kubectl.run(&format!("get endpointslices kubernetes -o jsonpath='{path}'"))
}

#[test]
fn a_server_that_is_asked_to_stop_fails_no_request() {
    laboratory_of("L5", || {
        let Some(mut all) = Servers::start(2, "--shutdown-delay-duration 3s") else { return };
        let second = all.kubectl(1);
        let both = || endpoints(&second);
        eventually("the Service leads to both", SOON, both, |found| found == "192.0.2.1 192.0.2.2");
        let clients = Clients::start(&all.servers[0].credentials(), &["192.0.2.1", "192.0.2.2"]);
        clients.each_has_done(20);
        let (first, begin) = (all.kubectl(0), Instant::now());
        run(&format!("kill -TERM {}", all.servers[0].pid()));
        let ready = || first.try_run("get --raw /readyz?verbose");
        let said = eventually("it is not ready at once", SOON, ready, |out| !out.status.success());
        let said = String::from_utf8_lossy(&said.stderr);
        assert!(said.contains("shutdown failed"), "{said}");
        let running = || all.servers[0].is_running();
        eventually("it ends", SOON, running, |running| !running);
        let took = begin.elapsed();
        clients.each_has_done(20);
        let told = clients.stop();
        eprintln!("stopped in {took:?}; {told:?}");
        assert_eq!(told.failures, [""; 0]);
        assert!(told.watch_ended_well, "a watch ends in order");
        assert!(took < Duration::from_secs(16), "{took:?}");
        // Nobody waits until its lease has ended.
        assert_eq!(endpoints(&second), "192.0.2.2");
        // The last one is in no hurry to send anybody away, and stops at once.
        let begin = Instant::now();
        all.servers[1].stop();
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    });
}

/// Controllers that follow any of the servers.
struct Controllers {
    child: Child,
    log: PathBuf,
}

impl Controllers {
    fn start(all: &Servers) -> Self {
        let here = all.servers[0].directory();
        let log = here.join("controllers.log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadstead"));
        command.arg("controllers").arg("--kubeconfig").arg(all.servers[0].kubeconfig());
        command.args(["--controllers", "deployment,replicaset", "--metrics-bind-address"]);
        command.arg("127.0.0.1:0").stdin(Stdio::null());
        let child = command.stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        Self { child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The number of the server that they are with.
    fn server(&self) -> usize {
        let is_with = |line: &&str| line.contains("requests go to this API server");
        let with = || {
            let log = self.log();
            let line = log.lines().rfind(is_with)?;
            let number = line.split("https://192.0.2.").nth(1)?.split(':').next()?;
            number.parse::<usize>().ok()
        };
        eventually("they are with a server", SOON, with, Option::is_some).unwrap()
    }
}

impl Drop for Controllers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the controllers said:\n{}", self.log());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long it takes until a Deployment has its ReplicaSet.
fn carried_out(kubectl: &Kubectl, name: &str) -> Duration {
    let begin = Instant::now();
    kubectl.run(&format!("create deployment {name} --image=roadstead/echo"));
    let count = || kubectl.run(&format!("get replicasets -l app={name} -o name"));
    eventually("the controllers go on", SOON, count, |sets| !sets.is_empty());
    begin.elapsed()
}

#[test]
fn clients_go_on_at_another_server_without_listing() {
    laboratory_of("L5", || {
        let Some(mut all) = Servers::start(3, "") else { return };
        let (one, two) = (all.kubectl(0), all.kubectl(1));
        let found = || endpoints(&one);
        eventually("the Service leads to all", SOON, found, |found| {
            found.matches(' ').count() == 2
        });
        let controllers = Controllers::start(&all);
        carried_out(&two, "first");
        let knows = || controllers.log().contains("the API servers of the cluster");
        eventually("they know all servers", SOON, knows, |knows| *knows);
        let at = controllers.server();
        let lists = all.lists();
        assert!(lists > 0, "it can be seen when somebody lists");
        all.servers[at - 1].kill();
        let other = all.kubectl(at % 3);
        eprintln!("after a server was killed: {:?}", carried_out(&other, "second"));

        // One that stands still is left, too, although its connections do not end.
        let still = controllers.server();
        assert_ne!(still, at);
        run(&format!("kill -STOP {}", all.servers[still - 1].pid()));
        let left = 6 - at - still;
        let took = carried_out(&all.kubectl(left - 1), "third");
        eprintln!("after a server stood still: {took:?}");
        assert_eq!(controllers.server(), left);
        run(&format!("kill -CONT {}", all.servers[still - 1].pid()));
        assert_eq!(all.lists(), lists, "watches go on where they were: {}", controllers.log());
    });
}

#[test]
fn a_node_that_starts_without_any_server_goes_on() {
    laboratory_of("L5", || {
        wire();
        plug_in("n2", 2);
        let directory = tempfile::tempdir().unwrap();
        let mut server = Roadstead::start_in(directory, "up --listen 0.0.0.0:6443 --node-name n1");
        let (kubectl, here) = (server.kubectl(), server.directory().to_owned());
        let joining = format!("--server {SERVER} --token {}", token(&server, ""));
        let mut node = Joined::start(&here, "n2", &joining).once_ready();
        kubectl.apply(&format!("{}{BOTH}", pod("two", "n2")));
        kubectl.run("wait --for=condition=Ready pod/two --timeout=60s");
        let address = kubectl.run("get service both -o jsonpath='{.spec.clusterIP}'");
        let place = "ip netns exec n2";
        each_answers(place, &address, &["two"]);
        // What it knows is on its disk within seconds.
        let kept = here.join("n2/data/join/offline/node");
        let ready = || {
            let grep = format!("grep -rh EndpointSlice {} | grep both-", kept.display());
            String::from_utf8_lossy(&try_run(&grep).stdout).into_owned()
        };
        eventually("it remembers", SOON, ready, |kept| kept.contains("\"ready\":true"));
        let secrets = try_run(&format!("grep -rl '\"kind\":\"Secret\"' {}", kept.display()));
        assert!(secrets.stdout.is_empty(), "no Secret is kept");

        // Everybody is gone, and the kernel knows nothing.
        server.kill();
        node.end();
        run(&format!("{place} nft flush ruleset"));
        assert!(!try_run(&format!("{place} curl -s -m 1 http://{address}/")).status.success());
        let begin = Instant::now();
        let mut node = Joined::start(&here, "n2", "");
        let ask = || try_run(&format!("{place} curl -s -m 1 http://{address}/")).status.success();
        eventually("its Services answer", SOON, ask, |ok| *ok);
        let services = begin.elapsed();
        let name = "both.default.svc.cluster.local 10.244.1.1";
        let ask = || {
            let said = try_run(&format!("{place} nslookup -timeout=1 {name}")).stdout;
            String::from_utf8_lossy(&said).into_owned()
        };
        eventually("names do", SOON, ask, |said| said.contains(&address));
        eprintln!(
            "without a server, Services after {services:?}, names after {:?}",
            begin.elapsed()
        );
        assert!(services < Duration::from_secs(10), "{services:?}");
        assert!(node.log().contains("offline: no API server answers"), "{}", node.log());
        let state = run(&format!("{place} curl -s http://127.0.0.1:10253/debug/state"));
        assert!(state.contains("stateOf"), "{state}");

        // And goes on from there when they are back.
        server.start_again();
        let log = || node.log();
        eventually("it notices", SOON, log, |log| log.contains("no longer offline"));
        kubectl.run("expose pod two --name again --port 80 --target-port 8080");
        let address = kubectl.run("get service again -o jsonpath='{.spec.clusterIP}'");
        each_answers(place, &address, &["two"]);
        node.end();
    });
}

#[test]
fn a_machine_joins_the_control_plane() {
    laboratory_of("L5", || {
        let Some(all) = Servers::start(1, "") else { return };
        run("ip address add 192.0.2.2/32 dev lo");
        let (data, urls) = (all.servers[0].directory().join("data"), all.etcd.urls().join(","));
        let offered = run(&roadstead(&format!(
            "token create --control-plane --quiet --data-dir {} --etcd-servers {urls}",
            data.display()
        )));
        let directory = tempfile::tempdir().unwrap();
        let flags = format!("--listen 192.0.2.2:6443 --etcd-servers {urls}");
        let path = directory.path().display();
        let join = |token: &str| {
            roadstead(&format!(
                "join --control-plane --data-dir {path}/data --token {token} -- {flags} \
                 --kubeconfig-out {path}/kubeconfig"
            ))
        };
        let (begin, secret) = offered.rsplit_once('.').unwrap();
        let other = if secret.starts_with('A') { "B" } else { "A" };
        let wrong = format!("{begin}.{other}{}", &secret[1..]);
        let said = try_run(&join(&wrong));
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.contains("the token does not fit"), "{said}");
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("exec {}", join(&offered))]).stderr(log);
        let mut child = command.spawn().unwrap();
        let said = || fs::read_to_string(directory.path().join("log")).unwrap();
        eventually("the other serves", SOON, said, |said| said.contains("ready in"));
        let (first, second) = (all.kubectl(0), Kubectl::new(directory.path().join("kubeconfig")));
        second.run("create configmap a --from-literal=a=b");
        first.run("get configmap a");
        // No two nodes get the same pod addresses, whichever server gives them.
        for (number, kubectl) in [&first, &second, &first].into_iter().enumerate() {
            let block = format!("10.244.{number}.0/24");
            kubectl.apply(&format!(
                "apiVersion: v1\nkind: Node\nmetadata: {{name: n{number}}}\n\
                 spec: {{podCIDR: {block}, podCIDRs: [{block}]}}\n"
            ));
        }
        // No Secret has any of it, and nobody without the token reads it in etcd.
        let secrets = first.run("get secrets -A -o yaml");
        assert!(!secrets.contains("ca.key"), "{secrets}");
        run(&format!("kill -TERM {}", child.id()));
        assert!(child.wait().unwrap().success(), "{}", said());
    });
}
