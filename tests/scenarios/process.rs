//! The binary as a process of the test, and how it starts and stops.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::{is_left_out, laboratory_of, run, try_run};

/// A running `roadstead`, stopped when it goes out of scope.
pub struct Roadstead {
    child: Child,
    directory: tempfile::TempDir,
}

impl Roadstead {
    /// Starts everything; only in a laboratory.
    pub fn up() -> Self {
        Self::start("up --listen 127.0.0.1:6443 --node-name node")
    }

    /// Starts only the API server.
    pub fn apiserver() -> Self {
        Self::start("apiserver --ephemeral --listen 127.0.0.1:0")
    }

    fn start(command: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut arguments: Vec<_> = command.split(' ').map(str::to_owned).collect();
        let path = |name: &str| directory.path().join(name).display().to_string();
        arguments.extend(["--kubeconfig-out".into(), path("kubeconfig")]);
        if command.starts_with("up") {
            arguments.extend(["--data-dir".into(), path("data")]);
        }
        let log = fs::File::create(path("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_roadstead"))
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut roadstead = Self { child, directory };
        eventually(
            "roadstead is ready",
            Duration::from_secs(20),
            || (roadstead.log(), roadstead.child.try_wait().unwrap()),
            |(log, ended)| log.contains("ready in") || ended.is_some(),
        );
        assert!(roadstead.log().contains("ready in"), "{}", roadstead.log());
        roadstead
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.kubeconfig())
    }

    /// Asks it to stop and waits until it has.
    pub fn stop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            run(&format!("kill -INT {}", self.child.id()));
            let status = self.child.wait().unwrap();
            assert!(status.success(), "{status}: {}", self.log());
        }
    }
}

impl Drop for Roadstead {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("roadstead said:\n{}", self.log());
            let _ = self.child.kill();
            let _ = self.child.wait();
        } else {
            self.stop();
        }
    }
}

#[test]
fn a_port_already_taken_names_the_culprit() {
    if is_left_out("L5") {
        return;
    }
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_roadstead"))
        .args(["apiserver", "--ephemeral", "--listen", &address.to_string()])
        .arg("--kubeconfig-out")
        .arg(directory.path().join("kubeconfig"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let culprit = format!("(pid {})", std::process::id());
    assert!(!output.status.success());
    assert!(said.contains("is already used by") && said.contains(&culprit), "{said}");
}

#[test]
fn stopping_leaves_nothing_behind() {
    laboratory_of("L5", || {
        let state = || {
            let parts = [
                "ip -br link | awk '{print $1}' | sort",
                "ls /run/netns",
                "nft list ruleset",
                "ip route",
                "ps -eo stat=,comm= | grep -v ^Z | grep -c roadstead || true",
            ];
            parts.map(|part| String::from_utf8_lossy(&try_run(part).stdout).into_owned())
        };
        let before = state();
        let mut roadstead = Roadstead::up();
        let kubectl = roadstead.kubectl();
        kubectl.apply("../../examples/web.yaml");
        kubectl.run("rollout status deployment/web --timeout=60s");
        assert_ne!(state(), before);
        roadstead.stop();
        assert_eq!(state(), before);
        let left = run(&format!(
            "ls -A {}/data/node 2>/dev/null || true",
            roadstead.directory.path().display()
        ));
        assert_eq!(left, "", "no state of pods is left");
    });
}
