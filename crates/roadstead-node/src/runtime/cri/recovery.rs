//! What an earlier agent has left with the runtime.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use prost::Message;
use roadstead_pod::pod_name::PodName;
use roadstead_pod::recovery::{RecoveredContainer, RecoveredPod, RecoveredState};
use tracing::{info, warn};

use super::client::gone_is_fine;
use super::messages::*;
use super::order::OWNER;
use super::run::{self, Run};
use super::{CriRuntime, KnownPod};
use crate::config::{Config, NodeError};
use crate::runtime::record::{NetworkRecord, PodRecord};

impl CriRuntime {
    /// Finds what is there already, and removes what nobody has a record of.
    pub(super) async fn take_over(config: &Config, socket: &Path) -> Result<Self, NodeError> {
        let mut runtime = Self::open(config, socket)?;
        let records = runtime.disk.load();
        let known: Vec<_> = records.iter().map(|record| record.pod.uid.as_str()).collect();
        runtime.network.retain(&known).await?;
        let mut sandboxes = runtime.sandboxes(None).await?;
        let uid = |sandbox: &PodSandbox| sandbox.metadata.clone().unwrap_or_default().uid;
        for stray in sandboxes.extract_if(.., |sandbox| !known.contains(&uid(sandbox).as_str())) {
            let PodSandboxMetadata { name, uid, namespace, .. } =
                stray.metadata.unwrap_or_default();
            runtime.remove_sandboxes(&uid).await?;
            runtime.groups.remove_everywhere(Some(&uid));
            let removed = runtime.disk.remove(&PodName { namespace, name, uid });
            removed.map_err(|source| runtime.state_error(source))?;
        }
        let containers = runtime.containers().await?;
        let mut recovered = Vec::new();
        for record in records {
            let mut own = sandboxes.iter().filter(|sandbox| uid(sandbox) == record.pod.uid);
            let ready = own.clone().find(|sandbox| sandbox.state == SANDBOX_READY);
            let sandbox = ready.or_else(|| own.next());
            let inside = containers.iter().filter(|container| {
                sandbox.is_some_and(|sandbox| sandbox.id == container.pod_sandbox_id)
            });
            let inside = inside.cloned().collect();
            recovered.push(runtime.recover(record, sandbox, inside).await);
        }
        if !recovered.is_empty() {
            info!(pods = recovered.len(), "found pods of an earlier agent");
        }
        runtime.recovered = recovered;
        Ok(runtime)
    }

    async fn containers(&self) -> Result<Vec<ListedContainer>, NodeError> {
        let label_selector = BTreeMap::from([(OWNER.to_owned(), self.owner.clone())]);
        let filter = Some(ContainerFilter { label_selector });
        let answer = self.client.ask("ListContainers", &ListContainersRequest { filter }).await?;
        let ListContainersResponse { containers } = answer;
        Ok(containers)
    }

    async fn recover(
        &mut self,
        record: PodRecord,
        sandbox: Option<&PodSandbox>,
        inside: Vec<ListedContainer>,
    ) -> RecoveredPod {
        let PodRecord { pod, network, host_ports } = record;
        let is_ready = sandbox.is_some_and(|sandbox| sandbox.state == SANDBOX_READY);
        let (addresses, target) = match network {
            NetworkRecord::Own(own) => (self.network.adopt(&pod.uid, own), Some(own)),
            NetworkRecord::Host => (Some(self.host), None),
            NetworkRecord::Removed => (None, None),
        };
        self.host_ports.adopt(&pod.uid, &host_ports, target);
        let mut known = KnownPod::default();
        let notes = fs::read(self.disk.notes(&pod.uid)).ok();
        known.config =
            notes.and_then(|bytes| PodSandboxConfig::decode(&bytes[..]).ok()).unwrap_or_default();
        known.sandbox = sandbox.map(|sandbox| sandbox.id.clone()).unwrap_or_default();
        let mut containers = BTreeMap::new();
        for listed in newest(inside) {
            let name = listed.metadata.clone().unwrap_or_default().name;
            let directory = self.disk.container(&pod.uid, &name);
            let Ok((status, _)) = run::status(&self.client, &listed.id, false).await else {
                continue;
            };
            let run = Run::found(&pod, &listed, status.started_at, &directory);
            let state = match listed.state {
                CONTAINER_RUNNING if is_ready => RecoveredState::Running(run.started()),
                CONTAINER_EXITED => {
                    let log = self.disk.log(&pod, &name, run.restarts);
                    RecoveredState::Exited(run.exit(&status, &directory, &log))
                }
                // It was never started, or nobody knows what became of it: it is made again.
                _ => {
                    self.forget(&listed.id).await;
                    continue;
                }
            };
            containers.insert(name.clone(), RecoveredContainer { restarts: run.restarts, state });
            known.runs.insert(name, Arc::new(run));
        }
        if is_ready {
            self.pods().insert(pod.uid.clone(), known);
        }
        RecoveredPod { pod, addresses: addresses.filter(|_| is_ready), containers }
    }

    async fn forget(&self, id: &str) {
        let id = ContainerId { container_id: id.to_owned() };
        let stop = StopContainerRequest { container_id: id.container_id.clone(), timeout: 0 };
        let _ = self.client.ask::<Empty>("StopContainer", &stop).await;
        let removed = self.client.ask::<Empty>("RemoveContainer", &id).await;
        if let Err(error) = gone_is_fine(removed) {
            warn!(%error, "cannot remove a container that nobody started");
        }
    }
}

/// The newest run of each container.
fn newest(all: Vec<ListedContainer>) -> impl Iterator<Item = ListedContainer> {
    let mut newest: BTreeMap<String, ListedContainer> = BTreeMap::new();
    for listed in all {
        let ContainerMetadata { name, attempt } = listed.metadata.clone().unwrap_or_default();
        let known = newest.get(&name).and_then(|known| known.metadata.as_ref());
        if known.is_none_or(|known| known.attempt < attempt) {
            newest.insert(name, listed);
        }
    }
    newest.into_values()
}
