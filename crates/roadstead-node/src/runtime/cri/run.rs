//! One run of a container that another runtime has, and how it ends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use roadstead_grpc::status::Code;
use roadstead_pod::container_config::ContainerConfig;
use roadstead_pod::facts::{Exit, StartedContainer};
use roadstead_pod::pod_name::PodName;
use roadstead_pod::termination_message::TerminationMessage;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time;

use super::client::Client;
use super::messages::*;
use crate::container::{read_json, write_json};
use crate::runtime::{last_words, pidfd};

/// In a container's directory: what the runtime does not remember of the run.
const RUN: &str = "run.json";
/// If the runtime does not say which process it is, or has not noticed yet that it has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// It is the process that tells; should it be another one, this does.
const LOOK_ANYWAY: Duration = Duration::from_secs(30);
/// The runtime may be restarted meanwhile.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// A run of a container.
#[derive(Debug)]
pub(super) struct Run {
    /// The runtime's name for it.
    pub(super) id: String,
    pub(super) pod: PodName,
    pub(super) container: String,
    pub(super) restarts: i32,
    pub(super) terminal: bool,
    pub(super) since: Timestamp,
    pub(super) termination_message: Option<TerminationMessage>,
    /// Whether it is known to have ended.
    pub(super) ended: AtomicBool,
}

/// What is written down about a run.
#[derive(Serialize, Deserialize)]
struct Written {
    id: String,
    terminal: bool,
    termination_message: Option<TerminationMessage>,
}

impl Run {
    /// One that has just been started.
    pub(super) async fn new(client: &Client, id: String, config: &ContainerConfig) -> Self {
        let began = status(client, &id, false).await.ok().map(|(status, _)| status.started_at);
        Self {
            id,
            pod: config.pod.clone(),
            container: config.container.clone(),
            restarts: config.restarts,
            terminal: config.streams.terminal,
            since: began.filter(|at| *at > 0).map_or_else(Timestamp::now, at),
            termination_message: config.termination_message.clone(),
            ended: AtomicBool::new(false),
        }
    }

    /// One of an earlier agent, whose directory this is.
    pub(super) fn found(
        pod: &PodName,
        listed: &ListedContainer,
        since: i64,
        directory: &Path,
    ) -> Self {
        let metadata = listed.metadata.clone().unwrap_or_default();
        let written = read_json::<Written>(&directory.join(RUN)).ok();
        let written = written.filter(|written| written.id == listed.id);
        Self {
            id: listed.id.clone(),
            pod: pod.clone(),
            container: metadata.name,
            restarts: i32::try_from(metadata.attempt).unwrap_or(0),
            terminal: written.as_ref().is_some_and(|written| written.terminal),
            since: at(since),
            termination_message: written.and_then(|written| written.termination_message),
            ended: AtomicBool::new(listed.state != CONTAINER_RUNNING),
        }
    }

    pub(super) fn save(&self, directory: &Path) -> std::io::Result<()> {
        let written = Written {
            id: self.id.clone(),
            terminal: self.terminal,
            termination_message: self.termination_message.clone(),
        };
        fs::create_dir_all(directory)?;
        write_json(&directory.join(RUN), &written)
    }

    pub(super) fn started(&self) -> StartedContainer {
        StartedContainer { id: self.id.clone(), since: self.since }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until it has ended; returns how.
    pub(super) async fn ended(&self, client: &Client, directory: &Path, log: &Path) -> Exit {
        let exit = loop {
            match status(client, &self.id, true).await {
                Ok((status, _)) if status.state == CONTAINER_EXITED => {
                    break self.exit(&status, directory, log);
                }
                Ok((_, info)) => process_ended(&info).await,
                Err(Code::NotFound) => break self.lost(),
                Err(_) => time::sleep(AFTER_FAILURE).await,
            }
        };
        self.ended.store(true, Ordering::Release);
        exit
    }

    /// How it ended, as the runtime says.
    pub(super) fn exit(&self, status: &ContainerStatus, directory: &Path, log: &Path) -> Exit {
        let code = status.exit_code;
        let reason = match (status.reason.as_str(), code) {
            ("", 0) => "Completed",
            ("", _) => "Error",
            (reason, _) => reason,
        };
        let wish = self.termination_message.as_ref();
        let words = wish.and_then(|wish| last_words::take(wish, directory, log, code));
        let said = Some(status.message.clone()).filter(|message| !message.is_empty());
        Exit {
            id: self.id.clone(),
            code,
            reason: reason.to_owned(),
            message: words.or(said),
            started_at: if status.started_at > 0 { at(status.started_at) } else { self.since },
            finished_at: at(status.finished_at),
        }
    }

    /// The runtime does not know it any more.
    fn lost(&self) -> Exit {
        Exit {
            id: self.id.clone(),
            code: 137,
            reason: "ContainerStatusUnknown".into(),
            message: Some("The container could not be located when the pod was terminated".into()),
            started_at: self.since,
            finished_at: Timestamp::now(),
        }
    }
}

/// What the runtime knows of a container; with `verbose`, more of it than the interface says.
pub(super) async fn status(
    client: &Client,
    id: &str,
    verbose: bool,
) -> Result<(ContainerStatus, BTreeMap<String, String>), Code> {
    let question = ContainerStatusRequest { container_id: id.to_owned(), verbose };
    let answer = client.ask::<ContainerStatusResponse>("ContainerStatus", &question).await;
    let answer = answer.map_err(|status| status.code)?;
    Ok((answer.status.unwrap_or_default(), answer.info))
}

/// Waits for the container's first process, which the runtime names beside the interface.
async fn process_ended(info: &BTreeMap<String, String>) {
    let pid = detail(info)["pid"].as_i64().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok());
    match process {
        Some(process) => drop(time::timeout(LOOK_ANYWAY, pidfd::ended(process)).await),
        None => time::sleep(LOOK_AGAIN).await,
    }
}

/// Where the network namespace of a sandbox is.
pub(super) fn network_namespace(info: &BTreeMap<String, String>) -> Option<PathBuf> {
    let detail = detail(info);
    let mut all = detail["runtimeSpec"]["linux"]["namespaces"].as_array()?.iter();
    let network = all.find(|namespace| namespace["type"] == "network")?;
    Some(PathBuf::from(network["path"].as_str()?))
}

fn detail(info: &BTreeMap<String, String>) -> Value {
    info.get("info").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The time in nanoseconds since 1970.
fn at(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap_or(Timestamp::UNIX_EPOCH)
}
