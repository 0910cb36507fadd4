//! From what is known about a Service to the writes that its endpoints need.

use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use roadstead_api::key::ObjectKey;
use roadstead_plan::endpoint_warnings::{
    self, EndpointWarning, is_endpoints_by_hand, is_slice_by_hand,
};
use roadstead_plan::endpoints::{self, EndpointsPlan};
use roadstead_plan::endpointslice::hints::{Mode, Note};
use roadstead_plan::endpointslice::{self as slices, Input, SlicePlan};
use roadstead_plan::endpointslice_mirroring::{self, MirrorPlan};
use roadstead_watch::events::{EventDraft, InvolvedObject, Severity};
use roadstead_watch::informer::key_of;
use roadstead_watch::write::{Collection, Write};
use tokio::time::Instant;

use super::{ServiceWork, State, distribution, selector};
use crate::metrics::{SliceWriter, Sync, Totals};
use crate::runner::WritePlan;

impl State {
    pub(super) fn plan_slices(&mut self, work: &ServiceWork) -> WritePlan<ServiceWork> {
        let key = &work.key;
        let Some(service) = self.services.cache.get(key).cloned() else {
            // The garbage collector removes the slices.
            self.slice_triggers.forget(key);
            self.told.hints.retain(|(told, _), _| told != key);
            self.count(SliceWriter::Slices, work, None);
            return WritePlan::none();
        };
        let Some(selector) = selector(&service) else { return WritePlan::none() };
        let pods = self.pods.selected(key, selector);
        let own = self.slices.managed(key, slices::CONTROLLER);
        let node = |name: &str| -> Option<&Node> {
            self.nodes.cache.get(&ObjectKey::new("", name)).map(AsRef::as_ref)
        };
        let trigger = self.slice_triggers.observe(key, &service, &pods);
        let plan = slices::plan(&Input {
            service: &service,
            pods: &pods,
            node: &node,
            slices: &own,
            max_endpoints: self.config.max_endpoints,
            topology: &self.nodes.topology,
            trigger,
        });
        self.metrics.synced(SliceWriter::Slices, &sync(&service, &plan));
        let counts = plan.counts;
        let (endpoints, desired) = (counts.endpoints, counts.desired_slices);
        self.count(
            SliceWriter::Slices,
            work,
            Some(Totals { endpoints, slices: counts.slices, desired }),
        );
        let about = InvolvedObject::of(&*service);
        let beginning = format!("Error updating Endpoint Slices for Service {key}");
        let missing: Vec<_> = plan.missing_nodes.iter().cloned().collect();
        WritePlan {
            events: self.tell(key, &about, &plan.notes),
            writes: writes(plan.create, plan.update, plan.delete, &key.namespace),
            failure: Some((about, "FailedToUpdateEndpointSlices", beginning)),
            incomplete: (!missing.is_empty())
                .then(|| format!("pods on unknown nodes: {}", missing.join(", "))),
            ..WritePlan::default()
        }
    }

    /// What is news about hints.
    fn tell(
        &mut self,
        key: &ObjectKey,
        about: &InvolvedObject,
        notes: &[(String, Note)],
    ) -> Vec<EventDraft> {
        let mut news = Vec::new();
        for (family, note) in notes {
            let before = self.told.hints.insert((key.clone(), family.clone()), note.clone());
            // Hints of another making also end, and nobody was told that they began.
            let is_end = *note == Note::ended();
            if before.as_ref() == Some(note) || (is_end && before != Some(Note::Enabled)) {
                continue;
            }
            let (severity, reason, message) = match note {
                Note::Enabled => {
                    let message = "Topology Aware Hints has been enabled";
                    (Severity::Normal, "TopologyAwareHintsEnabled", message.to_owned())
                }
                Note::Disabled(why) => {
                    (Severity::Warning, "TopologyAwareHintsDisabled", why.clone())
                }
            };
            news.push(EventDraft {
                about: about.clone(),
                severity,
                reason: reason.to_owned(),
                message: format!("{message}, addressType: {family}"),
            });
        }
        news
    }

    pub(super) fn plan_endpoints(&mut self, key: &ObjectKey) -> WritePlan<ServiceWork> {
        let existing = self.endpoints.get(key).cloned();
        let Some(service) = self.services.cache.get(key).cloned() else {
            self.endpoint_triggers.forget(key);
            let orphan = existing.filter(|endpoints| !endpoints::is_lock(endpoints));
            let uid = orphan.as_ref().and_then(|orphan| orphan.uid());
            let delete = || Write::delete(ENDPOINTS, key.clone(), uid.as_deref());
            return WritePlan {
                writes: orphan.as_ref().map(|_| delete()).into_iter().collect(),
                ..WritePlan::none()
            };
        };
        let Some(selector) = selector(&service) else { return WritePlan::none() };
        let pods = self.pods.selected(key, selector);
        let trigger = self.endpoint_triggers.observe(key, &service, &pods);
        let about = |endpoints: &Endpoints| InvolvedObject::of(endpoints);
        match endpoints::plan(&service, &pods, existing.as_deref(), trigger) {
            EndpointsPlan::Keep => WritePlan::none(),
            EndpointsPlan::Create(_) if service.metadata.deletion_timestamp.is_some() => {
                WritePlan::none()
            }
            EndpointsPlan::Create(made) => {
                let beginning = format!("Failed to create endpoint for service {key}");
                WritePlan {
                    writes: vec![Write::create(&key.namespace, &made)],
                    failure: Some((about(&made), "FailedToCreateEndpoint", beginning)),
                    ..WritePlan::none()
                }
            }
            EndpointsPlan::Replace(made) => {
                let beginning = format!("Failed to update endpoint {key}");
                WritePlan {
                    writes: vec![Write::replace(key.clone(), &made)],
                    failure: Some((about(&made), "FailedToUpdateEndpoint", beginning)),
                    ..WritePlan::none()
                }
            }
        }
    }

    pub(super) fn plan_mirror(&mut self, work: &ServiceWork) -> WritePlan<ServiceWork> {
        let key = &work.key;
        let began = Instant::now();
        let service = self.services.cache.get(key).cloned();
        let original = self.endpoints.get(key).cloned();
        let own = self.slices.managed(key, endpointslice_mirroring::CONTROLLER);
        if own.is_empty() && original.is_none() {
            return WritePlan::none();
        }
        let plan = endpointslice_mirroring::plan(
            original.as_deref(),
            service.as_deref(),
            &own,
            self.config.max_mirrored,
        );
        let MirrorPlan { create, update, delete, skipped, invalid, endpoints } = plan;
        let sync = Sync {
            created: create.len(),
            updated: update.len(),
            deleted: delete.len(),
            ..Sync::default()
        };
        let slices = own.len() + create.len() - delete.len();
        self.metrics.synced(SliceWriter::Mirror, &sync);
        self.metrics.mirrored(skipped, update.len(), began.elapsed());
        self.count(SliceWriter::Mirror, work, Some(Totals { endpoints, slices, desired: slices }));
        let mut events = Vec::new();
        if let Some(original) = original.as_deref().filter(|_| sync.created + sync.updated > 0) {
            let warn = |reason: &str, message: String| EventDraft {
                about: InvolvedObject::of(original),
                severity: Severity::Warning,
                reason: reason.to_owned(),
                message,
            };
            let most = self.config.max_mirrored;
            events.extend((skipped > 0).then(|| {
                let text = format!(
                    "A max of {most} addresses can be mirrored to EndpointSlices per Endpoints \
                     subset. {skipped} addresses were skipped"
                );
                warn("TooManyAddressesToMirror", text)
            }));
            events.extend((invalid > 0).then(|| {
                let text = format!(
                    "Skipped {invalid} invalid IP addresses when mirroring to EndpointSlices"
                );
                warn("InvalidIPAddress", text)
            }));
        }
        WritePlan {
            writes: writes(create, update, delete, &key.namespace),
            events,
            ..WritePlan::none()
        }
    }

    /// Says what of the endpoints that people wrote leads nowhere, once.
    pub(super) fn plan_warnings(&mut self, key: &ObjectKey) -> WritePlan<ServiceWork> {
        let service = self.services.cache.get(key).map(AsRef::as_ref);
        let written = self.endpoints.get(key).filter(|object| is_endpoints_by_hand(object));
        let endpoints = written.map(|object| {
            (InvolvedObject::of(&**object), endpoint_warnings::about_endpoints(object, service))
        });
        let slices = self.slices.of(key).filter(|slice| is_slice_by_hand(slice));
        let slices = slices.map(|slice| {
            (InvolvedObject::of(slice), endpoint_warnings::about_slice(slice, service))
        });
        let all: Vec<_> = endpoints.into_iter().chain(slices).collect();
        let mut events = Vec::new();
        for (about, warnings) in all {
            let before = match warnings.is_empty() {
                true => self.told.warnings.remove(&about.uid),
                false => self.told.warnings.insert(about.uid.clone(), warnings.clone()),
            };
            let news =
                warnings.into_iter().filter(|one| !before.iter().flatten().any(|o| o == one));
            events.extend(news.map(|EndpointWarning { reason, message }| EventDraft {
                about: about.clone(),
                severity: Severity::Warning,
                reason: reason.to_owned(),
                message,
            }));
        }
        WritePlan { events, ..WritePlan::none() }
    }

    fn count(&mut self, writer: SliceWriter, work: &ServiceWork, now: Option<Totals>) {
        let before = match now {
            Some(now) => self.told.totals.insert(work.clone(), now),
            None => self.told.totals.remove(work),
        };
        self.metrics.total(writer, before.unwrap_or_default(), now.unwrap_or_default());
    }
}

const ENDPOINTS: Collection = Collection::of::<Endpoints>();
const SLICES: Collection = Collection::of::<EndpointSlice>();

fn writes(
    create: Vec<EndpointSlice>,
    update: Vec<EndpointSlice>,
    delete: Vec<EndpointSlice>,
    namespace: &str,
) -> Vec<Write> {
    let create = create.iter().map(|slice| Write::create(namespace, slice));
    let update = update.iter().map(|slice| Write::replace(key_of(slice), slice));
    let delete = delete
        .iter()
        .map(|slice| Write::delete(SLICES, key_of(slice), slice.metadata.uid.as_deref()));
    create.chain(update).chain(delete).collect()
}

fn sync(service: &Service, plan: &SlicePlan) -> Sync {
    Sync {
        added: plan.counts.added,
        removed: plan.counts.removed,
        created: plan.create.len(),
        updated: plan.update.len(),
        deleted: plan.delete.len(),
        topology: if Mode::of(service) == Mode::Auto { "Auto" } else { "Disabled" },
        traffic_distribution: distribution(service).unwrap_or(""),
    }
}
