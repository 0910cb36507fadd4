//! Documents that change only with the kinds. Each is made once, however many ask for it at the same time,
//! and where long work is done: nobody who asks for something else waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use serde_json::Value;

use crate::documents::{discovery, openapi};
use crate::registry::{KindRef, Registry};
use crate::transport::rotation::Flow;

/// A document about the kinds that there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Document {
    /// `/`.
    Paths,
    /// `/api`.
    CoreVersions,
    /// `/apis`.
    Groups,
    /// `/apis/GROUP`.
    Group(String),
    /// `/api/v1`, with the empty group, and `/apis/GROUP/VERSION`.
    Resources(String, String),
    /// `/api`, aggregated.
    AggregatedCore,
    /// `/apis`, aggregated.
    AggregatedGroups,
    /// `/openapi/v2`.
    V2,
    /// The same in protobuf.
    V2Protobuf,
    /// `/openapi/v3`.
    Index,
    /// `/openapi/v3/apis/GROUP/VERSION`.
    V3(String, String),
}

impl Document {
    /// What is behind a path in pieces; nothing, if these kinds have no such document. Only what exists is
    /// kept, so nobody fills the memory with names.
    pub(crate) fn at(registry: &Registry, path: &[&str], accept: &str) -> Option<Self> {
        let aggregated = discovery::wants_aggregated(accept);
        let known = |group: &str, version: &str| registry.groups().contains(&(group, version));
        let pair = |group: &str, version: &str| (group.to_owned(), version.to_owned());
        Some(match *path {
            [""] => Self::Paths,
            ["api"] if aggregated => Self::AggregatedCore,
            ["apis"] if aggregated => Self::AggregatedGroups,
            ["api"] => Self::CoreVersions,
            ["apis"] => Self::Groups,
            ["apis", ""] => return None,
            ["apis", group] => {
                let mut groups = registry.groups().into_iter();
                groups.find(|(known, _)| *known == group)?;
                Self::Group(group.into())
            }
            ["api", version] if known("", version) => {
                let (group, version) = pair("", version);
                Self::Resources(group, version)
            }
            ["apis", group, version] if !group.is_empty() && known(group, version) => {
                let (group, version) = pair(group, version);
                Self::Resources(group, version)
            }
            ["openapi", "v2"] if accept.contains("protobuf") => Self::V2Protobuf,
            ["openapi", "v2"] => Self::V2,
            ["openapi", "v3"] => Self::Index,
            ["openapi", "v3", "api", version] if known("", version) => {
                let (group, version) = pair("", version);
                Self::V3(group, version)
            }
            ["openapi", "v3", "apis", group, version]
                if !group.is_empty() && known(group, version) =>
            {
                let (group, version) = pair(group, version);
                Self::V3(group, version)
            }
            _ => return None,
        })
    }

    /// Its media type, unless that is JSON.
    pub(crate) fn media_type(&self) -> Option<&'static str> {
        match self {
            Self::AggregatedCore | Self::AggregatedGroups => Some(discovery::AGGREGATED),
            Self::V2Protobuf => Some(openapi::V2_PROTOBUF),
            _ => None,
        }
    }

    fn make(&self, registry: &Registry) -> Bytes {
        let text = |value: Value| Bytes::from(value.to_string());
        match self {
            Self::Paths => text(discovery::paths(registry)),
            Self::CoreVersions => text(discovery::core_versions()),
            Self::Groups => text(discovery::groups(registry)),
            Self::Group(group) => text(discovery::group(registry, group).unwrap_or_default()),
            Self::Resources(group, version) => {
                text(discovery::resources(registry, group, version).unwrap_or_default())
            }
            Self::AggregatedCore => text(discovery::aggregated(registry, true)),
            Self::AggregatedGroups => text(discovery::aggregated(registry, false)),
            Self::V2 => text(openapi::make_v2(registry)),
            Self::V2Protobuf => openapi::encode_v2(registry),
            Self::Index => text(openapi::index(registry)),
            Self::V3(group, version) => text(openapi::make(registry, group, version)),
        }
    }

    /// Whether it is about built-in kinds only, so that no definition changes it.
    fn lasts(&self, registry: &Registry) -> bool {
        let (Self::Resources(group, version) | Self::V3(group, version)) = self else {
            return *self == Self::AggregatedCore;
        };
        let mut own = registry.iter().filter(|resource| {
            (resource.info().group, resource.info().version) == (group.as_str(), version.as_str())
        });
        own.all(|resource| matches!(resource.kind, KindRef::BuiltIn(_)))
    }
}

/// The documents that have been asked for.
#[derive(Default)]
pub(crate) struct Documents(Mutex<HashMap<Document, Arc<Slot>>>);

#[derive(Default)]
struct Slot {
    /// Held by whoever has it made; the others wait here, and not for a turn each.
    turn: tokio::sync::Mutex<()>,
    made: OnceLock<Bytes>,
}

impl Documents {
    fn slot(&self, document: &Document) -> Arc<Slot> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(document.clone()).or_default().clone()
    }
}

/// Returns a document about these kinds.
pub(crate) async fn get(registry: &Arc<Registry>, flow: &Flow, document: Document) -> Bytes {
    let kept = if document.lasts(registry) { &registry.lasting } else { &registry.documents };
    let slot = kept.slot(&document);
    if let Some(made) = slot.made.get() {
        return made.clone();
    }
    let _turn = slot.turn.lock().await;
    if let Some(made) = slot.made.get() {
        return made.clone();
    }
    let (registry, making) = (registry.clone(), slot.clone());
    // It is kept even if nobody waits for it any more.
    flow.work(move || making.made.get_or_init(|| document.make(&registry)).clone()).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::future::join_all;
    use roadstead_store::kv::Store;
    use tokio::time::timeout;

    use super::*;
    use crate::identity::user::User;
    use crate::registry::Catalog;
    use crate::transport::rotation::Rotation;

    #[test]
    fn only_what_exists_is_kept() {
        let registry = Catalog::new(Store::memory()).now();
        let at = |path: &str| {
            let path: Vec<_> = path.trim_matches('/').split('/').collect();
            Document::at(&registry, &path, "")
        };
        for path in
            ["/", "/api", "/apis", "/apis/apps", "/api/v1", "/apis/apps/v1", "/openapi/v3/api/v1"]
        {
            assert!(at(path).is_some(), "{path}");
        }
        for path in ["/apis/nothing", "/api/v2", "/apis/apps/v9", "/apis//v1", "/healthz"] {
            assert_eq!(at(path), None, "{path}");
        }
        for path in ["/openapi/v3/apis/apps/v9", "/openapi/v3/apis//v1", "/openapi/v3/x"] {
            assert_eq!(at(path), None, "{path}");
        }
    }

    #[tokio::test]
    async fn a_document_is_made_once_and_where_long_work_is_done() {
        let catalog = Catalog::new(Store::memory());
        let (registry, turns) = (catalog.now(), Rotation::new(1));
        let flow = |name: &str| turns.of(&User::new(name, vec![]));
        let apps = || Document::V3("apps".into(), "v1".into());
        // As long as somebody else has the only seat for long work, nothing is made.
        let (busy, free) = std::sync::mpsc::channel::<()>();
        let long = flow("busy");
        let long = tokio::spawn(async move { long.work(move || free.recv()).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        let early = flow("early");
        let asked = get(&registry, &early, apps());
        assert!(timeout(Duration::from_millis(50), asked).await.is_err(), "made by a worker");
        busy.send(()).unwrap();
        long.await.unwrap().unwrap();

        let many = (0..20).map(async |number| {
            let flow = flow(&format!("user{number}"));
            get(&registry, &flow, apps()).await
        });
        let all = join_all(many).await;
        assert!(all[0].len() > 10_000);
        assert!(all.iter().all(|one| one.as_ptr() == all[0].as_ptr()), "made more than once");
        // Definitions come and go; built-in kinds stay as they are.
        catalog.serve_measured();
        let later = catalog.now();
        assert!(!Arc::ptr_eq(&registry, &later));
        let again = get(&later, &flow("later"), apps()).await;
        assert_eq!(again.as_ptr(), all[0].as_ptr());
        for changes in [Document::Index, Document::V2, Document::AggregatedGroups] {
            let flow = flow("jane");
            let before = get(&registry, &flow, changes.clone()).await;
            let after = get(&later, &flow, changes.clone()).await;
            assert_ne!(before, after, "{changes:?}");
        }
    }
}
