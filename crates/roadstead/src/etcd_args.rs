//! The flags about a store in etcd, by kube-apiserver's names.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use roadstead_etcd::client::Client;
use roadstead_etcd::member_url::MemberUrl;
use roadstead_etcd::tls::EtcdTls;
use roadstead_server::etcd_layout::KubernetesLayout;
use roadstead_store::kv::{EtcdOptions, Store};
use roadstead_store::retention::Limits;
use tracing::warn;

use crate::duration;

/// How long to wait at the start for an etcd that does not answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is younger is never forgotten: clients go on from there.
const LEAST: Duration = Duration::from_secs(60);
/// Leases of etcd have no parts of seconds.
const SHORTEST: Duration = Duration::from_secs(1);

/// Where an etcd is, and how to be let in.
#[derive(Clone, Debug, Parser)]
pub(crate) struct EtcdClientArgs {
    /// Keep objects in this etcd (version 3.4 or later) instead of the data directory. Any number of
    /// servers may use it; all need the same directory `pki` in their data directories.
    #[arg(long, value_name = "URL,…", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// The certificates of the authority that etcd's certificates are signed by.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    etcd_cafile: Option<PathBuf>,
    /// The certificate to show to etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    etcd_certfile: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    etcd_keyfile: Option<PathBuf>,
    /// Below which keys of etcd everything is.
    #[arg(long, value_name = "PREFIX", default_value = "/registry", requires = "etcd_servers")]
    pub(crate) etcd_prefix: String,
}

impl EtcdClientArgs {
    /// Whether there is one.
    pub(crate) fn is_given(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Its members, as they were given.
    pub(crate) fn servers(&self) -> String {
        self.etcd_servers.join(",")
    }

    /// Below which keys everything is.
    pub(crate) fn prefix(&self) -> String {
        format!("/{}", self.etcd_prefix.trim_matches('/'))
    }

    /// A client of it, which does not connect yet.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        if !self.is_given() {
            bail!("where is etcd? Such as --etcd-servers http://127.0.0.1:2379")
        }
        let endpoints: Result<Vec<_>, _> =
            self.etcd_servers.iter().map(|url| MemberUrl::parse(url)).collect();
        let endpoints = endpoints.map_err(anyhow::Error::msg).context("--etcd-servers")?;
        match endpoints.iter().find(|endpoint| endpoint.is_secure()) {
            Some(_) if self.etcd_cafile.is_none() => {
                bail!(
                    "--etcd-servers has https, so --etcd-cafile must say whose certificates to believe"
                )
            }
            _ => {}
        }
        if endpoints.iter().any(|endpoint| !endpoint.is_secure() && !endpoint.is_local()) {
            warn!(
                "everything, Secrets too, goes to etcd without encryption: --etcd-servers has http"
            );
        }
        let client = self.etcd_certfile.clone().zip(self.etcd_keyfile.clone());
        let files = EtcdTls { authority: self.etcd_cafile.clone(), client };
        Ok(Client::new(&endpoints, files.read()?))
    }
}

/// Objects in etcd, in front of which any number of servers may be.
#[derive(Clone, Debug, Parser)]
pub(crate) struct EtcdArgs {
    #[command(flatten)]
    client: EtcdClientArgs,
    /// How often etcd is told to forget what was overwritten one such time ago; 0: never.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = interval)]
    etcd_compaction_interval: Duration,
    /// How long Events stay in etcd after they were written. (In a data directory they stay for an hour, by
    /// the controller event-ttl.)
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration::parse)]
    event_ttl: Duration,
}

impl EtcdArgs {
    /// Whether there is one.
    pub(crate) fn is_given(&self) -> bool {
        self.client.is_given()
    }

    /// Where it is, and how to be let in.
    pub(crate) fn connection(&self) -> &EtcdClientArgs {
        &self.client
    }

    /// Loads everything from it.
    pub(crate) async fn open(&self) -> anyhow::Result<Arc<Store>> {
        let compaction = match self.etcd_compaction_interval {
            Duration::ZERO => None,
            often if often < LEAST => bail!("--etcd-compaction-interval must be 0 or at least 1m"),
            every => Some(every),
        };
        if self.event_ttl < SHORTEST {
            bail!("--event-ttl must be at least 1s");
        }
        let layout = KubernetesLayout::new(&self.client.etcd_prefix);
        let layout = Arc::new(layout.with_event_ttl(self.event_ttl));
        let options = EtcdOptions { history: Limits::default(), patience: PATIENCE, compaction };
        Ok(Store::etcd(self.client.client()?, layout, options).await?)
    }
}

/// Reads a time, which may be none.
fn interval(text: &str) -> Result<Duration, String> {
    match text {
        "0" | "0s" => Ok(Duration::ZERO),
        other => duration::parse(other),
    }
}
