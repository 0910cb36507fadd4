//! Reading: one object, a list of them, or a watch.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Response;
use roadstead_schema::invalid::Causes;
use roadstead_store::entry::{Entry, Revision};
use roadstead_store::error::StoreError;
use roadstead_store::kv::{Page, Range, Snapshot, Store};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::ApiError;
use crate::reading::filter::Filter;
use crate::reading::view::Listed;
use crate::reading::watch::{Initial, Selection, Watch};
use crate::registry::Resource;
use crate::request::handler::Handler;
use crate::request::path::ResourcePath;
use crate::request::query::Query;
use crate::storage::Storage;
use crate::transport::response::Body;
use crate::transport::rotation::{Flow, TURN};

/// The entry of one object.
pub(crate) fn entry(
    storage: &Storage,
    resource: &Resource,
    path: &ResourcePath,
) -> Result<Arc<Entry>, ApiError> {
    let key = resource.key(&path.namespace, &path.name);
    storage.check_one(resource, &key)?;
    storage.store.get(&key).ok_or_else(|| ApiError::not_found(resource.info(), &path.name))
}

/// Where the next page of a list begins.
#[derive(Debug, Serialize, Deserialize)]
struct Continue {
    #[serde(rename = "v")]
    version: String,
    /// -1: whatever is newest, because the state of the first page is gone.
    #[serde(rename = "rv")]
    revision: i64,
    start: String,
    /// How many entries came before.
    #[serde(rename = "n", default)]
    served: usize,
}

const NEWEST: i64 = -1;

impl Continue {
    fn read(text: &str) -> Result<Self, ApiError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        let token: Option<Self> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        token
            .filter(|token| token.version == "meta.k8s.io/v1" && token.revision >= NEWEST)
            .ok_or_else(|| ApiError::bad_request("continue key is not valid"))
    }

    fn write(revision: i64, start: &str, served: usize) -> String {
        let (version, start) = ("meta.k8s.io/v1".into(), start.into());
        let token = Self { version, revision, start, served };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).expect("a token can be written"))
    }
}

/// Returns when memory may answer. Who names no revision wants what is newest, wherever that was written;
/// who names one that is not here yet may have it from another server.
pub(crate) async fn be_fresh(store: &Store, query: &Query) -> Result<(), ApiError> {
    if !store.is_shared() || !query.get("continue").is_empty() {
        return Ok(());
    }
    let newest = query.get("resourceVersion").is_empty();
    if newest || Revision(query.number("resourceVersion")?) > store.revision() {
        store.fresh().await?;
    }
    Ok(())
}

/// The objects of a kind, or a page of them.
pub(crate) async fn list(handler: &Handler<'_>) -> Result<Response<Body>, ApiError> {
    let Handler { api, resource, path, query, view, flow, .. } = handler;
    check_list_options(query)?;
    be_fresh(&api.storage.store, query).await?;
    let filter = Filter::new(resource, &path.namespace, &path.name, query)?;
    api.storage.check_readable(resource, filter.prefix())?;
    let filter = Arc::new(filter);
    let limit = usize::try_from(query.number("limit")?).unwrap_or(usize::MAX);
    let token = match query.get("continue") {
        "" => None,
        text => Some(Continue::read(text)?),
    };
    let at = match &token {
        Some(token) => u64::try_from(token.revision).ok().map(Revision),
        None => snapshot_revision(&api.storage.store, query)?,
    };
    let (start, served) = token.as_ref().map_or(("", 0), |token| (&token.start, token.served));
    let page = match limit > 0 && !filter.looks_inside() {
        true => {
            let range = Range { prefix: filter.prefix(), after: start, limit };
            api.storage.store.page(&resource.bucket, &range, at)
        }
        false => matching(handler, &filter, Window { start, limit, at }).await,
    };
    let page = page.map_err(|error| match (error, &token) {
        (StoreError::Compacted { .. }, Some(token)) => {
            ApiError::inconsistent(Continue::write(NEWEST, &token.start, token.served))
        }
        (StoreError::Compacted { .. }, None) => {
            ApiError::expired("The resourceVersion for the provided list is too old.")
        }
        (other, _) => other.into(),
    })?;
    let (mut next, mut remaining) = (String::new(), None);
    if let Some(last) = page.entries.last().filter(|_| page.more) {
        let served = match token.as_ref().is_some_and(|token| token.revision == NEWEST) {
            // The state that was counted so far is gone.
            true => page.total.saturating_sub(after(
                &api.storage.store,
                resource,
                &filter,
                &last.key.path,
            )?),
            false => served + page.entries.len(),
        };
        // An estimate: what is counted is the newest state.
        remaining = (!filter.looks_inside()).then(|| page.total.saturating_sub(served).max(1));
        let revision = i64::try_from(page.revision.0).unwrap_or(NEWEST);
        next = Continue::write(revision, &last.key.path, served);
    }
    let listed = Listed { entries: page.entries, revision: page.revision, next, remaining };
    Ok(view.many(resource, listed, flow))
}

/// How many objects come after a path, now.
fn after(
    store: &Store,
    resource: &Resource,
    filter: &Filter,
    path: &str,
) -> Result<usize, ApiError> {
    let all = store.list(&resource.bucket, filter.prefix(), None)?.entries;
    Ok(all.iter().filter(|entry| *entry.key.path > *path).count())
}

/// The part of a list that is asked for.
struct Window<'a> {
    /// Begins after this path.
    start: &'a str,
    /// 0: all.
    limit: usize,
    /// `None`: the newest state.
    at: Option<Revision>,
}

/// The first objects that pass a filter, looked for outside the store.
async fn matching(
    handler: &Handler<'_>,
    filter: &Arc<Filter>,
    window: Window<'_>,
) -> Result<Page, StoreError> {
    let Window { start, limit, at } = window;
    let found = handler.api.storage.store.list(&handler.resource.bucket, filter.prefix(), at)?;
    let Snapshot { mut entries, revision } = found;
    let total = entries.len();
    entries.retain(|entry| *entry.key.path > *start);
    if filter.looks_inside() {
        entries = selected(entries, filter, handler.flow).await;
    }
    let more = limit > 0 && entries.len() > limit;
    if more {
        entries.truncate(limit);
    }
    Ok(Page { entries, more, total, revision })
}

/// How much is read at once of objects to be selected.
const READ: usize = 4 * TURN;

/// The entries that match. Where much has to be read for it, that is done in turns.
async fn selected(entries: Vec<Arc<Entry>>, filter: &Arc<Filter>, flow: &Flow) -> Vec<Arc<Entry>> {
    let size: usize = entries.iter().map(|entry| entry.value.len()).sum();
    let matches =
        |filter: &Filter, entry: &Arc<Entry>| filter.matches(&entry.key.path, &entry.value);
    if !filter.reads() || size <= TURN {
        return entries.into_iter().filter(|entry| matches(filter, entry)).collect();
    }
    let (mut found, mut rest) = (Vec::new(), entries.into_iter());
    while !rest.as_slice().is_empty() {
        let filter = filter.clone();
        let work = move || {
            let (mut read, mut passed) = (0, Vec::new());
            while read < READ
                && let Some(entry) = rest.next()
            {
                read += entry.value.len();
                if matches(&filter, &entry) {
                    passed.push(entry);
                }
            }
            (passed, rest)
        };
        let (passed, left) = flow.work(work).await;
        found.extend(passed);
        rest = left;
    }
    found
}

/// The past revision that a list insists on, if it does.
fn snapshot_revision(store: &Store, query: &Query) -> Result<Option<Revision>, ApiError> {
    let revision = Revision(query.number("resourceVersion")?);
    if query.get("resourceVersionMatch") == "Exact" {
        return Ok(Some(revision));
    }
    let newest = store.revision();
    match revision > newest {
        true => Err(ApiError::too_large_version(revision.0, newest.0)),
        false => Ok(None),
    }
}

fn check(causes: &Causes) -> Result<(), ApiError> {
    match causes.0.is_empty() {
        true => Ok(()),
        false => Err(ApiError::invalid_options("ListOptions", &causes.0)),
    }
}

fn check_list_options(query: &Query) -> Result<(), ApiError> {
    let mut causes = Causes::default();
    let (matching, field) = (query.get("resourceVersionMatch"), "resourceVersionMatch");
    if !matching.is_empty() {
        if query.get("resourceVersion").is_empty() {
            let detail = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            causes.forbidden(field, detail);
        }
        if !query.get("continue").is_empty() {
            let detail = "resourceVersionMatch is forbidden when continue is provided";
            causes.forbidden(field, detail);
        }
        if !["Exact", "NotOlderThan"].contains(&matching) {
            causes.unsupported(field, &json!(matching), &["Exact", "NotOlderThan", ""]);
        }
        if matching == "Exact" && query.get("resourceVersion") == "0" {
            let detail = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            causes.forbidden(field, detail);
        }
    }
    if query.has("sendInitialEvents") {
        causes.forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
    }
    check(&causes)
}

fn check_watch_options(query: &Query) -> Result<(), ApiError> {
    let mut causes = Causes::default();
    let (matching, field) = (query.get("resourceVersionMatch"), "resourceVersionMatch");
    let initial = query.has("sendInitialEvents");
    if initial && matching != "NotOlderThan" {
        let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        causes.forbidden(field, detail);
    }
    if !matching.is_empty() {
        if !initial {
            let detail =
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            causes.forbidden(field, detail);
        }
        if matching != "NotOlderThan" {
            causes.unsupported(field, &json!(matching), &["NotOlderThan"]);
        }
        if !query.get("continue").is_empty() {
            let detail = "resourceVersionMatch is forbidden when continue is provided";
            causes.forbidden(field, detail);
        }
    }
    check(&causes)
}

/// A watch of the objects of a kind.
pub(crate) fn watch(handler: &Handler<'_>) -> Result<Watch, ApiError> {
    let Handler { api, resource, path, query, view, flow, .. } = handler;
    let filter = Filter::new(resource, &path.namespace, &path.name, query)?;
    check_watch_options(query)?;
    api.storage.check_readable(resource, filter.prefix())?;
    let bookmarks = query.flag("allowWatchBookmarks");
    let streaming = query.flag("sendInitialEvents");
    let without = query.has("sendInitialEvents") && !streaming;
    let asked = query.number("resourceVersion")?;
    let (initial, after) = if without && asked == 0 {
        (None, api.storage.store.revision())
    } else if asked == 0 || streaming {
        let snapshot = api.storage.store.list(&resource.bucket, filter.prefix(), None)?;
        if asked > snapshot.revision.0 {
            return Err(ApiError::too_large_version(asked, snapshot.revision.0));
        }
        let revision = snapshot.revision;
        let entries = snapshot.entries.into_iter();
        (Some(Initial { entries, revision, marked: streaming && bookmarks }), revision)
    } else {
        (None, Revision(asked))
    };
    let feed = api.storage.store.feed(&resource.bucket, after)?;
    let timeout = match query.number("timeoutSeconds")? {
        0 => Duration::from_secs(30 * 60 + after.0 % 1800),
        // As long as anybody may want to, and not longer than time goes.
        seconds => Duration::from_secs(seconds.min(u32::MAX.into())),
    };
    let resource = Arc::clone(resource);
    let selection = Arc::new(Selection { resource, view: *view, filter });
    Ok(Watch { selection, bookmarks, timeout, initial, feed, flow: Arc::clone(flow) })
}
