//! A pod that is on a node, as the scheduler sees it: what it takes there, and whom it wants near.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, Pod, PodSpec, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use roadstead_api::requests::Requests;
use roadstead_api::selector::Labels;
use serde::Deserialize;

use super::held::{RawCondition, RawContainerStatus, held, is_infeasible};
use super::ports::{NodePortUse, node_ports};
use super::room::Amount;
use super::terms::{Term, terms};
use crate::owner::controller_of;
use crate::pod_view::{RawMetadata, essential};

static NONE: Labels = Labels::new();

/// A pod, with what matters to other pods that look for a node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Raw")]
pub struct PlacedPod {
    /// Names, labels, owners and times; nothing else of the metadata is kept.
    pub metadata: ObjectMeta,
    /// The node it is on, or "".
    pub node: String,
    /// Where others go to make room for it, or "".
    pub nominated: String,
    /// Whether it will never run again.
    pub is_finished: bool,
    /// Whether somebody has asked it to go.
    pub is_terminating: bool,
    /// Who has a higher one may take its place.
    pub(super) priority: i32,
    pub(super) started: Option<Timestamp>,
    pub(super) amount: Amount,
    pub(super) ports: Vec<NodePortUse>,
    pub(super) terms: Vec<Arc<Term>>,
    pub(super) owner: Option<String>,
}

impl PlacedPod {
    /// A pod that is put on a node at this moment.
    pub fn assumed(pod: &Pod, node: &str) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        Self { node: node.to_owned(), ..Self::of(pod.metadata.clone(), &spec) }
    }

    /// A pod that waits for others to leave a node.
    pub fn nominated(pod: &Pod, node: &str) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let nominated = node.to_owned();
        Self { nominated, node: String::new(), ..Self::of(pod.metadata.clone(), &spec) }
    }

    /// The same pod once it has been asked to go.
    pub fn leaving(&self) -> Self {
        Self { is_terminating: true, ..self.clone() }
    }

    fn of(metadata: ObjectMeta, spec: &PodSpec) -> Self {
        let namespace = metadata.namespace.as_deref().unwrap_or("");
        Self {
            node: spec.node_name.clone().unwrap_or_default(),
            nominated: String::new(),
            is_finished: false,
            is_terminating: metadata.deletion_timestamp.is_some(),
            priority: spec.priority.unwrap_or(0),
            started: None,
            amount: Amount::of_pod(spec),
            ports: node_ports(spec),
            terms: terms(spec, namespace, metadata.labels.as_ref().unwrap_or(&NONE)),
            owner: controller_of(&metadata).map(|owner| owner.uid.clone()),
            metadata,
        }
    }

    pub(super) fn namespace(&self) -> &str {
        self.metadata.namespace.as_deref().unwrap_or("")
    }

    pub(super) fn labels(&self) -> &Labels {
        self.metadata.labels.as_ref().unwrap_or(&NONE)
    }

    /// Whether it counts where it is.
    pub(super) fn is_on_node(&self) -> bool {
        !self.is_finished && !self.node.is_empty()
    }
}

impl Resource for PlacedPod {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Pod";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = NamespaceResourceScope;
}

impl Metadata for PlacedPod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Of a whole pod only this is read.
#[derive(Deserialize)]
struct Raw {
    #[serde(default)]
    metadata: RawMetadata,
    #[serde(default)]
    spec: RawSpec,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    node_name: Option<String>,
    priority: Option<i32>,
    affinity: Option<Affinity>,
    containers: Option<Vec<RawContainer>>,
    init_containers: Option<Vec<RawContainer>>,
    resources: Option<ResourceRequirements>,
    overhead: Option<BTreeMap<String, Quantity>>,
    host_network: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainer {
    #[serde(default)]
    name: String,
    ports: Option<Vec<ContainerPort>>,
    restart_policy: Option<String>,
    resources: Option<ResourceRequirements>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    phase: Option<String>,
    nominated_node_name: Option<String>,
    start_time: Option<Time>,
    conditions: Option<Vec<RawCondition>>,
    init_container_statuses: Option<Vec<RawContainerStatus>>,
    container_statuses: Option<Vec<RawContainerStatus>>,
}

impl From<Raw> for PlacedPod {
    fn from(raw: Raw) -> Self {
        let Raw { metadata, spec, status } = raw;
        let containers = |all: Option<Vec<RawContainer>>| -> Vec<Container> {
            all.into_iter().flatten().map(RawContainer::container).collect()
        };
        let spec = PodSpec {
            node_name: spec.node_name,
            priority: spec.priority,
            affinity: spec.affinity,
            containers: containers(spec.containers),
            init_containers: Some(containers(spec.init_containers)),
            resources: spec.resources,
            overhead: spec.overhead,
            host_network: spec.host_network,
            ..PodSpec::default()
        };
        let mut statuses = status.container_statuses.unwrap_or_default();
        statuses.extend(status.init_container_statuses.into_iter().flatten());
        let conditions = status.conditions.unwrap_or_default();
        let made = Self::of(essential(metadata), &spec);
        let amount = match held(&spec, &statuses) {
            None => made.amount.clone(),
            Some(held) if is_infeasible(&conditions) => Amount::of_pod(&held),
            Some(held) => made.amount.clone().or_more(Amount::of_pod(&held)),
        };
        Self {
            amount,
            nominated: status.nominated_node_name.unwrap_or_default(),
            is_finished: matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")),
            started: status.start_time.map(|time| time.0),
            ..made
        }
    }
}

impl RawContainer {
    fn container(self) -> Container {
        let Self { name, ports, restart_policy, resources } = self;
        Container { name, ports, restart_policy, resources, ..Container::default() }
    }
}

/// What is already where it is is thought to need what it asks for.
impl Amount {
    pub(super) fn of_pod(spec: &PodSpec) -> Self {
        Self {
            pods: 1,
            asked: Requests::of_pod(spec),
            estimated: Requests::estimated(spec),
            devices: roadstead_api::requests::devices(spec),
        }
    }

    /// Whichever is more, of processors and of memory.
    fn or_more(self, other: Self) -> Self {
        Self {
            asked: self.asked.max(other.asked),
            estimated: self.estimated.max(other.estimated),
            ..self
        }
    }
}
