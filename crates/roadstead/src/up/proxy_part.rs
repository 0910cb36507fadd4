//! The proxy of `up`, which begins anew with every pod that is to be it, as its ConfigMap says then.
//!
//! Rules stay in the kernel in between, so nobody notices; another mode removes them when its own are
//! there. A configuration that makes no sense, or that the kernel cannot do, costs nothing: the old one
//! goes on.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use roadstead_forwarding::node_network::NodeNetwork;
use roadstead_node::runtime::parts::PartLog;
use roadstead_proxy::agent::ProxyError;
use roadstead_proxy::agent::config::{Config, Follow, Outputs};
use roadstead_proxy::configuration::Configuration;
use roadstead_proxy::data_plane::ProxyMode;
use roadstead_proxy::kube_proxy::{self, KubeProxy, KubeProxyOptions, agent_config};
use roadstead_watch::events::{self, EventDraft, InvolvedObject, Severity};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::part_logs::Spoken;

/// The proxy, what it is told by flags, and its log.
pub(crate) struct ProxyPart {
    pub(crate) client: Client,
    /// What the flags say, as the ConfigMap would.
    pub(crate) base: String,
    /// The mode, if a flag says which.
    pub(crate) asked: Option<ProxyMode>,
    /// What no ConfigMap changes.
    pub(crate) config: Config,
    pub(crate) options: KubeProxyOptions,
    pub(crate) outputs: Outputs,
    pub(crate) spoken: Spoken,
    /// The containers that are to be it.
    pub(crate) starts: mpsc::Receiver<PartLog>,
    /// Where its page of health is now, which the probe of its pods asks.
    pub(crate) health: watch::Sender<Option<SocketAddr>>,
}

/// What the ConfigMap said when it was read.
#[derive(Debug)]
struct Reading {
    about: InvolvedObject,
    /// What it means, with what of it is ignored; or why it cannot be used.
    meaning: Result<(Configuration, Vec<String>), String>,
}

/// Why a run is over.
enum Next {
    Configuration(Box<Configuration>),
    Ended(Result<(), ProxyError>),
}

impl ProxyPart {
    /// Keeps the kernel equal to the cluster until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut configuration = match self.read().await {
            Some(configuration) => configuration,
            None => self.flags()?,
        };
        self.compare(&configuration);
        // What somebody edited must not keep `up` from starting, or nobody could edit it again.
        let (mut before, mut pods) = (Some(self.flags()?), 0_u64);
        loop {
            self.spoken.set_talkative(configuration.is_talkative());
            self.health.send_if_modified(|known| {
                std::mem::replace(known, configuration.healthz) != configuration.healthz
            });
            info!(target: "roadstead_proxy", mode = %configuration.mode, "proxy starts");
            let over = stop.child_token();
            let proxy = kube_proxy::run(self.proxy(&configuration), over.clone());
            tokio::pin!(proxy);
            let next = loop {
                tokio::select! {
                    ended = &mut proxy => break Next::Ended(ended),
                    Some(log) = self.starts.recv() => {
                        self.spoken.write_to(log);
                        pods += 1;
                        // The first one is what runs already.
                        if pods == 1 {
                            continue;
                        }
                        // It goes on while the configuration is read.
                        tokio::select! {
                            ended = &mut proxy => break Next::Ended(ended),
                            new = self.read() => if let Some(new) = new {
                                break Next::Configuration(Box::new(new));
                            },
                        }
                    }
                }
            };
            match (next, before.take()) {
                (Next::Configuration(new), _) => {
                    over.cancel();
                    proxy.await?;
                    before = Some(std::mem::replace(&mut configuration, *new));
                }
                // The kernel cannot do what is asked for now.
                (Next::Ended(Err(why)), Some(old)) if !stop.is_cancelled() => {
                    let why = anyhow::Error::new(why);
                    self.refuse(self.map_name(), &format!("{why:#}")).await;
                    configuration = old;
                }
                (Next::Ended(ended), _) => return Ok(ended?),
            }
        }
    }

    /// What the flags alone mean.
    fn flags(&self) -> anyhow::Result<Configuration> {
        let parsed = Configuration::parse(&self.base);
        Ok(parsed.map_err(anyhow::Error::msg)?.0)
    }

    fn map_name(&self) -> InvolvedObject {
        InvolvedObject {
            api_version: "v1".into(),
            kind: "ConfigMap".into(),
            namespace: "kube-system".into(),
            name: "kube-proxy".into(),
            ..InvolvedObject::default()
        }
    }

    /// Reads the ConfigMap, and tells people what of it cannot be used. `None` if nothing can.
    async fn read(&self) -> Option<Configuration> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let map = match maps.get_opt("kube-proxy").await {
            Ok(map) => map,
            Err(error) => {
                warn!(target: "roadstead_proxy", %error, "cannot read the ConfigMap");
                return None;
            }
        };
        let Reading { about, meaning } = read(&self.base, map.as_ref());
        let about = if about.uid.is_empty() { self.map_name() } else { about };
        match meaning {
            Ok((configuration, notes)) => {
                if !notes.is_empty() {
                    let message = format!("ignored: {}", notes.join("; "));
                    warn!(target: "roadstead_proxy", why = message, "part of the configuration is ignored");
                    self.tell(about, "ConfigurationIgnored", message).await;
                }
                Some(configuration)
            }
            Err(why) => {
                self.refuse(about, &why).await;
                None
            }
        }
    }

    async fn refuse(&self, about: InvolvedObject, why: &str) {
        let message = format!("{why}; the old configuration goes on");
        error!(target: "roadstead_proxy", why = message, "configuration refused");
        self.tell(about, "ConfigurationRefused", message).await;
    }

    async fn tell(&self, about: InvolvedObject, reason: &str, message: String) {
        let (severity, reason) = (Severity::Warning, reason.to_owned());
        let draft = EventDraft { about, severity, reason, message };
        events::record_once(self.client.clone(), "kube-proxy", draft).await;
    }

    /// Who gives flags may not know that the ConfigMap counts.
    fn compare(&self, configuration: &Configuration) {
        let map = "ConfigMap kube-system/kube-proxy";
        if let Some(asked) = self.asked.filter(|asked| *asked != configuration.mode) {
            let mode = configuration.mode;
            warn!(target: "roadstead_proxy", "{map} says mode {mode}: --proxy-mode {asked} does not count");
        }
        let flags = self.flags().map(|flags| flags.cluster_networks).unwrap_or_default();
        if flags != configuration.cluster_networks {
            let said = &configuration.cluster_networks;
            warn!(target: "roadstead_proxy", "{map} says clusterCIDR {said:?}: --cluster-cidr does not count for the proxy");
        }
    }

    fn proxy(&self, configuration: &Configuration) -> KubeProxy {
        let options = KubeProxyOptions {
            healthz: configuration.healthz,
            metrics: configuration.metrics,
            sysctls: configuration.sysctls.clone(),
            most_connections: configuration.most_connections,
            ..self.options.clone()
        };
        // What others follow goes on; the rest begins anew, as with another process.
        let outputs = Outputs {
            announcements: self.outputs.announcements.clone(),
            lease_good_until: self.outputs.lease_good_until.clone(),
            component: self.outputs.component.clone(),
            ..Outputs::default()
        };
        let config = config(&self.config, configuration);
        KubeProxy { client: self.client.clone(), config, options, outputs }
    }
}

/// What a configuration says, and for the rest what is so in `up`.
fn config(own: &Config, configuration: &Configuration) -> Config {
    let said = agent_config(configuration, &own.node_name);
    Config {
        node_network: NodeNetwork {
            service_networks: own.node_network.service_networks.clone(),
            masquerade_egress: own.node_network.masquerade_egress,
            ..said.node_network
        },
        follow: Follow { service_networks: own.follow.service_networks, ..said.follow },
        ipvs_fallback: own.ipvs_fallback,
        families: own.families.clone(),
        own_commits: own.own_commits.clone(),
        ..said
    }
}

/// What a ConfigMap means. Where it says nothing, the flags do.
fn read(base: &str, map: Option<&ConfigMap>) -> Reading {
    let text = map.and_then(|map| map.data.as_ref()?.get("config.conf"));
    let meaning = Configuration::parse_over(base, text.map_or("", String::as_str));
    let meaning = meaning.map(|(configuration, mut notes)| {
        if text.is_none() {
            notes.push("there is no config.conf".into());
        }
        for (given, name) in [
            (configuration.node_name.is_some(), "hostnameOverride"),
            (configuration.kubeconfig.is_some(), "clientConnection.kubeconfig"),
            (configuration.oom_score_adjustment != Some(-999), "oomScoreAdj"),
        ] {
            if given {
                notes.push(format!("{name} has no effect: the proxy is a part of `roadstead up`"));
            }
        }
        (configuration, notes)
    });
    Reading { about: map.map(InvolvedObject::of).unwrap_or_default(), meaning }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &str = "mode: iptables\nclusterCIDR: 10.244.0.0/16\nnodePortAddresses: [all]";

    fn map(text: &str) -> ConfigMap {
        let data = serde_json::json!({"data": {"config.conf": text}});
        serde_json::from_value(data).unwrap()
    }

    #[test]
    fn what_a_config_map_means() {
        for (text, want) in [
            ("mode: nftables", "nftables: "),
            ("logging:\n  level: 4", "iptables: unknown field logging.level"),
            (
                "hostnameOverride: me",
                "iptables: hostnameOverride has no effect: the proxy is a part of `roadstead up`",
            ),
            ("mode: best", "refused: unknown mode \"best\""),
        ] {
            let got = match read(FLAGS, Some(&map(text))).meaning {
                Ok((configuration, notes)) => {
                    format!("{}: {}", configuration.mode, notes.join("; "))
                }
                Err(why) => format!("refused: {why}"),
            };
            assert_eq!(got, want, "{text}");
        }
        let (gone, notes) = read(FLAGS, None).meaning.unwrap();
        assert_eq!(
            (gone.mode, notes),
            (ProxyMode::Iptables, vec!["there is no config.conf".into()])
        );
    }

    #[test]
    fn what_is_so_in_up_stays() {
        let own = Config {
            node_name: "node".into(),
            node_network: NodeNetwork { masquerade_egress: true, ..NodeNetwork::default() },
            ..Config::default()
        };
        let text = "mode: nftables\niptables: {masqueradeAll: true}";
        let (said, _) = read(FLAGS, Some(&map(text))).meaning.unwrap();
        let config = config(&own, &said);
        assert_eq!((config.mode, &*config.node_name), (ProxyMode::Nftables, "node"));
        assert!(config.node_network.masquerade_egress && config.node_network.masquerade_all);
        assert_eq!(config.node_port_addresses, ["all"]);
        let own = config.own_commits.count();
        assert_eq!(own, 0);
    }
}
