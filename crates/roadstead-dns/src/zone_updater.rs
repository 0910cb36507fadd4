//! Keeps the zone equal to the cluster.
//!
//! Changes that arrive together are published together. When the choice of what is watched
//! changes, a new zone is built beside the old one, which goes on answering until the new one is
//! complete.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Resource, ResourceExt};
use roadstead_api::key::ObjectKey;
use roadstead_dns_core::pod_outline::PodOutline;
use roadstead_watch::informer::{Change, Selection, key_of, revision_of};
use roadstead_watch::keys_only::keys_only;
use roadstead_zone::settings::{PodNames, ZoneSettings};
use roadstead_zone::zone::{Keeper, Numbered, Zone};
use tokio::sync::watch;
use tokio::time;
use tracing::info;

use crate::agent::{Outputs, Programmed};
use crate::chance;
use crate::metrics::Metrics;
use crate::publish::Published;

/// How many changes are taken in before they are published.
const CHUNK: usize = 256;
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What to watch, and what to make of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZoneSource {
    pub settings: ZoneSettings,
    pub service_selector: Option<String>,
    pub namespace_selector: Option<String>,
}

impl ZoneSource {
    /// Whether other objects have to be read, or the same ones again.
    fn needs_relist(&self, other: &Self) -> bool {
        let shape = |zone_source: &Self| {
            let settings = &zone_source.settings;
            let verified = settings.pods == PodNames::Verified;
            let names = (
                settings.endpoint_pod_names,
                settings.zonal,
                settings.outside.clone(),
                settings.origin.clone(),
            );
            (
                verified,
                names,
                zone_source.service_selector.clone(),
                zone_source.namespace_selector.clone(),
            )
        };
        shape(self) != shape(other)
    }
}

/// One change of any kind.
enum ZoneChange {
    Namespace(Box<Change<Namespace>>),
    Service(Box<Change<Service>>),
    Slice(Box<Change<EndpointSlice>>),
    Pod(Box<Change<PodOutline>>),
}

/// Writes what the watch shows into the zone.
pub(crate) struct ZoneUpdater {
    pub client: Client,
    pub zone: Arc<Published<Zone>>,
    pub outputs: Outputs,
    pub metrics: Arc<Metrics>,
    pub zone_source: watch::Receiver<ZoneSource>,
}

impl ZoneUpdater {
    /// Follows the cluster until the sender of `zone_source` is gone.
    pub(crate) async fn run(mut self) {
        let mut zone_source = self.zone_source.borrow_and_update().clone();
        loop {
            let mut state = ZoneDraft::new(zone_source.clone(), self.zone.get().serial());
            let mut changes = self.watch(&zone_source).ready_chunks(CHUNK);
            let mut numbered = Numbered::Now;
            zone_source = loop {
                tokio::select! {
                    Some(chunk) = changes.next() => numbered = self.take_in(&mut state, chunk),
                    () = time::sleep(rest_of_second()), if numbered == Numbered::Later => {
                        numbered = self.publish(&mut state);
                    }
                    changed = self.zone_source.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        let new = self.zone_source.borrow_and_update().clone();
                        if new.needs_relist(&zone_source) {
                            break new;
                        }
                        state.keeper.configure(new.settings.clone());
                        zone_source = new;
                        numbered = self.publish(&mut state);
                    }
                }
            };
        }
    }

    fn watch(&self, zone_source: &ZoneSource) -> BoxStream<'static, ZoneChange> {
        let selected = |labels: Option<&String>| {
            labels.map_or(Selection::all(), |labels| Selection::all().labels(labels))
        };
        let services = selected(zone_source.service_selector.as_ref());
        let namespaces = selected(zone_source.namespace_selector.as_ref());
        let mut all = vec![
            self.follow(namespaces).map(|change| ZoneChange::Namespace(Box::new(change))).boxed(),
            self.follow(services).map(|change| ZoneChange::Service(Box::new(change))).boxed(),
            self.follow(selected(None)).map(|change| ZoneChange::Slice(Box::new(change))).boxed(),
        ];
        if zone_source.settings.pods == PodNames::Verified {
            all.push(
                self.follow(selected(None)).map(|change| ZoneChange::Pod(Box::new(change))).boxed(),
            );
        }
        stream::select_all(all).boxed()
    }

    fn follow<K>(&self, selection: Selection) -> BoxStream<'static, Change<K>>
    where
        K: Resource<DynamicType = ()> + serde::de::DeserializeOwned + Send + 'static,
    {
        keys_only(Api::all(self.client.clone()), selection)
    }

    fn take_in(&self, state: &mut ZoneDraft, chunk: Vec<ZoneChange>) -> Numbered {
        let mut since = Vec::new();
        for change in chunk {
            since.extend(state.observe(change));
        }
        if state.is_complete() && !state.keeper.zone().synced() {
            state.keeper.set_synced();
            info!("all names are known");
        }
        let numbered = self.publish(state);
        for duration in since {
            self.metrics.programming.observe(duration, 1);
        }
        numbered
    }

    fn publish(&self, state: &mut ZoneDraft) -> Numbered {
        let complete = state.keeper.zone().synced();
        let numbered = state.keeper.number(self.zone.get().serial(), seconds_since_1970());
        // A zone that is being rebuilt must not take the place of a complete one.
        if complete || !self.zone.get().synced() {
            self.zone.publish(state.keeper.snapshot());
        }
        self.outputs.services.send_if_modified(|services| {
            let changed = *services < state.services;
            *services = state.services.max(*services);
            changed
        });
        self.outputs.programmed.send_if_modified(|programmed| {
            let new = Programmed {
                ready: programmed.ready || complete,
                revision: programmed.revision.max(state.revision),
            };
            let changed = *programmed != new;
            *programmed = new;
            changed
        });
        numbered
    }
}

/// A zone in the making.
struct ZoneDraft {
    keeper: Keeper,
    /// Which kinds are complete, by their place among the changes.
    synced: [bool; 4],
    revision: u64,
    services: u64,
    /// The addresses of each pod, to be able to take them back.
    pods: HashMap<ObjectKey, Vec<IpAddr>>,
}

impl ZoneDraft {
    fn new(zone_source: ZoneSource, serial: u32) -> Self {
        let synced = [false, false, false, zone_source.settings.pods != PodNames::Verified];
        let keeper = Keeper::new(zone_source.settings, serial, chance::seed());
        Self { keeper, synced, revision: 0, services: 0, pods: HashMap::new() }
    }

    fn is_complete(&self) -> bool {
        self.synced == [true; 4]
    }

    /// Takes in a change; returns how long ago its cause was, if the object says so. What is listed at
    /// the start may have changed long ago, which says nothing about us.
    fn observe(&mut self, change: ZoneChange) -> Option<Duration> {
        match change {
            ZoneChange::Namespace(change) => self.namespace(*change),
            ZoneChange::Service(change) => self.service(*change),
            ZoneChange::Slice(change) => return self.slice(*change).filter(|_| self.is_complete()),
            ZoneChange::Pod(change) => match *change {
                Change::Set(object) => self.pod(&object.into()),
                Change::Gone(key, _) => self.forget_pod(&key),
                Change::Synced => self.synced[3] = true,
            },
        }
        None
    }

    fn namespace(&mut self, change: Change<Namespace>) {
        match change {
            Change::Set(object) => {
                self.keeper.observe_namespace(&object.name_any());
                self.saw(revision_of(&object));
            }
            Change::Gone(key, version) => {
                self.keeper.remove_namespace(&key.name);
                self.saw(version);
            }
            Change::Synced => self.synced[0] = true,
        }
    }

    fn service(&mut self, change: Change<Service>) {
        match change {
            Change::Set(object) => {
                self.keeper.observe_service(&object);
                self.services = self.services.max(revision_of(&object));
                self.saw(revision_of(&object));
            }
            Change::Gone(key, version) => {
                self.keeper.remove_service(&key);
                self.services = self.services.max(version);
                self.saw(version);
            }
            Change::Synced => self.synced[1] = true,
        }
    }

    fn slice(&mut self, change: Change<EndpointSlice>) -> Option<Duration> {
        match change {
            Change::Set(object) => {
                self.keeper.observe_slice(&object);
                self.saw(revision_of(&object));
                return elapsed(object.annotations().get(TRIGGER_TIME)?);
            }
            Change::Gone(key, version) => {
                self.keeper.remove_slice(&key);
                self.saw(version);
            }
            Change::Synced => self.synced[2] = true,
        }
        None
    }

    fn saw(&mut self, version: u64) {
        self.revision = self.revision.max(version);
    }

    fn pod(&mut self, pod: &Pod) {
        let key = key_of(pod);
        self.forget_pod(&key);
        let status = pod.status.as_ref();
        let over = status.and_then(|status| status.phase.as_deref());
        if matches!(over, Some("Succeeded" | "Failed")) {
            return;
        }
        let addresses = status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten();
        let addresses: Vec<IpAddr> = addresses.filter_map(|ip| ip.ip.parse().ok()).collect();
        for address in &addresses {
            self.keeper.observe_pod(&key.namespace, *address);
        }
        self.pods.insert(key, addresses);
    }

    fn forget_pod(&mut self, key: &ObjectKey) {
        for address in self.pods.remove(key).into_iter().flatten() {
            // Another pod of that namespace may have the address by now.
            let namespace = |other: &ObjectKey| other.namespace == key.namespace;
            let mut others = self.pods.iter().filter(|(other, _)| namespace(other));
            if !others.any(|(_, addresses)| addresses.contains(&address)) {
                self.keeper.remove_pod(&key.namespace, address);
            }
        }
    }
}

/// How long ago a time is that an object tells.
fn elapsed(text: &str) -> Option<Duration> {
    let then: jiff::Timestamp = text.parse().ok()?;
    Duration::try_from(jiff::Timestamp::now().duration_since(then)).ok()
}

/// How long it takes until the time is another serial number.
fn rest_of_second() -> Duration {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(1).saturating_sub(Duration::from_nanos(elapsed.subsec_nanos().into()))
}

/// The time as a serial number.
pub(crate) fn seconds_since_1970() -> u32 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX)
}

/// The text of a ConfigMap as it changes; `None` while there is none.
pub(crate) fn config_map(
    client: &Client,
    namespace: &str,
    name: &str,
) -> BoxStream<'static, Option<String>> {
    use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    let maps: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let only = Selection::all().fields(&format!("metadata.name={name}"));
    let name = name.to_owned();
    let texts = keys_only(maps, only).filter_map(move |change| {
        let text = match change {
            Change::Set(map) if map.name_any() == name => {
                Some(map.data["data"]["Corefile"].as_str().map(str::to_owned))
            }
            Change::Gone(key, _) if key.name == name => Some(None),
            _ => None,
        };
        std::future::ready(text)
    });
    texts.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadstead_zone::name::Name;
    use serde_json::json;

    fn slice(version: &str) -> ZoneChange {
        let object = json!({
            "metadata": {"namespace": "prod", "name": "db-1", "resourceVersion": version,
                "labels": {"kubernetes.io/service-name": "db"},
                "annotations": {TRIGGER_TIME: "2020-02-02T02:02:02Z"}},
            "addressType": "IPv4", "endpoints": [],
        });
        ZoneChange::Slice(Box::new(Change::Set(serde_json::from_value(object).unwrap())))
    }

    #[test]
    fn only_changes_take_time() {
        let settings = ZoneSettings::new(&Name::parse("cluster.local").unwrap());
        let zone_source = ZoneSource { settings, service_selector: None, namespace_selector: None };
        let mut state = ZoneDraft::new(zone_source, 1);
        assert_eq!(state.observe(slice("1")), None, "it was there before");
        state.observe(ZoneChange::Namespace(Box::new(Change::Synced)));
        state.observe(ZoneChange::Service(Box::new(Change::Synced)));
        assert_eq!(state.observe(slice("2")), None, "not all is known yet");
        state.observe(ZoneChange::Slice(Box::new(Change::Synced)));
        assert!(state.observe(slice("3")).is_some(), "a change");
    }
}
