//! What `up` works out from its arguments and the machine, before anything is touched: the
//! configuration of every part.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use ipnet::IpNet;
use roadstead_component::component::Component;
use roadstead_controllers::certificates::signer::Signer;
use roadstead_dns::agent::Pages;
use roadstead_forwarding::node_network::{DetectLocal, NodeNetwork};
use roadstead_node::config::{PolicyWait, gateway};
use roadstead_plan::alloc;
use roadstead_plan::node_ranges::{ClusterRange, plan_blocks};
use roadstead_pod::addresses::Addresses;
use roadstead_proxy::agent::config::Follow;
use roadstead_server::config::Neighbours;
use roadstead_server::identity::authority::Authority;
use roadstead_store::kv::Store;
use tracing::warn;

use crate::machine::{self, own_address};
use crate::node_args::NodePlace;
use crate::ranges::Ranges;
use crate::up::Args;
use crate::up::machines::Machines;

/// What `up` has worked out from its arguments and the machine.
pub(super) struct UpPlan {
    pub(super) args: Args,
    pub(super) node_name: String,
    pub(super) kubeconfig: PathBuf,
    /// Where nodes get their part of the pod ranges from.
    pub(super) pod_ranges: Vec<ClusterRange>,
    /// This node's part of the pod ranges.
    pub(super) pod_cidrs: Vec<IpNet>,
    pub(super) dns_ip: IpAddr,
    pub(super) internal_ips: Addresses,
    /// How many files programs may open, if not as many as we.
    pub(super) open_files: Option<u64>,
}

impl UpPlan {
    pub(super) fn new(args: Args) -> anyhow::Result<Self> {
        let name = args.node.name();
        let kubeconfig = args.kubeconfig_out.clone();
        let kubeconfig = kubeconfig.unwrap_or_else(|| args.data_dir.join("admin.kubeconfig"));
        let pod_ranges = args.node_cidr_sizes.ranges(&args.cluster_cidr)?;
        let pod_cidrs = pod_cidrs(&pod_ranges)?;
        anyhow::ensure!(!pod_cidrs.is_empty(), "--cluster-cidr is empty");
        let family = |range: &IpNet| if range.addr().is_ipv4() { "IPv4" } else { "IPv6" };
        let primary = family(&pod_cidrs[0]);
        let mut services = args.services.ranges().iter();
        let Some(service_cidr) = services.find(|range| family(range) == primary) else {
            bail!("pods have {primary} addresses here: --service-cidr needs an {primary} range");
        };
        let tenth = alloc::nth(*service_cidr, 10);
        if args.dns_ip.is_none() && !service_cidr.contains(&tenth) {
            bail!(
                "--service-cidr {service_cidr} is too small for a cluster: it needs a /28 or more"
            );
        }
        let dns_ip = args.dns_ip.unwrap_or(tenth);
        if !service_cidr.contains(&dns_ip) {
            bail!("--dns-ip {dns_ip} is not in --service-cidr {service_cidr}");
        }
        let own =
            |range: &IpNet| own_address(range.addr().is_ipv4()).unwrap_or_else(|| gateway(range));
        let found = Addresses::of(pod_cidrs.iter().map(own)).context("--cluster-cidr is empty")?;
        let among = args.machines.own_address().map(Addresses::from);
        if among.is_some() && primary != "IPv4" {
            bail!(
                "--nodes: nodes of one machine have IPv4 addresses, and so must pods: see --cluster-cidr"
            );
        }
        let internal_ips = among.unwrap_or(found);
        Ok(Self {
            args,
            node_name: name,
            kubeconfig,
            pod_ranges,
            pod_cidrs,
            dns_ip,
            internal_ips,
            open_files: None,
        })
    }

    /// Refuses what cannot work before anything is touched; warns of what may not be meant.
    pub(super) fn check_ranges(&self) -> anyhow::Result<()> {
        self.args.services.service_config()?;
        let ranges = Ranges {
            pods: &self.args.cluster_cidr,
            services: self.args.services.ranges(),
            pool: self.args.controllers.pool(),
        };
        let own: Vec<_> = [true, false].into_iter().filter_map(own_address).collect();
        ranges.check(&own)?;
        let uplinks = own.iter().map(|address| IpNet::from(*address));
        let used: Vec<_> =
            uplinks.chain(self.args.cluster_cidr.iter().chain(ranges.services).copied()).collect();
        self.args.machines.check(&used, self.listen())?;
        for warning in ranges.warnings(&self.args.node.bridge) {
            warn!("{warning}");
        }
        Ok(())
    }

    pub(super) fn store(&self) -> anyhow::Result<Arc<Store>> {
        match self.args.ephemeral {
            true => Ok(self.args.store.memory()),
            false => self.args.store.open(&self.args.data_dir),
        }
    }

    /// Approved requests for certificates are signed with the cluster's own authority.
    pub(super) fn signer(&self, authority: &Authority) -> anyhow::Result<Arc<Signer>> {
        let pair = authority.signing();
        let longest = self.args.controllers.signing_duration();
        let signer = Signer::new(&pair.certificate, &pair.key, longest);
        Ok(Arc::new(signer.map_err(anyhow::Error::msg).context("cannot sign certificates")?))
    }

    /// What the API server knows about its neighbours: that there are no others.
    pub(super) fn neighbours(&self) -> Neighbours {
        let mut components = roadstead_controllers::names();
        // Without root there are no pods of ours, and no rules.
        components.extend(machine::is_privileged().then_some("network-policy"));
        Neighbours { components: Some(components) }
    }

    pub(super) fn listen(&self) -> SocketAddr {
        self.args.listen.unwrap_or((machine::every_address(self.internal_ips.first), 6443).into())
    }

    pub(super) fn node(&self) -> roadstead_node::config::Config {
        let place = NodePlace {
            pod_cidrs: self.pod_cidrs.clone(),
            service_cidrs: self.args.services.ranges().to_vec(),
            internal_ips: self.internal_ips,
            cluster_dns: self.dns_ip,
            cluster_domain: self.args.cluster_domain.clone(),
        };
        let config = self.args.node.config(&self.args.data_dir, place);
        let policies = PolicyWait { expected: true, ..PolicyWait::default() };
        roadstead_node::config::Config { open_files: self.open_files, policies, ..config }
    }

    pub(super) fn proxy(&self) -> roadstead_proxy::agent::config::Config {
        let detect_local = DetectLocal::Networks(self.args.cluster_cidr.clone());
        roadstead_proxy::agent::config::Config {
            node_name: self.node_name.clone(),
            mode: self.args.proxy_mode.unwrap_or_default(),
            ipvs_fallback: self.args.ipvs_fallback,
            node_network: NodeNetwork {
                detect_local,
                service_networks: self.args.services.ranges().to_vec(),
                masquerade_egress: true,
                ..NodeNetwork::default()
            },
            follow: Follow { node: true, ..Follow::default() },
            // Who has this machine may try a node port the short way.
            node_port_addresses: vec!["all".into(), "localhost".into()],
            ..Default::default()
        }
    }

    /// What the flags mean for the proxy, as its ConfigMap says it at first. The machine's settings are left
    /// alone unless somebody asks.
    pub(super) fn proxy_text(&self) -> String {
        let networks: Vec<_> = self.args.cluster_cidr.iter().map(ToString::to_string).collect();
        let (mode, networks) = (self.args.proxy_mode.unwrap_or_default(), networks.join(","));
        format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n\
             kind: KubeProxyConfiguration\n\
             mode: \"{mode}\"\n\
             clusterCIDR: {networks}\n\
             detectLocalMode: ClusterCIDR\n\
             bindAddress: 0.0.0.0\n\
             healthzBindAddress: 0.0.0.0:10256\n\
             metricsBindAddress: 127.0.0.1:10249\n\
             hostnameOverride: \"\"\n\
             nodePortAddresses: [all, localhost]\n\
             clientConnection:\n  kubeconfig: \"\"\n\
             conntrack:\n  maxPerCore: 0\n  min: 0\n  \
             tcpEstablishedTimeout: 0s\n  tcpCloseWaitTimeout: 0s\n\
             iptables:\n  localhostNodePorts: true\n  masqueradeAll: false\n  masqueradeBit: 14\n  \
             minSyncPeriod: 0s\n  syncPeriod: 0s\n\
             ipvs:\n  excludeCIDRs: []\n  minSyncPeriod: 0s\n  scheduler: \"\"\n  \
             strictARP: false\n  syncPeriod: 0s\n  tcpTimeout: 0s\n  tcpFinTimeout: 0s\n  \
             udpTimeout: 0s\n\
             nftables:\n  masqueradeAll: false\n  masqueradeBit: 14\n  minSyncPeriod: 0s\n  \
             syncPeriod: 0s\n\
             logging:\n  verbosity: 0\n"
        )
    }

    /// What machines that join have to know.
    pub(super) fn facts(&self) -> serde_json::Value {
        let list = |ranges: &[IpNet]| -> String {
            ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        };
        serde_json::json!({
            "clusterDomain": self.args.cluster_domain,
            "clusterCIDR": list(&self.args.cluster_cidr),
            "serviceCIDR": list(self.args.services.ranges()),
            "dnsIP": self.dns_ip.to_string(),
        })
    }

    /// The other nodes on this machine.
    pub(super) fn machines(&self) -> Machines {
        Machines::new(&self.args.data_dir, &self.args.machines, &self.node_name)
    }

    /// What they are told as this node is.
    pub(super) fn flags_of_machines(&self) -> Vec<String> {
        let network = ["--pod-network".to_owned(), self.args.pod_network.to_string()];
        network.into_iter().chain(self.args.node.for_others()).collect()
    }

    /// Other nodes get what this one has not.
    pub(super) fn node_ipam(&self) -> roadstead_controllers::node_ipam::Config {
        roadstead_controllers::node_ipam::Config {
            ranges: self.pod_ranges.clone(),
            kept: self.pod_cidrs.clone(),
        }
    }

    /// The way to other nodes.
    pub(super) fn pod_network(&self) -> roadstead_podnet::agent::Config {
        roadstead_podnet::agent::Config {
            node_name: self.node_name.clone(),
            pod_cidrs: self.pod_cidrs.clone(),
            cluster_cidrs: self.args.cluster_cidr.clone(),
            internal_ip: Some(self.internal_ips.first),
            mode: self.args.pod_network,
            component: Component::default(),
        }
    }

    /// What the flags mean for DNS, in CoreDNS' words.
    pub(super) fn dns_text(&self) -> String {
        let (domain, resolv_conf) = (&self.args.cluster_domain, machine::RESOLV_CONF);
        format!(
            ".:53 {{\n    errors\n    \
             kubernetes {domain} in-addr.arpa ip6.arpa {{\n        pods insecure\n        \
             fallthrough in-addr.arpa ip6.arpa\n        ttl 30\n    }}\n    \
             forward . {resolv_conf} {{\n        policy quickest\n    }}\n    \
             cache {{\n        serve_stale\n    }}\n    loop\n    reload\n    loadbalance\n}}\n"
        )
    }

    /// As root we have the machine to ourselves, and show what the DNS server counted where
    /// CoreDNS does, to the machine itself.
    pub(super) fn dns_pages(&self) -> Pages {
        let metrics = machine::is_privileged().then_some((Ipv4Addr::LOCALHOST, 9153).into());
        Pages { metrics, ready: metrics, ..Pages::default() }
    }

    /// The same for the controllers and for objects in numbers.
    pub(super) fn controller_pages(&self) -> Option<SocketAddr> {
        let usual = machine::is_privileged().then_some((Ipv4Addr::LOCALHOST, 10252).into());
        self.args.metrics_bind_address.or(usual)
    }

    /// The pods of this machine ask the DNS server of this machine.
    pub(super) fn dns_clients(&self) -> roadstead_dns::clients::ClientNode {
        let resolv_conf = machine::RESOLV_CONF.into();
        roadstead_dns::clients::ClientNode { name: self.node_name.clone(), resolv_conf }
    }

    /// The DNS server listens on the bridge, where pods and the machine itself reach it; without
    /// a bridge, on loopback.
    pub(super) fn dns_address(&self, privileged: bool) -> SocketAddr {
        match privileged {
            true => (gateway(&self.pod_cidrs[0]), 53).into(),
            false => ([127, 0, 0, 1], 1053).into(),
        }
    }
}

/// This node's part of the ranges: the first block of each.
fn pod_cidrs(ranges: &[ClusterRange]) -> anyhow::Result<Vec<IpNet>> {
    let first = plan_blocks(ranges, &[]);
    first.map_err(|range| anyhow::anyhow!("--cluster-cidr {} has no room", range.range))
}
