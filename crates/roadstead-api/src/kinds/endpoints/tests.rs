use serde_json::json;

use super::*;
use crate::metadata;

fn wrong(name: &str, subsets: Value) -> String {
    let mut object = json!({"metadata": {"name": name, "namespace": "default"},
        "subsets": subsets});
    Endpoints.default(&mut object);
    let mut causes = Causes::default();
    metadata::validate(&INFO, &object, &mut causes);
    Endpoints.validate(&object, None, &mut causes);
    causes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// One address and one port.
fn at(ip: &str) -> Value {
    json!([{"addresses": [{"ip": ip}], "ports": [{"port": 80}]}])
}

#[test]
fn mistakes_made_by_hand() {
    let (ip, list) = ("subsets[0].addresses[0].ip", "subsets[0].addresses[0]");
    let label = "a lowercase RFC 1123 label must consist of";
    let port = |port: Value| json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [port]}]);
    let cases = [
        ("good", at("10.0.0.1"), "".to_owned()),
        ("nothing", json!([]), "".into()),
        (
            "the same address twice",
            json!([{"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}]}]),
            "".into(),
        ),
        ("global multicast", at("239.1.1.1"), "".into()),
        (
            "a host name",
            at("web.example"),
            format!(
                "{ip}: Invalid value: \"web.example\": must be a valid IP address, (e.g. 10.9.8.7 \
                 or 2001:db8::ffff)\n{ip}: Invalid value: \"web.example\": must be a valid IP \
                 address"
            ),
        ),
        (
            "an address out of this world",
            at("10.96.123.456"),
            format!(
                "{ip}: Invalid value: \"10.96.123.456\": must be a valid IP address, (e.g. \
                 10.9.8.7 or 2001:db8::ffff)\n{ip}: Invalid value: \"10.96.123.456\": must be a \
                 valid IP address"
            ),
        ),
        (
            "zeros",
            at("010.0.0.1"),
            format!("{ip}: Invalid value: \"010.0.0.1\": must not have leading 0s"),
        ),
        (
            "unspecified",
            at("0.0.0.0"),
            format!("{ip}: Invalid value: \"0.0.0.0\": may not be unspecified (0.0.0.0)"),
        ),
        (
            "loopback",
            at("127.0.0.1"),
            format!(
                "{ip}: Invalid value: \"127.0.0.1\": may not be in the loopback range \
                 (127.0.0.0/8, ::1/128)"
            ),
        ),
        (
            "link-local",
            at("169.254.1.1"),
            format!(
                "{ip}: Invalid value: \"169.254.1.1\": may not be in the link-local range \
                 (169.254.0.0/16, fe80::/10)"
            ),
        ),
        (
            "link-local multicast",
            at("224.0.0.1"),
            format!(
                "{ip}: Invalid value: \"224.0.0.1\": may not be in the link-local multicast range \
                 (224.0.0.0/24, ff02::/10)"
            ),
        ),
        (
            "no addresses",
            json!([{"ports": [{"port": 80}]}]),
            "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`".into(),
        ),
        (
            "a bad host name",
            json!([{"addresses": [{"ip": "10.0.0.1", "hostname": "A"}]}]),
            format!("{list}.hostname: Invalid value: \"A\": {label}"),
        ),
        (
            "two unnamed ports",
            json!([{"notReadyAddresses": [{"ip": "10.0.0.1"}],
                "ports": [{"port": 80}, {"port": 81}]}]),
            "subsets[0].ports[0].name: Required value\nsubsets[0].ports[1].name: Required value"
                .into(),
        ),
        (
            "a bad port name",
            port(json!({"name": "Web", "port": 80})),
            format!("subsets[0].ports[0].name: Invalid value: \"Web\": {label}"),
        ),
        (
            "no port",
            port(json!({"port": 0})),
            "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive"
                .into(),
        ),
        (
            "no protocol",
            port(json!({"port": 80, "protocol": "HTTP"})),
            "subsets[0].ports[0].protocol: Unsupported value: \"HTTP\": supported values: \
             \"SCTP\", \"TCP\", \"UDP\""
                .into(),
        ),
    ];
    for (name, subsets, want) in cases {
        let found = wrong("web", subsets);
        assert!(
            found == want || (want.ends_with(label) && found.starts_with(&want)),
            "{name}: {found}"
        );
    }
    assert!(
        wrong("My_Svc", at("10.0.0.1")).starts_with("metadata.name: Invalid value: \"My_Svc\"")
    );
}

#[test]
fn what_was_accepted_once_stays_good() {
    let object = json!({"metadata": {}, "subsets": at("127.0.0.1")});
    let mut causes = Causes::default();
    Endpoints.validate(&object, Some(&object), &mut causes);
    assert!(causes.0.is_empty(), "{causes:?}");
}

#[test]
fn unusual_spellings_are_worth_a_warning() {
    let mut object = json!({"metadata": {}, "subsets": at("FD00::1")});
    assert_eq!(
        Endpoints.warnings(&object),
        ["subsets[0].addresses[0].ip: IPv6 address \"FD00::1\" should be in RFC 5952 canonical \
          format (\"fd00::1\")"]
    );
    object["metadata"]["labels"] =
        json!({"endpoints.kubernetes.io/managed-by": "endpoint-controller"});
    assert!(Endpoints.warnings(&object).is_empty());
}
