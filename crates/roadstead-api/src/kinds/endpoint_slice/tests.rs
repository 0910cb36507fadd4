use super::*;

fn slice(family: &str, endpoints: Value, ports: Value) -> Value {
    let mut object = json!({"metadata": {"name": "web-abc", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": family, "endpoints": endpoints, "ports": ports});
    EndpointSlice.default(&mut object);
    object
}

fn said(object: &Value, old: Option<&Value>) -> String {
    let mut causes = Causes::default();
    EndpointSlice.validate(object, old, &mut causes);
    causes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn mistakes_made_by_hand() {
    let at = |ip: &str| json!([{"addresses": [ip]}]);
    let port = || json!([{"port": 80}]);
    let many: Vec<_> = (0..1001).map(|_| json!({"addresses": ["10.0.0.1"]})).collect();
    let list = "endpoints[0].addresses";
    let cases = [
        ("good", slice("IPv4", at("10.0.0.1"), port()), "".to_owned()),
        ("good six", slice("IPv6", at("fd00::1"), port()), "".into()),
        ("good name", slice("FQDN", at("a.b"), port()), "".into()),
        (
            "the same address twice",
            slice(
                "IPv4",
                json!([{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.1"]}]),
                port(),
            ),
            "".into(),
        ),
        (
            "six in four",
            slice("IPv4", at("fd00::1"), port()),
            format!("{list}: Invalid value: \"fd00::1\": must be an IPv4 address"),
        ),
        (
            "four in six",
            slice("IPv6", at("10.0.0.1"), port()),
            format!("{list}: Invalid value: \"10.0.0.1\": must be an IPv6 address"),
        ),
        (
            "six, not canonical",
            slice("IPv6", at("FD00::1"), port()),
            format!(
                "{list}[0]: Invalid value: \"FD00::1\": must be in canonical form (\"fd00::1\")"
            ),
        ),
        (
            "a name in four",
            slice("IPv4", at("web.example"), port()),
            format!(
                "{list}[0]: Invalid value: \"web.example\": must be a valid IP address, (e.g. \
                 10.9.8.7 or 2001:db8::ffff)"
            ),
        ),
        (
            "loopback",
            slice("IPv4", at("127.0.0.1"), port()),
            format!(
                "{list}[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range \
                 (127.0.0.0/8, ::1/128)"
            ),
        ),
        (
            "link-local",
            slice("IPv6", at("fe80::1"), port()),
            format!(
                "{list}[0]: Invalid value: \"fe80::1\": may not be in the link-local range \
                 (169.254.0.0/16, fe80::/10)"
            ),
        ),
        (
            "one label is no domain",
            slice("FQDN", at("web"), port()),
            format!(
                "{list}[0]: Invalid value: \"web\": should be a domain with at least two segments \
                 separated by dots"
            ),
        ),
        (
            "no address",
            slice("IPv4", json!([{"addresses": []}]), port()),
            format!("{list}: Required value"),
        ),
        (
            "101 addresses",
            slice("IPv4", json!([{"addresses": vec!["10.0.0.1"; 101]}]), port()),
            format!("{list}: Too many: 101: must have at most 100 items"),
        ),
        (
            "1,001 endpoints",
            slice("IPv4", many.into(), port()),
            "endpoints: Too many: 1001: must have at most 1000 items".into(),
        ),
        ("no type", slice("", json!([]), port()), "addressType: Required value".into()),
        (
            "no such type",
            slice("IP", at("10.0.0.1"), port()),
            "addressType: Unsupported value: \"IP\": supported values: \"FQDN\", \"IPv4\", \
             \"IPv6\""
                .into(),
        ),
        (
            "two unnamed ports",
            slice("IPv4", json!([]), json!([{"port": 80}, {"port": 81}])),
            "ports[1].name: Duplicate value: \"\"".into(),
        ),
        (
            "no protocol",
            slice("IPv4", json!([]), json!([{"port": 80, "protocol": "HTTP"}])),
            "ports[0].protocol: Unsupported value: \"HTTP\": supported values: \"SCTP\", \"TCP\", \
             \"UDP\""
                .into(),
        ),
        (
            "the same zone twice",
            slice(
                "IPv4",
                json!([{"addresses": ["10.0.0.1"],
                    "hints": {"forZones": [{"name": "a"}, {"name": "a"}]}}]),
                port(),
            ),
            "endpoints[0].hints.forZones[1].name: Duplicate value: \"a\"".into(),
        ),
        (
            "nine nodes",
            slice(
                "IPv4",
                json!([{"addresses": ["10.0.0.1"],
                    "hints": {"forNodes": vec![json!({"name": "a"}); 9]}}]),
                port(),
            ),
            "endpoints[0].hints.forNodes: Too many: 9: must have at most 8 items".into(),
        ),
    ];
    for (name, object, want) in cases {
        assert_eq!(said(&object, None), want, "{name}");
    }
    let long = slice("IPv4", json!([]), json!([{"name": "a".repeat(64), "port": 80}]));
    assert!(said(&long, None).ends_with("must be no more than 63 characters"));
    let node = slice(
        "IPv4",
        json!([{"addresses": ["10.0.0.1"], "nodeName": "A", "hostname": "B.c"}]),
        port(),
    );
    let wrong = said(&node, None);
    assert!(
        wrong.contains(
            "endpoints[0].nodeName: Invalid value: \"A\": a lowercase RFC 1123 subdomain"
        )
    );
    assert!(
        wrong.contains("endpoints[0].hostname: Invalid value: \"B.c\": a lowercase RFC 1123 label")
    );
}

#[test]
fn fields_of_the_past_are_dropped() {
    let endpoint = json!({"addresses": ["10.0.0.1"], "deprecatedTopology": {"a": "b"}});
    let mut object = slice("IPv4", json!([endpoint]), json!([]));
    EndpointSlice.prepare_create(&mut object);
    assert_eq!(object["endpoints"][0], json!({"addresses": ["10.0.0.1"], "conditions": {}}));
}

#[test]
fn changes() {
    let old = slice("IPv4", json!([{"addresses": ["127.0.0.1"]}]), json!([]));
    assert_eq!(said(&old, Some(&old)), "", "what was accepted once stays good");
    let new = slice("IPv6", json!([]), json!([]));
    assert_eq!(said(&new, Some(&old)), "addressType: Invalid value: null: field is immutable");
}

#[test]
fn warnings() {
    let deprecated = "spec.addressType: FQDN endpoints are deprecated";
    let object = slice("FQDN", json!([{"addresses": ["a.b"]}]), json!([]));
    assert_eq!(EndpointSlice.warnings_on_create(&object), [deprecated]);
    assert!(EndpointSlice.warnings(&object).is_empty());
}

#[test]
fn empty_lists_are_null() {
    let cases = [
        ("absent", json!({}), json!({"endpoints": null, "ports": null})),
        ("empty", json!({"endpoints": [], "ports": []}), json!({"endpoints": null, "ports": null})),
        (
            "full",
            json!({"endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 1}]}),
            json!({"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {}}],
                "ports": [{"name": "", "protocol": "TCP", "port": 1}]}),
        ),
    ];
    for (name, mut object, want) in cases {
        EndpointSlice.default(&mut object);
        assert_eq!(object, want, "{name}");
    }
}
