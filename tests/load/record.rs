//! What was written, in order, and what a selector makes of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::Request;
use http_body_util::{BodyStream, Full};
use roadstead_server::api::Api;
use roadstead_server::identity::user::User;
use roadstead_server::request::chain::handle;
use roadstead_store::kv::Store;
use serde_json::Value;

use crate::{PATH, version};

/// Version, type and name of an event.
pub(crate) type Told = (u64, String, String);

/// One write: its version, the name, and the group of the object if it is still there.
pub(crate) type Write = (u64, String, Option<u64>);

/// Which objects a watcher wants.
#[derive(Debug)]
pub(crate) enum Selection {
    All,
    Groups(Vec<u64>),
    Name(String),
}

impl Selection {
    pub(crate) fn query(&self) -> String {
        match self {
            Self::All => String::new(),
            Self::Groups(groups) => {
                let groups: Vec<_> = groups.iter().map(|group| format!("g{group}")).collect();
                format!("labelSelector=group%20in%20({})", groups.join(","))
            }
            Self::Name(name) => format!("fieldSelector=metadata.name%3D{name}"),
        }
    }

    fn wants(&self, name: &str, group: Option<u64>) -> bool {
        let Some(group) = group else { return false };
        match self {
            Self::All => true,
            Self::Groups(groups) => groups.contains(&group),
            Self::Name(own) => own == name,
        }
    }

    /// What a watcher with this selection is to be told after a version.
    pub(crate) fn events(&self, writes: &[Write], after: u64) -> Vec<Told> {
        let mut present: BTreeMap<&str, Option<u64>> = BTreeMap::new();
        let mut events = Vec::new();
        for (version, name, group) in writes {
            let before = present.insert(name, *group).flatten();
            let kind = match (self.wants(name, before), self.wants(name, *group)) {
                (false, true) => "ADDED",
                (true, true) => "MODIFIED",
                (true, false) => "DELETED",
                (false, false) => continue,
            };
            if *version > after {
                events.push((*version, kind.to_owned(), name.clone()));
            }
        }
        events
    }
}

/// Follows all writes over one connection. Nothing else is written meanwhile, so versions have no
/// gaps: not one event can be missing without being noticed.
pub(crate) async fn keep(
    api: Arc<Api>,
    store: Arc<Store>,
    done: Arc<AtomicU64>,
    start: u64,
) -> Vec<Write> {
    let mut last = start;
    let path = format!("{PATH}?watch=true&resourceVersion={last}");
    let request = Request::builder().uri(path).body(Full::new(Bytes::new())).unwrap();
    let response = handle(api.clone(), User::component(), request).await;
    let mut lines = BodyStream::new(response.into_body());
    let mut writes = Vec::new();
    loop {
        let end = done.load(Ordering::Acquire);
        let next = tokio::time::timeout(Duration::from_millis(300), lines.next()).await;
        let Ok(next) = next else {
            if end > 0 && last == store.revision().0 {
                return writes;
            }
            continue;
        };
        let frame = next.expect("nobody ends this watch").unwrap();
        let event: Value = serde_json::from_slice(&frame.into_data().unwrap()).unwrap();
        let object = &event["object"];
        assert_eq!(version(object), last + 1, "the write after {last} is missing: {event}");
        last += 1;
        let group = object["metadata"]["labels"]["group"].as_str();
        let group = group.and_then(|group| group.strip_prefix('g')?.parse().ok());
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        writes.push((last, name, group.filter(|_| event["type"] != "DELETED")));
    }
}
