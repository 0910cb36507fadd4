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
logging: {flushFrequency: 0, options: {json: {infoBufferSize: 0}}, verbosity: 0}
";
    let (config, notes) = Configuration::parse(text).unwrap();
    assert_eq!(notes, Vec::<String>::new());
    assert_eq!(config.mode, ProxyMode::Iptables);
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
    let sysctls: Vec<_> = config.sysctls.iter().map(|(name, v)| format!("{name}={v}")).collect();
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
        ("logging: {level: 4}", "unknown field logging.level"),
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
fn one_over_another() {
    let base = "mode: iptables\nclusterCIDR: 10.244.0.0/16";
    for (text, want) in [
        ("", "iptables "),
        ("mode: ipvs", "ipvs "),
        ("mode: ''", "nftables "),
        ("logging:\n  level: 4", "iptables unknown field logging.level"),
        ("flavour: sweet", "iptables unknown field flavour"),
        ("mode: sideways", "refused: unknown mode \"sideways\""),
        ("mode: [ipvs]", "refused: unknown mode [\"ipvs\"]"),
        ("kind: Pod", "refused: its kind is Pod, not KubeProxyConfiguration"),
        ("just words", "refused: it has no fields"),
    ] {
        let got = match Configuration::parse_over(base, text) {
            Ok((config, notes)) => {
                assert_eq!(config.cluster_networks.len(), 1, "{text}");
                format!("{} {}", config.mode, notes.join("; "))
            }
            Err(why) => format!("refused: {why}"),
        };
        assert_eq!(got, want, "{text}");
    }
    assert!(Configuration::parse_over(base, "mode: {").is_err());
    let (config, _) = Configuration::parse_over(base, "logging: {verbosity: 4}").unwrap();
    assert_eq!(config.verbosity, 4);
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
    assert_eq!((config.mode, notes.len()), (ProxyMode::Iptables, 0));
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
    assert_eq!((config.mode, notes.len()), (ProxyMode::Ipvs, 0));
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
