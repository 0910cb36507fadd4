//! Driving the real kubectl, whichever version the machine has.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// kubectl against one server.
pub struct Kubectl {
    kubeconfig: PathBuf,
    /// Where kubectl keeps its caches: apart from those of the user.
    home: tempfile::TempDir,
}

impl Kubectl {
    /// Uses [`Kubectl::program`].
    pub fn new(kubeconfig: impl Into<PathBuf>) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        Self { kubeconfig: kubeconfig.into(), home }
    }

    /// The program: the machine's own, or the one that `ROADSTEAD_KUBECTL` names.
    pub fn program() -> String {
        std::env::var("ROADSTEAD_KUBECTL").unwrap_or_else(|_| "kubectl".into())
    }

    /// Runs a command, which must succeed; returns what it printed.
    #[track_caller]
    pub fn run(&self, command: &str) -> String {
        let output = self.try_run(command);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {command}: {stdout}{stderr}");
        stdout
    }

    /// Runs a command, which must fail; returns what it complained about.
    #[track_caller]
    pub fn fails(&self, command: &str) -> String {
        let output = self.try_run(command);
        assert!(!output.status.success(), "kubectl {command} should have failed");
        String::from_utf8_lossy(&output.stderr).trim_end().to_owned()
    }

    /// Applies a manifest given as text or as a file.
    #[track_caller]
    pub fn apply(&self, manifest: &str) -> String {
        self.run(&self.apply_command(manifest))
    }

    /// The command that applies a manifest given as text or as a file.
    pub fn apply_command(&self, manifest: &str) -> String {
        let file = if Path::new(manifest).exists() {
            manifest.to_owned()
        } else {
            let path = self.home.path().join("manifest.yaml");
            // The marker keeps kubectl from taking `{a: b}` for JSON.
            std::fs::write(&path, format!("---\n{manifest}"))
                .expect("a temporary file can be written");
            path.display().to_string()
        };
        format!("apply -f {file}")
    }

    /// Runs a command and returns whatever came of it.
    pub fn try_run(&self, command: &str) -> Output {
        Command::new("sh")
            .args(["-c", &format!("{} {command}", Self::program())])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.home.path())
            .output()
            .expect("sh is on every machine")
    }
}

/// Asks again and again until the answer is right; panics with the last one after a while.
#[track_caller]
pub fn eventually<T: std::fmt::Debug>(
    what: &str,
    patience: Duration,
    mut ask: impl FnMut() -> T,
    right: impl Fn(&T) -> bool,
) -> T {
    let begin = Instant::now();
    loop {
        let answer = ask();
        if right(&answer) {
            return answer;
        }
        assert!(begin.elapsed() < patience, "{what}: still {answer:?} after {patience:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
