//! The EndpointSlices of a Service.
//!
//! `desired` says which endpoints there should be, `pack` puts them into slices with few writes,
//! `hints` says whom they are for, and this module dresses the slices and pairs those to create
//! with those to delete.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::pod_view::PodView;
use crate::{owner, trigger_time};

pub(crate) mod desired;
pub mod hints;
mod pack;

use desired::{Candidate, PortSet};
use hints::{Mode, Note, Slices, Topology};

/// The label that leads from a slice to its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label that says who writes a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// What we are called in that label.
pub const CONTROLLER: &str = "endpointslice-controller.k8s.io";
/// The label of everything that belongs to a headless Service.
pub(crate) const HEADLESS: &str = "service.kubernetes.io/headless";

/// What a plan is made from.
pub struct Input<'a> {
    /// The Service.
    pub service: &'a Service,
    /// The pods that its selector matches.
    pub pods: &'a [&'a PodView],
    /// Finds the node of a pod.
    pub node: &'a dyn Fn(&str) -> Option<&'a Node>,
    /// The slices of the Service that we manage.
    pub slices: &'a [&'a EndpointSlice],
    /// How many endpoints fit into a slice.
    pub max_endpoints: usize,
    /// What the nodes say about zones.
    pub topology: &'a Topology,
    /// What a change made now is due to.
    pub trigger: Option<Timestamp>,
}

/// The writes that make the slices right.
#[derive(Debug, Default, PartialEq)]
pub struct SlicePlan {
    /// Slices to create.
    pub create: Vec<EndpointSlice>,
    /// Slices to replace.
    pub update: Vec<EndpointSlice>,
    /// Slices to delete.
    pub delete: Vec<EndpointSlice>,
    /// Pods left out because their node is unknown: the plan should be made again.
    pub missing_nodes: BTreeSet<String>,
    /// What to tell about hints, by address family.
    pub notes: Vec<(String, Note)>,
    /// Figures for the operator.
    pub counts: Counts,
}

/// How much there is and how much changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Endpoints that there should be.
    pub endpoints: usize,
    /// Slices that there will be.
    pub slices: usize,
    /// Slices that would be enough.
    pub desired_slices: usize,
    /// Endpoints that come.
    pub added: usize,
    /// Endpoints that go.
    pub removed: usize,
}

/// Plans the slices of a Service that has a selector.
pub fn plan(input: &Input<'_>) -> SlicePlan {
    let service = input.service;
    let mut plan = SlicePlan::default();
    let families = desired::families(service);
    let (own, foreign): (Vec<&EndpointSlice>, Vec<&EndpointSlice>) = input
        .slices
        .iter()
        .copied()
        .filter(|slice| slice.metadata.deletion_timestamp.is_none())
        .partition(|slice| owner::is_controlled_by(&slice.metadata, &service.metadata));
    plan.delete.extend(foreign.into_iter().cloned());
    let labels = labels(service);
    for family in &families {
        let wanted = desired::endpoints(input, family, &mut plan.missing_nodes);
        let existing = own.iter().filter(|slice| slice.address_type == *family);
        let existing = existing.copied().collect();
        let family = Family { input, name: family, existing, labels: &labels };
        family.plan(wanted, &mut plan);
    }
    let unwanted = own.iter().filter(|slice| !families.contains(&slice.address_type));
    plan.delete.extend(unwanted.copied().cloned());
    recycle(&mut plan);
    if service.metadata.deletion_timestamp.is_some() {
        plan.create.clear();
    }
    for slice in plan.create.iter_mut().chain(&mut plan.update) {
        annotate(&mut slice.metadata, input.trigger);
    }
    plan
}

/// Says what a change is due to, or that it is not known.
pub(crate) fn annotate(metadata: &mut ObjectMeta, trigger: Option<Timestamp>) {
    match trigger {
        Some(trigger) => {
            let annotations = metadata.annotations.get_or_insert_default();
            annotations.insert(trigger_time::ANNOTATION.to_owned(), trigger.to_string());
        }
        None => {
            if let Some(annotations) = &mut metadata.annotations {
                annotations.remove(trigger_time::ANNOTATION);
            }
        }
    }
    metadata.annotations =
        metadata.annotations.take().filter(|annotations| !annotations.is_empty());
}

/// The slices of one family of addresses.
struct Family<'a, 'b> {
    input: &'a Input<'b>,
    name: &'a str,
    existing: Vec<&'a EndpointSlice>,
    labels: &'a BTreeMap<String, String>,
}

impl Family<'_, '_> {
    fn plan(&self, wanted: BTreeMap<PortSet, Vec<Candidate<'_>>>, plan: &mut SlicePlan) {
        let Self { input, name: family, existing, labels } = self;
        let new = |ports: &PortSet, endpoints: Vec<Endpoint>| EndpointSlice {
            metadata: ObjectMeta {
                generate_name: Some(format!("{}-", name(input.service))),
                namespace: input.service.metadata.namespace.clone(),
                labels: Some((*labels).clone()),
                owner_references: Some(vec![owner::controlled_by(input.service)]),
                ..Default::default()
            },
            address_type: (*family).to_owned(),
            ports: Some(ports.to_ports()).filter(|ports| !ports.is_empty()),
            endpoints: Some(endpoints).filter(|endpoints| !endpoints.is_empty()),
        };
        if wanted.is_empty() {
            // A Service always has a slice, so that everyone can see that it leads nowhere.
            return plan_placeholder(existing, new(&PortSet::default(), vec![]), plan);
        }
        let mut by_ports: BTreeMap<PortSet, Vec<&EndpointSlice>> = BTreeMap::new();
        for slice in existing {
            by_ports.entry(PortSet::of(slice)).or_default().push(slice);
        }
        let mut slices = Slices::default();
        let is_dressed = |slice: &EndpointSlice| same_labels(slice, labels);
        for (ports, candidates) in wanted {
            plan.counts.endpoints += candidates.len();
            plan.counts.desired_slices += candidates.len().div_ceil(input.max_endpoints.max(1));
            let old = by_ports.remove(&ports).unwrap_or_default();
            let packed = pack::pack(&old, candidates, input.max_endpoints, is_dressed);
            plan.counts.added += packed.added;
            plan.counts.removed += packed.removed;
            slices.create.extend(packed.create.into_iter().map(|endpoints| new(&ports, endpoints)));
            slices.untouched.extend(packed.untouched);
            plan.delete.extend(packed.delete.into_iter().cloned());
            slices.update.extend(packed.update.into_iter().map(|(slice, endpoints)| {
                EndpointSlice {
                    metadata: ObjectMeta {
                        labels: Some((*labels).clone()),
                        ..slice.metadata.clone()
                    },
                    endpoints: Some(endpoints),
                    ..slice.clone()
                }
            }));
        }
        plan.delete.extend(by_ports.into_values().flatten().cloned());
        let had = existing.iter().any(|slice| has_hints(slice));
        let note = hints::assign(Mode::of(input.service), input.topology, had, &mut slices);
        plan.notes.extend(note.map(|note| ((*family).to_owned(), note)));
        plan.counts.slices += slices.create.len() + slices.update.len() + slices.untouched.len();
        plan.create.append(&mut slices.create);
        plan.update.append(&mut slices.update);
    }
}

fn has_hints(slice: &EndpointSlice) -> bool {
    slice.endpoints.iter().flatten().any(|endpoint| endpoint.hints.is_some())
}

/// Whether a slice has the labels it should have. The headless mark alone is not worth a write.
fn same_labels(slice: &EndpointSlice, labels: &BTreeMap<String, String>) -> bool {
    let without = |labels: &BTreeMap<String, String>| {
        let mut labels = labels.clone();
        labels.remove(HEADLESS);
        labels
    };
    let own = slice.metadata.labels.as_ref();
    own == Some(labels) || own.map(without) == Some(without(labels))
}

fn plan_placeholder(existing: &[&EndpointSlice], placeholder: EndpointSlice, plan: &mut SlicePlan) {
    let is_same = |slice: &EndpointSlice| {
        slice.endpoints.as_ref().is_none_or(Vec::is_empty)
            && slice.ports.as_ref().is_none_or(Vec::is_empty)
            && placeholder.metadata.labels.as_ref().is_some_and(|l| same_labels(slice, l))
    };
    plan.counts.slices += 1;
    plan.counts.desired_slices += 1;
    plan.counts.removed += existing.iter().flat_map(|s| s.endpoints.iter().flatten()).count();
    let kept = existing.iter().position(|slice| is_same(slice));
    let others = existing.iter().enumerate().filter(|(index, _)| Some(*index) != kept);
    plan.delete.extend(others.map(|(_, slice)| (*slice).clone()));
    if kept.is_none() {
        plan.create.push(placeholder);
    }
}

/// A slice to create takes the name of one to delete: watchers see one change instead of two.
fn recycle(plan: &mut SlicePlan) {
    let mut create = Vec::new();
    for mut slice in std::mem::take(&mut plan.create) {
        let reusable = plan.delete.iter().position(|old| {
            old.address_type == slice.address_type
                && old.metadata.owner_references == slice.metadata.owner_references
        });
        match reusable {
            Some(index) => {
                let old = plan.delete.remove(index);
                slice.metadata = ObjectMeta { labels: slice.metadata.labels, ..old.metadata };
                plan.update.push(slice);
            }
            None => create.push(slice),
        }
    }
    plan.create = create;
}

/// The labels of the Service, except those that mean something on slices, and our own.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    for reserved in [SERVICE_NAME, MANAGED_BY, HEADLESS] {
        labels.remove(reserved);
    }
    if desired::is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(SERVICE_NAME.to_owned(), name(service).to_owned());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    labels
}

fn name(service: &Service) -> &str {
    service.metadata.name.as_deref().unwrap_or("")
}

#[cfg(test)]
mod tests;
