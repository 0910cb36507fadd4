//! What a watcher knows: of each object its version and a hash, which must be those of a list in the end. Pure.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use serde_json::value::RawValue;

/// An object, as far as a mirror looks at it.
#[derive(Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) version: u64,
    pub(crate) hash: u64,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    name: &'a str,
    #[serde(default)]
    namespace: &'a str,
    #[serde(rename = "resourceVersion")]
    version: &'a str,
}

impl Seen {
    /// Reads an object as a watch or a list has it. A list may leave out what all of its items are.
    pub(crate) fn read(object: &str) -> Option<Self> {
        let fields: BTreeMap<&str, &RawValue> = serde_json::from_str(object).ok()?;
        let metadata: Metadata<'_> = serde_json::from_str(fields.get("metadata")?.get()).ok()?;
        let mut hasher = DefaultHasher::new();
        for (name, value) in &fields {
            if !matches!(*name, "kind" | "apiVersion") {
                (name, value.get()).hash(&mut hasher);
            }
        }
        let key = format!("{}/{}", metadata.namespace, metadata.name);
        Some(Self { key, version: metadata.version.parse().ok()?, hash: hasher.finish() })
    }
}

/// All objects that one watch has told of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mirror {
    objects: BTreeMap<String, (u64, u64)>,
    /// Of the last event: nothing comes that is older.
    pub(crate) version: u64,
    pub(crate) events: u64,
}

impl Mirror {
    /// Begins with a list.
    pub(crate) fn list(version: u64, items: impl IntoIterator<Item = Seen>) -> Self {
        let objects = items.into_iter().map(|seen| (seen.key, (seen.version, seen.hash)));
        Self { objects: objects.collect(), version, events: 0 }
    }

    /// Takes in an event; an error says why it cannot be true.
    pub(crate) fn tell(&mut self, kind: &str, seen: Seen) -> Result<(), String> {
        let Seen { key, version, hash } = seen;
        // Several objects may be written at one revision, each once.
        let old = self.objects.get(&key).map(|(old, _)| *old);
        if version < self.version || old.is_some_and(|old| old >= version) {
            return Err(format!("{kind} {key} at {version}, after {} ({old:?})", self.version));
        }
        match (kind, old) {
            ("ADDED", Some(_)) => return Err(format!("{key} is added twice, at {version}")),
            ("MODIFIED" | "DELETED", None) => {
                return Err(format!("{kind} {key} at {version}, which was not there"));
            }
            ("DELETED", _) => self.objects.remove(&key),
            _ => self.objects.insert(key, (version, hash)),
        };
        self.version = version;
        self.events += 1;
        Ok(())
    }

    /// Everything up to here was told.
    pub(crate) fn bookmark(&mut self, version: u64) {
        self.version = self.version.max(version);
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// What is different in a list.
    pub(crate) fn differences(&self, list: &Self) -> Vec<String> {
        let mut found = Vec::new();
        for (key, there) in &list.objects {
            match self.objects.get(key) {
                Some(here) if here == there => {}
                here => found.push(format!("{key} is {there:?} in the list, and was {here:?}")),
            }
        }
        let gone = self.objects.keys().filter(|key| !list.objects.contains_key(*key));
        found.extend(gone.map(|key| format!("{key} is not in the list")));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, version: u64, value: &str) -> String {
        format!(
            r#"{{"kind":"X","metadata":{{"name":"{name}","resourceVersion":"{version}"}},"data":"{value}"}}"#
        )
    }

    /// `+a5x`: a was added at 5 with x; `~`: changed; `-`: deleted.
    fn tell(mirror: &mut Mirror, events: &str) -> Result<(), String> {
        for word in events.split_whitespace() {
            let (kind, rest) = word.split_at(1);
            let kind = match kind {
                "+" => "ADDED",
                "~" => "MODIFIED",
                _ => "DELETED",
            };
            let seen = object(&rest[..1], rest[1..2].parse().unwrap(), &rest[2..]);
            mirror.tell(kind, Seen::read(&seen).unwrap())?;
        }
        Ok(())
    }

    #[test]
    fn what_is_told() {
        let cases = [
            ("+a5x ~a6y -a7y", ""),
            ("+a5x +b5x", ""),
            ("+a5x -a6x +a7x", ""),
            ("+a5x ~a5y", "MODIFIED /a at 5, after 5 (Some(5))"),
            ("+a5x +b4x", "ADDED /b at 4, after 5 (None)"),
            ("+a5x +a6x", "/a is added twice, at 6"),
            ("~a5x", "MODIFIED /a at 5, which was not there"),
            ("-a5x", "DELETED /a at 5, which was not there"),
        ];
        for (events, want) in cases {
            let found = tell(&mut Mirror::default(), events).err().unwrap_or_default();
            assert_eq!(found, want, "{events}");
        }
    }

    #[test]
    fn what_is_listed_in_the_end() {
        for (events, list, want) in [
            ("+a5x +b6y", "a5x b6y", ""),
            ("+a5x +b6y -b7y", "a5x", ""),
            ("+a5x", "a5x b6y", "/b is "),
            ("+a5x +b6y", "a5x", "/b is not in the list"),
            ("+a5x", "a6x", "/a is "),
            ("+a5x", "a5z", "/a is "),
        ] {
            let mut mirror = Mirror::default();
            tell(&mut mirror, events).unwrap();
            let items = list.split(' ').map(|item| {
                // A list leaves out the kind of each item.
                let object = object(&item[..1], item[1..2].parse().unwrap(), &item[2..]);
                Seen::read(&object.replace(r#""kind":"X","#, "")).unwrap()
            });
            let found = mirror.differences(&Mirror::list(9, items)).join(", ");
            assert!(found.starts_with(want) && found.is_empty() == want.is_empty(), "{found}");
        }
    }
}
