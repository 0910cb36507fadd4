//! What the server is to do: from flags, from a Corefile and from the files that it names; and what
//! becomes of it when one of them changes.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use kube::Client;
use roadstead_dns_core::corefile::{
    self, ClusterAccess, Corefile, CorefileEnvironment, CorefileError, name_servers,
};
use roadstead_dns_core::setup::Setup;
use roadstead_dns_core::upstream::UpstreamGroup;
use roadstead_zone::name::Name;
use roadstead_zone::settings::{Lifetimes, ZoneSettings};
use tokio::sync::watch;
use tokio::time;
use tracing::{error, info, warn};

use crate::agent::{Config, CorefileSource, DnsError, Pages};
use crate::files::ConfigurationFiles;
use crate::resolve::Resolver;
use crate::server::everywhere;
use crate::zone_updater::{ZoneSource, config_map};

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// What a configuration means.
#[derive(Debug)]
pub(crate) struct Configuration {
    cluster: Option<ClusterAccess>,
    pub zone_source: ZoneSource,
    pub setup: Setup,
    pub pages: Pages,
}

/// What a configuration was made from.
#[derive(Debug)]
pub(crate) struct ConfigurationReading {
    /// The cluster that is followed until the end, if the configuration said which.
    cluster: Option<ClusterAccess>,
    text: Option<String>,
    files: ConfigurationFiles,
}

/// Where the configuration wants to be served, if nothing else is said.
pub fn places(config: &Config) -> Result<Vec<SocketAddr>, DnsError> {
    let Some(text) = first_text(config)? else { return Ok(everywhere(53).into()) };
    let Corefile { port, mut bind, .. } = read(&text, config, &files_of(config))?;
    if bind.is_empty() {
        return Ok(everywhere(port).into());
    }
    bind.sort_unstable();
    bind.dedup();
    Ok(bind.into_iter().map(|address| (address, port).into()).collect())
}

/// The kubeconfig that the configuration names, and the context in it.
pub fn kubeconfig(config: &Config) -> Result<Option<(PathBuf, Option<String>)>, DnsError> {
    let Some(text) = first_text(config)? else { return Ok(None) };
    let files = files_of(config);
    let cluster = read(&text, config, &files)?.cluster;
    Ok(cluster.map(|cluster| (files.place(&cluster.kubeconfig), cluster.context)))
}

/// What to begin with.
pub(crate) fn begin(config: &Config) -> Result<(Configuration, ConfigurationReading), DnsError> {
    let (text, files) = (first_text(config)?, files_of(config));
    let meaning = understand(text.as_deref(), config, &files)?;
    let cluster = meaning.cluster.clone();
    Ok((meaning, ConfigurationReading { cluster, text, files }))
}

/// Whether a text makes sense.
pub(crate) fn check(text: &str, config: &Config) -> Result<(), DnsError> {
    understand(Some(text), config, &files_of(config)).map(drop)
}

/// A file is there from the beginning; a ConfigMap comes when it comes.
fn first_text(config: &Config) -> Result<Option<String>, DnsError> {
    let Some(CorefileSource::File(path)) = &config.corefile else { return Ok(None) };
    let failed = |source| DnsError::File { path: path.clone(), source };
    std::fs::read_to_string(path).map(Some).map_err(failed)
}

fn understand(
    text: Option<&str>,
    config: &Config,
    files: &ConfigurationFiles,
) -> Result<Configuration, DnsError> {
    let settings = standard_settings(config)?;
    match text {
        Some(text) => Ok(understood(read(text, config, files)?, config, settings)),
        None if matches!(config.corefile, Some(CorefileSource::File(_))) => Err(DnsError::Missing),
        None => Ok(Configuration {
            cluster: None,
            zone_source: ZoneSource { settings, service_selector: None, namespace_selector: None },
            setup: standard_setup(config, files),
            pages: config.pages,
        }),
    }
}

/// What the flags alone mean for the zone.
fn standard_settings(config: &Config) -> Result<ZoneSettings, DnsError> {
    let zone = &config.zone;
    let origin = Name::parse(&zone.domain);
    let origin = origin.ok_or_else(|| DnsError::Zone { zone: zone.domain.clone() })?;
    let mut settings = ZoneSettings::new(&origin);
    settings.lifetimes = config.zone.lifetimes;
    settings.servers = config.zone.servers.clone();
    settings.local = own_addresses();
    settings.zonal = config.zone.zonal;
    settings.coredns_compat = config.coredns_compat;
    Ok(settings)
}

/// What the flags alone mean for everything else.
fn standard_setup(config: &Config, files: &ConfigurationFiles) -> Setup {
    let mut servers = config.upstreams.addresses.clone();
    if let (true, Some(path)) = (servers.is_empty(), &config.upstreams.resolv_conf) {
        let text = files.read(&path.to_string_lossy()).unwrap_or_default();
        servers = name_servers(&text);
    }
    let upstreams = (!servers.is_empty()).then(|| UpstreamGroup::new(servers));
    let mut setup = Setup::standard(upstreams);
    setup.coredns_compat = config.coredns_compat;
    setup
}

fn read(
    text: &str,
    config: &Config,
    files: &ConfigurationFiles,
) -> Result<Corefile, CorefileError> {
    let environment = CorefileEnvironment {
        file: &|path| files.read(path),
        variable: &|name| std::env::var(name).unwrap_or_default(),
    };
    let corefile = corefile::read(text, config.coredns_compat, &environment)?;
    match (&corefile.cluster, &config.corefile) {
        (Some(cluster), Some(CorefileSource::ConfigMap(..))) => Err(CorefileError {
            line: cluster.line,
            reason: "kubeconfig: a ConfigMap cannot say which cluster it is in; \
                     that is said by --kubeconfig"
                .into(),
        }),
        _ => Ok(corefile),
    }
}

/// No files yet; relative paths are relative to the configuration's own place.
fn files_of(config: &Config) -> ConfigurationFiles {
    match &config.corefile {
        Some(CorefileSource::File(path)) => {
            ConfigurationFiles::new(path.parent().unwrap_or(Path::new(".")))
        }
        // Where it would be mounted.
        _ => ConfigurationFiles::new(Path::new("/etc/coredns")),
    }
}

/// The addresses from which this machine would talk to others, if it has any. Nothing is sent.
fn own_addresses() -> Vec<IpAddr> {
    let address = |(own, other): (&str, &str)| {
        let socket = UdpSocket::bind(own).ok()?;
        socket.connect(other).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    };
    let families = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    families.into_iter().filter_map(address).collect()
}

/// Puts a Corefile in the place of the flags.
fn understood(corefile: Corefile, config: &Config, standard: ZoneSettings) -> Configuration {
    let settings = corefile.settings.map(|settings| ZoneSettings {
        servers: config.zone.servers.clone(),
        local: own_addresses(),
        lifetimes: capped(settings.lifetimes, config),
        ..settings
    });
    let zone_source = ZoneSource {
        settings: settings.unwrap_or(standard),
        service_selector: corefile.service_selector,
        namespace_selector: corefile.namespace_selector,
    };
    let pages = Pages { health: corefile.health, ready: corefile.ready, metrics: corefile.metrics };
    Configuration { cluster: corefile.cluster, zone_source, setup: corefile.setup, pages }
}

/// A Corefile has one lifetime for everything. It is chosen for addresses that stay: for what comes and
/// goes it is only the longest.
fn capped(given: Lifetimes, config: &Config) -> Lifetimes {
    let own = config.zone.lifetimes;
    match config.coredns_compat {
        true => given,
        false => Lifetimes {
            cluster_ip: given.cluster_ip,
            endpoint: given.endpoint.min(own.endpoint),
            negative: given.negative.min(own.negative),
            negative_below_service: given.negative_below_service.min(own.negative_below_service),
        },
    }
}

/// Takes in changes for ever, beginning with those since the first reading. A configuration that
/// makes no sense is refused, and the last good one goes on answering.
pub(crate) async fn follow(
    client: &Client,
    config: &Config,
    mut reading: ConfigurationReading,
    (zone_source, resolver): (&watch::Sender<ZoneSource>, &Arc<Resolver>),
) {
    let mut texts = match &config.corefile {
        None => stream::pending().boxed(),
        Some(CorefileSource::ConfigMap(namespace, name)) => config_map(client, namespace, name),
        Some(CorefileSource::File(path)) => contents(path.clone()),
    };
    let mut ticks = time::interval(LOOK);
    // It may take as long as others take to say nothing, which must not hold up a change.
    let mut guard = resolver.guard().boxed().fuse();
    loop {
        let text = tokio::select! {
            Some(text) = texts.next() => text,
            _ = ticks.tick() => reading.text.clone(),
            () = &mut guard => continue,
        };
        if text == reading.text && !reading.files.have_changed() {
            continue;
        }
        reading = ConfigurationReading { text, files: files_of(config), ..reading };
        match understand(reading.text.as_deref(), config, &reading.files) {
            Ok(meaning) => {
                if is_another(meaning.cluster.as_ref(), reading.cluster.as_ref()) {
                    warn!("the Corefile names another kubeconfig: it is used after a restart");
                }
                take_in(meaning, zone_source, resolver);
                info!("configuration taken in");
            }
            Err(error) => {
                error!(%error, "configuration refused, the old one goes on");
                resolver.counters.refused_reload();
            }
        }
        guard = resolver.guard().boxed().fuse();
    }
}

/// Whether a configuration is about another cluster, wherever it says so.
fn is_another(new: Option<&ClusterAccess>, old: Option<&ClusterAccess>) -> bool {
    let place = |cluster: &ClusterAccess| (cluster.kubeconfig.clone(), cluster.context.clone());
    new.map(place) != old.map(place)
}

/// The text of a file, again and again.
fn contents(path: PathBuf) -> BoxStream<'static, Option<String>> {
    let look = |path: PathBuf| async move {
        time::sleep(LOOK).await;
        Some((tokio::fs::read_to_string(&path).await.ok(), path))
    };
    stream::unfold(path, look).boxed()
}

fn take_in(new: Configuration, zone_source: &watch::Sender<ZoneSource>, resolver: &Resolver) {
    zone_source.send_if_modified(|old| {
        let changed = *old != new.zone_source;
        *old = new.zone_source;
        changed
    });
    resolver.install(new.setup);
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadstead_testkit::cluster::FakeCluster;
    use roadstead_zone::seed::Seed;
    use roadstead_zone::zone::Keeper;
    use tokio::time::Instant;

    use crate::publish::Published;

    /// A file of a test's own, which goes with it.
    struct File(PathBuf);

    impl File {
        fn new(name: &str, text: &str) -> Self {
            let name = format!("roadstead-{name}-{}", std::process::id());
            let file = Self(std::env::temp_dir().join(name));
            file.write(text);
            file
        }

        fn write(&self, text: &str) {
            std::fs::write(&self.0, text).unwrap();
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// How long it takes until the setup is as wanted, if `change` happens between the first reading
    /// and the following.
    async fn after(
        config: Config,
        change: impl FnOnce(),
        want: impl Fn(&Setup) -> bool,
    ) -> Duration {
        let (meaning, reading) = begin(&config).unwrap();
        assert!(!want(&meaning.setup));
        let zone = Keeper::new(meaning.zone_source.settings.clone(), 1, Seed::new(1)).snapshot();
        let resolver = Resolver::new(Published::new(zone), meaning.setup);
        let (sender, _receiver) = watch::channel(meaning.zone_source);
        change();
        let (client, began) = (FakeCluster::default().client(), Instant::now());
        let taken_in = async {
            while !want(&resolver.setup.get().setup) {
                time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = follow(&client, &config, reading, (&sender, &resolver)) => unreachable!("it ends"),
            () = taken_in => began.elapsed(),
            () = time::sleep(LOOK * 10) => panic!("it was not taken in"),
        }
    }

    /// Neither a change at a bad moment is lost, nor does anybody wait for a server that is silent.
    #[tokio::test(start_paused = true)]
    async fn a_change_right_after_the_start() {
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let forward = format!("forward . {}", silent.local_addr().unwrap());
        let file = File::new("corefile", &format!(". {{\n {forward}\n}}\n"));
        let corefile = Some(CorefileSource::File(file.0.clone()));
        let config = Config { corefile, ..Config::default() };
        let change = || file.write(&format!(". {{\n {forward}\n log\n}}\n"));
        let took = after(config, change, Setup::logs_some).await;
        assert!(took < LOOK * 2, "{took:?}");
    }

    #[test]
    fn lifetimes() {
        for (name, compat, ttl, want) in [
            ("no setting", false, "", [5, 5, 5, 1]),
            ("the stock setting", false, "ttl 30", [30, 5, 5, 1]),
            ("a short one", false, "ttl 0", [0, 0, 0, 0]),
            ("as CoreDNS", true, "ttl 30", [30, 30, 30, 30]),
        ] {
            let text = format!(". {{\n kubernetes c {{\n  pods insecure\n  {ttl}\n }}\n}}\n");
            let config = Config { coredns_compat: compat, ..Config::default() };
            let meaning = understand(Some(&text), &config, &files_of(&config)).unwrap();
            let got = meaning.zone_source.settings.lifetimes;
            let got = [got.cluster_ip, got.endpoint, got.negative, got.negative_below_service];
            assert_eq!(got, want, "{name}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_machines_name_servers_change() {
        let file = File::new("resolv.conf", "nameserver 127.0.0.1 # for now\n");
        let mut config = Config::default();
        config.upstreams.resolv_conf = Some(file.0.clone());
        let change = || file.write("nameserver 127.0.0.2\n");
        let want = |setup: &Setup| {
            let servers = &setup.blocks()[0].forwards[0].upstreams.addresses;
            servers.first() == Some(&"127.0.0.2:53".parse().unwrap())
        };
        assert!(after(config, change, want).await < LOOK * 2);
    }
}
