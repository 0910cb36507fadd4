//! The containers of a pod: started, followed to their end, and stopped.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use roadstead_api::resolv::ClusterDns;
use roadstead_pod::container_config::{
    ContainerConfig, ContainerContext, NodeFacts, plan_container_config,
};
use roadstead_pod::facts::{Exit, PostStart, StartedContainer, State};
use roadstead_pod::hook::HookKind;
use roadstead_pod::lifecycle::{ALL_RESTARTED, is_restarting_all, will_restart};
use roadstead_pod::security::Policy;
use roadstead_pod::sources::of_environment;
use roadstead_pod::{backoff, env_file};
use tracing::{debug, info};

use super::{Context, Worker, later};
use crate::config::Config;
use crate::runtime::StartError;
use crate::{pod_api, resolv_conf};

impl Worker {
    pub(super) async fn start(&mut self, name: &str) {
        let Some(container) = self.find(name) else { return };
        let known = self.facts.containers.get(name);
        let restarts = known.map_or(0, |known| match known.state {
            State::Exited(_) => known.restarts + 1,
            _ => known.restarts,
        });
        let config = self.config(&container, restarts).await;
        self.await_policies().await;
        let result = match config {
            Ok(config) => self.context.runtime.containers.start(config).await,
            Err(message) => {
                Err(StartError::Waiting { reason: "CreateContainerConfigError", message })
            }
        };
        match result {
            Ok(started) => self.started(&container, started, restarts),
            Err(StartError::Waiting { reason, message }) => {
                let text = format!("Error: {message}");
                self.context.events.warning(&self.pod, Some(name), "Failed", text);
                self.refused(name, reason, message);
            }
            Err(StartError::Failed(message)) => {
                let events = &self.context.events;
                events.normal(&self.pod, Some(name), "Created", "Container created");
                self.context.events.warning(
                    &self.pod,
                    Some(name),
                    "Failed",
                    format!("Error: {message}"),
                );
                self.facts.containers.entry(name.into()).or_default().restarts = restarts;
                let now = Timestamp::now();
                self.ended(
                    name,
                    Exit {
                        id: String::new(),
                        code: 128,
                        reason: "StartError".into(),
                        message: Some(message),
                        started_at: now,
                        finished_at: now,
                    },
                );
            }
        }
    }

    async fn config(
        &mut self,
        container: &Container,
        restarts: i32,
    ) -> Result<ContainerConfig, String> {
        let links = self.context.services.links(&self.pod).await?;
        let named = of_environment(container);
        let namespace = &self.name.namespace;
        let mut sources = pod_api::sources(&self.context.client, namespace, named).await?;
        sources.claims = self.volumes.claims.clone();
        sources.images = self.volumes.images.clone();
        let spec = self.pod.spec.iter();
        for file in spec.flat_map(|spec| env_file::named(spec, container)) {
            let content = self.context.runtime.containers.read_volume(&self.name, file.clone());
            sources.files.insert(file, content.await);
        }
        let known = self.facts.containers.get(&container.name);
        let image = known.and_then(|known| known.image.as_ref());
        let image = image.ok_or("its image is not here any more")?;
        let node = node_facts(&self.context);
        let addresses = self.facts.addresses.unwrap_or(node.internal_ips);
        let context = ContainerContext {
            addresses,
            restarts,
            links: &links,
            sources: &sources,
            image,
            node: &node,
        };
        let (config, notes) = plan_container_config(&self.pod, container, &context)?;
        for note in notes {
            self.context.events.warning(&self.pod, None, "DNSConfigForming", note);
        }
        Ok(config)
    }

    fn started(&mut self, container: &Container, started: StartedContainer, restarts: i32) {
        let name = &container.name;
        info!(pod = %self.title(), container = name, restarts, "started");
        let events = &self.context.events;
        events.normal(&self.pod, Some(name), "Created", "Container created");
        events.normal(&self.pod, Some(name), "Started", "Container started");
        let facts = self.facts.containers.entry(name.clone()).or_default();
        let running = State::Running { id: started.id, since: started.since, stopping: None };
        if let State::Exited(exit) = std::mem::replace(&mut facts.state, running) {
            facts.last = Some(exit);
        }
        facts.restarts = restarts;
        facts.resources = Some(container.resources.clone().unwrap_or_default());
        facts.image_name = container.image.clone().unwrap_or_default();
        facts.post_start = PostStart::Running;
        facts.started = false;
        facts.ready = false;
        facts.retry_at = None;
        facts.image = None;
        self.follow(name);
        if !self.begin_hook(name, HookKind::PostStart) {
            self.is_up(name);
        }
    }

    /// Lets the container wait for its next attempt, for that reason.
    pub(super) fn refused(&mut self, name: &str, reason: &'static str, message: String) {
        let facts = self.facts.containers.entry(name.into()).or_default();
        let delay = backoff::after_failed_start(facts.delay);
        facts.delay = Some(delay);
        facts.retry_at = Some(later(delay));
        facts.image = None;
        let before =
            std::mem::replace(&mut facts.state, State::Waiting { reason, message: Some(message) });
        if let State::Exited(exit) = before {
            facts.last = Some(exit);
            facts.restarts += 1;
        }
    }

    /// Lets us know when the container ends.
    pub(super) fn follow(&mut self, name: &str) {
        let wait = self.context.runtime.containers.wait(&self.name, name);
        let name = name.to_owned();
        self.exits.push(Box::pin(async move { (name, wait.await) }));
    }

    pub(super) fn ended(&mut self, name: &str, mut exit: Exit) {
        let is_swept = is_restarting_all(&self.pod, &self.facts);
        self.probes.end(|container, _| container == name);
        self.hooks.end(name);
        let Some(container) = self.find(name) else { return };
        let facts = self.facts.containers.entry(name.into()).or_default();
        let ran_for = exit.finished_at.duration_since(exit.started_at);
        let delay = backoff::after_exit(facts.delay, ran_for.unsigned_abs());
        let again = will_restart(&self.pod, &container, &exit);
        debug!(container = name, code = exit.code, again, "ended");
        facts.retry_at = again.then(|| later(delay));
        facts.delay = Some(delay);
        facts.ready = false;
        facts.started = false;
        facts.post_start = PostStart::Done;
        facts.image = None;
        if std::mem::take(&mut facts.is_replaced) && self.pod.metadata.deletion_timestamp.is_none()
        {
            // It has not failed, so nothing is held against it.
            (facts.delay, facts.retry_at) = (None, None);
            facts.restarts += 1;
            facts.last = Some(exit);
            facts.state = State::default();
            return;
        }
        if is_swept {
            // It has not failed either, but another one has.
            exit.reason = ALL_RESTARTED.into();
            (facts.delay, facts.retry_at) = (None, None);
        }
        facts.state = State::Exited(exit);
        if is_swept {
            return;
        }
        if again && !delay.is_zero() {
            let message = format!(
                "Back-off restarting failed container {name} in pod {}_{}({})",
                self.name.name, self.name.namespace, self.name.uid
            );
            self.context.events.warning(&self.pod, Some(name), "BackOff", message);
        }
    }
}

/// What a container's configuration depends on of this machine.
pub(super) fn node_facts(context: &Context) -> NodeFacts {
    let config = &context.config;
    NodeFacts {
        name: config.node_name.clone(),
        internal_ips: config.internal_ips,
        cluster_dns: ClusterDns {
            server: config.cluster_dns,
            domain: config.cluster_domain.clone(),
        },
        resolv_conf: resolv_conf::read(),
        hosts_file: std::fs::read_to_string("/etc/hosts").unwrap_or_default(),
        allocatable: context.allocatable,
        policy: policy(config),
        unsafe_sysctls: config.unsafe_sysctls.clone(),
        pod_pids: config.pod_pids,
    }
}

/// What pods of this node may ask for.
pub(super) fn policy(config: &Config) -> Policy {
    if config.allow_privileged { Policy::Privileged } else { Policy::Baseline }
}
