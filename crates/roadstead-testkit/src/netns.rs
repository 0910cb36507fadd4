//! A private network laboratory: tests that need a kernel run in namespaces of their own.
//!
//! The test re-runs itself under `unshare` as root of a fresh user, network, mount and process
//! namespace. It needs no privileges, cannot touch the machine's own network, and everything it
//! leaves behind (links, rules, processes) disappears with it.

use std::env;
use std::process::{Command, Output};
use std::thread;

/// Set inside the laboratory, to the name of the test that runs there.
const INSIDE: &str = "ROADSTEAD_LAB";
/// A comma-separated list of test layers to leave out, for machines that cannot run them.
const SKIP: &str = "ROADSTEAD_SKIP";

/// Runs the body of the calling test in a laboratory of its own.
///
/// Call it as the only statement of a `#[test]`. Where the kernel forbids user namespaces the test
/// fails and says so; `ROADSTEAD_SKIP=L4` leaves the layer out knowingly.
pub fn laboratory(body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        run("mount -t tmpfs tmpfs /run && mkdir -p /run/netns && ip link set lo up");
        return body();
    }
    if env::var(SKIP).is_ok_and(|layers| layers.split(',').any(|layer| layer == "L4")) {
        eprintln!("L4 (kernel) left out, because {SKIP} says so");
        return;
    }
    let thread = thread::current();
    let test = thread.name().expect("tests run on named threads");
    let possible = Command::new("unshare").args(["-Urnm", "true"]).status();
    assert!(
        possible.is_ok_and(|status| status.success()),
        "L4 (kernel) cannot run here: unprivileged user namespaces are not allowed \
         (set {SKIP}=L4 to leave the layer out)"
    );
    let status = Command::new("unshare")
        .args(
            "--user --map-root-user --net --mount --pid --fork --kill-child --mount-proc"
                .split(' '),
        )
        .arg(env::current_exe().expect("a test knows its own path"))
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env(INSIDE, test)
        .status()
        .expect("unshare has just worked");
    assert!(status.success(), "{test} failed in its laboratory");
}

/// Runs a shell command, which must succeed; returns what it printed.
#[track_caller]
pub fn run(command: &str) -> String {
    let output = try_run(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "`{command}` failed: {stdout}\n{stderr}");
    stdout
}

/// Runs a shell command and returns whatever came of it.
pub fn try_run(command: &str) -> Output {
    Command::new("sh").args(["-c", command]).output().expect("sh is on every machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_laboratory_has_a_network_of_its_own() {
        laboratory(|| {
            assert_eq!(run("ip -br link | wc -l").trim(), "1", "only lo: {}", run("ip -br link"));
            run("ip netns add pod && ip netns exec pod true");
        });
    }
}
