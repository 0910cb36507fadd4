//! List-and-watch of every kind that the server has, metadata only.
//!
//! Which kinds there are is looked up again when a definition changes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures::stream::{self, AbortHandle, BoxStream, SelectAll, StreamExt};
use kube::api::DynamicObject;
use kube::core::PartialObjectMeta;
use kube::discovery::verbs;
use kube::{Api, Client};
use tokio::time::{self, Instant};
use tracing::warn;

use crate::discovery::{DiscoveredKind, discover};
use crate::informer::{Change, Selection};
use crate::keys_only::keys_only;

/// How long after a definition has changed we look which kinds there are: they come in groups, and
/// a server may need a moment.
const DISCOVERY_DELAY: Duration = Duration::from_secs(1);
/// How soon we look again if that failed.
const DISCOVERY_RETRY: Duration = Duration::from_secs(5);

/// An object of which only the metadata is read.
pub type Metadata = PartialObjectMeta<DynamicObject>;

/// What happened to all kinds together.
#[allow(clippy::large_enum_variant, reason = "nearly all of them are the large one")]
pub enum KindChange {
    /// A kind is followed from now on, under this number.
    Added(usize, DiscoveredKind),
    /// A kind is gone, and nothing more is told of its objects.
    Removed(usize),
    /// Something happened to the objects of a kind.
    Objects(usize, Change<Metadata>),
}

/// Follows every kind that can be listed, watched and deleted. Events are left out: they are too
/// many, and go by themselves.
pub fn every_kind(client: Client) -> BoxStream<'static, KindChange> {
    let all = EveryKind {
        client,
        kinds: BTreeMap::new(),
        next: 0,
        discover_at: Some(Instant::now()),
        objects: SelectAll::new(),
        untold: VecDeque::new(),
    };
    stream::unfold(all, |mut all| async move { Some((all.next().await, all)) }).boxed()
}

struct EveryKind {
    client: Client,
    /// By the order in which we learnt of them.
    kinds: BTreeMap<usize, FollowedKind>,
    next: usize,
    discover_at: Option<Instant>,
    objects: SelectAll<BoxStream<'static, (usize, Change<Metadata>)>>,
    untold: VecDeque<KindChange>,
}

struct FollowedKind {
    kind: DiscoveredKind,
    synced: bool,
    stop: AbortHandle,
}

impl EveryKind {
    async fn next(&mut self) -> KindChange {
        loop {
            if let Some(change) = self.untold.pop_front() {
                return change;
            }
            tokio::select! {
                biased;
                Some((number, change)) = self.objects.next(), if !self.objects.is_empty() => {
                    if self.is_told(number, &change) {
                        return KindChange::Objects(number, change);
                    }
                }
                () = time::sleep_until(self.discover_at.unwrap_or_else(Instant::now)),
                    if self.discover_at.is_some() => self.discover().await,
            }
        }
    }

    /// Not what was on its way when we stopped to follow a kind.
    fn is_told(&mut self, number: usize, change: &Change<Metadata>) -> bool {
        let Some(followed) = self.kinds.get_mut(&number) else { return false };
        followed.synced |= matches!(change, Change::Synced);
        if followed.synced && followed.kind.resource.plural == "customresourcedefinitions" {
            self.discover_at = Some(Instant::now() + DISCOVERY_DELAY);
        }
        true
    }

    async fn discover(&mut self) {
        match discover(&self.client, &[verbs::LIST, verbs::WATCH, verbs::DELETE]).await {
            Ok(mut found) => {
                found.retain(|kind| kind.resource.plural != "events");
                self.discover_at = None;
                self.follow(found);
            }
            Err(error) => {
                warn!(%error, "cannot find out which kinds there are");
                self.discover_at = Some(Instant::now() + DISCOVERY_RETRY);
            }
        }
    }

    /// Follows these kinds and no others.
    fn follow(&mut self, found: Vec<DiscoveredKind>) {
        let gone = self.kinds.extract_if(.., |_, followed| !found.contains(&followed.kind));
        for (number, followed) in gone {
            followed.stop.abort();
            self.untold.push_back(KindChange::Removed(number));
        }
        for kind in found {
            if self.kinds.values().any(|followed| followed.kind == kind) {
                continue;
            }
            let number = self.next;
            self.next += 1;
            let api: Api<Metadata> = Api::all_with(self.client.clone(), &kind.resource);
            let changes = keys_only(api, Selection::all()).map(move |change| (number, change));
            let (changes, stop) = stream::abortable(changes);
            self.objects.push(changes.boxed());
            self.untold.push_back(KindChange::Added(number, kind.clone()));
            self.kinds.insert(number, FollowedKind { kind, synced: false, stop });
        }
    }
}
