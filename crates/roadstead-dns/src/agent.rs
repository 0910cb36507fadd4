//! The agent: puts the parts together.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;
use roadstead_api::resolv::ClusterDns;
use roadstead_component::component::Component;
use roadstead_component::pages::{self, Page};
use roadstead_dns_core::corefile::CorefileError;
use roadstead_dns_core::rate_limit::{RateLimits, USUAL_RATE};
use roadstead_zone::settings::Lifetimes;
use roadstead_zone::zone::Keeper;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::chance;
use crate::clients::{self, ClientNode};
use crate::configuration::{self, Configuration};
use crate::metrics::{Gauges, Metrics};
use crate::programmed;
use crate::publish::Published;
use crate::resolve::Resolver;
use crate::server::{DnsServer, listen_for_pages};
use crate::zone_updater::{ZoneUpdater, seconds_since_1970};

/// What the server needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen, on UDP and TCP alike.
    pub listen: Vec<SocketAddr>,
    /// How many threads answer over UDP; `None` is one per processor.
    pub threads: Option<usize>,
    /// What strangers get over UDP, and who is none.
    pub limits: RateLimits,
    /// The cluster's zone.
    pub zone: ZoneConfig,
    /// Whom to ask about other names. With nobody to ask, such questions are refused.
    pub upstreams: UpstreamSource,
    /// A configuration in CoreDNS' language, which replaces the zone and the upstreams above.
    pub corefile: Option<CorefileSource>,
    /// Whether to answer as CoreDNS does where that differs from the RFCs.
    pub coredns_compat: bool,
    /// The name of the Lease in kube-system that says which revision is being answered from.
    pub lease: Option<String>,
    /// Where to say that the server lives, that it is ready, and what it counted.
    pub pages: Pages,
    /// Whether to go on answering for a while when told to stop, if the Corefile says so.
    pub lingers: bool,
    /// The node whose pods get their searches completed: the one whose pods ask this server. The
    /// first of the zone's servers must be the name server in their resolv.conf.
    pub complete_searches_of: Option<ClientNode>,
}

/// The cluster's zone, as far as no Corefile describes it.
#[derive(Clone, Debug)]
pub struct ZoneConfig {
    /// What all names of the cluster end in.
    pub domain: String,
    /// How long clients may remember answers. With a Corefile, whose only number counts for all, these
    /// are bounds for all but ClusterIPs.
    pub lifetimes: Lifetimes,
    /// The addresses under which clients know this server, for the zone's NS record.
    pub servers: Vec<IpAddr>,
    /// Whether the endpoints in a zone have names of their own.
    pub zonal: bool,
}

impl Default for ZoneConfig {
    fn default() -> Self {
        Self {
            domain: "cluster.local".into(),
            lifetimes: Lifetimes::default(),
            servers: Vec::new(),
            zonal: false,
        }
    }
}

/// Where it is said whom to ask about names that are not ours.
#[derive(Clone, Debug, Default)]
pub struct UpstreamSource {
    /// The servers.
    pub addresses: Vec<SocketAddr>,
    /// Where to find them if none are given, in the form of resolv.conf. The file is followed.
    pub resolv_conf: Option<PathBuf>,
}

/// What others may want to know of the server while it runs; subscribe before that.
#[derive(Clone, Debug, Default)]
pub struct Outputs {
    /// What is being answered from.
    pub programmed: watch::Sender<Programmed>,
    /// The newest resource version among the Services taken in.
    pub services: watch::Sender<u64>,
    /// What the pages show.
    pub component: Component,
}

/// Where a configuration is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorefileSource {
    /// In a file.
    File(PathBuf),
    /// Under the key `Corefile` of a ConfigMap, by namespace and name. While there is none, the
    /// other settings hold.
    ConfigMap(String, String),
}

/// The little pages beside the server; a Corefile may choose other places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// `/health`.
    pub health: Option<SocketAddr>,
    /// `/ready`.
    pub ready: Option<SocketAddr>,
    /// `/metrics`.
    pub metrics: Option<SocketAddr>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            threads: None,
            limits: RateLimits { rate: USUAL_RATE, friends: Vec::new() },
            zone: ZoneConfig::default(),
            upstreams: UpstreamSource::default(),
            corefile: None,
            coredns_compat: false,
            lease: None,
            pages: Pages::default(),
            lingers: false,
            complete_searches_of: None,
        }
    }
}

/// What is being answered from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Programmed {
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
    /// Something ended that should not.
    #[error("cannot go on answering")]
    Serving(#[source] io::Error),
    /// The configuration cannot be read.
    #[error("cannot read {path}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The configuration is gone.
    #[error("the Corefile is gone")]
    Missing,
    /// The configuration makes no sense.
    #[error("the Corefile is refused: {0}")]
    Corefile(CorefileError),
}

impl From<CorefileError> for DnsError {
    fn from(error: CorefileError) -> Self {
        Self::Corefile(error)
    }
}

/// The server, ready to run.
#[derive(Clone)]
pub struct DnsAgent {
    /// The cluster to follow.
    pub client: Client,
    /// What it needs to know.
    pub config: Config,
    /// What it tells others.
    pub outputs: Outputs,
}

impl DnsAgent {
    /// Answers until `stop`, from a zone that follows the cluster.
    pub async fn run(self, stop: CancellationToken) -> Result<(), DnsError> {
        let server = self.bind()?;
        self.serve(server, stop).await
    }

    /// Binds the sockets, and serves nobody yet.
    pub fn bind(&self) -> Result<DnsServer, DnsError> {
        let server = match self.config.threads {
            None => DnsServer::bind(&self.config.listen),
            Some(threads) => DnsServer::bind_with(&self.config.listen, threads),
        };
        server.map_err(|source| self.cannot_listen(source))
    }

    /// Whether a text would do as the configuration.
    pub fn check(&self, corefile: &str) -> Result<(), DnsError> {
        configuration::check(corefile, &self.config)
    }

    fn cannot_listen(&self, source: io::Error) -> DnsError {
        DnsError::Listen { listen: self.config.listen.clone(), source }
    }

    /// Like [`Self::run`], with sockets that are bound already.
    pub async fn serve(self, server: DnsServer, stop: CancellationToken) -> Result<(), DnsError> {
        let Self { client, config, outputs } = &self;
        let (Configuration { zone_source, setup, pages, .. }, reading) =
            configuration::begin(config)?;
        let pages = Pages {
            health: config.pages.health.or(pages.health),
            ready: config.pages.ready.or(pages.ready),
            metrics: config.pages.metrics.or(pages.metrics),
        };
        let settings = zone_source.settings.clone();
        let zone = Keeper::new(settings, seconds_since_1970(), chance::seed()).snapshot();
        let zone = Published::new(zone);
        let resolver = Resolver::new(zone.clone(), setup);
        let metrics = Arc::new(Metrics::default());
        let (sender, receiver) = watch::channel(zone_source);
        let updater = ZoneUpdater {
            client: client.clone(),
            zone,
            outputs: outputs.clone(),
            metrics: metrics.clone(),
            zone_source: receiver,
        };
        let programmed = || outputs.programmed.subscribe();
        let shown = Arc::new(Shown {
            resolver: resolver.clone(),
            metrics: metrics.clone(),
            stop: stop.clone(),
            programmed: programmed(),
        });
        let (state, mut first) = (shown.clone(), programmed());
        outputs.component.state.register("dns", move || state.state());
        let guard = outputs.component.readiness.register("dns");
        let ready = async {
            if first.wait_for(|programmed| programmed.ready).await.is_ok() {
                drop(guard);
            }
            std::future::pending().await
        };
        let pages = shown.bind(pages, &outputs.component).await;
        let pages = pages.map_err(|source| self.cannot_listen(source))?;
        let lease = async {
            match &config.lease {
                Some(name) => programmed::run(client.clone(), name.clone(), programmed()).await,
                None => std::future::pending().await,
            }
        };
        let searches = follow_clients(client, config, &resolver);
        let configuration = configuration::follow(client, config, reading, (&sender, &resolver));
        let over = CancellationToken::new();
        let serving = async {
            if server.waits_until_ready {
                let mut programmed = programmed();
                tokio::select! {
                    _ = programmed.wait_for(|programmed| programmed.ready) => {}
                    () = over.cancelled() => {}
                }
            }
            server.serve(resolver.clone(), &metrics, &config.limits, over.clone()).await
        };
        let leaving = leave(config, &resolver, &stop, &over);
        tokio::select! {
            result = serving => result.map_err(DnsError::Serving)?,
            () = updater.run() => {}
            () = configuration => {}
            () = lease => {}
            () = searches => {}
            () = pages => {}
            () = ready => {}
            () = leaving => {}
        }
        Ok(())
    }
}

/// Ends the answering when told to stop: at once, or after the time in which others learn that this
/// server is not ready any more (`lameduck`).
async fn leave(
    config: &Config,
    resolver: &Resolver,
    stop: &CancellationToken,
    over: &CancellationToken,
) {
    stop.cancelled().await;
    let rest = resolver.setup.get().setup.lame_duck;
    if config.lingers && !rest.is_zero() {
        info!(seconds = rest.as_secs_f32(), "stopping: answers go on for a while");
        time::sleep(rest).await;
    }
    over.cancel();
    // Serving ends by itself now, and with it everything else.
    std::future::pending().await
}

/// Follows the pods whose searches are completed, for ever.
async fn follow_clients(client: &Client, config: &Config, resolver: &Resolver) {
    let (Some(node), Some(server)) = (&config.complete_searches_of, config.zone.servers.first())
    else {
        return std::future::pending().await;
    };
    let cluster = ClusterDns { server: *server, domain: config.zone.domain.clone() };
    clients::run(client.clone(), node.clone(), cluster, resolver.clients.clone()).await;
}

/// What the pages show.
struct Shown {
    resolver: Arc<Resolver>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    programmed: watch::Receiver<Programmed>,
}

impl Shown {
    /// Binds the pages; the future serves them for ever.
    async fn bind(
        self: Arc<Self>,
        pages: Pages,
        component: &Component,
    ) -> io::Result<impl Future<Output = ()> + use<>> {
        let mut places: Vec<SocketAddr> =
            [pages.health, pages.ready, pages.metrics].into_iter().flatten().collect();
        places.sort_unstable();
        places.dedup();
        let mut servers = Vec::new();
        for place in places {
            let listener = listen_for_pages(place)?;
            let (shown, component) = (self.clone(), component.clone());
            // CoreDNS has paths of its own.
            servers.push(pages::serve(listener, move |path| match path {
                "/health" => Some(Page::text(200, "OK")),
                "/ready" if shown.is_ready() => Some(Page::text(200, "OK")),
                "/ready" => Some(Page::text(503, "kubernetes")),
                path => component.page(path, || shown.metrics.page(&shown.gauges())),
            }));
        }
        Ok(async move {
            futures::future::join_all(servers).await;
            std::future::pending().await
        })
    }

    fn is_ready(&self) -> bool {
        self.programmed.borrow().ready && !self.stop.is_cancelled()
    }

    /// What the server knows and does at this moment.
    fn state(&self) -> Value {
        let serial = self.resolver.zone.get().serial();
        json!({"ready": self.is_ready(), "serial": serial, "now": self.gauges()})
    }

    fn gauges(&self) -> Gauges {
        let clients = self.resolver.clients.get();
        Gauges {
            cached: self.resolver.setup.get().answers.len(),
            broken: self.resolver.broken_upstreams(),
            clients: clients.len(),
            completed: clients.completed(),
            revision: self.programmed.borrow().revision,
        }
    }
}
