//! Leader election by Lease: of several instances one works and the others wait.
//!
//! A holder renews its Lease; whoever sees it unrenewed for its whole duration (by its own clock,
//! so that clocks need not agree) takes it over. A holder that cannot renew in time stops.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use roadstead_component::lease::LeaseContent;
use tokio::time::{self, Instant};
use tracing::{debug, info, warn};

/// How an election is held.
#[derive(Clone, Debug)]
pub struct Election {
    /// Where the Lease is.
    pub namespace: String,
    /// What it is called.
    pub name: String,
    /// Who we are; no two instances may have the same.
    pub identity: String,
    /// How long a Lease is good for.
    pub duration: Duration,
    /// A holder that has not renewed for this long gives up.
    pub deadline: Duration,
    /// How often a holder renews and the others look.
    pub period: Duration,
}

impl Election {
    /// The election of the controllers, with upstream's periods.
    pub fn new(identity: String) -> Self {
        Self {
            namespace: "kube-system".into(),
            name: "roadstead-controllers".into(),
            identity,
            duration: Duration::from_secs(15),
            deadline: Duration::from_secs(10),
            period: Duration::from_secs(2),
        }
    }

    /// Waits until we lead.
    pub async fn win(&self, client: &Client) {
        let mut seen = None;
        loop {
            match self.attempt(client, &mut seen).await {
                Ok(true) => {
                    info!(lease = self.name, identity = self.identity, "leading");
                    return;
                }
                Ok(false) => debug!(lease = self.name, "somebody else leads"),
                Err(error) => warn!(lease = self.name, %error, "cannot ask for the lease"),
            }
            time::sleep(self.period).await;
        }
    }

    /// Keeps the Lease; returns when it is lost.
    pub async fn hold(&self, client: &Client) {
        let mut renewed = Instant::now();
        while renewed.elapsed() < self.deadline {
            time::sleep(self.period).await;
            let mut seen = None;
            match time::timeout(self.deadline, self.attempt(client, &mut seen)).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => break,
                Ok(Err(error)) => warn!(lease = self.name, %error, "cannot renew the lease"),
                Err(_) => warn!(lease = self.name, "renewing the lease takes too long"),
            }
        }
        warn!(lease = self.name, "no longer leading");
    }

    /// Gives the Lease back, so that another need not wait for it.
    pub async fn resign(&self, client: &Client) {
        let api: Api<Lease> = Api::namespaced(client.clone(), &self.namespace);
        let Ok(Some(mut lease)) = api.get_opt(&self.name).await else { return };
        if holder(&lease) == Some(&self.identity)
            && let Some(spec) = &mut lease.spec
        {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            if let Err(error) = api.replace(&self.name, &PostParams::default(), &lease).await {
                debug!(%error, "lease not given back");
            }
        }
    }

    /// Takes or renews the Lease if it is ours to take; says whether it is ours.
    async fn attempt(
        &self,
        client: &Client,
        seen: &mut Option<(LeaseSpec, Instant)>,
    ) -> Result<bool, kube::Error> {
        let api: Api<Lease> = Api::namespaced(client.clone(), &self.namespace);
        let now = MicroTime(Timestamp::now());
        let Some(mut lease) = api.get_opt(&self.name).await? else {
            let mut lease = Lease { spec: Some(self.spec(None, &now)), ..Default::default() };
            lease.metadata.name = Some(self.name.clone());
            return won(api.create(&PostParams::default(), &lease).await);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let is_free = holder(&lease).is_none_or(String::is_empty);
        if holder(&lease) != Some(&self.identity) && !is_free {
            let since = match seen {
                Some((known, since)) if *known == spec => *since,
                _ => seen.insert((spec.clone(), Instant::now())).1,
            };
            let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
            if since.elapsed() < Duration::from_secs(seconds) {
                return Ok(false);
            }
        }
        lease.spec = Some(self.spec(Some(&spec), &now));
        won(api.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn spec(&self, before: Option<&LeaseSpec>, now: &MicroTime) -> LeaseSpec {
        let was_ours = before.and_then(|b| b.holder_identity.as_ref()) == Some(&self.identity);
        let acquired = before.filter(|_| was_ours).and_then(|before| before.acquire_time.clone());
        let changes = before.and_then(|before| before.lease_transitions).unwrap_or(0);
        let (holder, duration) = (self.identity.clone(), self.duration);
        let content = LeaseContent { holder, duration, ..LeaseContent::default() };
        LeaseSpec {
            acquire_time: acquired.or_else(|| Some(now.clone())),
            lease_transitions: Some(changes + i32::from(before.is_some() && !was_ours)),
            ..content.spec(now.0)
        }
    }
}

fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref()
}

/// Somebody who was faster is no error.
fn won(result: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
