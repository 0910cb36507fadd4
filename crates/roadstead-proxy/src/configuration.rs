//! KubeProxyConfiguration, as kube-proxy reads it from a file or a ConfigMap.
//!
//! What we do not know is tolerated and named, never an error: people bring their own files.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use roadstead_api::ip;
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
    /// The shortest time between two writes; zero for as soon as possible.
    pub shortest_pause: Duration,
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
            shortest_pause: Duration::ZERO,
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
            sysctls: sysctls(&Value::Null, &mut Vec::new()),
            most_connections: most_connections(&Value::Null),
            oom_score_adjustment: Some(-999),
        }
    }
}

/// The fields that there are, and whether something is done about them. Of those with fields of
/// their own only some are looked at; the others are for Windows or for upstream's logs.
const KNOWN: &[(&str, Use)] = &[
    ("apiVersion", Use::Quiet),
    ("kind", Use::Quiet),
    ("featureGates", Use::None),
    (
        "clientConnection",
        Use::Block(&["kubeconfig"], &["acceptContentTypes", "contentType", "qps", "burst"]),
    ),
    ("logging", Use::Quiet),
    ("hostnameOverride", Use::Full),
    ("bindAddress", Use::Quiet),
    ("healthzBindAddress", Use::Full),
    ("metricsBindAddress", Use::Full),
    ("bindAddressHardFail", Use::None),
    ("enableProfiling", Use::None),
    ("showHiddenMetricsForVersion", Use::None),
    ("mode", Use::Full),
    ("iptables", Use::Block(&["masqueradeAll", "masqueradeBit", "localhostNodePorts"], PERIODS)),
    (
        "ipvs",
        Use::Block(
            &[
                "scheduler",
                "strictARP",
                "excludeCIDRs",
                "tcpTimeout",
                "tcpFinTimeout",
                "udpTimeout",
            ],
            PERIODS,
        ),
    ),
    ("nftables", Use::Block(&["masqueradeAll", "masqueradeBit"], PERIODS)),
    ("winkernel", Use::Quiet),
    ("detectLocalMode", Use::Full),
    ("detectLocal", Use::Block(&["bridgeInterface", "interfaceNamePrefix"], &[])),
    ("clusterCIDR", Use::Full),
    ("nodePortAddresses", Use::Full),
    ("oomScoreAdj", Use::Full),
    (
        "conntrack",
        Use::Block(
            &[
                "maxPerCore",
                "min",
                "tcpEstablishedTimeout",
                "tcpCloseWaitTimeout",
                "tcpBeLiberal",
                "udpTimeout",
                "udpStreamTimeout",
            ],
            &[],
        ),
    ),
    ("configSyncPeriod", Use::Quiet),
    ("portRange", Use::None),
    ("windowsRunAsService", Use::Quiet),
    ("linux", Use::Quiet),
];

/// The first needs no setting: what others change shows.
const PERIODS: &[&str] = &["syncPeriod", "minSyncPeriod"];

/// What becomes of a field.
enum Use {
    /// It is obeyed.
    Full,
    /// It has no meaning here, and nobody would miss it.
    Quiet,
    /// It has no effect here, and whoever sets it should know.
    None,
    /// It has fields of its own: those that are obeyed, and those that nobody would miss.
    Block(&'static [&'static str], &'static [&'static str]),
}

/// Names the fields that are unknown or without effect. What is empty says nothing.
fn look_for_odd_fields(value: &Value, notes: &mut Vec<String>) {
    let says_something = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    for (key, value) in value.as_object().into_iter().flatten() {
        let known = KNOWN.iter().find(|(name, _)| name == key).map(|(_, known)| known);
        match (known, value) {
            (None, _) => notes.push(format!("unknown field {key}")),
            (Some(Use::None), value) if says_something(value) => {
                notes.push(format!("{key} has no effect"));
            }
            (Some(Use::Block(obeyed, quiet)), Value::Object(fields)) => {
                let known = |name: &String| [*obeyed, *quiet].concat().contains(&name.as_str());
                let unknown = fields.keys().filter(|name| !known(name));
                notes.extend(unknown.map(|name| format!("unknown field {key}.{name}")));
            }
            (Some(Use::Block(..)), value) if says_something(value) => {
                notes.push(format!("{key} has no fields"));
            }
            (Some(_), _) => {}
        }
    }
}

impl Configuration {
    /// Reads YAML or JSON. Returns with it what could not be understood.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), String> {
        Self::parse_with(text, Value::Null)
    }

    /// The same, but for fields that somebody has set otherwise.
    pub fn parse_with(text: &str, fields: Value) -> Result<(Self, Vec<String>), String> {
        Ok(Self::read(&Self::merged(text, fields)?))
    }

    /// YAML or JSON with some fields set otherwise.
    pub fn merged(text: &str, fields: Value) -> Result<Value, String> {
        let mut value: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        merge(&mut value, fields);
        Ok(value)
    }

    fn read(value: &Value) -> (Self, Vec<String>) {
        let mut notes = Vec::new();
        let mut config = Self::default();
        let text =
            |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        look_for_odd_fields(value, &mut notes);
        if let Some(mode) = text(&value["mode"]) {
            match mode.parse() {
                Ok(mode) => config.mode = mode,
                Err(_) => notes.push(format!("unknown mode {mode}")),
            }
        }
        for word in text(&value["clusterCIDR"]).iter().flat_map(|list| list.split(',')) {
            match ip::parse_network(word.trim()) {
                Some(network) => config.cluster_networks.push(network),
                None => notes.push(format!("clusterCIDR {word} is not a network")),
            }
        }
        config.detect_local = detect_local(value, &mut notes);
        // The mode's own block, or else that of iptables, which has to do for ipvs as well.
        let mode = config.mode.to_string();
        let blocks = [&*mode, "iptables"];
        let all = blocks.iter().find_map(|block| value[block]["masqueradeAll"].as_bool());
        config.masquerade_all = all.unwrap_or(config.masquerade_all);
        let bit = blocks.iter().find_map(|block| value[block]["masqueradeBit"].as_i64());
        match bit.map(u32::try_from) {
            Some(Ok(bit @ 0..32)) => config.masquerade_bit = bit,
            Some(_) => notes.push("masqueradeBit is not between 0 and 31".into()),
            None => {}
        }
        let pause = value[&*mode]["minSyncPeriod"].as_str().unwrap_or("0s");
        let pause = read_duration(pause, "minSyncPeriod", &mut notes);
        config.shortest_pause = pause.unwrap_or_default();
        let addresses = value["nodePortAddresses"].as_array().into_iter().flatten();
        config.node_port_addresses = addresses.filter_map(text).collect();
        if let Some(localhost) = value["iptables"]["localhostNodePorts"].as_bool() {
            config.localhost_node_ports = localhost;
        }
        config.healthz = bind(&value["healthzBindAddress"], config.healthz, &mut notes);
        config.metrics = bind(&value["metricsBindAddress"], config.metrics, &mut notes);
        config.node_name = text(&value["hostnameOverride"]);
        config.kubeconfig = text(&value["clientConnection"]["kubeconfig"]).map(PathBuf::from);
        config.sysctls = sysctls(&value["conntrack"], &mut notes);
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
        "BridgeInterface" if is_interface(&name("bridgeInterface")) => {
            DetectLocalMode::Bridge(name("bridgeInterface"))
        }
        "InterfaceNamePrefix" if is_interface(&name("interfaceNamePrefix")) => {
            DetectLocalMode::InterfacePrefix(name("interfaceNamePrefix"))
        }
        mode @ ("BridgeInterface" | "InterfaceNamePrefix") => {
            notes.push(format!("detectLocalMode {mode} without the name of an interface"));
            DetectLocalMode::ClusterCidr
        }
        other => {
            notes.push(format!("unknown detectLocalMode {other}"));
            DetectLocalMode::ClusterCidr
        }
    }
}

/// Whether the kernel could have an interface of that name. It refuses rules about any other.
fn is_interface(name: &str) -> bool {
    let odd = |c: char| c == '/' || c == '"' || c.is_whitespace() || c.is_control();
    !name.is_empty() && name.len() < 16 && !name.contains(odd)
}

/// An address to listen on: `ip:port`, or an address alone with the usual port.
fn bind(value: &Value, usual: Option<SocketAddr>, notes: &mut Vec<String>) -> Option<SocketAddr> {
    let text = value.as_str().filter(|text| !text.is_empty());
    let Some(text) = text else { return usual };
    let port = usual.map_or(0, |usual| usual.port());
    let address = text.parse().ok();
    let address = address.or_else(|| Some(SocketAddr::new(ip::parse(text)?, port)));
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
fn sysctls(conntrack: &Value, notes: &mut Vec<String>) -> Vec<(&'static str, String)> {
    let mut wanted = Vec::new();
    let durations = [
        ("tcpEstablishedTimeout", "net/netfilter/nf_conntrack_tcp_timeout_established", "24h"),
        ("tcpCloseWaitTimeout", "net/netfilter/nf_conntrack_tcp_timeout_close_wait", "1h"),
        ("udpTimeout", "net/netfilter/nf_conntrack_udp_timeout", "0s"),
        ("udpStreamTimeout", "net/netfilter/nf_conntrack_udp_timeout_stream", "0s"),
    ];
    for (key, name, usual) in durations {
        let text = conntrack[key].as_str().unwrap_or(usual);
        let seconds = read_duration(text, key, notes).map(|duration| duration.as_secs());
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
    let mut timeout = |key: &str| {
        let text = block[key].as_str().unwrap_or("0s");
        read_duration(text, key, notes).unwrap_or_default()
    };
    let timeouts = Timeouts {
        tcp: timeout("tcpTimeout"),
        tcp_fin: timeout("tcpFinTimeout"),
        udp: timeout("udpTimeout"),
    };
    let mut scheduler = Scheduler::default();
    if let Some(name) = block["scheduler"].as_str().filter(|name| !name.is_empty()) {
        match Scheduler::parse(name) {
            Some(known) => scheduler = known,
            None => notes.push(format!("unknown ipvs scheduler {name}")),
        }
    }
    let mut excluded = Vec::new();
    for entry in block["excludeCIDRs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        match ip::parse_network(entry) {
            Some(network) => excluded.push(network),
            None => notes.push(format!("ipvs.excludeCIDRs: {entry} is not a network")),
        }
    }
    IpvsOptions {
        scheduler,
        timeouts,
        strict_arp: block["strictARP"].as_bool().unwrap_or(false),
        excluded,
    }
}

fn read_duration(text: &str, key: &str, notes: &mut Vec<String>) -> Option<Duration> {
    let found = duration(text);
    if found.is_none() {
        notes.push(format!("{key}: {text} is not a duration"));
    }
    found
}

/// A duration as Go writes it, such as `1h30m0s`, `1.5h` or `500ms`.
fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let units = [
        ("h", 3600.0),
        ("ms", 1e-3),
        ("us", 1e-6),
        ("µs", 1e-6),
        ("ns", 1e-9),
        ("m", 60.0),
        ("s", 1.0),
    ];
    let (mut total, mut rest) = (0.0, text);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let found = units
            .iter()
            .find_map(|(unit, worth)| rest[end..].strip_prefix(unit).map(|after| (worth, after)));
        let (worth, after) = found?;
        total += number * worth;
        rest = after;
    }
    Duration::try_from_secs_f64(total).ok().filter(|_| !text.is_empty())
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
            ("conntrack: nonsense", "conntrack has no fields"),
            ("conntrack: {max: 4, min: 1}", "unknown field conntrack.max"),
            ("conntrack: {udpTimeout: soon}", "udpTimeout: soon is not a duration"),
            ("iptables: {syncPeriod: 30s, minSyncPeriod: 1s}", ""),
            ("featureGates: {NFTablesProxyMode: true}", "featureGates has no effect"),
            ("featureGates: {}\nenableProfiling: false\nportRange: ''", ""),
            ("nftables: {masqueradeBit: 32}", "masqueradeBit is not between 0 and 31"),
            ("ipvs: {excludeCIDRs: [all]}", "ipvs.excludeCIDRs: all is not a network"),
            (
                "detectLocalMode: BridgeInterface",
                "detectLocalMode BridgeInterface without the name of an interface",
            ),
            (
                "detectLocalMode: InterfaceNamePrefix\n\
                 detectLocal: {interfaceNamePrefix: much-longer-than-that}",
                "detectLocalMode InterfaceNamePrefix without the name of an interface",
            ),
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
    fn the_block_of_the_mode_counts() {
        let blocks = "iptables: {masqueradeAll: true, masqueradeBit: 15}";
        let cases = [
            ("mode: iptables\nnftables: {masqueradeAll: false, masqueradeBit: 7}", (true, 15)),
            ("mode: ipvs\nnftables: {masqueradeAll: false, masqueradeBit: 7}", (true, 15)),
            ("mode: nftables\nnftables: {masqueradeAll: false, masqueradeBit: 7}", (false, 7)),
            ("mode: nftables\nnftables: {masqueradeBit: null}", (true, 15)),
        ];
        for (text, want) in cases {
            let (config, notes) = Configuration::parse(&format!("{text}\n{blocks}")).unwrap();
            assert_eq!((config.masquerade_all, config.masquerade_bit), want, "{text}");
            assert_eq!(notes, Vec::<String>::new(), "{text}");
        }
        let text = "mode: iptables\niptables: {minSyncPeriod: 1.5s}\nipvs: {minSyncPeriod: 9s}";
        let (config, _) = Configuration::parse(text).unwrap();
        assert_eq!(config.shortest_pause, Duration::from_millis(1_500));
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
        let cases = [
            ("24h0m0s", Some(86_400_000)),
            ("90s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("500ms", Some(500)),
            ("1m0.5s", Some(60_500)),
            ("2000µs", Some(2)),
            ("0", Some(0)),
            ("", None),
            ("1x", None),
            ("5", None),
            ("-5s", None),
            ("99999999999999999999h", None),
        ];
        for (text, want) in cases {
            assert_eq!(duration(text), want.map(Duration::from_millis), "{text}");
        }
    }
}
