//! The API servers of a cluster, as their clients see them: whoever asks is served by any of them, and goes on at
//! another one when one fails, is silent or stops. It is one service below `kube::Client`, so that no component
//! knows that there are several.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use http::uri::{Scheme, Uri};
use kube::client::retry::RetryPolicy;
use kube::client::{ClientBuilder, ConfigExt};
use kube::{Client, Config};
use tower::retry::RetryLayer;

use archive::Archive;
use balancer::Balancer;
use known::Servers;
use link::Tls;

pub(crate) mod archive;
mod balancer;
mod choice;
mod journal;
pub(crate) mod known;
mod link;

/// An API server: `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Server {
    host: String,
    port: u16,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no server such as https://192.0.2.1:6443");
        let uri: Uri = text.trim().parse().map_err(|_| wrong())?;
        let is_plain = uri.path() == "/" && uri.query().is_none();
        let host = uri.host().filter(|_| uri.scheme() == Some(&Scheme::HTTPS) && is_plain);
        let host = host.ok_or_else(wrong)?.trim_start_matches('[').trim_end_matches(']');
        Ok(Self { host: host.to_owned(), port: uri.port_u16().unwrap_or(443) })
    }
}

impl Server {
    /// The server at an address.
    pub(crate) fn at(host: &str, port: u16) -> Self {
        Self { host: host.to_owned(), port }
    }

    /// A list of them, as in `--server`.
    pub(crate) fn list(text: &str) -> Result<Vec<Self>, String> {
        text.split(',').filter(|one| !one.trim().is_empty()).map(str::parse).collect()
    }

    fn host(&self) -> &str {
        &self.host
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn authority(&self) -> String {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        if self.port == 443 { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.authority())
    }
}

/// A client that asks any of the servers, with what a configuration says about identity and trust. What the
/// archive keeps is what it gets when there is no server.
pub(crate) fn client(
    config: &Config,
    servers: &Arc<Servers>,
    archive: Option<Arc<Archive>>,
) -> anyhow::Result<Client> {
    // If there is one already it is the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut tls = config.rustls_client_config().context("cannot use these certificates")?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let tls = Tls { config: Arc::new(tls), name: config.tls_server_name.clone() };
    let balancer = Balancer::new(servers.clone(), tls, archive);
    let builder = ClientBuilder::new(balancer, config.default_namespace.clone());
    // Whoever is told when to ask again, does so.
    let builder = builder.with_layer(&RetryLayer::new(RetryPolicy::server_retry()));
    let builder = builder.with_layer(&config.extra_headers_layer()?);
    Ok(match config.auth_layer()? {
        Some(identity) => builder.with_layer(&identity).build(),
        None => builder.build(),
    })
}

/// Other servers than the one that a configuration names.
#[derive(Clone, Debug, Default, clap::Parser)]
pub(crate) struct ServerArgs {
    /// API servers to ask besides the one of the kubeconfig: https://HOST:PORT. Those to which the Service kubernetes
    /// leads are found without it.
    #[arg(long = "server", value_name = "URL,…", value_delimiter = ',')]
    pub(crate) servers: Vec<Server>,
}

/// A client for a cluster that somebody else has described: it asks the server that is named there, and all others
/// that there are.
pub(crate) fn connect(config: Config, more: &ServerArgs) -> anyhow::Result<Client> {
    let named: Result<Server, _> = config.cluster_url.to_string().parse();
    // What stands between us and the servers may be more than an address.
    let is_plain = config.proxy_url.is_none() && config.auth_info.exec.is_none();
    let Some(named) = named.ok().filter(|_| is_plain) else {
        return Ok(Client::try_from(config)?);
    };
    let servers = Servers::given([&[named], &*more.servers].concat());
    let client = client(&config, &servers, None)?;
    tokio::spawn(servers.follow(client.clone()));
    Ok(client)
}

#[test]
fn names_of_servers() {
    for (text, want) in [
        ("https://192.0.2.1:6443", "https://192.0.2.1:6443"),
        ("https://server.example/", "https://server.example"),
        ("https://[fd00::1]:6443", "https://[fd00::1]:6443"),
        (" https://a:1, https://b:2", "https://a:1 https://b:2"),
        ("", ""),
        ("http://a", "!"),
        ("https://a/path", "!"),
        ("a:6443", "!"),
    ] {
        let found = Server::list(text)
            .map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        assert_eq!(found.unwrap_or_else(|_| "!".into()), want, "{text}");
    }
}
