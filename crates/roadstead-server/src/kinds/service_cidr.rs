//! The ServiceCIDRs: which ranges addresses come from now, and when one that is deleted may go.
//!
//! Whoever takes an address makes the write depend on the state of the range it comes from. A range
//! that is marked for deletion has another state, so no address can be taken from it after that,
//! and what it still holds can only become less.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use ipnet::IpNet;
use jiff::Timestamp;
use roadstead_api::ip::{self, Family};
use roadstead_api::kinds::service_cidr::{self, FINALIZER};
use roadstead_plan::alloc;
use roadstead_schema::json::Pointer;
use roadstead_store::entry::{Entry, Key, Revision};
use roadstead_store::error::StoreError;
use roadstead_store::feed::Feed;
use roadstead_store::kv::Store;
use roadstead_store::transaction::Transaction;
use serde_json::{Value, json};
use tracing::info;

use crate::api::Api;
use crate::error::ApiError;
use crate::kinds::service::allocate::{ADDRESSES, MANAGED_BY, Source};
use crate::kinds::{Afterwards, Strategy};
use crate::objects::write::seconds;
use crate::reading::object;

/// The range that the operator has chosen.
pub(crate) const DEFAULT: &str = "kubernetes";
const RANGES: &str = "servicecidrs.networking.k8s.io";

pub(super) struct ServiceCidrs;

impl Strategy for ServiceCidrs {
    fn committed<'a>(&self, api: &'a Api) -> Option<Afterwards<'a>> {
        tidy_later(api)
    }
}

/// Looks after ranges that are deleted, if there are any.
pub(super) fn tidy_later(api: &Api) -> Option<Afterwards<'_>> {
    (!api.network.ranges.now().leaving.is_empty()).then(|| tidy(api).boxed())
}

/// A range that addresses may be taken from.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) net: IpNet,
    key: Key,
    revision: Revision,
}

impl Range {
    pub(crate) fn family(&self) -> Family {
        Family::of(self.net.addr())
    }

    pub(crate) fn source(&self) -> Source {
        (self.key.clone(), self.revision)
    }
}

/// All ranges at one moment.
#[derive(Debug, Default)]
pub(crate) struct KnownRanges {
    /// In the order in which they are tried: the operator's first.
    pub(crate) ready: Vec<Range>,
    /// Those that are being deleted.
    leaving: Vec<Arc<Entry>>,
}

impl KnownRanges {
    fn read(entries: &[Arc<Entry>]) -> Self {
        let mut known = Self::default();
        for entry in entries {
            let object = object::value(entry);
            if object.has("/metadata/deletionTimestamp") {
                known.leaving.push(entry.clone());
            } else if is_ready(&object) {
                known.ready.extend(
                    networks(&object).filter(|net| alloc::is_usable(*net)).map(|net| Range {
                        net,
                        key: entry.key.clone(),
                        revision: entry.revision,
                    }),
                );
            }
        }
        known.ready.sort_by_key(|range| *range.key.path != *format!("/{DEFAULT}"));
        known
    }

    /// The networks of all of them, those that are being deleted included.
    pub(crate) fn networks(&self) -> impl Iterator<Item = IpNet> {
        let leaving = self.leaving.iter().flat_map(|entry| {
            let object = object::value(entry);
            networks(&object).collect::<Vec<_>>()
        });
        self.ready.iter().map(|range| range.net).chain(leaving)
    }

    fn covers(&self, address: IpAddr) -> bool {
        self.ready.iter().any(|range| alloc::may_be_allocated(range.net, address))
    }
}

fn networks(object: &Value) -> impl Iterator<Item = IpNet> {
    object.list("/spec/cidrs").iter().filter_map(|text| text.as_str()?.parse().ok())
}

fn is_ready(object: &Value) -> bool {
    let ready = object.list("/status/conditions").iter().find(|c| c.text("/type") == "Ready");
    ready.is_none_or(|condition| condition.text("/status") == "True")
}

/// The ranges as they are now.
pub(crate) struct Ranges {
    store: Arc<Store>,
    state: Mutex<(Option<Feed>, Arc<KnownRanges>)>,
}

impl Ranges {
    /// Follows the ranges in a store.
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, state: Mutex::default() }
    }

    /// The ranges as of now: one can be used as soon as its creation has been answered.
    pub(crate) fn now(&self) -> Arc<KnownRanges> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match &mut state.0 {
            Some(feed) => feed.now().map_or(true, |batch| !batch.events.is_empty()),
            None => true,
        };
        if changed && let Ok(snapshot) = self.store.list(RANGES, "", None) {
            state.0 = self.store.feed(RANGES, snapshot.revision).ok();
            state.1 = Arc::new(KnownRanges::read(&snapshot.entries));
        }
        state.1.clone()
    }
}

/// Lets ranges go that are deleted and no longer needed, after a write that may have changed that.
/// At the start of the server this finishes what a crash has interrupted.
pub(crate) async fn tidy(api: &Api) -> Result<(), ApiError> {
    for _ in 0..10 {
        let known = api.network.ranges.now();
        let mut settled = true;
        for entry in &known.leaving {
            let Some(transaction) = next_step(api, &known, entry)? else { continue };
            match api.storage.store.commit(transaction).await {
                Ok(_) => {}
                Err(StoreError::Conflict { .. }) => settled = false,
                Err(error) => return Err(error.into()),
            }
        }
        if settled {
            break;
        }
    }
    Ok(())
}

/// What to do about a range that is deleted: remove it, say why not, or nothing.
fn next_step(
    api: &Api,
    known: &KnownRanges,
    entry: &Entry,
) -> Result<Option<Transaction>, ApiError> {
    let mut object = object::value(entry);
    let held = object.list("/metadata/finalizers");
    if !held.iter().any(|name| name == FINALIZER) {
        return Ok(None);
    }
    let rest: Vec<_> = held.iter().filter(|name| *name != FINALIZER).cloned().collect();
    let guard = Transaction::new().expect(entry.key.clone(), Some(entry.revision));
    let now = seconds(Timestamp::now());
    if is_needed(api, known, &object)? {
        let waiting = json!([service_cidr::terminating(&now)]);
        if !is_ready(&object) {
            return Ok(None);
        }
        object["status"]["conditions"] = waiting;
    } else if rest.is_empty() {
        info!(range = %entry.key, "service range removed");
        // The ranges that hold its addresses from now on must stay.
        let guard = known.ready.iter().fold(guard, |t, range| {
            let (key, revision) = range.source();
            t.expect(key, Some(revision))
        });
        return Ok(Some(guard.delete(entry.key.clone())));
    } else {
        object["metadata"]["finalizers"] = rest.into();
    }
    Ok(Some(guard.put(entry.key.clone(), object::encode(&object))))
}

/// Whether somebody has an address that no other range contains.
fn is_needed(api: &Api, known: &KnownRanges, object: &Value) -> Result<bool, ApiError> {
    let own: Vec<_> = networks(object).collect();
    let taken = api.storage.store.list(ADDRESSES, "", None)?;
    let needed = |entry: &Entry| {
        let address = ip::parse(entry.key.path.trim_start_matches('/'));
        let own = |address| own.iter().any(|net| net.contains(&address));
        address.is_some_and(|address| {
            own(address)
                && !known.covers(address)
                && object::value(entry)["metadata"]["labels"][MANAGED_BY.0] == MANAGED_BY.1
        })
    };
    Ok(taken.entries.iter().any(|entry| needed(entry)))
}
