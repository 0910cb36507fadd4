//! Driving the real kubectl, whichever version the machine has.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::terminal::Typist;

/// kubectl against one server.
pub struct Kubectl {
    kubeconfig: PathBuf,
    /// Where kubectl keeps its caches: apart from those of the user.
    home: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

impl Kubectl {
    /// Uses [`Kubectl::program`].
    pub fn new(kubeconfig: impl Into<PathBuf>) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory can be made");
        Self { kubeconfig: kubeconfig.into(), home, variables: Vec::new() }
    }

    /// Sets a variable of its environment.
    pub fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
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
        self.command(command).output().expect("sh is on every machine")
    }

    /// Starts a command in a terminal; only in a laboratory.
    pub fn in_terminal(&self, command: &str) -> Typist {
        Typist::start(&mut self.command(command))
    }

    /// Whether it is 1.`minor` or later; says so, by name, where a test leaves something out because it is not.
    pub fn is_at_least(&self, minor: u32, for_what: &str) -> bool {
        let said = self.run("version --client -o json");
        let digits = said.split("\"minor\": \"").nth(1).unwrap_or_default();
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let is = digits[..end].parse::<u32>().expect("kubectl knows its version") >= minor;
        if !is {
            eprintln!("NOT RUN: {for_what}, which takes a kubectl of 1.{minor} or later");
        }
        is
    }

    /// A token of a service account of `default`: by `create token`, which kubectl has from 1.24 on, or by hand.
    pub fn token(&self, account: &str) -> String {
        if self.is_at_least(24, "kubectl create token") {
            return self.run(&format!("create token {account}")).trim().to_owned();
        }
        let review =
            "{\"apiVersion\":\"authentication.k8s.io/v1\",\"kind\":\"TokenRequest\",\"spec\":{}}";
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
        let said = self.run(&format!("create --raw {path} -f - <<'EOF'\n{review}\nEOF"));
        let said: serde_json::Value = serde_json::from_str(&said).expect("the answer is an object");
        said["status"]["token"].as_str().expect("it has a token").to_owned()
    }

    /// A command that is not started yet.
    pub fn command(&self, command: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{} {command}", Self::program())]);
        shell.env("KUBECONFIG", &self.kubeconfig).env("HOME", self.home.path());
        shell.envs(self.variables.iter().copied());
        shell
    }
}

/// Asks again and again until the answer is right; panics with the last one after a while, which is longer
/// where more processes want to run than there are processors.
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
        let waited = begin.elapsed();
        assert!(waited < patience * crowd(), "{what}: still {answer:?} after {waited:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How many want to run for each processor, from one to four.
fn crowd() -> u32 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let now: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    (1..4).find(|&crowd| now <= f64::from(crowd) * processors as f64).unwrap_or(4)
}
