//! Probes containers over the network, and tells their worker what came of it.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{self, Instant, MissedTickBehavior};

use crate::probe::{Check, Kind, Outcome, Schedule};

/// A container is given this long to open its port before refused connections count.
const SETTLING: Duration = Duration::from_secs(1);
/// While it settles it is asked this often, so that it becomes ready as soon as it can.
const SETTLING_PERIOD: Duration = Duration::from_millis(50);

/// One probe of one run of a container.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) container: String,
    /// The run: results about an earlier one are of no interest.
    pub(crate) id: String,
    pub(crate) kind: Kind,
    pub(crate) check: Check,
    pub(crate) schedule: Schedule,
    pub(crate) address: IpAddr,
}

/// What one attempt gave.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) container: String,
    pub(crate) id: String,
    pub(crate) kind: Kind,
    pub(crate) outcome: Outcome,
}

/// Probes until nobody listens any more.
pub(crate) async fn run(assignment: Assignment, reports: mpsc::Sender<Report>) {
    time::sleep(assignment.schedule.initial_delay).await;
    let settled = Instant::now() + SETTLING;
    let mut ticks = time::interval(assignment.schedule.period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let mut result = attempt(&assignment).await;
        while matches!(&result, Err(failure) if failure.refused) && Instant::now() < settled {
            time::sleep(SETTLING_PERIOD).await;
            result = attempt(&assignment).await;
        }
        let outcome = match result {
            Ok(()) => Outcome::Success,
            Err(failure) => Outcome::Failure(failure.message),
        };
        let report = Report {
            container: assignment.container.clone(),
            id: assignment.id.clone(),
            kind: assignment.kind,
            outcome,
        };
        if reports.send(report).await.is_err() {
            return;
        }
    }
}

struct Failure {
    message: String,
    /// Nobody listens there.
    refused: bool,
}

async fn attempt(assignment: &Assignment) -> Result<(), Failure> {
    let limit = assignment.schedule.timeout;
    match &assignment.check {
        Check::Tcp { host, port } => {
            let address = authority(host.as_deref(), assignment.address, *port);
            let timeout = || format!("dial tcp {address}: i/o timeout");
            match time::timeout(limit, TcpStream::connect(&address)).await {
                Err(_) => Err(Failure { message: timeout(), refused: false }),
                Ok(Err(error)) => Err(dial_failure(&address, &error)),
                Ok(Ok(_)) => Ok(()),
            }
        }
        Check::Http { host, port, path, headers } => {
            let address = authority(host.as_deref(), assignment.address, *port);
            let url = format!("Get \"http://{address}{path}\": ");
            match time::timeout(limit, get(&address, path, headers)).await {
                Err(_) => Err(Failure {
                    message: format!(
                        "{url}context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
                    ),
                    refused: false,
                }),
                Ok(Err(failure)) => {
                    Err(Failure { message: url + &failure.message, refused: failure.refused })
                }
                Ok(Ok(code)) if (200..400).contains(&code) => Ok(()),
                Ok(Ok(code)) => Err(Failure {
                    message: format!("HTTP probe failed with statuscode: {code}"),
                    refused: false,
                }),
            }
        }
    }
}

fn authority(host: Option<&str>, address: IpAddr, port: u16) -> String {
    match (host, address) {
        (Some(host), _) => format!("{host}:{port}"),
        (None, IpAddr::V4(address)) => format!("{address}:{port}"),
        (None, IpAddr::V6(address)) => format!("[{address}]:{port}"),
    }
}

fn dial_failure(address: &str, error: &io::Error) -> Failure {
    let refused = error.kind() == io::ErrorKind::ConnectionRefused;
    let why = if refused { "connection refused".into() } else { error.to_string() };
    Failure { message: format!("dial tcp {address}: connect: {why}"), refused }
}

/// Sends a GET and returns the status code.
async fn get(address: &str, path: &str, headers: &[(String, String)]) -> Result<u16, Failure> {
    let stream = TcpStream::connect(address).await;
    let mut stream = stream.map_err(|error| dial_failure(address, &error))?;
    let broken = |error: io::Error| Failure { message: error.to_string(), refused: false };
    stream.write_all(request(address, path, headers).as_bytes()).await.map_err(broken)?;
    let mut answer = Vec::with_capacity(256);
    let mut buffer = [0; 256];
    while !answer.contains(&b'\n') && answer.len() < 4096 {
        match stream.read(&mut buffer).await.map_err(broken)? {
            0 => break,
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
    let line = String::from_utf8_lossy(&answer);
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split_whitespace().nth(1));
    code.and_then(|code| code.parse().ok())
        .ok_or_else(|| Failure { message: "malformed HTTP response".into(), refused: false })
}

fn request(address: &str, path: &str, headers: &[(String, String)]) -> String {
    let mut text = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n");
    let defaults = [("Host", address), ("User-Agent", "kube-probe/1.37"), ("Accept", "*/*")];
    for (name, value) in defaults {
        if !headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name)) {
            text += &format!("{name}: {value}\r\n");
        }
    }
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text + "\r\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Thresholds;
    use tokio::net::TcpListener;

    /// A server that gives each connection the next of these answers.
    async fn server(answers: &'static [&'static str]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = [0; 1024];
                let _ = stream.read(&mut buffer).await;
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        port
    }

    fn assignment(check: Check) -> Assignment {
        let schedule = Schedule {
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(1),
            timeout: Duration::from_millis(500),
            thresholds: Thresholds { success: 1, failure: 3 },
        };
        let address = IpAddr::from([127, 0, 0, 1]);
        let (container, id) = ("a".into(), "id".into());
        Assignment { container, id, kind: Kind::Readiness, check, schedule, address }
    }

    #[tokio::test]
    async fn http_answers() {
        let cases: [(&'static [&'static str], Result<(), &str>); 4] = [
            (&["HTTP/1.1 200 OK\r\n\r\n"], Ok(())),
            (&["HTTP/1.1 302 Found\r\n\r\n"], Ok(())),
            (&["HTTP/1.1 500 Oops\r\n\r\n"], Err("HTTP probe failed with statuscode: 500")),
            (&["nonsense\n"], Err("malformed HTTP response")),
        ];
        for (answers, want) in cases {
            let port = server(answers).await;
            let path = "/healthz".into();
            let check = Check::Http { host: None, port, path, headers: vec![] };
            let got = attempt(&assignment(check)).await.map_err(|failure| failure.message);
            match (&got, want) {
                (Ok(()), Ok(())) => {}
                (Err(message), Err(want)) if message.ends_with(want) => {}
                _ => panic!("{answers:?}: {got:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_port_that_opens_late_is_not_a_failure() {
        let port = server(&[]).await;
        time::sleep(Duration::from_millis(10)).await;
        let (send, mut reports) = mpsc::channel(4);
        let probing = tokio::spawn(run(assignment(Check::Tcp { host: None, port }), send));
        time::sleep(Duration::from_millis(100)).await;
        let _listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let report = reports.recv().await.unwrap();
        assert_eq!(report.outcome, Outcome::Success);
        probing.abort();
    }
}
