//! Whether the service that we are ends all pods when it stops.
//!
//! What is around a container is a child of ours, and so in the group of our service: systemd ends all of that
//! with the service, unless it is told otherwise.

use std::fs;
use std::process::{Command, Stdio};

/// Returns what the operator should know of it.
pub(super) fn warning() -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let unit = unit(&groups)?;
    let mut ask = Command::new("systemctl");
    ask.args(["show", "--property=KillMode", "--value", "--", unit]).stdin(Stdio::null());
    // Without systemd nobody ends the group.
    let answer =
        ask.stderr(Stdio::null()).output().ok().filter(|answer| answer.status.success())?;
    judge(unit, String::from_utf8_lossy(&answer.stdout).trim())
}

/// The service of the system that a process with these groups belongs to.
fn unit(groups: &str) -> Option<&str> {
    let lines = groups.lines().filter_map(|line| {
        let (hierarchy, path) =
            line.split_once("::").or_else(|| line.split_once(":name=systemd:"))?;
        hierarchy.parse::<u32>().ok().map(|_| path)
    });
    // Those of users are asked elsewhere, and whoever starts us so tries something.
    let mut own = lines.filter(|path| !path.starts_with("/user.slice/"));
    own.find_map(|path| path.rsplit('/').next().filter(|name| name.ends_with(".service")))
}

fn judge(unit: &str, kill_mode: &str) -> Option<String> {
    match kill_mode {
        "" | "process" | "none" => None,
        other => Some(format!(
            "All pods end when {unit} stops or is restarted, because it has KillMode={other}: give it KillMode=process"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_service_we_are() {
        for (groups, want) in [
            ("0::/system.slice/roadstead.service\n", Some("roadstead.service")),
            (
                "12:pids:/x.service\n1:name=systemd:/system.slice/a.service\n0::/\n",
                Some("a.service"),
            ),
            ("0::/user.slice/user-0.slice/session-1.scope\n", None),
            ("0::/user.slice/user-0.slice/user@0.service/app.slice/x.service\n", None),
            ("0::/system.slice/a.service/below\n", None),
            ("0::/\n", None),
            ("", None),
        ] {
            assert_eq!(unit(groups), want, "{groups}");
        }
    }

    #[test]
    fn what_is_told_of_it() {
        for (mode, told) in [
            ("process", false),
            ("none", false),
            ("", false),
            ("control-group", true),
            ("mixed", true),
        ] {
            let said = judge("a.service", mode);
            assert_eq!(said.is_some(), told, "{mode}");
            let names = |said: &String| said.contains("a.service") && said.contains(mode);
            assert!(said.is_none_or(|said| names(&said)), "{mode}");
        }
    }
}
