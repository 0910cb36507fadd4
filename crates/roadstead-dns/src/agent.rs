//! The agent: follows the cluster, and lets the server answer from what it sees.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Resource, ResourceExt};
use roadstead_watch::informer::{Change, Selection, informer, key_of};
use roadstead_zone::name::Name;
use roadstead_zone::zone::{Lifetimes, Zone};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::server::{Server, Shared};

/// What the server needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen, on UDP and TCP alike.
    pub listen: Vec<SocketAddr>,
    /// The cluster's zone.
    pub zone: String,
    /// Whom to ask about other names, in this order. With nobody to ask, such questions are
    /// refused.
    pub upstreams: Vec<SocketAddr>,
    /// How long clients may remember answers.
    pub lifetimes: Lifetimes,
    /// The addresses under which clients know this server, for the zone's NS record.
    pub addresses: Vec<IpAddr>,
    /// Shows what is being answered from; subscribe to it before `run`.
    pub published: watch::Sender<Published>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            zone: "cluster.local".into(),
            upstreams: Vec::new(),
            lifetimes: Lifetimes::default(),
            addresses: Vec::new(),
            published: watch::Sender::default(),
        }
    }
}

/// What is being answered from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Whether everything that existed at the start is in the zone.
    pub ready: bool,
    /// The newest resource version among the objects taken in.
    pub revision: u64,
}

/// Why the server cannot work.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The zone's name is not a domain name.
    #[error("{zone:?} is not a domain name")]
    Zone {
        /// What was given.
        zone: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {listen:?}")]
    Listen {
        /// What was given.
        listen: Vec<SocketAddr>,
        /// Why.
        source: io::Error,
    },
}

/// Answers until `stop`, from a zone that follows the cluster.
pub async fn run(client: Client, config: Config, stop: CancellationToken) -> Result<(), DnsError> {
    let listen = |source| DnsError::Listen { listen: config.listen.clone(), source };
    let server = Server::bind(&config.listen).map_err(listen)?;
    serve(client, config, server, stop).await
}

/// Like [`run`], with sockets that are bound already.
pub async fn serve(
    client: Client,
    config: Config,
    server: Server,
    stop: CancellationToken,
) -> Result<(), DnsError> {
    let origin = Name::parse(&config.zone);
    let origin = origin.ok_or_else(|| DnsError::Zone { zone: config.zone.clone() })?;
    let zone = Zone::new(&origin, config.lifetimes, seconds_since_1970(), &config.addresses);
    let zone = Arc::new(RwLock::new(zone));
    let shared = Arc::new(Shared::new(zone.clone(), config.upstreams));
    let follower = Follower { zone, published: config.published, synced: [false; 3] };
    tokio::select! {
        () = server.serve(shared, stop.clone()) => {}
        () = follower.run(client) => {}
        () = stop.cancelled() => {}
    }
    Ok(())
}

/// Writes what the watch shows into the zone.
struct Follower {
    zone: Arc<RwLock<Zone>>,
    published: watch::Sender<Published>,
    synced: [bool; 3],
}

impl Follower {
    async fn run(mut self, client: Client) {
        let config = Selection::default;
        let mut namespaces = informer::<Namespace>(Api::all(client.clone()), config());
        let mut services = informer::<Service>(Api::all(client.clone()), config());
        let mut slices = informer::<EndpointSlice>(Api::all(client), config());
        loop {
            tokio::select! {
                Some(change) = namespaces.next() => self.namespace(&change),
                Some(change) = services.next() => self.service(&change),
                Some(change) = slices.next() => self.slice(&change),
                else => return,
            }
        }
    }

    fn namespace(&mut self, change: &Change<Namespace>) {
        match change {
            Change::Set(object) => self.zone().observe_namespace(&object.name_any()),
            Change::Gone(object) => self.zone().remove_namespace(&object.name_any()),
            Change::Synced => self.synced[0] = true,
        }
        self.publish(change);
    }

    fn service(&mut self, change: &Change<Service>) {
        match change {
            Change::Set(object) => self.zone().observe_service(object),
            Change::Gone(object) => self.zone().remove_service(&key_of(object.as_ref())),
            Change::Synced => self.synced[1] = true,
        }
        self.publish(change);
    }

    fn slice(&mut self, change: &Change<EndpointSlice>) {
        match change {
            Change::Set(object) => self.zone().observe_slice(object),
            Change::Gone(object) => self.zone().remove_slice(&key_of(object.as_ref())),
            Change::Synced => self.synced[2] = true,
        }
        self.publish(change);
    }

    fn zone(&self) -> RwLockWriteGuard<'_, Zone> {
        self.zone.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish<K: Resource>(&self, change: &Change<K>) {
        let ready = self.synced == [true; 3];
        let revision = match change {
            Change::Set(object) | Change::Gone(object) => object.resource_version(),
            Change::Synced => None,
        };
        let revision = revision.and_then(|text| text.parse().ok()).unwrap_or(0);
        let was_ready = self.published.borrow().ready;
        if ready && !was_ready {
            self.zone().set_synced();
            info!("all names are known");
        }
        self.published.send_modify(|published| {
            published.ready = ready;
            published.revision = published.revision.max(revision);
        });
    }
}

fn seconds_since_1970() -> u32 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(elapsed.as_secs()).unwrap_or(u32::MAX)
}
