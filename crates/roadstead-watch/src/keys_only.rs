//! List-and-watch for a component that keeps its own view: objects pass through and are not kept.
//!
//! Of each object only its key and version are remembered, to turn a relist into differences.

use std::collections::HashMap;

use futures::stream::BoxStream;
use kube::{Api, Resource};
use roadstead_api::key::ObjectKey;
use serde::de::DeserializeOwned;

use crate::informer::{Change, Event, differences, key_of, revision_of};
use crate::watcher::Selection;

/// Follows one kind forever, reconnecting with back-off.
///
/// After a broken watch only the differences come out of the stream, with a `Gone` for each
/// object that was deleted meanwhile.
pub fn keys_only<K>(api: Api<K>, selection: Selection) -> BoxStream<'static, Change<K>>
where
    K: Resource + DeserializeOwned + Send + 'static,
{
    differences(api, selection, Known::default(), Known::step)
}

/// The versions delivered so far, and in which round of listing each was last seen. There may be
/// very many, so each key is one text.
#[derive(Default)]
struct Known {
    versions: HashMap<Box<str>, (u64, u32)>,
    round: u32,
}

impl Known {
    fn step<K: Resource>(&mut self, event: Event<K>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.round += 1;
                Vec::new()
            }
            Event::Apply(object) => {
                let version = revision_of(&object);
                let before = self.versions.insert(key_of(&object).packed(), (version, self.round));
                let repeated = version > 0 && before.is_some_and(|(before, _)| before == version);
                if repeated { Vec::new() } else { vec![Change::Set(object)] }
            }
            Event::InitDone(revision) => {
                let round = self.round;
                let gone = self.versions.extract_if(|_, (_, seen)| *seen != round);
                let gone = gone.map(|(key, _)| Change::Gone(ObjectKey::unpacked(&key), revision));
                gone.chain([Change::Synced]).collect()
            }
            Event::Unreadable => Vec::new(),
            Event::Delete(object) => {
                let key = key_of(&object);
                self.versions.remove(&key.packed());
                vec![Change::Gone(key, revision_of(&object))]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::ResourceExt;

    /// `a@3` is the object named a, at resource version 3.
    fn object(text: &str) -> ConfigMap {
        let (name, version) = text.split_once('@').unwrap();
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        map.metadata.resource_version = Some(version.into());
        map
    }

    fn changes(text: &str) -> String {
        let mut known = Known::default();
        let event = |word: &str| match (word, word.split_at(1)) {
            ("init", _) => Event::Init,
            ("done", _) => Event::InitDone(0),
            (_, ("+", rest)) => Event::Apply(object(rest)),
            (_, (_, rest)) => Event::Delete(object(rest)),
        };
        let changes = text.split_whitespace().flat_map(|word| known.step(event(word)));
        let words = changes.map(|change| match change {
            Change::Set(o) => format!("set:{}@{}", o.name_any(), revision_of(&o)),
            Change::Gone(key, version) => format!("gone:{}@{version}", key.name),
            Change::Synced => "synced".into(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_stream_of_differences() {
        let cases = [
            ("first list", "init +a@1 +b@2 done", "set:a@1 set:b@2 synced"),
            ("live events", "init done +a@3 +a@4 -a@5", "synced set:a@3 set:a@4 gone:a@5"),
            (
                "a relist repeats nothing and reports the vanished",
                "init +a@1 +b@2 done init +a@1 done",
                "set:a@1 set:b@2 synced gone:b@0 synced",
            ),
            (
                "a relist that breaks off loses nothing",
                "init +a@1 +b@2 done init +a@1 init +b@2 done",
                "set:a@1 set:b@2 synced gone:a@0 synced",
            ),
        ];
        for (name, given, want) in cases {
            assert_eq!(changes(given), want, "{name}");
        }
    }
}
