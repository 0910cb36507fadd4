//! The binary as a process of the test. Each test program that needs it includes this file.

// No program needs everything of it.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use roadstead_testkit::kubectl::{Kubectl, eventually};
use roadstead_testkit::netns::run;

/// A running `roadstead`, stopped when it goes out of scope.
pub(crate) struct Roadstead {
    child: Child,
    arguments: Vec<String>,
    pub directory: tempfile::TempDir,
}

/// How to reach a server, and as whom.
pub(crate) struct Credentials {
    pub server: String,
    pub authority: Vec<u8>,
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl Roadstead {
    /// Starts everything; only in a laboratory.
    pub(crate) fn up() -> Self {
        Self::start("up --listen 127.0.0.1:6443 --node-name node")
    }

    /// Starts everything, with more flags; only in a laboratory.
    pub(crate) fn up_with(flags: &str) -> Self {
        Self::start(&format!("up --listen 127.0.0.1:6443 --node-name node {flags}"))
    }

    /// Starts everything, and leaves nothing behind at the end; only in a laboratory.
    pub(crate) fn up_ephemeral() -> Self {
        Self::start("up --ephemeral --listen 127.0.0.1:6443 --node-name node")
    }

    /// Starts everything on a disk of that many megabytes, with its log on it, too; only in a
    /// laboratory.
    pub(crate) fn up_on_a_small_disk(megabytes: u32) -> Self {
        let directory = tempfile::tempdir_in("/run").unwrap();
        let path = directory.path().display();
        run(&format!("mount -t tmpfs -o size={megabytes}m tmpfs {path}"));
        Self::start_in(directory, "up --listen 127.0.0.1:6443 --node-name node")
    }

    /// Starts only the API server.
    pub(crate) fn apiserver() -> Self {
        Self::start("apiserver --ephemeral --listen 127.0.0.1:0")
    }

    /// Starts only the API server, on another address than loopback.
    pub(crate) fn apiserver_at(address: &str) -> Self {
        Self::start(&format!("apiserver --ephemeral --listen {address}"))
    }

    /// Starts only the API server, with more flags.
    pub(crate) fn apiserver_with(flags: &str) -> Self {
        Self::start(&format!("apiserver --ephemeral --listen 127.0.0.1:0 {flags}"))
    }

    /// Starts only the API server, which keeps its objects.
    pub(crate) fn durable_apiserver() -> Self {
        Self::start("apiserver --listen 127.0.0.1:0")
    }

    /// Where everything of it is.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    fn start(command: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), command)
    }

    /// Starts a command in a directory that may hold files already.
    pub(crate) fn start_in(directory: tempfile::TempDir, command: &str) -> Self {
        let mut arguments: Vec<_> = command.split(' ').map(str::to_owned).collect();
        let path = |name: &str| directory.path().join(name).display().to_string();
        arguments.extend(["--kubeconfig-out".into(), path("kubeconfig")]);
        arguments.extend(["--data-dir".into(), path("data")]);
        if arguments[0] == "up" {
            // How full this machine's disk is, is no business of the tests.
            arguments.push("--eviction-hard=".into());
        }
        let child = Self::launch(&directory, &arguments);
        let mut roadstead = Self { child, arguments, directory };
        roadstead.wait_until_ready();
        roadstead
    }

    /// Starts it once more, with the same flags and files.
    pub(crate) fn start_again(&mut self) {
        self.stop();
        self.child = Self::launch(&self.directory, &self.arguments);
        self.wait_until_ready();
    }

    /// Ends it without warning.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it once more, with the same files and one more flag, this time only.
    pub(crate) fn start_with(&mut self, flag: &str) {
        self.stop();
        let mut arguments = self.arguments.clone();
        arguments.push(flag.to_owned());
        self.child = Self::launch(&self.directory, &arguments);
        self.wait_until_ready();
    }

    fn launch(directory: &tempfile::TempDir, arguments: &[String]) -> Child {
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_roadstead"));
        command.args(arguments).stdin(Stdio::null()).stderr(log).spawn().unwrap()
    }

    fn wait_until_ready(&mut self) {
        eventually(
            "roadstead is ready",
            Duration::from_secs(30),
            || (self.log(), self.child.try_wait().unwrap()),
            |(log, ended)| log.contains("ready in") || ended.is_some(),
        );
        assert!(self.log().contains("ready in"), "{}", self.log());
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the kubeconfig says, in PEM where it is about certificates.
    pub(crate) fn credentials(&self) -> Credentials {
        let config = fs::read_to_string(self.kubeconfig()).unwrap();
        let field = |name: &str| {
            let line = config.lines().find(|line| line.trim().starts_with(name)).unwrap();
            line.split_once(": ").unwrap().1.trim().to_owned()
        };
        let pem = |name: &str| run(&format!("echo {} | base64 -d", field(name))).into_bytes();
        Credentials {
            server: field("server"),
            authority: pem("certificate-authority-data"),
            certificate: pem("client-certificate-data"),
            key: pem("client-key-data"),
        }
    }

    pub(crate) fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.kubeconfig())
    }

    /// Asks it to stop and waits until it has.
    pub(crate) fn stop(&mut self) {
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
            let lacks = "a part of this process lacks a right";
            assert!(!self.log().contains(lacks), "{}", self.log());
        }
    }
}
