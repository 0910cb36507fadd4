//! Since when a change of endpoints has been due: the annotation by which the proxy measures how
//! long programming the network takes.
//!
//! The first sync of a Service counts from its creation; later ones from the earliest pod whose
//! readiness (or a Service whose creation) moved forward since the sync before.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use roadstead_api::key::ObjectKey;

use crate::pod_view::PodView;

/// The annotation, on slices and Endpoints.
pub const ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// What the sync before has seen, for each Service.
#[derive(Debug, Default)]
pub struct TriggerTimes {
    services: BTreeMap<ObjectKey, Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    service: Option<Timestamp>,
    pods: BTreeMap<String, Timestamp>,
}

impl TriggerTimes {
    /// The time that a change made now is due to, if there is one.
    pub fn observe(
        &mut self,
        key: &ObjectKey,
        service: &Service,
        pods: &[&PodView],
    ) -> Option<Timestamp> {
        let created = service.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let is_first = !self.services.contains_key(key);
        let seen = self.services.entry(key.clone()).or_default();
        let mut earliest = created.filter(|created| seen.service.is_some_and(|s| s < *created));
        seen.service = created;
        for pod in pods {
            let Some(since) = pod.ready_since else { continue };
            match seen.pods.get_mut(pod.name()) {
                Some(known) if *known == since => continue,
                Some(known) if *known > since => {
                    *known = since;
                    continue;
                }
                Some(known) => *known = since,
                None => drop(seen.pods.insert(pod.name().to_owned(), since)),
            }
            earliest = Some(earliest.map_or(since, |earliest| earliest.min(since)));
        }
        if seen.pods.len() > pods.len() {
            let alive: std::collections::BTreeSet<_> = pods.iter().map(|pod| pod.name()).collect();
            seen.pods.retain(|name, _| alive.contains(name.as_str()));
        }
        if is_first { created } else { earliest }
    }

    /// Forgets a Service that is gone.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.services.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_earliest_that_moved() {
        let key = ObjectKey::new("ns", "web");
        let mut service = Service::default();
        service.metadata.creation_timestamp = Some(Time(at(100)));
        let mut triggers = TriggerTimes::default();
        let steps = [
            ("first: the Service", vec![("a", 50), ("b", 60)], Some(100)),
            ("nothing moved", vec![("a", 50), ("b", 60)], None),
            ("one pod", vec![("a", 50), ("b", 110)], Some(110)),
            ("two pods, the earlier", vec![("a", 130), ("b", 120)], Some(120)),
            ("a new pod", vec![("a", 130), ("b", 120), ("c", 125)], Some(125)),
            ("a lost pod", vec![("a", 130)], None),
            ("back again", vec![("a", 130), ("c", 140)], Some(140)),
        ];
        for (name, pods, want) in steps {
            let pods: Vec<_> = pods
                .into_iter()
                .map(|(name, since)| {
                    let mut pod = PodView { ready_since: Some(at(since)), ..Default::default() };
                    pod.metadata.name = Some(name.into());
                    pod
                })
                .collect();
            let got = triggers.observe(&key, &service, &pods.iter().collect::<Vec<_>>());
            assert_eq!(got, want.map(at), "{name}");
        }
        assert_eq!(at(3).to_string(), "1970-01-01T00:00:03Z", "as upstream writes it");
    }
}
