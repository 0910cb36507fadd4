//! The agent: puts the parts together.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use kube::Client;
use roadstead_api::resolv::ClusterDns;
use roadstead_watch::status::{self, Page};
use roadstead_zone::settings::Lifetimes;
use roadstead_zone::zone::Keeper;
use tokio::sync::watch;
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::clients::{self, Node};
use crate::configuration::{self, Meaning};
use crate::corefile::CorefileError;
use crate::follow::{Follower, seconds_since_1970};
use crate::limit::{Limits, USUAL_RATE};
use crate::metrics::{Metrics, State};
use crate::programmed;
use crate::publish::Published;
use crate::resolve::Resolver;
use crate::server::{Server, listen_for_pages};

/// What the server needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen, on UDP and TCP alike.
    pub listen: Vec<SocketAddr>,
    /// The cluster's zone.
    pub zone: String,
    /// Whom to ask about other names. With nobody to ask, such questions are refused.
    pub upstreams: Vec<SocketAddr>,
    /// Where to find whom to ask if nobody is given above, in the form of resolv.conf. The file is
    /// followed.
    pub resolv_conf: Option<PathBuf>,
    /// How long clients may remember answers. With a Corefile, whose only number counts for all, these
    /// are bounds for all but ClusterIPs.
    pub lifetimes: Lifetimes,
    /// The addresses under which clients know this server, for the zone's NS record.
    pub addresses: Vec<IpAddr>,
    /// A configuration in CoreDNS' language, which replaces the zone and the upstreams above.
    pub corefile: Option<Source>,
    /// Whether to answer as CoreDNS does where that differs from the RFCs.
    pub coredns_compat: bool,
    /// What strangers get over UDP, and who is none.
    pub limits: Limits,
    /// The name of the Lease in kube-system that says which revision is being answered from.
    pub lease: Option<String>,
    /// Where to say that the server lives, that it is ready, and what it counted.
    pub pages: Pages,
    /// Whether the endpoints in a zone have names of their own.
    pub zonal: bool,
    /// Whether to go on answering for a while when told to stop, if the Corefile says so.
    pub lingers: bool,
    /// How many threads answer over UDP; `None` is one per processor.
    pub threads: Option<usize>,
    /// The node whose pods get their searches completed: the one whose pods ask this server. The
    /// first of the addresses above must be the name server in their resolv.conf.
    pub complete_searches_of: Option<Node>,
    /// Shows what is being answered from; subscribe to it before `run`.
    pub published: watch::Sender<Programmed>,
    /// The newest resource version among the Services taken in.
    pub services: watch::Sender<u64>,
}

/// Where a configuration is to be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
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
            zone: "cluster.local".into(),
            upstreams: Vec::new(),
            resolv_conf: None,
            lifetimes: Lifetimes::default(),
            addresses: Vec::new(),
            corefile: None,
            coredns_compat: false,
            limits: Limits { rate: USUAL_RATE, friends: Vec::new() },
            lease: None,
            pages: Pages::default(),
            zonal: false,
            lingers: false,
            threads: None,
            complete_searches_of: None,
            published: watch::Sender::default(),
            services: watch::Sender::default(),
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

/// Answers until `stop`, from a zone that follows the cluster.
pub async fn run(client: Client, config: Config, stop: CancellationToken) -> Result<(), DnsError> {
    let listen = |source| DnsError::Listen { listen: config.listen.clone(), source };
    let server = match config.threads {
        None => Server::bind(&config.listen),
        Some(threads) => Server::bind_with(&config.listen, threads),
    };
    let server = server.map_err(listen)?;
    serve(client, config, server, stop).await
}

/// Like [`run`], with sockets that are bound already.
pub async fn serve(
    client: Client,
    config: Config,
    server: Server,
    stop: CancellationToken,
) -> Result<(), DnsError> {
    let listen = |source| DnsError::Listen { listen: config.listen.clone(), source };
    let (Meaning { wanted, setup, pages }, reading) = configuration::begin(&config)?;
    let pages = Pages {
        health: config.pages.health.or(pages.health),
        ready: config.pages.ready.or(pages.ready),
        metrics: config.pages.metrics.or(pages.metrics),
    };
    let zone = Keeper::new(wanted.settings.clone(), seconds_since_1970()).snapshot();
    let zone = Published::new(zone);
    let setup = Published::new(Arc::new(setup));
    let resolver = Resolver::new(zone.clone(), setup);
    let metrics = Arc::new(Metrics::default());
    let (sender, receiver) = watch::channel(wanted);
    let follower = Follower {
        client: client.clone(),
        zone,
        published: config.published.clone(),
        services: config.services.clone(),
        metrics: metrics.clone(),
        wanted: receiver,
    };
    let shown = Shown { resolver: resolver.clone(), metrics: metrics.clone(), stop: stop.clone() };
    let pages = shown.bind(pages, config.published.subscribe()).await.map_err(listen)?;
    let lease = async {
        match &config.lease {
            Some(name) => {
                programmed::run(client.clone(), name.clone(), config.published.subscribe()).await;
            }
            None => std::future::pending().await,
        }
    };
    let searches = follow_clients(&client, &config, &resolver);
    let configuration = configuration::follow(&client, &config, reading, (&sender, &resolver));
    let over = CancellationToken::new();
    let serving = server.serve(resolver.clone(), &metrics, &config.limits, over.clone());
    let leaving = leave(&config, &resolver, &stop, &over);
    tokio::select! {
        result = serving => result.map_err(DnsError::Serving)?,
        () = follower.run() => {}
        () = configuration => {}
        () = lease => {}
        () = searches => {}
        () = pages => {}
        () = leaving => {}
    }
    Ok(())
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
    let rest = resolver.setup.get().lame_duck;
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
    let (Some(node), Some(server)) = (&config.complete_searches_of, config.addresses.first())
    else {
        return std::future::pending().await;
    };
    let cluster = ClusterDns { server: *server, domain: config.zone.clone() };
    clients::run(client.clone(), node.clone(), cluster, resolver.clients.clone()).await;
}

/// What the pages show.
struct Shown {
    resolver: Arc<Resolver>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

impl Shown {
    /// Binds the pages; the future serves them for ever.
    async fn bind(
        self,
        pages: Pages,
        programmed: watch::Receiver<Programmed>,
    ) -> io::Result<impl Future<Output = ()>> {
        let shown = Arc::new(self);
        let mut places: Vec<SocketAddr> =
            [pages.health, pages.ready, pages.metrics].into_iter().flatten().collect();
        places.sort_unstable();
        places.dedup();
        let mut servers = Vec::new();
        for place in places {
            let listener = listen_for_pages(place)?;
            let (shown, programmed) = (shown.clone(), programmed.clone());
            servers.push(status::serve(listener, move |path| {
                let Programmed { ready, revision } = *programmed.borrow();
                let ready = ready && !shown.stop.is_cancelled();
                match path {
                    "/health" => Some(Page::text(200, "OK")),
                    "/ready" if ready => Some(Page::text(200, "OK")),
                    "/ready" => Some(Page::text(503, "kubernetes")),
                    "/metrics" => Some(Page::metrics(shown.page(revision))),
                    _ => None,
                }
            }));
        }
        Ok(async move {
            futures::future::join_all(servers).await;
            std::future::pending().await
        })
    }

    fn page(&self, revision: u64) -> String {
        let setup = self.resolver.setup.get();
        let forwards = setup.blocks.iter().flat_map(|block| &block.forwards);
        let broken = forwards.map(|forward| forward.upstreams.broken()).sum();
        let clients = self.resolver.clients.get();
        self.metrics.page(&State {
            cached: setup.blocks.iter().map(|block| block.memory.answers.len()).sum(),
            broken,
            clients: clients.len(),
            completed: clients.completed(),
            revision,
        })
    }
}
