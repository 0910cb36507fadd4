//! What a series of probe results means: pure.
//!
//! Sockets and timers are in `prober`. A verdict flips only after as many equal results in a row
//! as the threshold asks for.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Which question a probe answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Startup,
    Readiness,
    Liveness,
}

impl Kind {
    /// The probe of this kind that the container asks for.
    pub(crate) fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Kind::Startup => container.startup_probe.as_ref(),
            Kind::Readiness => container.readiness_probe.as_ref(),
            Kind::Liveness => container.liveness_probe.as_ref(),
        }
    }

    /// As it is written in events.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Readiness => "Readiness",
            Kind::Liveness => "Liveness",
        }
    }
}

/// How one attempt went.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Outcome {
    Success,
    Failure(String),
}

/// How many equal results in a row it takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Thresholds {
    pub(crate) success: u32,
    pub(crate) failure: u32,
}

/// The results so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    last_was_success: bool,
    in_a_row: u32,
}

/// What the results amount to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verdict {
    Passing,
    Failing,
    /// Too few equal results to change the verdict.
    Undecided,
}

/// Counts one more result in.
pub(crate) fn step(tally: Tally, outcome: &Outcome, thresholds: Thresholds) -> (Tally, Verdict) {
    let success = *outcome == Outcome::Success;
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
pub(crate) struct Schedule {
    pub(crate) initial_delay: Duration,
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
    pub(crate) thresholds: Thresholds,
}

impl Schedule {
    pub(crate) fn of(probe: &Probe) -> Self {
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

/// What to try; exec and gRPC will be further variants.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Check {
    Http { host: Option<String>, port: u16, path: String, headers: Vec<(String, String)> },
    Tcp { host: Option<String>, port: u16 },
}

impl Check {
    /// Reads the probe's action; the error says what we cannot do.
    pub(crate) fn of(probe: &Probe, container: &Container) -> Result<Self, String> {
        if let Some(http) = &probe.http_get {
            if http.scheme.as_deref() == Some("HTTPS") {
                return Err("HTTPS probes are not supported yet".into());
            }
            let path = http.path.as_deref().unwrap_or("/");
            let headers = http.http_headers.iter().flatten();
            return Ok(Check::Http {
                host: http.host.clone().filter(|host| !host.is_empty()),
                port: port(&http.port, container)?,
                path: if path.starts_with('/') { path.into() } else { format!("/{path}") },
                headers: headers.map(|h| (h.name.clone(), h.value.clone())).collect(),
            });
        }
        if let Some(tcp) = &probe.tcp_socket {
            let host = tcp.host.clone().filter(|host| !host.is_empty());
            return Ok(Check::Tcp { host, port: port(&tcp.port, container)? });
        }
        Err("only httpGet and tcpSocket probes are supported yet".into())
    }
}

fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    match port {
        IntOrString::Int(number) => {
            u16::try_from(*number).map_err(|_| format!("invalid port number: {number}"))
        }
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let found = ports.find(|port| port.name.as_deref() == Some(name));
            let number = found.map(|port| port.container_port).or_else(|| name.parse().ok());
            number
                .and_then(|number| u16::try_from(number).ok())
                .ok_or_else(|| format!("couldn't find port: {name:?}"))
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
        ];
        for (name, success, failure, results, want) in cases {
            let thresholds = Thresholds { success, failure };
            let mut tally = Tally::default();
            let mut verdicts = String::new();
            for result in results.chars() {
                let outcome = match result {
                    '+' => Outcome::Success,
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
        let container = json!({"name": "a", "ports": [{"name": "http", "containerPort": 8080}]});
        let container: Container = serde_json::from_value(container).unwrap();
        let http = |port: u16, path: &str| {
            Ok(Check::Http { host: None, port, path: path.into(), headers: vec![] })
        };
        let cases = [
            (json!({"httpGet": {"port": 80, "path": "/healthz"}}), http(80, "/healthz")),
            (json!({"httpGet": {"port": "http"}}), http(8080, "/")),
            (json!({"httpGet": {"port": "81", "path": "x"}}), http(81, "/x")),
            (json!({"httpGet": {"port": "nope"}}), Err("couldn't find port: \"nope\"".into())),
            (json!({"tcpSocket": {"port": 6379}}), Ok(Check::Tcp { host: None, port: 6379 })),
            (
                json!({"exec": {"command": ["true"]}}),
                Err("only httpGet and tcpSocket probes are supported yet".into()),
            ),
        ];
        for (probe, want) in cases {
            let parsed: Probe = serde_json::from_value(probe.clone()).unwrap();
            assert_eq!(Check::of(&parsed, &container), want, "{probe}");
        }
    }
}
