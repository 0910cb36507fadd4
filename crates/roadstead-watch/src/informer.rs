//! List-and-watch as one gapless stream of changes.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;

use futures::stream::{self, BoxStream, StreamExt};
use kube::{Api, Resource, ResourceExt};
use roadstead_api::key::ObjectKey;
use serde::de::DeserializeOwned;
use tracing::warn;

pub use crate::watcher::Selection;
use crate::watcher::{RawEvent, Watcher};

/// What happened to the watched kind.
///
/// `O` is an object as it is handed out: shared with the informer that keeps it (`Arc<K>`), or
/// whole, by one that keeps only its key (`K`, see [`crate::keys_only`]).
#[derive(Clone, Debug)]
pub enum Change<O> {
    /// The object was created or changed; this is its newest state.
    Set(O),
    /// There is no such object, as of this revision. Who needs its last state has a cache.
    Gone(ObjectKey, u64),
    /// Everything that existed when the watch (re)started has now been delivered.
    Synced,
}

/// The key under which an object is cached.
pub fn key_of<K: Resource>(object: &K) -> ObjectKey {
    ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any())
}

/// The revision of an object, if it is a number that grows, as it is in Kubernetes (KEP-5504);
/// else 0.
pub fn revision_of<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().map_or(0, parse_revision)
}

fn parse_revision(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

/// Follows one kind forever, reconnecting with back-off.
///
/// After a broken watch only the differences come out of the stream, with a `Gone` for each
/// object that was deleted meanwhile. Objects come without their managed fields: often more than
/// half of an object, and nobody's concern but the server's, which keeps those that a write leaves
/// out.
pub fn informer<K>(api: Api<K>, selection: Selection) -> BoxStream<'static, Change<Arc<K>>>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    trimmed(api, selection, |_| {})
}

/// The same, keeping only what `trim` leaves of an object.
pub fn trimmed<K>(
    api: Api<K>,
    selection: Selection,
    trim: fn(&mut K),
) -> BoxStream<'static, Change<Arc<K>>>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    let known = Known::default();
    differences(api, selection, known, move |known, mut event| {
        if let Event::Apply(object) | Event::Delete(object) = &mut event {
            trim(object);
        }
        known.step(event)
    })
}

/// Follows one kind, and lets `step` make changes of what the server says and of what it knows.
pub(crate) fn differences<K, S, C>(
    api: Api<K>,
    selection: Selection,
    known: S,
    step: impl Fn(&mut S, Event<K>) -> Vec<C> + Clone + Send + 'static,
) -> BoxStream<'static, C>
where
    K: Resource + DeserializeOwned + Send + 'static,
    S: Send + 'static,
    C: Send + 'static,
{
    let path = api.resource_url().to_owned();
    let watcher = Watcher::new(api.into_client(), &path, selection);
    let ready = VecDeque::new();
    stream::unfold((watcher, known, ready), move |(mut watcher, mut known, mut ready)| {
        let step = step.clone();
        async move {
            loop {
                if let Some(change) = ready.pop_front() {
                    return Some((change, (watcher, known, ready)));
                }
                let event: Event<K> = decode(watcher.next().await);
                if let Event::Apply(object) | Event::Delete(object) = &event {
                    watcher.reached(object.resource_version().unwrap_or_default());
                }
                ready.extend(step(&mut known, event));
            }
        }
    })
    .boxed()
}

/// What the server said, with the object read.
pub(crate) enum Event<K> {
    Init,
    Apply(K),
    Delete(K),
    /// With the revision of which the list is a picture.
    InitDone(u64),
    /// An object that is not of the kind: left out, so that one bad object does not stop all.
    Unreadable,
}

fn decode<K: Resource + DeserializeOwned>(said: RawEvent) -> Event<K> {
    let (read, object): (fn(K) -> Event<K>, _) = match said {
        RawEvent::Start => return Event::Init,
        RawEvent::Complete(revision) => return Event::InitDone(parse_revision(&revision)),
        RawEvent::Object(object) => (Event::Apply, object),
        RawEvent::Deleted(object) => (Event::Delete, object),
    };
    match serde_json::from_str::<K>(object.get()) {
        Ok(mut object) => {
            object.meta_mut().managed_fields = None;
            read(object)
        }
        Err(error) => {
            warn!(%error, object = excerpt(object.get()), "an object that cannot be read");
            Event::Unreadable
        }
    }
}

/// The beginning of an object, for a log line.
fn excerpt(text: &str) -> &str {
    let end = (0..=200.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// The objects delivered so far, to turn a relist into differences.
struct Known<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    /// While a list runs: what was known before it and has not been seen in it yet.
    unseen: BTreeMap<ObjectKey, Arc<K>>,
}

impl<K> Default for Known<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), unseen: BTreeMap::new() }
    }
}

impl<K: Resource> Known<K> {
    fn step(&mut self, event: Event<K>) -> Vec<Change<Arc<K>>> {
        match event {
            Event::Init => {
                // A list that broke off halfway may have left some unseen: they count as known.
                let mut before = mem::take(&mut self.unseen);
                before.append(&mut self.objects);
                self.unseen = before;
                Vec::new()
            }
            Event::Apply(object) => self.set(object),
            Event::Unreadable => Vec::new(),
            Event::InitDone(revision) => {
                let gone = mem::take(&mut self.unseen).into_keys();
                let gone = gone.map(|key| Change::Gone(key, revision));
                gone.chain([Change::Synced]).collect()
            }
            Event::Delete(object) => {
                let key = key_of(&object);
                self.unseen.remove(&key);
                self.objects.remove(&key);
                vec![Change::Gone(key, revision_of(&object))]
            }
        }
    }

    fn set(&mut self, object: K) -> Vec<Change<Arc<K>>> {
        let key = key_of(&object);
        let before = self.unseen.remove(&key).or_else(|| self.objects.get(&key).cloned());
        if let Some(before) = &before
            && before.resource_version() == object.resource_version()
        {
            self.objects.insert(key, before.clone());
            return Vec::new();
        }
        // The same name with another uid is another object: its predecessor was deleted unseen.
        let replaced = before.filter(|before| before.uid() != object.uid());
        let just_before = revision_of(&object).saturating_sub(1);
        let gone = replaced.map(|_| Change::Gone(key.clone(), just_before));
        let object = Arc::new(object);
        self.objects.insert(key, object.clone());
        gone.into_iter().chain([Change::Set(object)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    /// `a@3#u1` is the object named a, at resource version 3, with uid u1.
    fn object(text: &str) -> ConfigMap {
        let (name, rest) = text.split_once('@').unwrap();
        let (version, uid) = rest.split_once('#').unwrap_or((rest, name));
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        map.metadata.resource_version = Some(version.into());
        map.metadata.uid = Some(uid.into());
        map
    }

    fn events(text: &str) -> Vec<Event<ConfigMap>> {
        text.split_whitespace()
            .map(|word| match word {
                "init" => Event::Init,
                "done" => Event::InitDone(0),
                _ => match word.split_at(1) {
                    ("=" | "+", rest) => Event::Apply(object(rest)),
                    ("-", rest) => Event::Delete(object(rest)),
                    _ => panic!("cannot read {word}"),
                },
            })
            .collect()
    }

    fn changes(text: &str) -> String {
        let mut known = Known::default();
        let words =
            events(text).into_iter().flat_map(|event| known.step(event)).map(
                |change| match change {
                    Change::Set(o) => {
                        format!("set:{}@{}", o.name_any(), o.resource_version().unwrap())
                    }
                    Change::Gone(key, _) => format!("gone:{}", key.name),
                    Change::Synced => "synced".into(),
                },
            );
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_stream_of_differences() {
        let cases = [
            ("first list", "init =a@1 =b@2 done", "set:a@1 set:b@2 synced"),
            ("live events", "init done +a@3 +a@4 -a@5", "synced set:a@3 set:a@4 gone:a"),
            (
                "a relist repeats nothing and reports the vanished",
                "init =a@1 =b@2 done init =a@1 done",
                "set:a@1 set:b@2 synced gone:b synced",
            ),
            (
                "a relist that breaks off loses nothing",
                "init =a@1 =b@2 done init =a@1 init =b@2 done",
                "set:a@1 set:b@2 synced gone:a synced",
            ),
            (
                "recreated while we were away",
                "init =a@1#x done init =a@9#y done",
                "set:a@1 synced gone:a set:a@9 synced",
            ),
        ];
        for (name, given, want) in cases {
            assert_eq!(changes(given), want, "{name}");
        }
    }
}
