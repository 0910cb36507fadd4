use super::*;

/// Applies defaults to a spec and returns what is wrong with it, one line each.
fn wrong(mut spec: Value) -> String {
    let address = spec["clusterIP"].clone();
    if address.is_string() {
        spec["clusterIPs"] = json!([address]);
    }
    let mut object = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec});
    Service.default(&mut object);
    let mut causes = Causes::default();
    metadata::validate(&INFO, &object, &mut causes);
    Service.validate(&object, None, &mut causes);
    causes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn mistakes_are_named_in_the_words_of_kubernetes() {
    let port = |extra: Value| {
        let mut port = json!({"port": 80});
        port.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({"ports": [port]})
    };
    let supported =
        "supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"";
    let cases = [
        (json!({"ports": [{"port": 80}]}), ""),
        (json!({}), "spec.ports: Required value"),
        (
            json!({"ports": [{"port": 70000}]}),
            "spec.ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive\n\
             spec.ports[0].targetPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            json!({"ports": [{"port": 80}, {"port": 81}]}),
            "spec.ports[0].name: Required value\nspec.ports[1].name: Required value",
        ),
        (
            json!({"ports": [{"name": "x", "port": 80}, {"name": "x", "port": 81}]}),
            "spec.ports[1].name: Duplicate value: \"x\"",
        ),
        (
            port(json!({"protocol": "tcp"})),
            "spec.ports[0].protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (
            port(json!({"targetPort": "8080"})),
            "spec.ports[0].targetPort: Invalid value: \"8080\": must contain at least one letter (a-z)",
        ),
        (
            port(json!({"nodePort": 30080})),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            json!({"type": "Loadbalancer", "ports": [{"port": 80}]}),
            &format!("spec.type: Unsupported value: \"Loadbalancer\": {supported}"),
        ),
        (json!({"type": "ExternalName"}), "spec.externalName: Required value"),
        (
            json!({"type": "ExternalName", "externalName": "a.b", "clusterIP": "10.96.0.9"}),
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
        ),
        (
            json!({"clusterIP": "none", "ports": [{"port": 80}]}),
            "spec.clusterIPs[0]: Invalid value: \"none\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        ),
        (
            json!({"type": "NodePort", "clusterIP": "None", "ports": [{"port": 80}]}),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (
            json!({"sessionAffinity": "clientip", "ports": [{"port": 80}]}),
            "spec.sessionAffinity: Unsupported value: \"clientip\": supported values: \"ClientIP\", \"None\"",
        ),
        (
            json!({"externalTrafficPolicy": "Local", "ports": [{"port": 80}]}),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
        ),
        (
            json!({"externalIPs": ["127.0.0.1"], "ports": [{"port": 80}]}),
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(wrong(spec.clone()), want, "{spec}");
    }
}

#[test]
fn what_is_left_out_is_filled_in() {
    let mut object = json!({"spec": {"type": "NodePort", "selector": {}, "ports": [{"port": 80}]}});
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
}
