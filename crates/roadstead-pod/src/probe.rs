//! What a series of probe results means: pure.
//!
//! Sockets and timers are in `prober`. A verdict flips only after as many equal results in a row
//! as the threshold asks for.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::environment::expand;

/// Which question a probe answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Has the program started?
    Startup,
    /// May it get connections?
    Readiness,
    /// Should it go on?
    Liveness,
}

impl Kind {
    /// The probe of this kind that the container asks for.
    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Kind::Startup => container.startup_probe.as_ref(),
            Kind::Readiness => container.readiness_probe.as_ref(),
            Kind::Liveness => container.liveness_probe.as_ref(),
        }
    }

    /// As it is written in events.
    pub fn title(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Readiness => "Readiness",
            Kind::Liveness => "Liveness",
        }
    }
}

/// How one attempt went.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// As it should be.
    Success,
    /// As it should be, but there is something to say about it.
    Warning(String),
    /// Not so, and why.
    Failure(String),
    /// It could not be tried, which says nothing about the container.
    Error(String),
}

impl Outcome {
    /// The reason and the message of the event about it.
    pub fn event(&self, kind: Kind) -> Option<(&'static str, String)> {
        let title = kind.title();
        match self {
            Outcome::Success => None,
            Outcome::Warning(what) => {
                Some(("ProbeWarning", format!("{title} probe warning: {what}")))
            }
            Outcome::Failure(what) => Some(("Unhealthy", format!("{title} probe failed: {what}"))),
            Outcome::Error(what) => {
                let message =
                    format!("{title} probe errored and resulted in unknown state: {what}");
                Some(("Unhealthy", message))
            }
        }
    }
}

/// How many equal results in a row it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Until it passes.
    pub success: u32,
    /// Until it fails.
    pub failure: u32,
}

/// The results so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    last_was_success: bool,
    in_a_row: u32,
}

/// What the results amount to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The probe passes.
    Passing,
    /// The probe fails.
    Failing,
    /// Too few equal results to change the verdict.
    Undecided,
}

/// Counts one more result in.
pub fn step(tally: Tally, outcome: &Outcome, thresholds: Thresholds) -> (Tally, Verdict) {
    let success = match outcome {
        Outcome::Success | Outcome::Warning(_) => true,
        Outcome::Failure(_) => false,
        Outcome::Error(_) => return (tally, Verdict::Undecided),
    };
    let in_a_row = match tally.in_a_row {
        0 => 1,
        count if tally.last_was_success == success => count.saturating_add(1),
        _ => 1,
    };
    let (needed, verdict) = match success {
        true => (thresholds.success, Verdict::Passing),
        false => (thresholds.failure, Verdict::Failing),
    };
    let verdict = if in_a_row >= needed { verdict } else { Verdict::Undecided };
    (Tally { last_was_success: success, in_a_row }, verdict)
}

/// When and how to probe, with the defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Nothing is asked before.
    pub initial_delay: Duration,
    /// From one attempt to the next.
    pub period: Duration,
    /// An attempt that takes longer has failed.
    pub timeout: Duration,
    /// What it takes to change the verdict.
    pub thresholds: Thresholds,
}

impl Schedule {
    /// Reads them.
    pub fn of(probe: &Probe) -> Self {
        let number = |given: Option<i32>, default: u32| match given {
            Some(given) if given > 0 => given.unsigned_abs(),
            _ => default,
        };
        let seconds = |given, default| Duration::from_secs(number(given, default).into());
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            thresholds: Thresholds {
                success: number(probe.success_threshold, 1),
                failure: number(probe.failure_threshold, 3),
            },
        }
    }
}

/// What to try.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the fields are those of the API")]
pub enum Check {
    /// A GET that is answered with a status from 200 to 399.
    Http(HttpGet),
    /// A connection.
    Tcp { host: Option<String>, port: u16 },
    /// A command in the container that exits with 0.
    Exec { command: Vec<String> },
    /// A gRPC service that says of itself that it serves.
    Grpc { port: u16, service: String },
}

impl Check {
    /// Reads the probe's action; the error says what is wrong with it.
    pub fn of(probe: &Probe, container: &Container) -> Result<Self, String> {
        if let Some(exec) = &probe.exec {
            return Ok(Check::Exec { command: static_command(exec, container) });
        }
        if let Some(http) = &probe.http_get {
            return HttpGet::of(http, container).map(Check::Http);
        }
        if let Some(tcp) = &probe.tcp_socket {
            let host = tcp.host.clone().filter(|host| !host.is_empty());
            return Ok(Check::Tcp { host, port: port(&tcp.port, container)? });
        }
        if let Some(grpc) = &probe.grpc {
            let port = number(grpc.port)?;
            return Ok(Check::Grpc { port, service: grpc.service.clone().unwrap_or_default() });
        }
        Err(format!("missing probe handler for container {}", container.name))
    }
}

/// An HTTP request of a probe or a hook.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpGet {
    /// With or without TLS.
    pub scheme: Scheme,
    /// The pod's address, if not given.
    pub host: Option<String>,
    /// The port.
    pub port: u16,
    /// Begins with a slash.
    pub path: String,
    /// As given.
    pub headers: Vec<(String, String)>,
}

/// How HTTP is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In the open.
    Http,
    /// Through TLS, whatever the certificate.
    Https,
}

impl Scheme {
    /// As in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

impl HttpGet {
    /// Reads it; the error says what is wrong.
    pub fn of(action: &HTTPGetAction, container: &Container) -> Result<Self, String> {
        let path = action.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
        let headers = action.http_headers.iter().flatten();
        Ok(Self {
            scheme: match action.scheme.as_deref() {
                Some("HTTPS") => Scheme::Https,
                _ => Scheme::Http,
            },
            host: action.host.clone().filter(|host| !host.is_empty()),
            port: port(&action.port, container)?,
            path: if path.starts_with('/') { path.into() } else { format!("/{path}") },
            headers: headers.map(|header| (header.name.clone(), header.value.clone())).collect(),
        })
    }
}

/// The command of a probe or hook, in which variables stand for what the spec itself says of them.
pub(crate) fn static_command(exec: &ExecAction, container: &Container) -> Vec<String> {
    let variables = container.env.iter().flatten().filter(|variable| variable.value_from.is_none());
    let literal: Vec<_> = variables
        .map(|variable| (variable.name.clone(), variable.value.clone().unwrap_or_default()))
        .collect();
    exec.command.iter().flatten().map(|word| expand(word, &literal)).collect()
}

fn number(number: i32) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| format!("invalid port number: {number}"))
}

fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    match port {
        IntOrString::Int(given) => number(*given),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let found = ports.find(|port| port.name.as_deref() == Some(name));
            let given = found.map(|port| port.container_port).or_else(|| name.parse().ok());
            number(given.ok_or_else(|| format!("couldn't find port: {name:?}"))?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn verdicts() {
        let cases = [
            ("one success is enough by default", 1, 3, "+", "P"),
            ("three failures in a row", 1, 3, "---", "..F"),
            ("a success resets the count", 1, 3, "--+--", "..P.."),
            ("still failing", 1, 2, "----", ".FFF"),
            ("two successes needed", 2, 1, "-+-++", "F.F.P"),
            ("flapping never fails", 1, 2, "+-+-+-", "P.P.P."),
            ("a warning is a success", 2, 1, "+w", ".P"),
            ("an error is nothing", 1, 2, "e-e-e", "...F."),
        ];
        for (name, success, failure, results, want) in cases {
            let thresholds = Thresholds { success, failure };
            let mut tally = Tally::default();
            let mut verdicts = String::new();
            for result in results.chars() {
                let outcome = match result {
                    '+' => Outcome::Success,
                    'w' => Outcome::Warning("hm".into()),
                    'e' => Outcome::Error("how".into()),
                    _ => Outcome::Failure("no".into()),
                };
                let (next, verdict) = step(tally, &outcome, thresholds);
                tally = next;
                verdicts.push(match verdict {
                    Verdict::Passing => 'P',
                    Verdict::Failing => 'F',
                    Verdict::Undecided => '.',
                });
            }
            assert_eq!(verdicts, want, "{name}");
        }
    }

    #[test]
    fn checks() {
        let container = json!({"name": "a", "ports": [{"name": "http", "containerPort": 8080}],
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"},
                    {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]});
        let container: Container = serde_json::from_value(container).unwrap();
        let get = |scheme, port: u16, path: &str| {
            Ok(Check::Http(HttpGet {
                scheme,
                host: None,
                port,
                path: path.into(),
                headers: vec![],
            }))
        };
        let http = |port: u16, path: &str| get(Scheme::Http, port, path);
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let cases = [
            (json!({"httpGet": {"port": 80, "path": "/healthz"}}), http(80, "/healthz")),
            (json!({"httpGet": {"port": "http"}}), http(8080, "/")),
            (json!({"httpGet": {"port": "81", "path": "x"}}), http(81, "/x")),
            (json!({"httpGet": {"port": "nope"}}), Err("couldn't find port: \"nope\"".into())),
            (json!({"tcpSocket": {"port": 6379}}), Ok(Check::Tcp { host: None, port: 6379 })),
            (json!({"httpGet": {"port": 443, "scheme": "HTTPS"}}), get(Scheme::Https, 443, "/")),
            (json!({"httpGet": {"port": 70000}}), Err("invalid port number: 70000".into())),
            (
                json!({"exec": {"command": ["x", "$(A)", "$(B)", "$(C)", "$$(A)"]}}),
                Ok(Check::Exec { command: words(&["x", "1", "$(A)", "$(C)", "$(A)"]) }),
            ),
            (
                json!({"grpc": {"port": 9000, "service": "s"}}),
                Ok(Check::Grpc { port: 9000, service: "s".into() }),
            ),
            (json!({}), Err("missing probe handler for container a".into())),
        ];
        for (probe, want) in cases {
            let parsed: Probe = serde_json::from_value(probe.clone()).unwrap();
            assert_eq!(Check::of(&parsed, &container), want, "{probe}");
        }
    }

    #[test]
    fn what_events_say() {
        let cases = [
            (Outcome::Success, None),
            (Outcome::Failure("no".into()), Some(("Unhealthy", "Readiness probe failed: no"))),
            (Outcome::Warning("hm".into()), Some(("ProbeWarning", "Readiness probe warning: hm"))),
            (
                Outcome::Error("how".into()),
                Some(("Unhealthy", "Readiness probe errored and resulted in unknown state: how")),
            ),
        ];
        for (outcome, want) in cases {
            let event = outcome.event(Kind::Readiness);
            let want = want.map(|(reason, message)| (reason, message.to_owned()));
            assert_eq!(event, want, "{outcome:?}");
        }
    }
}
