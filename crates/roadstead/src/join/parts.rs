//! The parts of a node that joined, in one process: the way to other nodes, the agent, proxy, policies and DNS,
//! each with the rights of the node.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use kube::Client;
use roadstead_component::component::{Component, DebugState};
use roadstead_dns::agent::{CorefileSource, DnsAgent, Outputs, UpstreamSource, ZoneConfig};
use roadstead_dns_core::rate_limit::{RateLimits, USUAL_RATE};
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_node::config::{PolicyWait, gateway};
use roadstead_node::serving::secure::{SecurePort, TlsFiles};
use roadstead_proxy::agent::config::{self as proxy_config, Follow};
use roadstead_proxy::kube_proxy::KubeProxyOptions;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::time;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::compose::Tasks;
use crate::join::Args;
use crate::join::identity::{Files, Membership};
use crate::join::place::Place;
use crate::join::policy_token::PolicyToken;
use crate::node_args::NodePlace;
use crate::part_logs::PartLogs;
use crate::servers::known::Servers;
use crate::up::proxy_part::ProxyPart;
use crate::{machine, notify, visible};

/// How soon it is noticed that there is a bridge.
const LOOK: Duration = Duration::from_millis(100);

/// What starts them.
pub(super) struct Parts<'a> {
    pub(super) args: &'a Args,
    pub(super) member: Membership,
    pub(super) place: Place,
    pub(super) logs: &'a PartLogs,
    pub(super) tasks: &'a mut Tasks,
    pub(super) stop: CancellationToken,
    /// What all of them show of themselves.
    pub(super) state: DebugState,
}

impl Parts<'_> {
    /// Starts all of them; returns when the node is ready.
    pub(super) async fn start(&mut self, is_first: bool) -> anyhow::Result<()> {
        let since = Timestamp::now();
        let client = self.member.client().await?;
        let servers = self.member.api.servers.clone();
        self.state.register("apiServers", move || servers.show());
        self.start_pod_network(&client);
        let port = self.secure_port().await?;
        self.start_agent(&client, port);
        let proxy = self.proxy();
        self.start_policies(&client, &proxy).await?;
        self.start_proxy(&client, proxy);
        // The DNS server listens on the bridge, which is there when the node is ready.
        let (node, servers) = (self.member.node.clone(), self.member.api.servers.clone());
        let bridge = has_bridge(self.dns_address(), &servers);
        let ready = async {
            tokio::select! {
                ready = visible::node_ready(&client, &node, since) => ready,
                () = bridge => Ok(()),
            }
        };
        self.tasks.unless_one_fails(ready).await?;
        self.start_dns(&client)?;
        if is_first {
            let pods: Vec<_> = self.place.pod_cidrs.iter().map(ToString::to_string).collect();
            eprintln!(
                "ready: node {node} of {}, pods from {}",
                self.member.server,
                pods.join(" and ")
            );
            notify::ready();
        }
        Ok(())
    }

    /// Each is ready by itself.
    fn component(&self) -> Component {
        Component { state: self.state.clone(), ..Component::default() }
    }

    fn start_pod_network(&mut self, client: &Client) {
        let config = roadstead_podnet::agent::Config {
            node_name: self.member.node.clone(),
            pod_cidrs: self.place.pod_cidrs.clone(),
            cluster_cidrs: self.place.cluster_cidrs.clone(),
            internal_ip: Some(self.place.internal_ips.first),
            mode: self.args.pod_network,
            component: self.component(),
        };
        let network = roadstead_podnet::agent::run(client.clone(), config, self.stop.clone());
        self.tasks.spawn("pod network", async move { Ok(network.await?) });
    }

    /// The agent's port, with a certificate that the cluster has signed.
    async fn secure_port(&self) -> anyhow::Result<Option<SecurePort>> {
        let port = self.args.node.kubelet_port;
        if port == 0 {
            return Ok(None);
        }
        let own = self.place.internal_ips;
        let addresses = own.iter().map(|address| address.to_string());
        let names = [self.member.node.clone()].into_iter().chain(addresses).collect();
        let files = Files::of(&self.args.data_dir);
        let serving = self.member.serving(&files, names).await;
        let serving = serving.context("there is no certificate for the agent's port")?;
        let files = TlsFiles {
            certificate: serving.request.into_bytes(),
            key: serving.key.into_bytes(),
            client_ca: self.member.authority.clone().into_bytes(),
        };
        let listen = SocketAddr::new(machine::every_address(own.first), port);
        let port = SecurePort::with_files(listen, &files).map_err(anyhow::Error::msg);
        port.map(Some).context("cannot use the certificate of the agent's port")
    }

    fn start_agent(&mut self, client: &Client, secure_port: Option<SecurePort>) {
        let place = NodePlace {
            pod_cidrs: self.place.pod_cidrs.clone(),
            service_cidrs: self.place.service_cidrs.clone(),
            internal_ips: self.place.internal_ips,
            // The pods of this machine ask the DNS server of this machine.
            cluster_dns: self.dns_address(),
            cluster_domain: self.place.cluster_domain.clone(),
        };
        let config = self.args.node.config(&self.args.data_dir, place);
        let policies = PolicyWait { expected: true, ..PolicyWait::default() };
        let component = self.component();
        let config = roadstead_node::config::Config { policies, secure_port, component, ..config };
        // Nobody in this process asks about pods.
        let (nobody, incoming) = mpsc::channel(1);
        let agent = roadstead_node::agent::run(client.clone(), config, incoming, self.stop.clone());
        self.tasks.spawn("node agent", async move {
            let _nobody = nobody;
            Ok(agent.await?)
        });
    }

    async fn start_policies(
        &mut self,
        client: &Client,
        proxy: &proxy_config::Config,
    ) -> anyhow::Result<()> {
        let token = PolicyToken {
            client: client.clone(),
            files: Files::of(&self.args.data_dir),
            node: self.member.node.clone(),
            uid: self.place.uid.clone(),
        };
        let next = token.fetch_if_possible(self.member.api.servers.is_offline()).await?;
        let client = self.member.client_of_policies(&token.path()).await?;
        self.tasks.spawn_endless("token for policies", token.keep(next));
        let config = roadstead_netpol::agent::Config {
            node_name: self.member.node.clone(),
            pages: Some((Ipv4Addr::LOCALHOST, 10253).into()),
            // Both write to nftables, and neither takes the other for a stranger.
            own_commits: proxy.own_commits.clone(),
            component: self.component(),
            ..roadstead_netpol::agent::Config::default()
        };
        let netpol = roadstead_netpol::agent::run(client, config, self.stop.clone());
        self.tasks.spawn("enforcement of policies", async move { Ok(netpol.await?) });
        Ok(())
    }

    fn proxy(&self) -> proxy_config::Config {
        proxy_config::Config {
            node_name: self.member.node.clone(),
            node_network: NodeNetwork {
                detect_local: DetectLocal::Networks(self.place.cluster_cidrs.clone()),
                service_networks: self.place.service_cidrs.clone(),
                masquerade_egress: true,
                ..NodeNetwork::default()
            },
            follow: Follow { node: true, ..Follow::default() },
            node_port_addresses: vec!["all".into(), "localhost".into()],
            ..Default::default()
        }
    }

    fn start_proxy(&mut self, client: &Client, config: proxy_config::Config) {
        let networks: Vec<_> = self.place.cluster_cidrs.iter().map(ToString::to_string).collect();
        // Its pods are those of the first machine only: none of ours is to be it.
        let (nobody, starts) = mpsc::channel(1);
        let part = ProxyPart {
            client: client.clone(),
            base: format!(
                "clusterCIDR: {}\nnodePortAddresses: [all, localhost]\n",
                networks.join(",")
            ),
            asked: None,
            config,
            options: KubeProxyOptions {
                publish: Some(Duration::from_millis(100)),
                ..KubeProxyOptions::default()
            },
            outputs: proxy_config::Outputs {
                component: self.component(),
                ..proxy_config::Outputs::default()
            },
            spoken: self.logs.proxy.clone(),
            starts,
            health: watch::Sender::default(),
        };
        let proxy = part.run(self.stop.clone());
        self.tasks.spawn("proxy", async move {
            let _nobody = nobody;
            proxy.await
        });
    }

    fn dns_address(&self) -> IpAddr {
        gateway(&self.place.pod_cidrs[0])
    }

    fn start_dns(&mut self, client: &Client) -> anyhow::Result<()> {
        let asked = &self.args.dns_upstream;
        let resolv_conf = asked.is_empty().then(|| machine::RESOLV_CONF.into());
        let corefile = CorefileSource::ConfigMap("kube-system".into(), "coredns".into());
        let config = roadstead_dns::agent::Config {
            listen: vec![(self.dns_address(), 53).into()],
            zone: ZoneConfig {
                domain: self.place.cluster_domain.clone(),
                servers: vec![self.place.dns_ip],
                ..ZoneConfig::default()
            },
            upstreams: UpstreamSource {
                addresses: asked.iter().map(|server| (*server, 53).into()).collect(),
                resolv_conf,
            },
            // Who is asked elsewhere, it says for the first machine.
            corefile: asked.is_empty().then_some(corefile),
            lease: Some(format!("roadstead-dns-{}", self.member.node)),
            limits: RateLimits { rate: USUAL_RATE, friends: self.place.pod_cidrs.clone() },
            complete_searches_of: Some(roadstead_dns::clients::ClientNode {
                name: self.member.node.clone(),
                resolv_conf: machine::RESOLV_CONF.into(),
            }),
            ..Default::default()
        };
        let agent = DnsAgent { client: client.clone(), config, outputs: Outputs::default() };
        let server = agent.bind().context("cannot listen for DNS on the bridge")?;
        let dns = agent.serve(server, self.stop.clone());
        info!(listen = %self.dns_address(), "DNS starts");
        self.tasks.spawn("DNS", async move { Ok(dns.await?) });
        Ok(())
    }
}

/// Waits until the bridge of the pods is there, if nobody can say that the node is ready.
async fn has_bridge(address: IpAddr, servers: &Servers) {
    loop {
        let is_there = UdpSocket::bind((address, 0)).await.is_ok();
        if servers.is_offline() && is_there {
            return;
        }
        time::sleep(LOOK).await;
    }
}
