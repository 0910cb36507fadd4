//! Probes containers, over the network or by a command in them, and tells their worker what came of it.

mod grpc;
pub(crate) mod http;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{self, Instant, MissedTickBehavior};

use roadstead_pod::pod_name::PodName;
use roadstead_pod::probe::{Check, Kind, Outcome, Schedule};
use roadstead_pod::status::minutes_and_seconds;

use self::http::Asker;
use crate::runtime::ContainerRuntime;
use crate::runtime::exec::{ExecError, ExecOrder, ExecProcess};

/// A container is given this long to open its port before refused connections count.
const SETTLING: Duration = Duration::from_secs(1);
/// While it settles it is asked this often, so that it becomes ready as soon as it can.
const SETTLING_PERIOD: Duration = Duration::from_millis(50);
/// What could not be tried is tried so often before we say so.
const TRIES: usize = 3;
/// The most that is read of an answer or of what a command prints.
pub(crate) const MOST_OUTPUT: usize = 10 << 10;

/// One probe of one run of a container.
#[derive(Clone)]
pub(crate) struct Assignment {
    pub(crate) target: Target,
    /// The run: results about an earlier one are of no interest.
    pub(crate) id: String,
    pub(crate) kind: Kind,
    /// Or what is wrong with the probe, which is then said instead of asking.
    pub(crate) check: Result<Check, String>,
    pub(crate) schedule: Schedule,
    /// Not before this.
    pub(crate) first_at: Timestamp,
}

/// The container that a probe or a hook is about.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    pub(crate) pod: PodName,
    pub(crate) container: String,
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
    let early = assignment.first_at.duration_since(Timestamp::now());
    time::sleep(Duration::try_from(early).unwrap_or_default()).await;
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
        for _ in 1..TRIES {
            if matches!(result, Ok(Outcome::Error(_))) && assignment.check.is_ok() {
                result = attempt(&assignment).await;
            }
        }
        let report = Report {
            container: assignment.target.container.clone(),
            id: assignment.id.clone(),
            kind: assignment.kind,
            outcome: result.unwrap_or_else(|failure| Outcome::Failure(failure.message)),
        };
        if reports.send(report).await.is_err() {
            return;
        }
    }
}

/// Why a container was not reached over the network.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) message: String,
    /// Nobody listens there.
    refused: bool,
}

impl Failure {
    fn new(message: String) -> Self {
        Self { message, refused: false }
    }
}

async fn attempt(assignment: &Assignment) -> Result<Outcome, Failure> {
    let limit = assignment.schedule.timeout;
    let target = &assignment.target;
    match &assignment.check {
        Err(wrong) => Ok(Outcome::Error(wrong.clone())),
        Ok(Check::Tcp { host, port }) => {
            let address = authority(host.as_deref(), target.address, *port);
            match time::timeout(limit, TcpStream::connect(&address)).await {
                Err(_) => Err(Failure::new(format!("dial tcp {address}: i/o timeout"))),
                Ok(Err(error)) => Err(dial_failure(&address, &error)),
                Ok(Ok(_)) => Ok(Outcome::Success),
            }
        }
        Ok(Check::Http(request)) => http::get(Asker::Probe, request, target.address, limit)
            .await
            .map(|answer| answer.outcome()),
        Ok(Check::Grpc { port, service }) => {
            let address = authority(None, target.address, *port);
            grpc::check(&address, service, limit).await.map(|()| Outcome::Success)
        }
        Ok(Check::Exec { command }) => Ok(target.probe_by_command(command, limit).await),
    }
}

impl Target {
    async fn probe_by_command(&self, command: &[String], limit: Duration) -> Outcome {
        match time::timeout(limit, self.run_command(command.to_vec())).await {
            Err(_) => Outcome::Failure(format!(
                "command timed out: {:?} timed out after {}",
                command.join(" "),
                minutes_and_seconds(limit.as_secs())
            )),
            Ok(Err(error)) => Outcome::Error(error.message),
            Ok(Ok((0, _))) => Outcome::Success,
            Ok(Ok((_, output))) => Outcome::Failure(output),
        }
    }

    /// Runs a command in the container; returns its exit code and what it printed. It ends when nobody
    /// waits for it any more.
    pub(crate) async fn run_command(
        &self,
        command: Vec<String>,
    ) -> Result<(i32, String), ExecError> {
        let target = self.clone();
        // In a task of its own: a start cannot be taken back half way, but what came of it can.
        let started = tokio::spawn(async move {
            let order = ExecOrder { command, output_only: true, ..ExecOrder::default() };
            let session = target.runtime.exec(&target.pod, &target.container, order).await?;
            Ok((KillOnDrop(Some(session.process.clone())), session))
        });
        let started = started.await.map_err(|error| ExecError::new(error.to_string()))?;
        let (mut guard, session) = started?;
        let (code, output) = session.output(MOST_OUTPUT).await;
        guard.0 = None;
        Ok((code, String::from_utf8_lossy(&output).into_owned()))
    }
}

/// Ends a process that nobody waits for.
struct KillOnDrop(Option<ExecProcess>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(process) = &self.0 {
            process.kill();
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
    let why = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::HostUnreachable => "no route to host".into(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".into(),
        _ => error.to_string(),
    };
    Failure { message: format!("dial tcp {address}: connect: {why}"), refused }
}

#[cfg(test)]
mod tests;
