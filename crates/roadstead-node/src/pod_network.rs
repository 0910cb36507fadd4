//! The networks of this node's pods: who has which address, made and removed, and kept whole.
//!
//! The links themselves are the business of [`crate::network`].

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roadstead_netlink::error::NetlinkError;
use roadstead_pod::addresses::Addresses;
use tokio::sync::RwLock;
use tokio::time;
use tracing::warn;

use crate::addresses::AddressPool;
use crate::config::{Config, NodeError};
use crate::heal::{PodLink, Suspicion, Watcher};
use crate::link_guard::{GuardedLink, LinkGuard};
use crate::network::{Network, hardware_address, is_namespace, link_name};

/// After the kernel did not tell us any more what happens to the network.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Gives pods networks on the node's bridge.
#[derive(Debug)]
pub(crate) struct PodNetwork {
    network: Network,
    /// Where the namespaces are.
    directory: PathBuf,
    addresses: Mutex<GivenAddresses>,
    /// Held for writing while the network is compared with the addresses, for reading while both change.
    changes: RwLock<()>,
    /// `None` where the kernel has no such thing.
    guard: Mutex<Option<LinkGuard>>,
}

#[derive(Debug)]
struct GivenAddresses {
    pool: AddressPool,
    /// By the pods' uids.
    given: HashMap<String, Addresses>,
}

impl PodNetwork {
    pub(crate) fn new(config: &Config, directory: PathBuf) -> Self {
        let pool = AddressPool::new(&config.pod_cidrs);
        Self {
            network: Network::of(config),
            directory,
            addresses: Mutex::new(GivenAddresses { pool, given: HashMap::new() }),
            changes: RwLock::new(()),
            guard: Mutex::new(LinkGuard::open().ok()),
        }
    }

    fn addresses(&self) -> MutexGuard<'_, GivenAddresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the pod's namespace is, if it has one of its own.
    pub(crate) fn namespace(&self, uid: &str) -> Option<PathBuf> {
        self.addresses().given.contains_key(uid).then(|| self.path(uid))
    }

    fn path(&self, uid: &str) -> PathBuf {
        self.directory.join(format!("roadstead-{uid}"))
    }

    /// Takes note of addresses that a pod has from an earlier agent; returns them if its network lives.
    pub(crate) fn adopt(&self, uid: &str, own: Addresses) -> Option<Addresses> {
        let mut addresses = self.addresses();
        addresses.pool.reserve(own);
        addresses.given.insert(uid.to_owned(), own);
        is_namespace(&self.path(uid)).then_some(own)
    }

    /// Returns the addresses that the pod has or gets.
    pub(crate) fn allocate(&self, uid: &str) -> Result<Addresses, NodeError> {
        let mut addresses = self.addresses();
        let kept = addresses.given.get(uid).copied();
        let own = kept.or_else(|| addresses.pool.allocate());
        let own = own.ok_or_else(|| NodeError::NoAddress(self.network.to_string()))?;
        addresses.given.insert(uid.to_owned(), own);
        Ok(own)
    }

    /// Makes the network of a pod to which the addresses were given.
    pub(crate) async fn add(&self, uid: &str, own: Addresses) -> Result<(), NodeError> {
        let _changing = self.changes.read().await;
        self.guard().await;
        self.network.add_pod(&self.path(uid), &link_name(uid), own).await
    }

    /// Keeps all pods to their own addresses, those without a link yet included.
    async fn guard(&self) {
        let Some(bridge) = self.network.bridge_address().await else { return };
        let links = self.links().into_iter().map(|link| GuardedLink {
            name: link.name,
            hardware: hardware_address(link.addresses.first),
            addresses: link.addresses.iter().collect(),
        });
        let mut links: Vec<_> = links.collect();
        links.sort_by(|one, other| one.name.cmp(&other.name));
        self.with_guard(|guard| guard.guard(bridge, links));
    }

    /// A machine whose kernel cannot do it runs pods all the same; whoever has it hears why it matters.
    fn with_guard<T>(
        &self,
        work: impl FnOnce(&mut LinkGuard) -> Result<T, NetlinkError>,
    ) -> Option<T> {
        let mut guard = self.guard.lock().unwrap_or_else(PoisonError::into_inner);
        match work(guard.as_mut()?) {
            Ok(done) => Some(done),
            Err(error) => {
                warn!(%error, "pods can make up addresses, and reach each other around policies");
                if error
                    .refusal()
                    .is_some_and(|refusal| refusal.kind() != io::ErrorKind::ResourceBusy)
                {
                    *guard = None;
                }
                None
            }
        }
    }

    /// Brings back what somebody removes of the guard, for as long as it is polled.
    async fn keep_guard(&self) {
        loop {
            self.guard().await;
            if self.with_guard(LinkGuard::heal) == Some(true) {
                warn!("somebody removed the guard of the pods' links; it is back");
            }
            time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Joins a pod whose namespace others have made.
    #[cfg(feature = "cri")]
    pub(crate) async fn adopt_namespace(
        &self,
        uid: &str,
        made: &std::path::Path,
        own: Addresses,
    ) -> Result<(), NodeError> {
        let _changing = self.changes.read().await;
        self.guard().await;
        self.network.adopt_pod(made, (&self.path(uid), &link_name(uid)), own).await
    }

    /// Removes a pod's network, as far as it exists. Its addresses are not given to others before
    /// [`PodNetwork::release`].
    pub(crate) async fn remove(&self, uid: &str) -> Result<(), NodeError> {
        let _changing = self.changes.read().await;
        self.network.remove_pod(&self.path(uid), &link_name(uid)).await
    }

    pub(crate) fn release(&self, uid: &str) {
        let mut addresses = self.addresses();
        if let Some(own) = addresses.given.remove(uid) {
            addresses.pool.release(own);
        }
    }

    /// Removes the networks that belong to none of these pods.
    pub(crate) async fn retain(&self, known: &[&str]) -> Result<(), NodeError> {
        let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        for name in names.collect::<Vec<_>>() {
            let Some(uid) = name.strip_prefix("roadstead-") else { continue };
            if !known.contains(&uid) {
                self.remove(uid).await?;
            }
        }
        Ok(())
    }

    /// Brings back all that is missing.
    pub(crate) async fn heal(&self) -> Result<(), NodeError> {
        self.network.heal(&self.links(), Suspicion::Everything).await.map(drop)
    }

    /// Brings back what somebody removes, for as long as it is polled.
    pub(crate) async fn maintain(&self) {
        tokio::join!(self.keep_links(), self.keep_guard());
    }

    async fn keep_links(&self) {
        loop {
            if let Err(error) = self.follow().await {
                warn!(%error, "lost sight of the pod network, will look again");
            }
            time::sleep(LOOK_AGAIN).await;
        }
    }

    async fn follow(&self) -> Result<(), NodeError> {
        let mut watcher = Watcher::start(&self.network).await?;
        let mut suspicion = Some(Suspicion::Everything);
        while let Some(suspected) = suspicion {
            let alone = self.changes.write().await;
            let healed = self.network.heal(&self.links(), suspected).await?;
            drop(alone);
            if !healed.is_empty() {
                warn!(links = ?healed, "somebody removed parts of the pod network; they are back");
            }
            suspicion = watcher.next().await?;
        }
        Ok(())
    }

    /// The links of all pods that have a network of their own.
    fn links(&self) -> Vec<PodLink> {
        let addresses = self.addresses();
        let links = addresses.given.iter().map(|(uid, own)| PodLink {
            namespace: self.path(uid),
            name: link_name(uid),
            addresses: *own,
        });
        links.collect()
    }
}
