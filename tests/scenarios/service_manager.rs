//! A pretended systemd, for what packages and their units ask of one: it starts what a unit says, waits to be
//! told that it is ready, and ends it as the unit says.
//!
//! Programs ask it by a `systemctl` that hands its arguments to us through a pipe.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use roadstead_testkit::netns::run;

/// How long a service may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(30);
const UNITS: &str = "/usr/lib/systemd/system";
const REQUESTS: &str = "/run/manager/requests";
const SYSTEMCTL: &str = "#!/bin/sh
mkfifo /run/manager/answer-$$
echo $$ \"$@\" >/run/manager/requests
read -r code </run/manager/answer-$$
rm /run/manager/answer-$$
exit $code
";

/// What is known of services; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceManager(Arc<Mutex<Services>>);

#[derive(Debug, Default)]
struct Services {
    enabled: BTreeSet<String>,
    running: BTreeMap<String, Service>,
    /// What was done, in order.
    history: Vec<String>,
}

#[derive(Debug)]
struct Service {
    process: Child,
    notifications: UnixDatagram,
}

impl ServiceManager {
    /// Takes the place of `systemctl`; only where /usr and /run are the test's own.
    pub(crate) fn install() -> Self {
        run("mkdir -p /run/systemd/system /run/manager && mkfifo /run/manager/requests");
        // Where services are not to be started, as in images of containers.
        run("rm -f /usr/sbin/policy-rc.d /usr/bin/systemctl");
        fs::write("/usr/bin/systemctl", SYSTEMCTL).unwrap();
        run("chmod 755 /usr/bin/systemctl");
        let manager = Self::default();
        let known = manager.clone();
        // Opened to write as well, so that it does not end when a program does.
        let requests = File::options().read(true).write(true).open(REQUESTS).unwrap();
        thread::spawn(move || {
            for request in BufReader::new(requests).lines().map_while(Result::ok) {
                let (caller, words) = request.split_once(' ').unwrap_or((&request, ""));
                let done = known.0.lock().unwrap().carry_out(words);
                let code = u8::from(!done);
                fs::write(format!("/run/manager/answer-{caller}"), format!("{code}\n")).unwrap();
            }
        });
        manager
    }

    /// What was done, in order.
    pub(crate) fn history(&self) -> Vec<String> {
        self.0.lock().unwrap().history.clone()
    }

    /// The process of a service.
    pub(crate) fn pid(&self, unit: &str) -> u32 {
        self.0.lock().unwrap().running[unit].process.id()
    }
}

impl Services {
    /// Answers like systemctl: whether it was possible, or is so.
    fn carry_out(&mut self, words: &str) -> bool {
        let mut words = words.split(' ').filter(|word| !word.starts_with("--"));
        let verb = words.next().unwrap_or_default();
        let units: Vec<_> = words.collect();
        units.iter().all(|unit| self.do_to(verb, unit)) || verb == "daemon-reload"
    }

    fn do_to(&mut self, verb: &str, unit: &str) -> bool {
        match verb {
            "is-active" => self.running.contains_key(unit),
            "is-enabled" => self.enabled.contains(unit),
            "enable" => self.enabled.insert(unit.to_owned()),
            "disable" => self.enabled.remove(unit),
            "start" => self.running.contains_key(unit) || self.start(unit),
            "stop" => self.stop(unit),
            "restart" => self.stop(unit) && self.start(unit),
            _ => false,
        }
    }

    fn start(&mut self, unit: &str) -> bool {
        let text = fs::read_to_string(Path::new(UNITS).join(unit)).unwrap();
        assert_eq!(setting(&text, "Type"), "notify");
        let socket = format!("/run/manager/{unit}.notify");
        let _ = fs::remove_file(&socket);
        let notifications = UnixDatagram::bind(&socket).unwrap();
        notifications.set_read_timeout(Some(PATIENCE)).unwrap();
        let log = File::options().create(true).append(true).open(log_of(unit)).unwrap();
        let command = setting(&text, "ExecStart");
        let mut words = command.split(' ');
        let process = Command::new(words.next().unwrap())
            .args(words)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin")
            .env("NOTIFY_SOCKET", &socket)
            .env("WATCHDOG_USEC", "500000")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut service = Service { process, notifications };
        let ready = service.hears("READY=1") && service.hears("WATCHDOG=1");
        if ready {
            self.history.push(format!("started {unit}"));
            self.running.insert(unit.to_owned(), service);
        }
        ready
    }

    /// Ends the one process, as `KillMode=process` has it: others of the service go on.
    fn stop(&mut self, unit: &str) -> bool {
        let Some(mut service) = self.running.remove(unit) else { return true };
        let text = fs::read_to_string(Path::new(UNITS).join(unit)).unwrap();
        assert_eq!(setting(&text, "KillMode"), "process");
        run(&format!("kill -TERM {}", service.process.id()));
        let told = service.hears("STOPPING=1");
        let status = service.process.wait().unwrap();
        self.history.push(format!("stopped {unit}"));
        told && status.success()
    }
}

impl Service {
    /// Whether it says so before long.
    fn hears(&mut self, wanted: &str) -> bool {
        let begin = Instant::now();
        let mut message = [0; 256];
        while begin.elapsed() < PATIENCE {
            let Ok(length) = self.notifications.recv(&mut message) else { return false };
            if String::from_utf8_lossy(&message[..length]).lines().any(|line| line == wanted) {
                return true;
            }
        }
        false
    }
}

/// Where a service writes to.
pub(crate) fn log_of(unit: &str) -> String {
    format!("/run/manager/{unit}.log")
}

fn setting(unit: &str, name: &str) -> String {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    let found =
        lines.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next_back();
    found.unwrap_or_else(|| panic!("{name} is missing: {unit}"))
}
