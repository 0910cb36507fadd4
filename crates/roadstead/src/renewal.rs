//! Certificates that renew themselves: the server's own and that in the administrator's kubeconfig,
//! at every start and, while it runs, when two thirds of their time have passed. Keys of tokens that
//! somebody has changed are taken in.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::Parser;
use roadstead_node::serving::secure::SecurePort;
use roadstead_server::api::Api;
use roadstead_server::identity::authority::Authority;
use roadstead_server::identity::secret_file::write_secret;
use roadstead_server::transport::serving_certificate::ServingCertificate;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::duration;

/// How often the clock and the keys are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How long certificates are valid.
#[derive(Clone, Copy, Debug, Parser)]
pub(crate) struct CertificateArgs {
    /// How long the certificates of the server and in the admin's kubeconfig are valid. They are
    /// renewed at every start, and when two thirds of that time have passed.
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = duration::parse)]
    certificate_duration: Duration,
}

impl CertificateArgs {
    /// An authority that signs for that time.
    pub(crate) fn limit(self, authority: Authority) -> Arc<Authority> {
        Arc::new(authority.valid_for(self.certificate_duration))
    }
}

/// The kubeconfig of an administrator.
#[derive(Clone, Debug)]
pub(crate) struct AdminConfig {
    /// The file.
    pub path: PathBuf,
    /// Where the server is.
    pub url: String,
}

impl AdminConfig {
    /// Writes it with a new certificate.
    pub(crate) fn write(&self, authority: &Authority) -> anyhow::Result<()> {
        let admin = authority.client("roadstead-admin", "system:masters")?;
        let text = authority.kubeconfig(&self.url, &admin);
        write_secret(&self.path, &text)
            .with_context(|| format!("cannot write the kubeconfig {}", self.path.display()))
    }
}

/// What the agent of this machine shows.
pub(crate) struct AgentCertificate {
    authority: Arc<Authority>,
    node: String,
    names: Vec<String>,
    serving: Arc<ServingCertificate>,
}

impl AgentCertificate {
    /// For an agent that is reached under these names and addresses.
    pub(crate) fn new(
        authority: Arc<Authority>,
        node: &str,
        names: Vec<String>,
    ) -> anyhow::Result<Self> {
        let serving = ServingCertificate::new(&authority.agent(node, names.clone())?)?;
        Ok(Self { authority, node: node.to_owned(), names, serving: Arc::new(serving) })
    }

    /// A port that shows it, and believes the cluster's certificates.
    pub(crate) fn port(&self, listen: SocketAddr) -> anyhow::Result<SecurePort> {
        Ok(SecurePort { listen, tls: self.authority.tls_with(self.serving.clone())? })
    }

    /// Renews it until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let lifetime = self.authority.lifetime();
        let mut made = SystemTime::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = time::sleep(LOOK_EVERY.min(lifetime / 10)) => {}
            }
            if made.elapsed().unwrap_or(lifetime) < lifetime * 2 / 3 {
                continue;
            }
            let fresh = self.authority.agent(&self.node, self.names.clone());
            match fresh.and_then(|fresh| self.serving.replace(&fresh)) {
                Ok(()) => made = SystemTime::now(),
                Err(error) => warn!(%error, "the agent's certificate is not renewed"),
            }
        }
    }
}

/// What is renewed.
pub(crate) struct Renewal {
    pub api: Arc<Api>,
    pub authority: Arc<Authority>,
    pub serving: Arc<ServingCertificate>,
    /// The names in the server's certificate.
    pub names: Vec<String>,
    pub admin: AdminConfig,
}

impl Renewal {
    /// Renews until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let lifetime = self.authority.lifetime();
        let pause = LOOK_EVERY.min(lifetime / 10);
        let mut made = SystemTime::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = time::sleep(pause) => {}
            }
            match self.api.reload_keys() {
                Ok(true) => info!("service-account tokens are signed with another key"),
                Ok(false) => {}
                Err(error) => warn!(%error, "the keys of service-account tokens are as before"),
            }
            // By the clock on the wall: a machine that slept has not waited.
            let age = made.elapsed().unwrap_or(lifetime);
            if age < lifetime * 2 / 3 {
                continue;
            }
            match self.renew() {
                Ok(()) => {
                    made = SystemTime::now();
                    info!(kubeconfig = %self.admin.path.display(), "certificates renewed");
                }
                Err(error) => warn!("certificates not renewed: {error:#}"),
            }
        }
    }

    fn renew(&self) -> anyhow::Result<()> {
        self.serving.replace(&self.authority.server(self.names.clone())?)?;
        self.admin.write(&self.authority)
    }
}
