//! A pod as the controllers of endpoints and replicas see it.
//!
//! A whole Pod has hundreds of fields, and a cluster a hundred thousand pods; these controllers
//! need a dozen of them. So they read pods into this instead.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, NodeSelector, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use roadstead_api::requests::Requests;
use serde::Deserialize;

/// How far a pod is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It waits for a node, an image or a volume.
    #[default]
    Pending,
    /// Nobody knows.
    Unknown,
    /// It runs.
    Running,
    /// It has done its work and will never run again.
    Succeeded,
    /// It has failed and will never run again.
    Failed,
}

/// A port that a container declares by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedPort {
    /// What Services call it.
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// Where the container listens.
    pub number: i32,
}

/// A pod, in short.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Raw")]
pub struct PodView {
    /// Names, labels, owners and times; nothing else of the metadata is kept.
    pub metadata: ObjectMeta,
    /// The node it is on, or "".
    pub node: String,
    /// The one node that it may be put on, or "".
    pub(crate) aimed_at: String,
    /// What it wants to be called, or "".
    pub hostname: String,
    /// The Service under which it wants to be found, or "".
    pub subdomain: String,
    /// The named ports of its containers, then of its sidecars.
    pub(crate) ports: Vec<NamedPort>,
    /// How much of its node it asks for.
    pub requests: Requests,
    /// The claims of its volumes.
    pub claims: Vec<String>,
    /// How far it is.
    pub phase: Phase,
    /// Its addresses, the preferred family first.
    pub addresses: Vec<IpAddr>,
    /// Whether its readiness probes say yes.
    pub ready: bool,
    /// Since when they say what they say.
    pub ready_since: Option<Timestamp>,
}

impl PodView {
    /// Its name.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or("")
    }

    /// The node it is on, or the one that it is made for.
    pub fn aim(&self) -> &str {
        if self.node.is_empty() { &self.aimed_at } else { &self.node }
    }

    /// Whether somebody has asked it to go.
    pub fn is_terminating(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Whether it will never run again.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether it has been ready for that many seconds.
    pub(crate) fn is_available(&self, min_ready_seconds: i32, now: Timestamp) -> bool {
        let long_enough =
            |since: Timestamp| now.as_second() - since.as_second() >= i64::from(min_ready_seconds);
        self.ready && (min_ready_seconds <= 0 || self.ready_since.is_some_and(long_enough))
    }

    /// Whether two states of one pod differ in anything that is kept.
    pub fn differs_from(&self, other: &Self) -> bool {
        let rest = |pod: &Self| {
            let metadata = &pod.metadata;
            let owner = crate::owner::controller_of(metadata).map(|owner| owner.uid.clone());
            (metadata.uid.clone(), metadata.deletion_timestamp.clone(), owner)
        };
        self.metadata.labels != other.metadata.labels
            || rest(self) != rest(other)
            || self.node != other.node
            || self.hostname != other.hostname
            || self.subdomain != other.subdomain
            || self.ports != other.ports
            || self.requests != other.requests
            || self.claims != other.claims
            || self.phase != other.phase
            || self.addresses != other.addresses
            || self.ready != other.ready
            || self.ready_since != other.ready_since
    }
}

impl Resource for PodView {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Pod";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = NamespaceResourceScope;
}

impl Metadata for PodView {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(default)]
    metadata: RawMetadata,
    spec: Option<RawSpec>,
    status: Option<RawStatus>,
}

/// Reading less is faster, too: managed fields are often more than half of a pod.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    node_name: Option<String>,
    hostname: Option<String>,
    subdomain: Option<String>,
    containers: Option<Vec<RawContainer>>,
    init_containers: Option<Vec<RawContainer>>,
    resources: Option<ResourceRequirements>,
    overhead: Option<BTreeMap<String, Quantity>>,
    volumes: Option<Vec<RawVolume>>,
    affinity: Option<RawAffinity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawAffinity {
    node_affinity: Option<RawNodeAffinity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawNodeAffinity {
    required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawVolume {
    persistent_volume_claim: Option<RawClaim>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawClaim {
    claim_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawContainer {
    ports: Option<Vec<RawPort>>,
    restart_policy: Option<String>,
    resources: Option<ResourceRequirements>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPort {
    name: Option<String>,
    protocol: Option<String>,
    container_port: i32,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<RawAddress>>,
    conditions: Option<Vec<RawCondition>>,
}

#[derive(Deserialize)]
struct RawAddress {
    #[serde(default)]
    ip: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    last_transition_time: Option<Time>,
}

impl From<Raw> for PodView {
    fn from(raw: Raw) -> Self {
        let spec = raw.spec.unwrap_or_default();
        let status = raw.status.unwrap_or_default();
        let ready = status.conditions.iter().flatten().find(|c| c.type_ == "Ready");
        let mut addresses: Vec<IpAddr> = Vec::new();
        let texts = status.pod_ips.iter().flatten().map(|address| address.ip.as_str());
        for address in texts.chain(status.pod_ip.as_deref()).filter_map(|text| text.parse().ok()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Self {
            ready: ready.is_some_and(|condition| condition.status == "True"),
            ready_since: ready.and_then(|c| c.last_transition_time.as_ref()).map(|time| time.0),
            metadata: essential(raw.metadata),
            ports: ports(&spec),
            requests: requests(&spec),
            claims: claims(&spec),
            aimed_at: aimed_at(&spec).unwrap_or_default(),
            node: spec.node_name.unwrap_or_default(),
            hostname: spec.hostname.unwrap_or_default(),
            subdomain: spec.subdomain.unwrap_or_default(),
            phase: match status.phase.as_deref() {
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                Some("Running") => Phase::Running,
                Some("Unknown") => Phase::Unknown,
                _ => Phase::Pending,
            },
            addresses,
        }
    }
}

pub(crate) fn essential(all: RawMetadata) -> ObjectMeta {
    ObjectMeta {
        name: all.name,
        namespace: all.namespace,
        uid: all.uid,
        resource_version: all.resource_version,
        labels: all.labels,
        creation_timestamp: all.creation_timestamp,
        deletion_timestamp: all.deletion_timestamp,
        owner_references: all.owner_references,
        ..Default::default()
    }
}

/// What it asks of its node: the same rules as for a whole pod.
fn requests(spec: &RawSpec) -> Requests {
    let container = |raw: &RawContainer| Container {
        resources: raw.resources.clone(),
        restart_policy: raw.restart_policy.clone(),
        ..Container::default()
    };
    let asks = |raw: &RawContainer| raw.resources.is_some();
    let all = || spec.init_containers.iter().chain(&spec.containers).flatten();
    // Most ask for nothing.
    if !all().any(asks) && spec.resources.is_none() && spec.overhead.is_none() {
        return Requests::default();
    }
    Requests::of_pod(&PodSpec {
        containers: spec.containers.iter().flatten().map(container).collect(),
        init_containers: spec
            .init_containers
            .as_ref()
            .map(|all| all.iter().map(container).collect()),
        resources: spec.resources.clone(),
        overhead: spec.overhead.clone(),
        ..PodSpec::default()
    })
}

/// Pods of DaemonSets say by their affinity which node they are for.
fn aimed_at(spec: &RawSpec) -> Option<String> {
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let fields = required.node_selector_terms.first()?.match_fields.as_ref()?;
    let name = fields.iter().find(|own| own.key == "metadata.name" && own.operator == "In")?;
    name.values.as_ref()?.first().cloned()
}

fn claims(spec: &RawSpec) -> Vec<String> {
    let volumes = spec.volumes.iter().flatten();
    let claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.map(|claim| claim.claim_name.clone()).collect()
}

fn ports(spec: &RawSpec) -> Vec<NamedPort> {
    let is_sidecar = |c: &&RawContainer| c.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let containers = spec.containers.iter().flatten().chain(sidecars);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.filter_map(|port| {
        Some(NamedPort {
            name: port.name.clone().filter(|name| !name.is_empty())?,
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            number: port.container_port,
        })
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_kept_of_a_pod() {
        let pod: PodView = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "annotations": {"a": "b"},
                "managedFields": [{"manager": "m"}]},
            "spec": {"nodeName": "n", "hostname": "h", "subdomain": "s",
                "containers": [{"name": "c", "ports": [
                    {"name": "web", "containerPort": 80}, {"containerPort": 81}]}],
                "initContainers": [
                    {"name": "once", "ports": [{"name": "no", "containerPort": 1}]},
                    {"name": "sidecar", "restartPolicy": "Always",
                        "ports": [{"name": "dns", "protocol": "UDP", "containerPort": 53}]}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1",
                "podIPs": [{"ip": "10.0.0.1"}, {"ip": "FD00::0:1"}],
                "conditions": [{"type": "Ready", "status": "True",
                    "lastTransitionTime": "2026-01-01T00:00:05Z"}]},
        }))
        .unwrap();
        assert_eq!(
            (pod.metadata.annotations.as_ref(), pod.metadata.managed_fields.as_ref()),
            (None, None)
        );
        let ports: Vec<_> =
            pod.ports.iter().map(|p| format!("{}/{}:{}", p.name, p.protocol, p.number)).collect();
        assert_eq!(ports, ["web/TCP:80", "dns/UDP:53"]);
        let addresses: Vec<_> = pod.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["10.0.0.1", "fd00::1"]);
        assert!(pod.ready && pod.phase == Phase::Running && !pod.is_finished());
        let since = pod.ready_since.unwrap();
        assert!(pod.is_available(5, since + jiff::SignedDuration::from_secs(5)));
        assert!(!pod.is_available(5, since + jiff::SignedDuration::from_secs(4)));
        let mut other = pod.clone();
        other.metadata.resource_version = Some("9".into());
        assert!(!other.differs_from(&pod));
        other.ready = false;
        assert!(other.differs_from(&pod));
    }
}
