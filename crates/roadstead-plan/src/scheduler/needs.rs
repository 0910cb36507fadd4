//! What a pod that waits asks of its node, read once.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeSelectorTerm, Pod, PodSpec, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use roadstead_api::key::ObjectKey;
use roadstead_api::node_affinity::{is_particular, wants_node};
use roadstead_api::selector::Labels;

use super::groups::PodGroup;
use super::node::NodeState;
use super::occupancy::{Occupancy, Siblings};
use super::ports::{NodePortUse, node_ports};
use super::room::Amount;
use super::taints::bears_cordon;
use super::terms::{Term, terms};
use crate::owner::controller_of;

static NONE: Labels = Labels::new();

/// A pod that waits.
#[derive(Debug)]
pub(super) struct Needs<'a> {
    pub key: ObjectKey,
    pub pod: &'a Pod,
    pub spec: &'a PodSpec,
    pub labels: &'a Labels,
    pub priority: i32,
    pub amount: Amount,
    pub ports: Vec<NodePortUse>,
    pub tolerations: &'a [Toleration],
    pub bears_cordon: bool,
    pub terms: Vec<Arc<Term>>,
    is_particular: bool,
}

impl<'a> Needs<'a> {
    pub(super) fn of(pod: &'a Pod, spec: &'a PodSpec) -> Self {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("");
        let labels = pod.metadata.labels.as_ref().unwrap_or(&NONE);
        let tolerations = spec.tolerations.as_deref().unwrap_or_default();
        Self {
            key: ObjectKey::new(namespace, pod.metadata.name.as_deref().unwrap_or("")),
            pod,
            spec,
            labels,
            priority: spec.priority.unwrap_or(0),
            amount: Amount::of_pod(spec),
            ports: node_ports(spec),
            tolerations,
            bears_cordon: bears_cordon(tolerations),
            terms: terms(spec, namespace, labels),
            is_particular: is_particular(spec),
        }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.key.namespace
    }

    pub(super) fn uid(&self) -> &'a str {
        self.pod.metadata.uid.as_deref().unwrap_or("")
    }

    /// The node that others were asked to leave for it, or "".
    pub(super) fn nominated(&self) -> &'a str {
        let status = self.pod.status.as_ref();
        status.and_then(|status| status.nominated_node_name.as_deref()).unwrap_or("")
    }

    /// Whether its node selector and required node affinity are met.
    pub(super) fn wants(&self, node: &NodeState) -> bool {
        !self.is_particular || wants_node(self.spec, node.traits())
    }

    /// The only nodes that it can be on by their names, if it says which.
    pub(super) fn aims(&self) -> Option<BTreeSet<&'a str>> {
        let affinity = self.spec.affinity.as_ref()?.node_affinity.as_ref()?;
        let required = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
        let names = |term: &'a NodeSelectorTerm| {
            let fields = term.match_fields.iter().flatten();
            let mut named = fields.filter(|f| f.key == "metadata.name" && f.operator == "In");
            named.next().map(|field| field.values.iter().flatten().map(String::as_str))
        };
        let terms = required.node_selector_terms.iter().map(names);
        let named: Option<Vec<_>> = terms.collect();
        Some(named?.into_iter().flatten().collect())
    }

    /// Pods that it should not be beside only.
    pub(super) fn siblings(&self, cluster: &Occupancy) -> Option<Siblings> {
        if let Some(owner) = controller_of(&self.pod.metadata) {
            return Some(Siblings::OfOwner(owner.uid.clone()));
        }
        let selector = cluster.services_of(self.namespace(), self.labels)?;
        let match_labels = Some(selector);
        let selector = LabelSelector { match_labels, match_expressions: None };
        let group = PodGroup::spread(self.namespace(), Some(&selector), None, self.labels);
        Some(Siblings::OfServices(group))
    }
}
