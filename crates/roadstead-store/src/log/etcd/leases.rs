//! Leases, with which keys end by themselves. Many keys share one, as kube-apiserver has it: etcd has to
//! look after each of them.

use std::collections::HashMap;
use std::time::Duration;

use roadstead_etcd::client::Client;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::log::etcd::{PATIENCE, refused};

/// How much longer than it should, at most, a key lasts that shares a lease: this part of its time, and no
/// longer than that.
const LONGER: (u32, Duration) = (20, Duration::from_secs(60));
/// How many keys share a lease.
const SHARED: u32 = 1000;

/// The newest lease for each time that keys last.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<Duration, Lease>>);

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: i64,
    since: Instant,
    keys: u32,
}

impl Leases {
    /// A lease that ends after this time, or a little later.
    pub(super) async fn of(&self, client: &Client, time: Duration) -> Result<i64, StoreError> {
        let more = (time / LONGER.0).min(LONGER.1);
        let mut leases = self.0.lock().await;
        let shared = leases.get_mut(&time);
        if let Some(lease) = shared.filter(|l| l.since.elapsed() < more && l.keys < SHARED) {
            lease.keys += 1;
            return Ok(lease.id);
        }
        let (since, keys) = (Instant::now(), 1);
        let seconds = (time + more).as_secs().max(1);
        let granted = client.grant(seconds as i64, since + PATIENCE).await.map_err(refused)?;
        leases.insert(time, Lease { id: granted.id, since, keys });
        Ok(granted.id)
    }

    /// Begins with new ones.
    pub(super) async fn forget(&self) {
        self.0.lock().await.clear();
    }
}
