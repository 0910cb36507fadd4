//! The volumes of a pod: made before its sandbox, and kept up to date with the objects that their files
//! come from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use roadstead_pod::facts::Sandbox;
use roadstead_pod::image::ImageFacts;
use roadstead_pod::lifecycle::Presence;
use roadstead_pod::sources::{SourceName, Sources, of_volumes};
use roadstead_pod::volumes::claimed::{self, ClaimedVolume, VolumeGrants};
use roadstead_pod::volumes::payload::{Payload, PayloadContext, TokenOrder, payload, tokens};
use roadstead_pod::volumes::{PodVolume, mount_failure, pod_volumes};
use tokio::sync::watch;
use tokio::time::{self, Instant};
use tracing::warn;

use super::Worker;
use super::containers::node_facts;
use crate::objects::{Seen, WatchedObject};
use crate::pod_api;

/// The API server has this long to say whether an object exists.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// A token is renewed at the latest after this time.
const OLD: Duration = Duration::from_secs(24 * 3600);
/// After a token was refused.
const SOON: Duration = Duration::from_secs(1);
/// After a failure to renew a token or to write files.
const RETRY: Duration = Duration::from_secs(5);

/// What the files of a pod's volumes come from.
#[derive(Default)]
pub(super) struct PodVolumes {
    objects: BTreeMap<SourceName, Arc<WatchedObject>>,
    changes: FuturesUnordered<BoxFuture<'static, watch::Receiver<Seen>>>,
    tokens: BTreeMap<TokenOrder, Token>,
    /// What the pod's claims stand for; they do not change while it runs.
    pub(super) claims: BTreeMap<String, ClaimedVolume>,
    /// The images that are volumes, by the name of the volume, once they are here; the same for all of the
    /// pod's life.
    pub(super) images: BTreeMap<String, ImageFacts>,
    /// Which image did not come, by the container that waits for it.
    pub(super) refused_images: BTreeMap<String, String>,
    /// Something has changed since the files were written.
    pub(super) changed: bool,
    retry_at: Option<Instant>,
}

struct Token {
    text: String,
    renew_at: Instant,
}

impl PodVolumes {
    /// Waits until an object changes.
    pub(super) async fn next_change(&mut self) {
        let Some(receiver) = self.changes.next().await else {
            return std::future::pending().await;
        };
        self.listen(receiver);
        self.changed = true;
    }

    /// When there is something to do although nothing changes.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        self.tokens.values().map(|token| token.renew_at).chain(self.retry_at).min()
    }

    fn is_due(&self) -> bool {
        self.changed || self.wake_at().is_some_and(|at| at <= Instant::now())
    }

    fn listen(&mut self, mut receiver: watch::Receiver<Seen>) {
        self.changes.push(Box::pin(async move {
            if receiver.changed().await.is_err() {
                return std::future::pending().await;
            }
            receiver
        }));
    }

    fn sources(&self) -> Sources {
        let mut sources = Sources::default();
        for (name, object) in &self.objects {
            match (name, object.subscribe().borrow().clone()) {
                (SourceName::ConfigMap(name), Seen::ConfigMap(map)) => {
                    sources.config_maps.insert(name.clone(), map.as_ref().clone());
                }
                (SourceName::Secret(name), Seen::Secret(secret)) => {
                    sources.secrets.insert(name.clone(), secret.as_ref().clone());
                }
                _ => {}
            }
        }
        sources
    }
}

impl Worker {
    /// Makes all volumes; the error says, in the words of an event, which of them cannot be had.
    pub(super) async fn prepare_volumes(&mut self) -> Result<(), String> {
        self.volumes.changed = false;
        self.volumes.retry_at = None;
        let node = node_facts(&self.context);
        self.find_claims().await.map_err(|(volume, why)| mount_failure(&volume, &why))?;
        let grants = VolumeGrants {
            policy: node.policy,
            claims: &self.volumes.claims,
            images: &self.volumes.images,
        };
        let mut wanted = Vec::new();
        for volume in pod_volumes(&self.pod, grants) {
            wanted.push(volume?);
        }
        self.watch_objects().await;
        self.fetch_tokens().await.map_err(|(volume, why)| mount_failure(&volume, &why))?;
        let sources = self.volumes.sources();
        let around = node.downward_facts(self.facts.addresses);
        let texts = self.volumes.tokens.iter();
        let texts = texts.map(|(order, token)| (order.clone(), token.text.clone())).collect();
        let pod = self.pod.clone();
        let context =
            PayloadContext { pod: &pod, sources: &sources, tokens: &texts, around: &around };
        for volume in wanted {
            self.prepare_volume(volume, &context).await?;
        }
        Ok(())
    }

    async fn prepare_volume(
        &mut self,
        volume: PodVolume,
        context: &PayloadContext<'_>,
    ) -> Result<(), String> {
        let name = volume.name.clone();
        let spec = self.pod.spec.iter();
        let mut described = spec.flat_map(|spec| spec.volumes.iter().flatten());
        let described = described.find(|described| described.name == name);
        let files = described.and_then(|described| payload(described, context));
        let files: Option<Payload> = files.transpose().map_err(|why| mount_failure(&name, &why))?;
        let containers = &self.context.runtime.containers;
        let prepared = containers.prepare_volume(&self.name, volume, files).await;
        prepared.map_err(|why| mount_failure(&name, &why))
    }

    /// Brings files up to date after a change, or tries again what failed for want of an object.
    pub(super) async fn follow_volumes(&mut self) {
        if self.presence == Presence::Gone || !self.volumes.is_due() {
            return;
        }
        match &mut self.facts.sandbox {
            Sandbox::Ready => {
                if let Err(message) = self.prepare_volumes().await {
                    // The containers go on with the files that they have.
                    warn!(pod = %self.title(), message, "cannot update a volume, will retry");
                    self.context.events.warning(&self.pod, None, "FailedMount", message);
                    self.volumes.retry_at = Some(Instant::now() + RETRY);
                    let renew = self.volumes.tokens.values_mut();
                    renew.for_each(|token| {
                        token.renew_at = token.renew_at.max(Instant::now() + RETRY)
                    });
                }
            }
            Sandbox::Failed { retry_at, .. } => {
                self.volumes.changed = false;
                *retry_at = Timestamp::now();
            }
            Sandbox::None | Sandbox::Removed => self.volumes = PodVolumes::default(),
        }
    }

    /// Asks what the pod's claims stand for; the error says which volume goes without.
    async fn find_claims(&mut self) -> Result<(), (String, String)> {
        for name in claimed::names(&self.pod) {
            if self.volumes.claims.contains_key(&name) {
                continue;
            }
            let (client, namespace) = (&self.context.client, &self.name.namespace);
            let found = pod_api::claimed(client, namespace, &name).await;
            let found = found.map_err(|why| (claim_volume(&self.pod, &name), why))?;
            self.volumes.claims.insert(name, found);
        }
        Ok(())
    }

    /// Follows the objects that the pod's volumes name, and no others.
    async fn watch_objects(&mut self) {
        let wanted = of_volumes(&self.pod);
        self.volumes.objects.retain(|name, _| wanted.contains(name));
        for name in wanted {
            if self.volumes.objects.contains_key(&name) {
                continue;
            }
            let object = self.context.objects.watch(&self.name.namespace, &name);
            let mut receiver = object.subscribe();
            let known = receiver.wait_for(|seen| !matches!(seen, Seen::Unknown));
            if time::timeout(FIRST_ANSWER, known).await.is_err() {
                warn!(pod = %self.title(), object = ?name, "nobody says whether it exists");
            }
            receiver.mark_unchanged();
            self.volumes.listen(receiver);
            self.volumes.objects.insert(name, object);
        }
    }

    /// Asks for tokens that are missing or old; the error says which volume goes without.
    async fn fetch_tokens(&mut self) -> Result<(), (String, String)> {
        let wanted = tokens(&self.pod);
        self.volumes.tokens.retain(|order, _| wanted.contains(order));
        for order in wanted {
            let known = self.volumes.tokens.get(&order);
            if known.is_some_and(|token| token.renew_at > Instant::now()) {
                continue;
            }
            let asked = pod_api::token(&self.context.client, &self.pod, &order).await;
            if asked.is_err() {
                // In a new namespace the account may come a moment later.
                self.volumes.retry_at = Some(Instant::now() + SOON);
            }
            let (text, life) = asked.map_err(|why| {
                (token_volume(&self.pod), format!("failed to fetch token: {why}"))
            })?;
            let renew_at = Instant::now() + (life * 4 / 5).min(OLD);
            self.volumes.tokens.insert(order, Token { text, renew_at });
        }
        Ok(())
    }
}

/// The volume that is a claim.
fn claim_volume(pod: &Pod, claim: &str) -> String {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let found = volumes.find(|volume| {
        volume.persistent_volume_claim.as_ref().is_some_and(|own| own.claim_name == claim)
    });
    found.map(|volume| volume.name.clone()).unwrap_or_default()
}

/// The first volume with a token in it.
fn token_volume(pod: &Pod) -> String {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let found = volumes.find(|volume| {
        let parts = volume.projected.iter().flat_map(|all| all.sources.iter().flatten());
        parts.into_iter().any(|part| part.service_account_token.is_some())
    });
    found.map(|volume| volume.name.clone()).unwrap_or_default()
}
