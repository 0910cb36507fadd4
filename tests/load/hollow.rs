//! Hollow nodes in small: twenty of them with a hundred pods, and proxies that know in the end what is there.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use roadstead_hollow::options::Simulation;
use roadstead_hollow::run::run;
use roadstead_testkit::kubectl::eventually;
use roadstead_testkit::netns::is_left_out;

/// A process of ours, until this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(directory: &Path, log: &str, arguments: &[&str]) -> Process {
    let log = std::fs::File::create(directory.join(log)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_roadstead"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).stderr(log);
    Process(command.spawn().unwrap())
}

#[tokio::test]
async fn twenty_hollow_nodes() {
    if is_left_out("L5") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let arguments =
        "apiserver --ephemeral --listen 127.0.0.1:0 --kubeconfig-out kubeconfig --data-dir data";
    let server = start(path, "server", &arguments.split(' ').collect::<Vec<_>>());
    let log = || std::fs::read_to_string(path.join("server")).unwrap();
    eventually("it is ready", Duration::from_secs(30), log, |log| log.contains("ready in"));
    let arguments = "controllers --kubeconfig kubeconfig --metrics-bind-address 127.0.0.1:0";
    let controllers = start(path, "controllers", &arguments.split(' ').collect::<Vec<_>>());
    let pids = format!("{},{}", server.0.id(), controllers.0.id());
    let config = path.join("kubeconfig").display().to_string();
    let begin = Instant::now();
    let words = [
        "hollow",
        "--kubeconfig",
        &config,
        "--nodes",
        "20",
        "--pods-per-node",
        "5",
        "--watchers",
        "3",
        "--churn",
        "5",
        "--seconds",
        "3",
        "--pods-per-service",
        "10",
        "--pids",
        &pids,
    ];
    let report = run(Simulation::parse_from(words)).await.unwrap();
    eprintln!("{report}\n{:.1?}, sound: {}", begin.elapsed(), report.is_sound());
    assert!(report.is_consistent(), "{report}");
    let (requests, events) = report.counts();
    assert!(requests > 20 && events > 50, "{report}");
}
