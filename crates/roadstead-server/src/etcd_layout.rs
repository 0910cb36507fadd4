//! Where objects are in etcd, and in which form: as kube-apiserver has them, so that either can take over
//! from the other. Pure.
//!
//! Keys are `/registry/RESOURCE/[NAMESPACE/]NAME` for built-in kinds, whatever their group, but for some that
//! have another name for historical reasons; custom kinds and a few others have their group before. What is
//! at other keys is none of ours, and is not touched. We write JSON, which kube-apiserver reads; we read
//! JSON of any shape, and protobuf.

mod definitions;
pub mod survey;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use roadstead_api::kinds;
use roadstead_schema::protobuf;
use roadstead_store::entry::Key;
use roadstead_store::layout::KeyLayout;
use serde_json::Value;

use crate::kinds::node;
use crate::kinds::service::allocate::node_ports;
use crate::reading::object;

/// Resources that are not below their own names.
const RENAMED: [(&str, &str); 5] = [
    ("nodes", "minions"),
    ("services", "services/specs"),
    ("endpoints", "services/endpoints"),
    ("replicationcontrollers", "controllers"),
    ("ingresses.networking.k8s.io", "ingress"),
];
/// What is kept beside objects: taken node ports, as they were kept here once, too, which node got addresses last,
/// and the addresses of all servers.
const BESIDES: [(&str, &str); 4] = [
    (node::BLOCKS, "ranges/roadstead-podcidrs"),
    (node_ports::ROWS, "ranges/roadstead-nodeports"),
    (node_ports::RANGES, "ranges"),
    (crate::servers::BUCKET, "masterleases"),
];
/// What ends by itself.
const EVENTS: &str = "events";
/// Groups of built-in kinds that have their group before.
const WITH_GROUP: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];
/// What is nobody's object, but a name or a number.
const PLAIN: [&str; 2] = [node_ports::ROWS, node::BLOCKS];
/// How objects begin that we have written ourselves.
const OWN: &[u8] = b"{\"apiVersion\":\"";
/// How values begin that were encrypted by kube-apiserver.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// Kubernetes' own layout.
#[derive(Debug)]
pub struct KubernetesLayout {
    prefix: String,
    /// Where buckets are that are not called like their directories.
    directories: BTreeMap<String, String>,
    /// The same the other way round.
    buckets: BTreeMap<String, String>,
    event_ttl: Duration,
}

impl KubernetesLayout {
    /// Below a prefix, which is `/registry` unless the operator says otherwise.
    pub fn new(prefix: &str) -> Self {
        let mut directories = BTreeMap::new();
        for kind in kinds::all() {
            let info = kind.info();
            let grouped = WITH_GROUP.contains(&info.stored_group);
            if !grouped && !info.review {
                directories.insert(info.bucket(), info.plural.to_owned());
            }
        }
        let others = RENAMED.into_iter().chain(BESIDES);
        directories.extend(others.map(|(bucket, place)| (bucket.to_owned(), place.to_owned())));
        let turned = directories.iter().map(|(bucket, place)| (place.clone(), bucket.clone()));
        let prefix = format!("/{}/", prefix.trim_matches('/'));
        let event_ttl = Duration::from_secs(60 * 60);
        Self { prefix, buckets: turned.collect(), directories, event_ttl }
    }

    /// The same, with Events that last so long after they were written.
    pub fn with_event_ttl(self, event_ttl: Duration) -> Self {
        Self { event_ttl, ..self }
    }

    /// The bucket of a key without its prefix, and the rest of the key.
    fn bucket<'a>(&self, place: &'a str) -> Option<(String, &'a str)> {
        let (first, rest) = place.split_once('/')?;
        let second = rest.split_once('/');
        match (self.buckets.get(first), second) {
            // Cluster addresses were kept beside node ports once.
            (Some(bucket), None) if bucket == node_ports::RANGES => {
                return (rest == &node_ports::BITMAP[1..]).then(|| (bucket.clone(), rest));
            }
            (Some(bucket), _) if bucket != node_ports::RANGES => {
                return Some((bucket.clone(), rest));
            }
            _ => {}
        }
        let (second, below) = second?;
        if let Some(bucket) = self.buckets.get(&format!("{first}/{second}")) {
            return Some((bucket.clone(), below));
        }
        // Groups of others have a dot, resources have none.
        first.contains('.').then(|| (format!("{second}.{first}"), below))
    }
}

impl KeyLayout for KubernetesLayout {
    fn prefix(&self) -> &str {
        &self.prefix
    }

    fn place(&self, key: &Key) -> String {
        let path = key.path.trim_start_matches('/');
        let parts = key.bucket.split_once('.');
        let own = || key.bucket.to_string();
        let custom = || parts.map_or_else(own, |(plural, group)| format!("{group}/{plural}"));
        let directory = self.directories.get(&*key.bucket).cloned().unwrap_or_else(custom);
        format!("{}{directory}/{path}", self.prefix)
    }

    fn key(&self, place: &str) -> Option<Key> {
        let (bucket, rest) = self.bucket(place.strip_prefix(&self.prefix)?)?;
        let names = rest.split('/').filter(|name| !name.is_empty()).count();
        let whole = !rest.starts_with('/') && !rest.ends_with('/');
        let path = match names {
            1 if whole && PLAIN.contains(&&*bucket) => rest.to_owned(),
            1 if whole => format!("/{rest}"),
            2 if whole => rest.to_owned(),
            _ => return None,
        };
        Some(Key::new(bucket, path))
    }

    fn lasts(&self, key: &Key) -> Option<Duration> {
        (*key.bucket == *EVENTS).then_some(self.event_ttl)
    }

    fn value(&self, key: &Key, stored: Bytes) -> Bytes {
        if PLAIN.contains(&&*key.bucket) || is_own(&stored) {
            return stored;
        }
        match read(&stored) {
            Ok(object) => object::encode(&object),
            Err(_) => stored,
        }
    }
}

/// Whether servers make an entry anew when they start over another store: of what Services and nodes hold, or
/// because they are there.
pub fn is_made_anew(key: &Key) -> bool {
    [node_ports::ROWS, node_ports::RANGES, node::BLOCKS, crate::servers::BUCKET]
        .contains(&&*key.bucket)
}

/// Whether a value has the form in which we write: what else there may be is read and written anew.
pub(crate) fn is_own(stored: &[u8]) -> bool {
    let Some(rest) = stored.strip_prefix(OWN) else { return false };
    let end = rest.iter().position(|byte| *byte == b'"').map(|at| &rest[at..]);
    let kind = end.and_then(|rest| rest.strip_prefix(b"\",\"kind\":\""));
    let Some(kind) = kind else { return false };
    let end = kind.iter().position(|byte| *byte == b'"').map(|at| &kind[at..]);
    end.is_some_and(|rest| rest.starts_with(b"\",\"metadata\":{")) && stored.ends_with(b"}")
}

/// Why a value cannot be served, if that is so.
pub(crate) fn unreadable(stored: &[u8]) -> Option<String> {
    if is_own(stored) {
        return None;
    }
    Some(match read(stored) {
        Ok(_) => "it has no metadata where they should be".to_owned(),
        Err(why) => why,
    })
}

/// The object that others have stored, with everything that they have said about it.
fn read(stored: &[u8]) -> Result<Value, String> {
    if stored.starts_with(ENCRYPTED) {
        let why = "it is encrypted by kube-apiserver (--encryption-provider-config), which this server \
            cannot read";
        return Err(why.to_owned());
    }
    let mut object: Value = match stored.starts_with(b"k8s\0") {
        true => protobuf::decode_stored(stored)?,
        false => serde_json::from_slice(stored).map_err(|error| error.to_string())?,
    };
    // It has no name but its key, and an empty field of protobuf is none.
    if object["kind"] == "RangeAllocation" && object["metadata"].is_null() {
        object["metadata"] = Value::Object(serde_json::Map::new());
    }
    match object["metadata"].is_object() && object["apiVersion"].is_string() {
        true => Ok(definitions::in_newest_form(object)),
        false => Err("it has no apiVersion or no metadata".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let layout = KubernetesLayout::new("/registry");
        let cases = [
            ("pods", "shop/web", "pods/shop/web"),
            ("services", "shop/web", "services/specs/shop/web"),
            ("endpoints", "shop/web", "services/endpoints/shop/web"),
            ("nodes", "/n1", "minions/n1"),
            ("namespaces", "/shop", "namespaces/shop"),
            ("replicationcontrollers", "shop/web", "controllers/shop/web"),
            ("deployments.apps", "shop/web", "deployments/shop/web"),
            ("ingresses.networking.k8s.io", "shop/web", "ingress/shop/web"),
            ("leases.coordination.k8s.io", "kube-system/a", "leases/kube-system/a"),
            ("ipaddresses.networking.k8s.io", "/10.96.0.1", "ipaddresses/10.96.0.1"),
            ("events", "shop/web.1", "events/shop/web.1"),
            ("clusterroles.rbac.authorization.k8s.io", "/system:node", "clusterroles/system:node"),
            (
                "customresourcedefinitions.apiextensions.k8s.io",
                "/bells.example.com",
                "apiextensions.k8s.io/customresourcedefinitions/bells.example.com",
            ),
            ("bells.example.com", "shop/big", "example.com/bells/shop/big"),
            ("towers.example.com", "/big", "example.com/towers/big"),
            ("nodeports", "30080", "ranges/roadstead-nodeports/30080"),
            ("podcidrs", "last", "ranges/roadstead-podcidrs/last"),
            ("rangeallocations", "/servicenodeports", "ranges/servicenodeports"),
            ("masterleases", "/10.0.0.5", "masterleases/10.0.0.5"),
        ];
        for (bucket, path, place) in cases {
            let (key, place) = (Key::new(bucket, path), format!("/registry/{place}"));
            assert_eq!(layout.place(&key), place);
            assert_eq!(layout.key(&place), Some(key));
        }
        for foreign in [
            "/registry/ranges/serviceips",
            "/registry/resourceslices/a",
            "/registry/pods/shop",
            "/registry/pods/shop/web/x/y",
            "/registry/pods//web/",
            "/elsewhere/pods/shop/web",
            "compact_rev_key",
        ] {
            let found = layout.key(foreign);
            // A pod without a namespace would be one, if there were any.
            assert!(found.is_none() || foreign == "/registry/pods/shop", "{foreign}: {found:?}");
        }
    }

    #[test]
    fn every_kind_has_a_place_of_its_own() {
        let layout = KubernetesLayout::new("registry/");
        for kind in kinds::all().into_iter().filter(|kind| !kind.info().review) {
            let path = if kind.info().namespaced { "a/b" } else { "/b" };
            let key = Key::new(kind.info().bucket(), path);
            assert_eq!(layout.key(&layout.place(&key)).as_ref(), Some(&key));
        }
    }

    #[test]
    fn what_others_have_written() {
        let layout = KubernetesLayout::new("/registry");
        let key = Key::new("configmaps", "shop/a");
        let own =
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"b":"c"}}"#;
        let field =
            |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
        let protobuf = |message: Vec<u8>| {
            let meta = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
            [b"k8s\0".to_vec(), field(1, &meta), field(2, &message)].concat()
        };
        let message =
            [field(1, &field(1, b"a")), field(2, &[field(1, b"b"), field(2, b"c")].concat())];
        let theirs = "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"data\":{\"b\":\"c\"},\
            \"metadata\":{\"name\":\"a\"}}\n";
        for stored in [own.into(), theirs.into(), protobuf(message.concat())] {
            let value = layout.value(&key, stored.into());
            assert_eq!(str::from_utf8(&value), Ok(own));
        }
        for (stored, why) in [
            (b"k8s:enc:aescbc:v1:x".to_vec(), "encrypted by kube-apiserver"),
            (protobuf([message.concat(), field(15, b"new")].concat()), "field 15 of"),
            (b"{}".to_vec(), "no apiVersion"),
            (b"text".to_vec(), "expected"),
        ] {
            assert_eq!(layout.value(&key, stored.clone().into()), stored, "it is kept");
            let found = unreadable(&stored).unwrap();
            assert!(found.contains(why), "{found}");
        }
    }
}
