//! From what is known about a Service to the writes that its endpoints need.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use roadstead_api::key::ObjectKey;
use roadstead_api::selector::Labels;
use roadstead_plan::advice::{self, Advice, is_endpoints_by_hand, is_slice_by_hand};
use roadstead_plan::backend::Backend;
use roadstead_plan::endpoints::{self, EndpointsPlan};
use roadstead_plan::endpointslice::hints::{Mode, Note};
use roadstead_plan::endpointslice::{self as slices, Input, MANAGED_BY, SlicePlan};
use roadstead_plan::mirror::{self, MirrorPlan};
use roadstead_plan::selection::Labelled;
use roadstead_watch::cache::Cache;
use roadstead_watch::events::{About, Happening, Severity};
use roadstead_watch::informer::key_of;
use roadstead_watch::write::{Collection, Write};
use tokio::time::Instant;

use super::{State, Work, distribution, selector, slices_of};
use crate::metrics::{Sync, Totals, Writer};
use crate::runner::Plan;

impl State {
    pub(super) fn plan_slices(&mut self, work: &Work) -> Plan {
        let key = &work.key;
        let Some(service) = self.services.get(key).cloned() else {
            // The garbage collector removes the slices.
            self.slice_triggers.forget(key);
            self.told.retain(|(told, _), _| told != key);
            self.count(Writer::Slices, work, None);
            return Plan::none();
        };
        let Some(selector) = selector(&service) else { return Plan::none() };
        let pods = selected(&self.by_label, key, selector);
        let own = managed(&self.slices_of, &self.slices, key, slices::CONTROLLER);
        let node = |name: &str| -> Option<&Node> {
            self.nodes.get(&ObjectKey::new("", name)).map(AsRef::as_ref)
        };
        let trigger = self.slice_triggers.observe(key, &service, &pods);
        let plan = slices::plan(&Input {
            service: &service,
            pods: &pods,
            node: &node,
            slices: &own,
            max_endpoints: self.config.max_endpoints,
            topology: &self.topology,
            trigger,
        });
        self.metrics.synced(Writer::Slices, &sync(&service, &plan));
        let counts = plan.counts;
        let (endpoints, desired) = (counts.endpoints, counts.desired_slices);
        self.count(
            Writer::Slices,
            work,
            Some(Totals { endpoints, slices: counts.slices, desired }),
        );
        let about = About::object(&*service);
        let beginning = format!("Error updating Endpoint Slices for Service {key}");
        let missing: Vec<_> = plan.missing_nodes.iter().cloned().collect();
        Plan {
            events: self.tell(key, &about, &plan.notes),
            writes: writes(plan.create, plan.update, plan.delete, &key.namespace),
            failure: Some((about, "FailedToUpdateEndpointSlices", beginning)),
            incomplete: (!missing.is_empty())
                .then(|| format!("pods on unknown nodes: {}", missing.join(", "))),
            ..Plan::default()
        }
    }

    /// What is news about hints.
    fn tell(&mut self, key: &ObjectKey, about: &About, notes: &[(String, Note)]) -> Vec<Happening> {
        let mut news = Vec::new();
        for (family, note) in notes {
            let before = self.told.insert((key.clone(), family.clone()), note.clone());
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
            news.push(Happening {
                about: about.clone(),
                severity,
                reason: reason.to_owned(),
                message: format!("{message}, addressType: {family}"),
            });
        }
        news
    }

    pub(super) fn plan_endpoints(&mut self, key: &ObjectKey) -> Plan {
        let existing = self.endpoints.get(key).cloned();
        let Some(service) = self.services.get(key).cloned() else {
            self.endpoint_triggers.forget(key);
            let orphan = existing.filter(|endpoints| !endpoints::is_lock(endpoints));
            let uid = orphan.as_ref().and_then(|orphan| orphan.uid());
            let delete = || Write::delete(ENDPOINTS, key.clone(), uid.as_deref());
            return Plan {
                writes: orphan.as_ref().map(|_| delete()).into_iter().collect(),
                ..Plan::none()
            };
        };
        let Some(selector) = selector(&service) else { return Plan::none() };
        let pods = selected(&self.by_label, key, selector);
        let trigger = self.endpoint_triggers.observe(key, &service, &pods);
        let about = |endpoints: &Endpoints| About::object(endpoints);
        match endpoints::plan(&service, &pods, existing.as_deref(), trigger) {
            EndpointsPlan::Keep => Plan::none(),
            EndpointsPlan::Create(_) if service.metadata.deletion_timestamp.is_some() => {
                Plan::none()
            }
            EndpointsPlan::Create(made) => {
                let beginning = format!("Failed to create endpoint for service {key}");
                Plan {
                    writes: vec![Write::create(&key.namespace, &made)],
                    failure: Some((about(&made), "FailedToCreateEndpoint", beginning)),
                    ..Plan::none()
                }
            }
            EndpointsPlan::Replace(made) => {
                let beginning = format!("Failed to update endpoint {key}");
                Plan {
                    writes: vec![Write::replace(key.clone(), &made)],
                    failure: Some((about(&made), "FailedToUpdateEndpoint", beginning)),
                    ..Plan::none()
                }
            }
        }
    }

    pub(super) fn plan_mirror(&mut self, work: &Work) -> Plan {
        let key = &work.key;
        let began = Instant::now();
        let service = self.services.get(key).cloned();
        let original = self.endpoints.get(key).cloned();
        let own = managed(&self.slices_of, &self.slices, key, mirror::CONTROLLER);
        if own.is_empty() && original.is_none() {
            return Plan::none();
        }
        let plan =
            mirror::plan(original.as_deref(), service.as_deref(), &own, self.config.max_mirrored);
        let MirrorPlan { create, update, delete, skipped, invalid, endpoints } = plan;
        let sync = Sync {
            created: create.len(),
            updated: update.len(),
            deleted: delete.len(),
            ..Sync::default()
        };
        let slices = own.len() + create.len() - delete.len();
        self.metrics.synced(Writer::Mirror, &sync);
        self.metrics.mirrored(skipped, update.len(), began.elapsed());
        self.count(Writer::Mirror, work, Some(Totals { endpoints, slices, desired: slices }));
        let mut events = Vec::new();
        if let Some(original) = original.as_deref().filter(|_| sync.created + sync.updated > 0) {
            let warn = |reason: &str, message: String| Happening {
                about: About::object(original),
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
        Plan { writes: writes(create, update, delete, &key.namespace), events, ..Plan::none() }
    }

    /// Says what of the endpoints that people wrote leads nowhere, once.
    pub(super) fn plan_advice(&mut self, key: &ObjectKey) -> Plan {
        let service = self.services.get(key).map(AsRef::as_ref);
        let written = self.endpoints.get(key).filter(|object| is_endpoints_by_hand(object));
        let endpoints = written
            .map(|object| (About::object(&**object), advice::about_endpoints(object, service)));
        let slices = self.slices_of(key).filter(|slice| is_slice_by_hand(slice));
        let slices =
            slices.map(|slice| (About::object(slice), advice::about_slice(slice, service)));
        let all: Vec<_> = endpoints.into_iter().chain(slices).collect();
        let mut events = Vec::new();
        for (about, advice) in all {
            let before = match advice.is_empty() {
                true => self.advised.remove(&about.uid),
                false => self.advised.insert(about.uid.clone(), advice.clone()),
            };
            let news = advice.into_iter().filter(|one| !before.iter().flatten().any(|o| o == one));
            events.extend(news.map(|Advice { reason, message }| Happening {
                about: about.clone(),
                severity: Severity::Warning,
                reason: reason.to_owned(),
                message,
            }));
        }
        Plan { events, ..Plan::none() }
    }

    fn count(&mut self, writer: Writer, work: &Work, now: Option<Totals>) {
        let before = match now {
            Some(now) => self.totals.insert(work.clone(), now),
            None => self.totals.remove(work),
        };
        self.metrics.total(writer, before.unwrap_or_default(), now.unwrap_or_default());
    }
}

const ENDPOINTS: Collection = Collection::of::<Endpoints>();
const SLICES: Collection = Collection::of::<EndpointSlice>();

/// The pods that a Service selects.
fn selected<'a>(
    pods: &'a Labelled<Arc<Backend>>,
    service: &ObjectKey,
    selector: &Labels,
) -> Vec<&'a Backend> {
    let selected = pods.selected(&service.namespace, selector, |pod| pod.metadata.labels.as_ref());
    selected.into_iter().map(AsRef::as_ref).collect()
}

/// The slices of a Service that one controller manages.
fn managed<'a>(
    index: &'a HashMap<ObjectKey, BTreeSet<String>>,
    slices: &'a Cache<EndpointSlice>,
    service: &'a ObjectKey,
    manager: &str,
) -> Vec<&'a EndpointSlice> {
    let is_own =
        |slice: &&EndpointSlice| slice.labels().get(MANAGED_BY).is_some_and(|name| name == manager);
    slices_of(index, slices, service).filter(is_own).collect()
}

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
