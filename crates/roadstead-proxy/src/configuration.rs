//! KubeProxyConfiguration, as kube-proxy reads it from a file or a ConfigMap.
//!
//! What we do not know is tolerated and named, never an error: people bring their own files.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use roadstead_forwarding::ipvs::model::{Scheduler, Timeouts};
use serde_json::Value;

use crate::ipvs::IpvsOptions;
use crate::plane::Mode;

/// What we take from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// How to carry traffic.
    pub mode: Mode,
    /// What mode `ipvs` is to do.
    pub ipvs: IpvsOptions,
    /// The networks of the cluster's pods.
    pub cluster_networks: Vec<IpNet>,
    /// How pods are recognised.
    pub detect_local: DetectLocalMode,
    /// Whether everybody who calls a ClusterIP is masqueraded.
    pub masquerade_all: bool,
    /// The bit that marks packets for masquerading.
    pub masquerade_bit: u32,
    /// Where node ports are served: networks and keywords.
    pub node_port_addresses: Vec<String>,
    /// Whether mode `iptables` serves node ports on 127.0.0.1, too.
    pub localhost_node_ports: bool,
    /// Where `/healthz` and `/livez` are.
    pub healthz: Option<SocketAddr>,
    /// Where `/metrics` and `/proxyMode` are.
    pub metrics: Option<SocketAddr>,
    /// The name of the node, if it is not the machine's.
    pub node_name: Option<String>,
    /// How to reach the API server: a kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Settings of the kernel, with what to write there.
    pub sysctls: Vec<(&'static str, String)>,
    /// How many connections the kernel must be able to remember at least.
    pub most_connections: Option<u64>,
    /// How readily the kernel ends us when memory is short; other programs go first.
    pub oom_score_adjustment: Option<i64>,
}

/// `detectLocalMode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocalMode {
    /// By the networks of all pods.
    ClusterCidr,
    /// By the network of this node's pods, which its Node object names.
    NodeCidr,
    /// By the bridge of this name.
    Bridge(String),
    /// By interfaces whose names start like this.
    InterfacePrefix(String),
}

impl Default for Configuration {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            ipvs: IpvsOptions::default(),
            cluster_networks: Vec::new(),
            detect_local: DetectLocalMode::ClusterCidr,
            masquerade_all: false,
            masquerade_bit: 14,
            node_port_addresses: Vec::new(),
            localhost_node_ports: true,
            healthz: Some((Ipv4Addr::UNSPECIFIED, 10256).into()),
            metrics: Some((Ipv4Addr::LOCALHOST, 10249).into()),
            node_name: None,
            kubeconfig: None,
            sysctls: sysctls(&Value::Null),
            most_connections: most_connections(&Value::Null),
            oom_score_adjustment: Some(-999),
        }
    }
}

const KNOWN: &[&str] = &[
    "apiVersion",
    "kind",
    "featureGates",
    "clientConnection",
    "logging",
    "hostnameOverride",
    "bindAddress",
    "healthzBindAddress",
    "metricsBindAddress",
    "bindAddressHardFail",
    "enableProfiling",
    "showHiddenMetricsForVersion",
    "mode",
    "iptables",
    "ipvs",
    "nftables",
    "winkernel",
    "detectLocalMode",
    "detectLocal",
    "clusterCIDR",
    "nodePortAddresses",
    "oomScoreAdj",
    "conntrack",
    "configSyncPeriod",
    "portRange",
    "windowsRunAsService",
    "linux",
];

impl Configuration {
    /// Reads YAML or JSON. Returns with it what could not be understood.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), String> {
        Self::parse_with(text, Value::Null)
    }

    /// The same, but for fields that somebody has set otherwise.
    pub fn parse_with(text: &str, fields: Value) -> Result<(Self, Vec<String>), String> {
        let mut value: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        merge(&mut value, fields);
        Ok(Self::read(&value))
    }

    fn read(value: &Value) -> (Self, Vec<String>) {
        let mut notes = Vec::new();
        let mut config = Self::default();
        let text =
            |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        for key in value.as_object().into_iter().flat_map(|object| object.keys()) {
            if !KNOWN.contains(&key.as_str()) {
                notes.push(format!("unknown field {key}"));
            }
        }
        if let Some(mode) = text(&value["mode"]) {
            match mode.parse() {
                Ok(mode) => config.mode = mode,
                Err(_) => notes.push(format!("unknown mode {mode}")),
            }
        }
        for word in text(&value["clusterCIDR"]).iter().flat_map(|list| list.split(',')) {
            match word.trim().parse() {
                Ok(network) => config.cluster_networks.push(network),
                Err(_) => notes.push(format!("clusterCIDR {word} is not a network")),
            }
        }
        config.detect_local = detect_local(value, &mut notes);
        let block = &value[&*config.mode.to_string()];
        for block in [&value["iptables"], &value["nftables"], block] {
            if let Some(all) = block["masqueradeAll"].as_bool() {
                config.masquerade_all = all;
            }
            let bit = block["masqueradeBit"].as_u64().and_then(|bit| u32::try_from(bit).ok());
            config.masquerade_bit = bit.filter(|bit| *bit < 32).unwrap_or(config.masquerade_bit);
        }
        let addresses = value["nodePortAddresses"].as_array().into_iter().flatten();
        config.node_port_addresses = addresses.filter_map(text).collect();
        if let Some(localhost) = value["iptables"]["localhostNodePorts"].as_bool() {
            config.localhost_node_ports = localhost;
        }
        config.healthz = bind(&value["healthzBindAddress"], config.healthz, &mut notes);
        config.metrics = bind(&value["metricsBindAddress"], config.metrics, &mut notes);
        config.node_name = text(&value["hostnameOverride"]);
        config.kubeconfig = text(&value["clientConnection"]["kubeconfig"]).map(PathBuf::from);
        config.sysctls = sysctls(&value["conntrack"]);
        config.most_connections = most_connections(&value["conntrack"]);
        if let Some(adjustment) = value["oomScoreAdj"].as_i64() {
            config.oom_score_adjustment = Some(adjustment);
        }
        config.ipvs = ipvs(&value["ipvs"], &mut notes);
        (config, notes)
    }
}

/// Fields of objects one by one, anything else as a whole.
fn merge(into: &mut Value, fields: Value) {
    match (into, fields) {
        (_, Value::Null) => {}
        (Value::Object(into), Value::Object(fields)) => {
            for (key, value) in fields {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, value) => *into = value,
    }
}

fn detect_local(value: &Value, notes: &mut Vec<String>) -> DetectLocalMode {
    let name = |key: &str| value["detectLocal"][key].as_str().unwrap_or_default().to_owned();
    match value["detectLocalMode"].as_str().unwrap_or_default() {
        "" | "ClusterCIDR" => DetectLocalMode::ClusterCidr,
        "NodeCIDR" => DetectLocalMode::NodeCidr,
        "BridgeInterface" => DetectLocalMode::Bridge(name("bridgeInterface")),
        "InterfaceNamePrefix" => DetectLocalMode::InterfacePrefix(name("interfaceNamePrefix")),
        other => {
            notes.push(format!("unknown detectLocalMode {other}"));
            DetectLocalMode::ClusterCidr
        }
    }
}

/// An address to listen on: `ip:port`, or an address alone with the usual port.
fn bind(value: &Value, usual: Option<SocketAddr>, notes: &mut Vec<String>) -> Option<SocketAddr> {
    let text = value.as_str().filter(|text| !text.is_empty());
    let Some(text) = text else { return usual };
    let port = usual.map_or(0, |usual| usual.port());
    let address = text.parse().ok();
    let address = address.or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, port)));
    if address.is_none() {
        notes.push(format!("{text} is not an address to listen on"));
    }
    address.or(usual)
}

/// How many connections to remember, with kube-proxy's defaults: some for each processor, but not
/// too few and not too many.
fn most_connections(conntrack: &Value) -> Option<u64> {
    const MOST: u64 = 1_048_576;
    let per_core = conntrack["maxPerCore"].as_u64().unwrap_or(32_768);
    let least = conntrack["min"].as_u64().unwrap_or(131_072);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    (per_core > 0).then(|| per_core.saturating_mul(cores).max(least).min(MOST))
}

/// The other settings of connection tracking, with kube-proxy's defaults. Zero leaves one alone.
fn sysctls(conntrack: &Value) -> Vec<(&'static str, String)> {
    let mut wanted = Vec::new();
    let durations = [
        ("tcpEstablishedTimeout", "net/netfilter/nf_conntrack_tcp_timeout_established", "24h"),
        ("tcpCloseWaitTimeout", "net/netfilter/nf_conntrack_tcp_timeout_close_wait", "1h"),
        ("udpTimeout", "net/netfilter/nf_conntrack_udp_timeout", "0s"),
        ("udpStreamTimeout", "net/netfilter/nf_conntrack_udp_timeout_stream", "0s"),
    ];
    for (key, name, usual) in durations {
        let text = conntrack[key].as_str().unwrap_or(usual);
        let seconds = duration(text).map(|duration| duration.as_secs());
        if let Some(seconds) = seconds.filter(|seconds| *seconds > 0) {
            wanted.push((name, seconds.to_string()));
        }
    }
    if conntrack["tcpBeLiberal"].as_bool() == Some(true) {
        wanted.push(("net/netfilter/nf_conntrack_tcp_be_liberal", "1".into()));
    }
    wanted
}

/// The block `ipvs`.
fn ipvs(block: &Value, notes: &mut Vec<String>) -> IpvsOptions {
    let timeout = |key: &str| block[key].as_str().and_then(duration).unwrap_or_default();
    let mut scheduler = Scheduler::default();
    if let Some(name) = block["scheduler"].as_str().filter(|name| !name.is_empty()) {
        match Scheduler::parse(name) {
            Some(known) => scheduler = known,
            None => notes.push(format!("unknown ipvs scheduler {name}")),
        }
    }
    let mut excluded = Vec::new();
    for entry in block["excludeCIDRs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        match entry.parse() {
            Ok(network) => excluded.push(network),
            Err(_) => notes.push(format!("ipvs.excludeCIDRs: {entry} is not a network")),
        }
    }
    IpvsOptions {
        scheduler,
        timeouts: Timeouts {
            tcp: timeout("tcpTimeout"),
            tcp_fin: timeout("tcpFinTimeout"),
            udp: timeout("udpTimeout"),
        },
        strict_arp: block["strictARP"].as_bool().unwrap_or(false),
        excluded,
    }
}

/// A duration such as `1h30m0s`.
fn duration(text: &str) -> Option<Duration> {
    let mut total = 0;
    let mut number = String::new();
    for c in text.chars() {
        if c.is_ascii_digit() {
            number.push(c);
            continue;
        }
        let unit = match c {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        total += number.parse::<u64>().ok()?.checked_mul(unit)?;
        number.clear();
    }
    number.is_empty().then_some(Duration::from_secs(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_kubeadm_writes() {
        let text = "\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
clientConnection: {burst: 0, kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16, fd00:244::/48
conntrack: {maxPerCore: null, min: 5000000, tcpEstablishedTimeout: 2h0m0s, tcpBeLiberal: true}
detectLocalMode: InterfaceNamePrefix
detectLocal: {bridgeInterface: '', interfaceNamePrefix: veth}
healthzBindAddress: 0.0.0.0:10300
metricsBindAddress: ''
hostnameOverride: node-7
iptables: {masqueradeAll: true, masqueradeBit: 15, syncPeriod: 0s, localhostNodePorts: false}
mode: iptables
nodePortAddresses: [primary, 10.0.0.0/8]
logging: {level: 4}
";
        let (config, notes) = Configuration::parse(text).unwrap();
        assert_eq!(notes, Vec::<String>::new());
        assert_eq!(config.mode, Mode::Iptables);
        assert_eq!(config.cluster_networks.len(), 2);
        assert_eq!(config.detect_local, DetectLocalMode::InterfacePrefix("veth".into()));
        assert!(config.masquerade_all && !config.localhost_node_ports);
        assert_eq!(config.masquerade_bit, 15);
        assert_eq!(config.node_port_addresses, ["primary", "10.0.0.0/8"]);
        assert_eq!(config.healthz.unwrap().port(), 10300);
        assert_eq!(config.metrics.unwrap().port(), 10249);
        assert_eq!(config.node_name.as_deref(), Some("node-7"));
        let kubeconfig = "/var/lib/kube-proxy/kubeconfig.conf";
        assert_eq!(config.kubeconfig, Some(PathBuf::from(kubeconfig)));
        let sysctls: Vec<_> =
            config.sysctls.iter().map(|(name, v)| format!("{name}={v}")).collect();
        assert_eq!(
            sysctls,
            [
                "net/netfilter/nf_conntrack_tcp_timeout_established=7200",
                "net/netfilter/nf_conntrack_tcp_timeout_close_wait=3600",
                "net/netfilter/nf_conntrack_tcp_be_liberal=1",
            ]
        );
        assert_eq!(config.most_connections, Some(1_048_576));
        assert_eq!(config.oom_score_adjustment, Some(-999));
    }

    #[test]
    fn odd_files_are_understood_as_far_as_possible() {
        let cases = [
            ("{}", ""),
            ("logging: {level: 4}", ""),
            ("mode: userspace", "unknown mode userspace"),
            ("level: 4", "unknown field level"),
            ("clusterCIDR: 10.0.0.0/99", "clusterCIDR 10.0.0.0/99 is not a network"),
            ("metricsBindAddress: here", "here is not an address to listen on"),
            ("detectLocalMode: Guess", "unknown detectLocalMode Guess"),
            ("conntrack: nonsense", ""),
        ];
        for (text, want) in cases {
            assert_eq!(Configuration::parse(text).unwrap().1.join(" "), want, "{text}");
        }
        assert!(Configuration::parse("{ not yaml").is_err());
    }

    #[test]
    fn some_fields_are_set_otherwise() {
        let text = "mode: ipvs\nconntrack: {maxPerCore: 0, tcpCloseWaitTimeout: 0s}";
        let fields = serde_json::json!({
            "mode": "iptables",
            "conntrack": {"tcpEstablishedTimeout": "0s"},
            "oomScoreAdj": -1,
        });
        let (config, notes) = Configuration::parse_with(text, fields).unwrap();
        assert_eq!((config.mode, notes.len()), (Mode::Iptables, 0));
        assert_eq!((config.most_connections, config.sysctls), (None, Vec::new()));
        assert_eq!(config.oom_score_adjustment, Some(-1));
    }

    #[test]
    fn the_block_of_ipvs() {
        let text = "mode: ipvs\nipvs: {scheduler: lc, strictARP: true, tcpTimeout: 15m0s, \
            excludeCIDRs: [10.9.0.0/16]}";
        let (config, notes) = Configuration::parse(text).unwrap();
        assert_eq!((config.mode, notes.len()), (Mode::Ipvs, 0));
        let timeouts = Timeouts { tcp: Duration::from_secs(900), ..Timeouts::default() };
        let wanted = IpvsOptions {
            scheduler: Scheduler::LeastConnection,
            timeouts,
            strict_arp: true,
            excluded: vec!["10.9.0.0/16".parse().unwrap()],
        };
        assert_eq!(config.ipvs, wanted);
        let (_, notes) = Configuration::parse("ipvs: {scheduler: best}").unwrap();
        assert_eq!(notes, ["unknown ipvs scheduler best"]);
    }

    #[test]
    fn durations() {
        let cases = [("24h0m0s", Some(86_400)), ("90s", Some(90)), ("1x", None), ("5", None)];
        for (text, want) in cases {
            assert_eq!(duration(text), want.map(Duration::from_secs), "{text}");
        }
    }
}
