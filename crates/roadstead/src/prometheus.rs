//! `roadstead prometheus`: what ServiceMonitors and PrometheusRules mean, as files for a Prometheus.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use roadstead_monitoring::prometheus::{
    Discovery, OwnPage, PrometheusFiles, PrometheusInput, TargetObjects, configuration,
};
use roadstead_typed::Typed;
use serde_json::Value;

use crate::manifests::objects;
use crate::world;

/// How the file of rules is called beside the configuration.
const RULES: &str = "roadstead-rules.yml";

/// Roadstead's own pages on the machine of `up`: job, port, path.
const OWN_PAGES: [(&str, u16, &str); 6] = [
    ("roadstead-apiserver", 10252, "/metrics/apiserver"),
    ("roadstead-controllers", 10252, "/metrics"),
    (OBJECTS, 10252, "/metrics/objects"),
    ("roadstead-proxy", 10249, "/metrics"),
    ("roadstead-network-policies", 10253, "/metrics"),
    ("roadstead-dns", 9153, "/metrics"),
];

/// The page that speaks of others: their namespaces and names count, not the page's.
const OBJECTS: &str = "roadstead-objects";

/// Print what ServiceMonitors and PrometheusRules mean, as the files of a Prometheus.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print what Prometheus scrapes: Roadstead's own pages, and what ServiceMonitors select.
    Config {
        #[command(flatten)]
        source: Source,
        /// Write it as prometheus.yml, and the rules beside it, into this directory instead.
        #[arg(short, long, value_name = "DIRECTORY")]
        output: Option<PathBuf>,
    },
    /// Print the alerts and rules of PrometheusRules, as a file of rules.
    Rules {
        #[command(flatten)]
        source: Source,
    },
}

/// What the files are made from.
#[derive(Debug, Parser)]
struct Source {
    /// A file of objects, as YAML or JSON, and any number of them; `-` for standard input.
    #[arg(short = 'f', long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// A kubeconfig, to ask the API server instead.
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
    /// How Prometheus finds its targets: by asking the API server (with that kubeconfig), or from a list of
    /// those that there are now, for a Prometheus without that, such as Debian's.
    #[arg(long, value_enum, default_value = "kubernetes")]
    discovery: Way,
    /// How often to scrape, where nobody says otherwise.
    #[arg(long, value_name = "TIME", default_value = "15s")]
    interval: String,
    /// Whether the pages of `roadstead up` on this machine are scraped, too.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
    own_pages: bool,
}

/// How targets are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Way {
    /// The API server is asked.
    Kubernetes,
    /// They are listed.
    Static,
}

/// Carries out `roadstead prometheus`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Rules { source } => {
            let made = source.configuration().await?;
            say(&made.notes);
            print(&text(&made.rules)?)
        }
        Command::Config { source, output } => {
            let made = source.configuration().await?;
            say(&made.notes);
            match output {
                Some(directory) => write(&directory, &made),
                None => print(&text(&made.config)?),
            }
        }
    }
}

impl Source {
    async fn configuration(&self) -> anyhow::Result<PrometheusFiles> {
        let found = match (self.filename.as_slice(), &self.kubeconfig) {
            ([], Some(path)) => from_server(&world::client(path).await?).await?,
            ([], None) => bail!("give files with -f, or a cluster with --kubeconfig"),
            (files, _) => from_files(files)?,
        };
        let absolute = self.kubeconfig.as_deref().map(std::path::absolute).transpose()?;
        let kubeconfig = absolute.as_ref().map(|path| path.display().to_string());
        let discovery = match self.discovery {
            Way::Kubernetes => Discovery::Kubernetes(kubeconfig.as_deref()),
            Way::Static => Discovery::Static(&found.cluster),
        };
        let own = if self.own_pages { own_pages() } else { Vec::new() };
        Ok(configuration(&PrometheusInput {
            monitors: &found.monitors,
            rules: &found.rules,
            own: &own,
            discovery,
            interval: &self.interval,
            rule_files: &[RULES.to_owned()],
        }))
    }
}

fn own_pages() -> Vec<OwnPage> {
    let page = |(job, port, path): (&str, u16, &str)| OwnPage {
        job: job.to_owned(),
        target: format!("127.0.0.1:{port}"),
        path: path.to_owned(),
        honor_labels: job == OBJECTS,
    };
    OWN_PAGES.into_iter().map(page).collect()
}

/// What the files are made from, kind by kind.
#[derive(Default)]
struct Found {
    monitors: Vec<Value>,
    rules: Vec<Value>,
    cluster: TargetObjects,
}

fn from_files(files: &[PathBuf]) -> anyhow::Result<Found> {
    let mut found = Found::default();
    for path in files {
        let text = match path.to_str() {
            Some("-") => io::read_to_string(io::stdin())?,
            _ => fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?,
        };
        let sorted = objects(&text).and_then(|all| found.sort_in(all));
        sorted.with_context(|| format!("in {}", path.display()))?;
    }
    Ok(found)
}

impl Found {
    /// Puts objects in their places; others make no difference.
    fn sort_in(&mut self, objects: Vec<Value>) -> anyhow::Result<()> {
        for object in objects {
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            match kind.as_str() {
                "ServiceMonitor" => self.monitors.push(object),
                "PrometheusRule" => self.rules.push(object),
                "Service" => self.cluster.services.push(read(object)?),
                "EndpointSlice" => self.cluster.slices.push(read(object)?),
                "Pod" => self.cluster.pods.push(read(object)?),
                _ => {}
            }
        }
        Ok(())
    }
}

fn read<K: Typed>(object: Value) -> anyhow::Result<K> {
    let name = format!("{} {}", object["kind"], object["metadata"]["name"]).replace('"', "");
    K::from_value(&object).with_context(|| format!("{name} makes no sense"))
}

async fn from_server(client: &Client) -> anyhow::Result<Found> {
    let all = ListParams::default();
    let cluster = TargetObjects {
        services: Api::<Service>::all(client.clone()).list(&all).await?.items,
        slices: Api::<EndpointSlice>::all(client.clone()).list(&all).await?.items,
        pods: Api::<Pod>::all(client.clone()).list(&all).await?.items,
    };
    let monitors = custom(client, "ServiceMonitor", "servicemonitors").await?;
    let rules = custom(client, "PrometheusRule", "prometheusrules").await?;
    Ok(Found { monitors, rules, cluster })
}

/// Custom objects; none, where nobody knows the kind.
async fn custom(client: &Client, kind: &str, plural: &str) -> anyhow::Result<Vec<Value>> {
    let resource = ApiResource {
        group: "monitoring.coreos.com".into(),
        version: "v1".into(),
        api_version: "monitoring.coreos.com/v1".into(),
        kind: kind.into(),
        plural: plural.into(),
    };
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let items = match api.list(&ListParams::default()).await {
        Ok(list) => list.items,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            eprintln!("the server knows no {kind}; see --install-crds of `roadstead up`");
            Vec::new()
        }
        Err(error) => return Err(error).with_context(|| format!("cannot list {plural}")),
    };
    let values = items.into_iter().map(serde_json::to_value);
    values.collect::<Result<_, _>>().context("objects can be written as JSON")
}

fn say(notes: &[String]) {
    notes.iter().for_each(|note| eprintln!("{note}"));
}

fn text(value: &Value) -> anyhow::Result<String> {
    serde_saphyr::to_string(value).context("it can be written as YAML")
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(io::stdout().write_all(text.as_bytes())?)
}

/// Both files, the rules first: a Prometheus that reads them meanwhile finds what the other one names.
fn write(directory: &Path, made: &PrometheusFiles) -> anyhow::Result<()> {
    for (name, value) in [(RULES, &made.rules), ("prometheus.yml", &made.config)] {
        let path = directory.join(name);
        let written = directory.join(format!(".{name}"));
        fs::write(&written, text(value)?)
            .and_then(|()| fs::rename(&written, &path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(io::stdout(), "{}", path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_files_in_their_places() {
        let text = "
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: m, namespace: monitoring}
spec: {selector: {matchLabels: {app: web}}, endpoints: [{port: web}], namespaceSelector: {any: true}}
---
kind: Service
metadata: {name: web, labels: {app: web}}
spec: {}
---
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}]
ports: [{name: web, port: 80}]
---
kind: ConfigMap
metadata: {name: other}
";
        let mut found = Found::default();
        found.sort_in(objects(text).unwrap()).unwrap();
        let made = configuration(&PrometheusInput {
            monitors: &found.monitors,
            rules: &found.rules,
            own: &own_pages(),
            discovery: Discovery::Static(&found.cluster),
            interval: "15s",
            rule_files: &[],
        });
        let yaml = super::text(&made.config).unwrap();
        let again: Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(again, made.config, "{yaml}");
        let jobs = made.config["scrape_configs"].as_array().unwrap();
        assert_eq!(jobs.len(), OWN_PAGES.len() + 1);
        assert_eq!(jobs[OWN_PAGES.len()]["static_configs"][0]["targets"][0], "10.0.0.1:80");
    }
}
