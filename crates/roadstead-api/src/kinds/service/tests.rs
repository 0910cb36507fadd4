use super::*;

/// Applies defaults to a spec and returns what is wrong with it, one line each.
fn wrong(spec: Value) -> String {
    wrong_named("web", json!({}), spec)
}

fn wrong_named(name: &str, annotations: Value, mut spec: Value) -> String {
    transition::begin(&mut spec);
    let mut object = json!({"metadata": {"name": name, "namespace": "default",
        "annotations": annotations}, "spec": spec});
    Service.default(&mut object);
    let mut causes = Causes::default();
    metadata::validate(&INFO, &object, &mut causes);
    Service.validate(&object, None, &mut causes);
    causes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn with(extra: Value) -> Value {
    let mut spec = json!({"ports": [{"port": 80}]});
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    spec
}

fn port(extra: Value) -> Value {
    let mut port = json!({"port": 80});
    port.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    json!({"ports": [port]})
}

#[test]
fn ports_and_types() {
    let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or \
        '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
        '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    let subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
        characters, '-' or '.', and must start and end with an alphanumeric character (e.g. \
        'example.com', regex used for validation is \
        '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    let types = "supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"";
    let cases = [
        (with(json!({})), "".to_owned()),
        (json!({}), "spec.ports: Required value".into()),
        (json!({"clusterIP": "None"}), "".into()),
        (
            json!({"ports": [{"port": 70000}]}),
            "spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive\n\
             spec.ports[0].targetPort: Invalid value: 70000: must be between 1 and 65535, inclusive"
                .into(),
        ),
        (
            json!({"ports": [{"name": "a"}]}),
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive\n\
             spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive"
                .into(),
        ),
        (
            json!({"ports": [{"port": 80}, {"port": 81}]}),
            "spec.ports[0].name: Required value\nspec.ports[1].name: Required value".into(),
        ),
        (
            json!({"ports": [{"name": "x", "port": 80}, {"name": "x", "port": 81}]}),
            "spec.ports[1].name: Duplicate value: \"x\"".into(),
        ),
        (
            json!({"ports": [{"name": "x", "port": 80}, {"name": "y", "port": 80}]}),
            "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\
             \"AppProtocol\":null,\"Port\":80,\"TargetPort\":0,\"NodePort\":0}"
                .into(),
        ),
        (
            json!({"ports": [{"name": "x", "port": 80},
                {"name": "y", "port": 80, "protocol": "UDP"}]}),
            "".into(),
        ),
        (
            port(json!({"name": "HTTP"})),
            format!("spec.ports[0].name: Invalid value: \"HTTP\": {label}"),
        ),
        (
            port(json!({"protocol": "tcp"})),
            "spec.ports[0].protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \
             \"TCP\", \"UDP\""
                .into(),
        ),
        (
            port(json!({"targetPort": "8080"})),
            "spec.ports[0].targetPort: Invalid value: \"8080\": must contain at least one letter \
             (a-z)"
                .into(),
        ),
        (
            port(json!({"targetPort": "much-too-long-name"})),
            "spec.ports[0].targetPort: Invalid value: \"much-too-long-name\": must be no more than \
             15 characters"
                .into(),
        ),
        (
            port(json!({"targetPort": "a_b"})),
            "spec.ports[0].targetPort: Invalid value: \"a_b\": must contain only alpha-numeric \
             characters (a-z, 0-9), and hyphens (-)"
                .into(),
        ),
        (port(json!({"appProtocol": "kubernetes.io/h2c"})), "".into()),
        (
            port(json!({"appProtocol": "a/b/c"})),
            "spec.ports[0].appProtocol: Invalid value: \"a/b/c\": a valid label key must consist of \
             alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric \
             character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and \
             '/' (e.g. 'example.com/MyName')"
                .into(),
        ),
        (
            port(json!({"nodePort": 30080})),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'".into(),
        ),
        (
            json!({"type": "NodePort", "ports": [{"name": "a", "port": 80, "nodePort": 30080},
                {"name": "b", "port": 81, "nodePort": 30080}]}),
            "spec.ports[1].nodePort: Duplicate value: 30080".into(),
        ),
        (
            with(json!({"type": "Loadbalancer"})),
            format!("spec.type: Unsupported value: \"Loadbalancer\": {types}"),
        ),
        (json!({"type": "ExternalName"}), "spec.externalName: Required value".into()),
        (json!({"type": "ExternalName", "externalName": "10.0.0.1"}), "".into()),
        (json!({"type": "ExternalName", "externalName": "a.b."}), "".into()),
        (
            json!({"type": "ExternalName", "externalName": "https://a.b"}),
            format!("spec.externalName: Invalid value: \"https://a.b\": {subdomain}"),
        ),
        (
            json!({"type": "ExternalName", "externalName": "a.b", "clusterIP": "10.96.0.9",
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"}),
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services\n\
             spec.ipFamilies: Forbidden: may not be set for ExternalName services\n\
             spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services"
                .into(),
        ),
        (
            with(json!({"selector": {"a": "a b"}})),
            "spec.selector: Invalid value: \"a b\": a valid label must be an empty string or \
             consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
             validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .into(),
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(wrong(spec.clone()), want, "{spec}");
    }
    let names = [
        ("1web", "".to_owned()),
        ("My_Svc", format!("metadata.name: Invalid value: \"My_Svc\": {label}")),
        (
            &*"a".repeat(64),
            format!(
                "metadata.name: Invalid value: \"{}\": must be no more than 63 characters",
                "a".repeat(64)
            ),
        ),
    ];
    for (name, want) in names {
        assert_eq!(wrong_named(name, json!({}), with(json!({}))), want, "{name}");
    }
}

#[test]
fn addresses_and_policies() {
    let only = "Forbidden: may only be used when `type` is 'LoadBalancer'";
    let lb = |extra: Value| {
        let mut spec = with(json!({"type": "LoadBalancer"}));
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    };
    let cases = [
        (
            with(json!({"clusterIP": "none"})),
            "spec.clusterIPs[0]: Invalid value: \"none\": must be a valid IP address, (e.g. \
             10.9.8.7 or 2001:db8::ffff)"
                .to_owned(),
        ),
        (
            with(json!({"clusterIP": "None", "clusterIPs": ["None", "10.96.0.1"]})),
            "spec.clusterIPs: Invalid value: [\"None\",\"10.96.0.1\"]: 'None' must be the first \
             and only value"
                .into(),
        ),
        (
            with(json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1", "fd00::2"]})),
            "spec.clusterIPs: Invalid value: [\"10.0.0.1\",\"fd00::1\",\"fd00::2\"]: may only hold \
             up to 2 values"
                .into(),
        ),
        (
            with(json!({"type": "NodePort", "clusterIP": "None"})),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort \
             services"
                .into(),
        ),
        (
            lb(json!({"clusterIP": "None"})),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for \
             LoadBalancer services"
                .into(),
        ),
        (
            with(json!({"sessionAffinity": "clientip"})),
            "spec.sessionAffinity: Unsupported value: \"clientip\": supported values: \
             \"ClientIP\", \"None\""
                .into(),
        ),
        (
            with(json!({"sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}})),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater \
             than 0 and less than 86400"
                .into(),
        ),
        (
            with(json!({"sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 100000}}})),
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 100000: must be \
             greater than 0 and less than 86400"
                .into(),
        ),
        (
            with(json!({"externalTrafficPolicy": "Local"})),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for \
             externally-accessible services"
                .into(),
        ),
        (
            with(json!({"type": "NodePort", "externalTrafficPolicy": "Global"})),
            "spec.externalTrafficPolicy: Unsupported value: \"Global\": supported values: \
             \"Cluster\", \"Local\""
                .into(),
        ),
        (
            with(json!({"internalTrafficPolicy": "local"})),
            "spec.internalTrafficPolicy: Unsupported value: \"local\": supported values: \
             \"Cluster\", \"Local\""
                .into(),
        ),
        (
            with(json!({"trafficDistribution": "PreferNear"})),
            "spec.trafficDistribution: Unsupported value: \"PreferNear\": supported values: \
             \"PreferClose\", \"PreferSameZone\", \"PreferSameNode\""
                .into(),
        ),
        (
            with(json!({"healthCheckNodePort": 30000})),
            "spec.healthCheckNodePort: Invalid value: 30000: may only be set when `type` is \
             'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
                .into(),
        ),
        (with(json!({"loadBalancerClass": "a/b"})), format!("spec.loadBalancerClass: {only}")),
        (
            with(json!({"allocateLoadBalancerNodePorts": false})),
            format!("spec.allocateLoadBalancerNodePorts: {only}"),
        ),
        (
            with(json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]})),
            format!("spec.LoadBalancerSourceRanges: {only}"),
        ),
        (lb(json!({"loadBalancerSourceRanges": [" 10.0.0.0/8 "]})), "".into()),
        (
            lb(json!({"loadBalancerSourceRanges": ["1.2.3.4"]})),
            "spec.LoadBalancerSourceRanges[0]: Invalid value: \"1.2.3.4\": must be a valid CIDR \
             value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
                .into(),
        ),
        (
            with(json!({"externalIPs": ["127.0.0.1", "x"]})),
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range \
             (127.0.0.0/8, ::1/128)\nspec.externalIPs[1]: Invalid value: \"x\": must be a valid IP \
             address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
                .into(),
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(wrong(spec.clone()), want, "{spec}");
    }
}

#[test]
fn annotations() {
    let ranges = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let (hints, mode) =
        ("service.kubernetes.io/topology-aware-hints", "service.kubernetes.io/topology-mode");
    let lb = with(json!({"type": "LoadBalancer"}));
    let cases = [
        (json!({ranges: "10.0.0.0/8, 11.0.0.0/8"}), lb.clone(), "".to_owned()),
        (
            json!({ranges: "10.0.0.0"}),
            lb,
            format!(
                "metadata.annotations[{ranges}]: Invalid value: \"10.0.0.0\": must be a valid CIDR \
                 value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            ),
        ),
        (
            json!({ranges: ""}),
            with(json!({})),
            format!(
                "metadata.annotations[{ranges}]: Forbidden: may only be used when `type` is \
                 'LoadBalancer'"
            ),
        ),
        (
            json!({hints: "auto", mode: "disabled"}),
            with(json!({})),
            format!(
                "metadata.annotations[{mode}]: Invalid value: \"disabled\": must match \
                 annotations[{hints}] when both are specified"
            ),
        ),
        (
            json!({"service.kubernetes.io/service.beta.kubernetes.io/ipvs-scheduler": "rr"}),
            with(json!({})),
            "metadata.annotations: Invalid value: \
             \"service.kubernetes.io/service.beta.kubernetes.io/ipvs-scheduler\": a valid label \
             key must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
             with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex \
             used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional \
             DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
                .into(),
        ),
    ];
    for (annotations, spec, want) in cases {
        assert_eq!(wrong_named("web", annotations.clone(), spec), want, "{annotations}");
    }
}

#[test]
fn what_was_accepted_once_stays_good() {
    let old = json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": with(json!({"type": "LoadBalancer", "clusterIP": "010.96.0.9",
            "clusterIPs": ["010.96.0.9"], "externalIPs": ["010.0.0.1"],
            "loadBalancerSourceRanges": ["10.0.0.1/8"]}))});
    let mut object = old.clone();
    Service.default(&mut object);
    let mut causes = Causes::default();
    Service.validate(&object, Some(&old), &mut causes);
    assert!(causes.0.is_empty(), "{causes:?}");
    Service.validate(&object, None, &mut causes);
    assert_eq!(causes.0.len(), 3, "{causes:?}");
}

#[test]
fn what_is_left_out_is_filled_in() {
    let spec = json!({"type": "NodePort", "selector": {}, "ports": [{"port": 80}]});
    let mut object = json!({"spec": spec});
    Service.default(&mut object);
    assert_eq!(
        object["spec"],
        json!({
            "type": "NodePort",
            "sessionAffinity": "None",
            "internalTrafficPolicy": "Cluster",
            "externalTrafficPolicy": "Cluster",
            "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
        })
    );
    let ingress = json!([{"ip": "192.0.2.1"}, {"hostname": "a.b"}]);
    let mut object = json!({"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"},
        "status": {"loadBalancer": {"ingress": ingress}}});
    Service.default(&mut object);
    assert_eq!(object["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"], 10_800);
    assert_eq!(object["spec"]["allocateLoadBalancerNodePorts"], true);
    let ingress = json!([{"ip": "192.0.2.1", "ipMode": "VIP"}, {"hostname": "a.b"}]);
    assert_eq!(object["status"]["loadBalancer"]["ingress"], ingress);
}

#[test]
fn warnings() {
    let headless = |extra: Value| {
        let mut spec = with(json!({"clusterIP": "None"}));
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        spec
    };
    let cases = [
        (with(json!({"clusterIP": "10.96.0.9"})), ""),
        (
            headless(json!({"sessionAffinity": "ClientIP"})),
            "spec.SessionAffinity is ignored for headless services",
        ),
        (
            headless(json!({"loadBalancerIP": "1.2.3.4"})),
            "spec.loadBalancerIP is ignored for headless services",
        ),
        (
            headless(json!({"externalIPs": ["1.2.3.4"]})),
            "spec.externalIPs is ignored for headless services",
        ),
        (
            with(json!({"externalIPs": ["1.2.3.4"]})),
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters",
        ),
        (
            json!({"type": "ExternalName", "externalName": "a.b", "externalIPs": ["1.2.3.4"]}),
            "spec.externalIPs is ignored when spec.type is \"ExternalName\"",
        ),
        (
            with(json!({"externalName": "a.b"})),
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ),
        (
            with(json!({"trafficDistribution": "PreferClose"})),
            "spec.trafficDistribution: \"PreferClose\" is deprecated; use \"PreferSameZone\"",
        ),
        (
            with(json!({"clusterIP": "FD00::9"})),
            "spec.clusterIPs[0]: IPv6 address \"FD00::9\" should be in RFC 5952 canonical format \
             (\"fd00::9\")",
        ),
        (
            with(json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["FD00::/64"]})),
            "spec.loadBalancerSourceRanges[0]: IPv6 CIDR value \"FD00::/64\" should be in RFC 5952 \
             canonical format (\"fd00::/64\")",
        ),
    ];
    for (mut spec, want) in cases {
        transition::begin(&mut spec);
        let mut object = json!({"metadata": {}, "spec": spec});
        Service.default(&mut object);
        assert_eq!(Service.warnings(&object).join("\n"), want, "{object}");
    }
    let hints = "service.kubernetes.io/topology-aware-hints";
    let object = json!({"metadata": {"annotations": {hints: "auto"}}, "spec": {}});
    assert_eq!(
        Service.warnings(&object),
        [format!(
            "annotation {hints} is deprecated, please use service.kubernetes.io/topology-mode \
             instead"
        )]
    );
}
