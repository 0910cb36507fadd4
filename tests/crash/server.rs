//! The API server as a process that can be killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use roadstead_testkit::kubectl::eventually;
use rustix::process::{Pid, Signal, kill_process};

/// A running server. It is killed at the latest when it goes out of scope.
pub(crate) struct Server {
    child: Child,
    directory: PathBuf,
}

impl Server {
    /// Starts it on a directory, and does not wait.
    pub(crate) fn launch(directory: &Path) -> Self {
        Self::launch_with(directory, &[])
    }

    fn launch_with(directory: &Path, flags: &[String]) -> Self {
        let log = File::create(directory.join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_roadstead"))
            .args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(directory.join("data"))
            .arg("--kubeconfig-out")
            .arg(directory.join("kubeconfig"))
            .args(flags)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, directory: directory.to_owned() }
    }

    /// Starts it on a directory.
    pub(crate) fn start(directory: &Path) -> Self {
        Self::start_with(directory, &[])
    }

    /// The same, with more flags.
    pub(crate) fn start_with(directory: &Path, flags: &[String]) -> Self {
        let mut server = Self::launch_with(directory, flags);
        eventually(
            "the server is ready",
            Duration::from_secs(20),
            || (server.log(), server.child.try_wait().unwrap()),
            |(log, ended)| log.contains("ready in") || ended.is_some(),
        );
        assert!(server.log().contains("ready in"), "{}", server.log());
        server
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// A client with connections of its own.
    pub(crate) async fn client(&self) -> Client {
        client(&self.directory).await
    }

    /// Makes it stand still, or go on.
    pub(crate) fn pause(&self, still: bool) {
        let signal = if still { Signal::STOP } else { Signal::CONT };
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// SIGKILL: it gets no chance to do anything more.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A client with connections of its own, of whichever server runs in a directory.
pub(crate) async fn client(directory: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(directory.join("kubeconfig")).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
