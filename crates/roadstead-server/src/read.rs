//! Reading: one object, a list of them, or a watch.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Response;
use roadstead_api::invalid::Causes;
use roadstead_store::entry::{Entry, Revision};
use roadstead_store::error::StoreError;
use roadstead_store::store::{Page, Range, Snapshot};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::api::Api;
use crate::call::Call;
use crate::error::ApiError;
use crate::filter::Filter;
use crate::http::Body;
use crate::registry::Resource;
use crate::request::{Query, Target};
use crate::turns::{Flow, TURN};
use crate::unreadable;
use crate::view::Listed;
use crate::watch::{Initial, Subject, Watch};

/// The entry of one object.
pub fn entry(api: &Api, resource: &Resource, target: &Target<'_>) -> Result<Arc<Entry>, ApiError> {
    let key = resource.key(target.namespace, target.name);
    unreadable::check_one(api, resource, &key)?;
    api.store.get(&key).ok_or_else(|| ApiError::not_found(resource.info(), target.name))
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

/// The objects of a kind, or a page of them.
pub async fn list(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let Call { api, resource, target, query, view, flow, .. } = call;
    check_list_options(query)?;
    let filter = Filter::new(resource, target.namespace, target.name, query)?;
    unreadable::check(api, resource, filter.prefix())?;
    let filter = Arc::new(filter);
    let limit = usize::try_from(query.number("limit")?).unwrap_or(usize::MAX);
    let token = match query.get("continue") {
        "" => None,
        text => Some(Continue::read(text)?),
    };
    let at = match &token {
        Some(token) => u64::try_from(token.revision).ok().map(Revision),
        None => snapshot_revision(api, query)?,
    };
    let (start, served) = token.as_ref().map_or(("", 0), |token| (&token.start, token.served));
    let page = match limit > 0 && !filter.looks_inside() {
        true => {
            let range = Range { prefix: filter.prefix(), after: start, limit };
            api.store.page(&resource.bucket, &range, at)
        }
        false => matching(call, &filter, start, limit, at).await,
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
            true => page.total.saturating_sub(after(api, resource, &filter, &last.key.path)?),
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
fn after(api: &Api, resource: &Resource, filter: &Filter, path: &str) -> Result<usize, ApiError> {
    let all = api.store.list(&resource.bucket, filter.prefix(), None)?.entries;
    Ok(all.iter().filter(|entry| *entry.key.path > *path).count())
}

/// The first objects that pass a filter, looked for outside the store.
async fn matching(
    call: &Call<'_>,
    filter: &Arc<Filter>,
    start: &str,
    limit: usize,
    at: Option<Revision>,
) -> Result<Page, StoreError> {
    let found = call.api.store.list(&call.resource.bucket, filter.prefix(), at)?;
    let Snapshot { mut entries, revision } = found;
    let total = entries.len();
    entries.retain(|entry| *entry.key.path > *start);
    if filter.looks_inside() {
        entries = selected(entries, filter, call.flow).await;
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
fn snapshot_revision(api: &Api, query: &Query) -> Result<Option<Revision>, ApiError> {
    let revision = Revision(query.number("resourceVersion")?);
    if query.get("resourceVersionMatch") == "Exact" {
        return Ok(Some(revision));
    }
    let newest = api.store.revision();
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
pub fn watch(call: &Call<'_>) -> Result<Watch, ApiError> {
    let Call { api, resource, target, query, view, flow, .. } = call;
    let filter = Filter::new(resource, target.namespace, target.name, query)?;
    check_watch_options(query)?;
    unreadable::check(api, resource, filter.prefix())?;
    let bookmarks = query.flag("allowWatchBookmarks");
    let streaming = query.flag("sendInitialEvents");
    let without = query.has("sendInitialEvents") && !streaming;
    let asked = query.number("resourceVersion")?;
    let (initial, after) = if without && asked == 0 {
        (None, api.store.revision())
    } else if asked == 0 || streaming {
        let snapshot = api.store.list(&resource.bucket, filter.prefix(), None)?;
        if asked > snapshot.revision.0 {
            return Err(ApiError::too_large_version(asked, snapshot.revision.0));
        }
        let revision = snapshot.revision;
        let entries = snapshot.entries.into_iter();
        (Some(Initial { entries, revision, marked: streaming && bookmarks }), revision)
    } else {
        (None, Revision(asked))
    };
    let feed = api.store.feed(&resource.bucket, after)?;
    let timeout = match query.number("timeoutSeconds")? {
        0 => Duration::from_secs(30 * 60 + after.0 % 1800),
        seconds => Duration::from_secs(seconds),
    };
    let resource = Resource::clone(resource);
    let subject = Arc::new(Subject { resource, view: *view, filter });
    Ok(Watch { subject, bookmarks, timeout, initial, feed, flow: Arc::clone(flow) })
}
