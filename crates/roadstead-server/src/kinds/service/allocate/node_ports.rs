//! Which ports of the nodes are taken.
//!
//! In a store of our own there is a row for each of them (`docs/adr/0008-allocations-are-rows.md`). In etcd it is
//! one key, kube-apiserver's own RangeAllocation: servers of both kinds give out ports from it, and one
//! comparison is enough for any number of ports (`docs/adr/0224-node-ports-of-kube-apiserver.md`).

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use roadstead_plan::port_bitmap::PortBitmap;
use roadstead_schema::json::Pointer;
use roadstead_store::entry::{Entry, Key, Revision};
use roadstead_store::kv::Store;
use roadstead_store::transaction::Transaction;
use serde_json::json;

use crate::error::ApiError;
use crate::etcd_layout;
use crate::reading::object;

/// Where a store keeps the rows; the value of each is the Service.
pub(crate) const ROWS: &str = "nodeports";
/// Where a store keeps what kube-apiserver calls ranges.
pub(crate) const RANGES: &str = "rangeallocations";
/// The one of them that is ours, too.
pub(crate) const BITMAP: &str = "/servicenodeports";

/// Ports of the nodes that are taken, as one attempt to write has found them.
pub(super) enum NodePorts<'a> {
    /// A row for each.
    Rows(&'a Store),
    /// One key for all, at this revision.
    Bitmap(PortBitmap, Option<Revision>),
}

impl<'a> NodePorts<'a> {
    /// As they are now. Fails if others have written what cannot be understood.
    pub(super) fn now(store: &'a Store, range: &RangeInclusive<u16>) -> Result<Self, ApiError> {
        if !store.is_shared() {
            return Ok(Self::Rows(store));
        }
        let Some(entry) = store.get(&bitmap_key()) else {
            return Ok(Self::Bitmap(PortBitmap::new(range.clone()), None));
        };
        let bitmap = read(&entry)?;
        match bitmap.range() == range {
            true => Ok(Self::Bitmap(bitmap, Some(entry.revision))),
            false => Err(ApiError::internal(format!(
                "the range of node ports in etcd is {}, and that of this server {}-{}: all servers \
                 need the same",
                bitmap.range_text(),
                range.start(),
                range.end()
            ))),
        }
    }

    /// When others have last written it, if it is one key.
    pub(super) fn revision(&self) -> Option<Revision> {
        match self {
            Self::Rows(_) => None,
            Self::Bitmap(_, revision) => *revision,
        }
    }

    pub(super) fn is_taken(&self, port: u16) -> bool {
        match self {
            Self::Rows(store) => store.get(&row(port)).is_some(),
            Self::Bitmap(bitmap, _) => bitmap.contains(port),
        }
    }

    /// Completes a transaction that takes ports for a Service, and gives others back.
    pub(super) fn exchange(
        self,
        before: &BTreeSet<u16>,
        after: &BTreeSet<u16>,
        holder: &Bytes,
        mut transaction: Transaction,
    ) -> Transaction {
        let (given, taken) = (before.difference(after), after.difference(before));
        match self {
            Self::Rows(_) => {
                for &port in taken {
                    let row = row(port);
                    transaction = transaction.expect(row.clone(), None).put(row, holder.clone());
                }
                given.fold(transaction, |t, &port| t.delete(row(port)))
            }
            Self::Bitmap(_, _) if before == after => transaction,
            Self::Bitmap(mut bitmap, revision) => {
                given.for_each(|port| bitmap.give_back(*port));
                taken.for_each(|port| bitmap.take(*port));
                let key = bitmap_key();
                transaction.expect(key.clone(), revision).put(key, encode(&bitmap))
            }
        }
    }
}

/// All taken ports as they were at a revision, with whose they are, where that is known.
pub(super) fn all(
    store: &Store,
    at: Option<Revision>,
) -> Result<Vec<(u16, Option<String>)>, ApiError> {
    if !store.is_shared() {
        let rows = store.list(ROWS, "", at)?.entries;
        let holder = |entry: &Entry| Some(String::from_utf8_lossy(&entry.value).into_owned());
        let port = |entry: &Entry| Some((entry.key.path.parse().ok()?, holder(entry)));
        return Ok(rows.iter().filter_map(|entry| port(entry)).collect());
    }
    let found = store.list(RANGES, BITMAP, at)?.entries;
    match found.iter().find(|entry| entry.key == bitmap_key()) {
        Some(entry) => Ok(read(entry)?.taken().map(|port| (port, None)).collect()),
        None => Ok(Vec::new()),
    }
}

/// Whether a transaction writes what all who take ports of the nodes write.
pub(in crate::kinds::service) fn is_common(transaction: &Transaction) -> bool {
    transaction.writes_to(RANGES)
}

pub(super) fn read(entry: &Entry) -> Result<PortBitmap, ApiError> {
    let wrong = |why: String| {
        ApiError::internal(format!("the node ports that are taken cannot be read: {why}"))
    };
    if let Some(why) = etcd_layout::unreadable(&entry.value) {
        return Err(wrong(why));
    }
    let allocation = object::value(entry);
    let number = STANDARD.decode(allocation.text("/data"));
    let number = number.map_err(|error| wrong(error.to_string()))?;
    PortBitmap::read(allocation.text("/range"), &number).map_err(wrong)
}

pub(super) fn encode(bitmap: &PortBitmap) -> Bytes {
    object::encode(&json!({"apiVersion": "v1", "kind": "RangeAllocation", "metadata": {},
        "range": bitmap.range_text(), "data": STANDARD.encode(bitmap.number())}))
}

pub(super) fn bitmap_key() -> Key {
    Key::new(RANGES, BITMAP)
}

pub(super) fn row(port: u16) -> Key {
    Key::new(ROWS, port.to_string())
}
