//! What a Service asks for and cannot have is said on the Service, once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use roadstead_api::key::ObjectKey;
use roadstead_forwarding::service::{Frontend, IpFamily, ServicePortName};
use roadstead_forwarding::table::ForwardingTable;
use roadstead_forwarding::tracker::Tracker;
use tokio::sync::mpsc;
use tracing::warn;

/// Something to tell the owner of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceEvent {
    /// The Service.
    pub service: ObjectKey,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// What has been said already, and to whom to say more.
#[derive(Debug, Default)]
pub(super) struct ServiceEvents {
    sender: Option<mpsc::Sender<ServiceEvent>>,
    lost: BTreeMap<(IpFamily, Arc<ServicePortName>), Vec<Frontend>>,
    unread: BTreeMap<ObjectKey, Vec<String>>,
}

impl ServiceEvents {
    /// Nothing has been said yet.
    pub(super) fn to(sender: Option<mpsc::Sender<ServiceEvent>>) -> Self {
        Self { sender, ..Self::default() }
    }

    /// Looks at the claims of a family that have met others.
    pub(super) fn note_disputes(&mut self, table: &mut ForwardingTable) {
        let family = table.family();
        for name in table.take_disputed() {
            let lost = table.lost_by(&name);
            let frontends: Vec<_> = lost.iter().map(|(frontend, _)| *frontend).collect();
            let place = (family, name.clone());
            let before = match frontends.is_empty() {
                true => self.lost.remove(&place),
                false => self.lost.insert(place, frontends),
            };
            let known = before.unwrap_or_default();
            for (frontend, winner) in lost.iter().filter(|(frontend, _)| !known.contains(frontend))
            {
                warn!(service = %name, %frontend, %winner, "another Service has this frontend");
                // Whose it is may be none of its owner's business.
                self.say(
                    ObjectKey::new(&*name.namespace, &*name.name),
                    "FrontendTaken",
                    format!("{frontend} belongs to another Service; it does not lead here"),
                );
            }
        }
    }

    /// Looks at the source ranges of the changed Services.
    pub(super) fn note_ranges(&mut self, tracker: &Tracker, changed: &BTreeSet<ObjectKey>) {
        for key in changed {
            let unread = tracker.unread_ranges(key);
            if unread.is_empty() {
                self.unread.remove(key);
                continue;
            }
            if self.unread.get(key).is_some_and(|known| *known == *unread) {
                continue;
            }
            self.unread.insert(key.clone(), unread.to_vec());
            let entries = unread.join(", ");
            warn!(service = %key, entries, "source ranges that are no networks");
            let message = format!(
                "spec.loadBalancerSourceRanges: not a network: {entries}; nobody is let in by them"
            );
            self.say(key.clone(), "InvalidSourceRanges", message);
        }
    }

    fn say(&self, service: ObjectKey, reason: &'static str, message: String) {
        if let Some(sender) = &self.sender {
            // One that is lost is only a note, and in the log.
            let _ = sender.try_send(ServiceEvent { service, reason, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use roadstead_forwarding::select::NodeView;
    use serde_json::json;

    use super::*;

    fn service(name: &str, external: &[&str], ranges: &[&str]) -> Service {
        let object = json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": {
                "clusterIPs": [if name == "a" { "10.96.0.1" } else { "10.96.0.2" }],
                "ports": [{"port": 53, "protocol": "UDP"}],
                "externalIPs": external, "loadBalancerSourceRanges": ranges,
            },
        });
        serde_json::from_value(object).unwrap()
    }

    #[tokio::test]
    async fn a_loser_is_told_once_and_again_when_it_loses_again() {
        let (send, mut receive) = mpsc::channel(9);
        let mut events = ServiceEvents::to(Some(send));
        let mut tracker = Tracker::new(NodeView::default());
        let mut table = ForwardingTable::new(IpFamily::V4, &Default::default());
        let mut told = |services: &[Service], gone: &str| {
            services.iter().for_each(|service| tracker.observe_service(service));
            tracker.remove_service(&ObjectKey::new("ns", gone));
            let dirty = tracker.take_dirty();
            for key in &dirty {
                table.replace(key, tracker.service_ports(key, IpFamily::V4));
            }
            events.note_disputes(&mut table);
            events.note_ranges(&tracker, &dirty);
            let mut told = Vec::new();
            while let Ok(note) = receive.try_recv() {
                assert!(!note.message.contains("ns/a"), "{note:?}");
                told.push(format!("{} {}", note.service, note.reason));
            }
            told.join(" ")
        };
        let (a, b) = (service("a", &[], &[]), service("b", &["10.96.0.1", "192.0.2.1"], &[]));
        assert_eq!(told(&[a.clone(), b.clone()], ""), "ns/b FrontendTaken");
        assert_eq!(told(&[service("b", &["10.96.0.1"], &[])], ""), "", "that is known");
        assert_eq!(told(&[], "a"), "");
        assert_eq!(told(&[a], ""), "ns/b FrontendTaken");
        let odd = service("b", &[], &["10.0.0.0/8", "all of them"]);
        assert_eq!(told(std::slice::from_ref(&odd), ""), "ns/b InvalidSourceRanges");
        assert_eq!(told(&[odd], ""), "");
        assert_eq!(told(&[b], "b"), "", "gone with all that was said about it");
    }
}
