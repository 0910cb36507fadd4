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

/// Objects in etcd, in front of which any number of servers may be.
#[derive(Clone, Debug, Parser)]
pub(crate) struct EtcdArgs {
    /// Keep objects in this etcd (version 3.4 or later) instead of the data directory. Any number of
    /// servers may use it; all need the same directory `pki` in their data directories.
    #[arg(long, value_name = "URL,…", value_delimiter = ',', conflicts_with = "ephemeral")]
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
    etcd_prefix: String,
    /// How often etcd is told to forget what was overwritten one such time ago; 0: never.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration::parse)]
    etcd_compaction_interval: Duration,
}

impl EtcdArgs {
    /// Whether there is one.
    pub(crate) fn is_given(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// Loads everything from it.
    pub(crate) async fn open(&self) -> anyhow::Result<Arc<Store>> {
        let compaction = match self.etcd_compaction_interval {
            Duration::ZERO => None,
            often if often < LEAST => bail!("--etcd-compaction-interval must be 0 or at least 1m"),
            every => Some(every),
        };
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
        let client = Client::new(&endpoints, files.read()?);
        let layout = Arc::new(KubernetesLayout::new(&self.etcd_prefix));
        let options = EtcdOptions { history: Limits::default(), patience: PATIENCE, compaction };
        Ok(Store::etcd(client, layout, options).await?)
    }
}
