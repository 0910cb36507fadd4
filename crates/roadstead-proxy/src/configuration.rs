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

use crate::data_plane::ProxyMode;
use crate::ipvs::IpvsOptions;

const KIND: &str = "KubeProxyConfiguration";

/// What we take from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// How to carry traffic.
    pub mode: ProxyMode,
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
    /// How much to log, as `-v` has it; from 4 on, everything.
    pub verbosity: u64,
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
            mode: ProxyMode::default(),
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
            verbosity: 0,
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
    ("logging", Use::Block(&["verbosity"], &["format", "flushFrequency", "options", "vmodule"])),
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
    /// Whether everything is to be logged, and not only what an operator wants at three in the morning.
    pub fn is_talkative(&self) -> bool {
        self.verbosity >= 4
    }

    /// Reads YAML or JSON. Returns with it what could not be understood.
    pub fn parse(text: &str) -> Result<(Self, Vec<String>), String> {
        Self::parse_with(text, Value::Null)
    }

    /// The same, but for fields that somebody has set otherwise.
    pub fn parse_with(text: &str, fields: Value) -> Result<(Self, Vec<String>), String> {
        Ok(Self::read(&Self::merged(text, fields)?))
    }

    /// Reads YAML or JSON over another one, whose fields hold where it has none. What makes no sense as a
    /// whole is refused: who asks for a mode that there is not must not get another one.
    pub fn parse_over(base: &str, text: &str) -> Result<(Self, Vec<String>), String> {
        let text = if text.trim().is_empty() { "{}" } else { text };
        let fields: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        if !matches!(fields, Value::Null | Value::Object(_)) {
            return Err("it has no fields".into());
        }
        let kind = fields["kind"].as_str().unwrap_or(KIND);
        if kind != KIND {
            return Err(format!("its kind is {kind}, not {KIND}"));
        }
        let mode = &fields["mode"];
        let known = |mode: &str| mode.is_empty() || mode.parse::<ProxyMode>().is_ok();
        if !mode.is_null() && !mode.as_str().is_some_and(known) {
            return Err(format!("unknown mode {mode}"));
        }
        Self::parse_with(base, fields)
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
        config.verbosity = value["logging"]["verbosity"].as_u64().unwrap_or_default();
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
mod tests;
