//! NetworkPolicy: who may talk to pods, and whom they may talk to.

use ipnet::IpNet;
use roadstead_schema::invalid::Causes;
use roadstead_schema::json::{Pointer, child, children, default_to};
use serde_json::{Value, json};

use crate::kinds::plain::{PlainKind, namespaced, shown};
use crate::kinds::port_fields::{self, RANGE, is_port};
use crate::names;
use crate::table::{AGE, Cell, Column, NAME};

pub(super) static KIND: PlainKind = PlainKind {
    default,
    check: validate,
    ..shown(
        namespaced("networking.k8s.io", "NetworkPolicy", "networkpolicies", "networkpolicy")
            .short(&["netpol"]),
        &[NAME, (Column::text("Pod-Selector"), Cell::Labels("/spec/podSelector/matchLabels")), AGE],
    )
};

/// The two directions, with the rules and the peers of each.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

/// Fills in what was left out: the protocol of ports, and which directions are meant.
fn default(policy: &mut Value) {
    let spec = child(policy, "spec");
    for (direction, _) in DIRECTIONS {
        for rule in children(spec, direction) {
            children(rule, "ports").for_each(|port| default_to(port, "protocol", "TCP"));
        }
    }
    if spec.list("/policyTypes").is_empty() {
        let egress = !spec.list("/egress").is_empty();
        spec["policyTypes"] =
            if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
    }
}

/// Says what is wrong with a policy.
fn validate(policy: &Value, _: Option<&Value>, causes: &mut Causes) {
    let spec = &policy["spec"];
    for (direction, peers) in DIRECTIONS {
        for (index, rule) in spec.list(&format!("/{direction}")).iter().enumerate() {
            let field = format!("spec.{direction}[{index}]");
            for (index, port) in rule.list("/ports").iter().enumerate() {
                validate_port(port, &format!("{field}.ports[{index}]"), causes);
            }
            for (index, peer) in rule.list(&format!("/{peers}")).iter().enumerate() {
                validate_peer(peer, &format!("{field}.{peers}[{index}]"), causes);
            }
        }
    }
    let types = spec.list("/policyTypes");
    if types.len() > 2 {
        let why = "may not specify more than two policyTypes";
        causes.invalid("spec.policyTypes", &spec["policyTypes"], why);
        return;
    }
    for (index, own) in types.iter().enumerate() {
        if !["Ingress", "Egress"].contains(&own.as_str().unwrap_or("")) {
            let field = format!("spec.policyTypes[{index}]");
            causes.unsupported(field, own, &["Egress", "Ingress"]);
        }
    }
}

fn validate_port(port: &Value, field: &str, causes: &mut Causes) {
    port_fields::protocol(port, field, causes);
    let (first, last) = (&port["port"], port["endPort"].as_i64());
    let mut end = |number: i64, why: &str| {
        causes.invalid(format!("{field}.endPort"), &json!(number), why);
    };
    match (first, last) {
        (Value::Null, Some(last)) => end(last, "may not be specified when `port` is not specified"),
        (Value::String(_), Some(last)) => {
            end(last, "may not be specified when `port` is non-numeric");
        }
        (Value::Number(number), Some(last)) => {
            if last < number.as_i64().unwrap_or(0) {
                end(last, "must be greater than or equal to `port`");
            }
            if !is_port(last) {
                end(last, RANGE);
            }
        }
        _ => {}
    }
    match first {
        Value::Number(number) if !is_port(number.as_i64().unwrap_or(0)) => {
            causes.invalid(format!("{field}.port"), first, RANGE);
        }
        Value::String(name) => {
            for wrong in names::port(name) {
                causes.invalid(format!("{field}.port"), first, wrong);
            }
        }
        _ => {}
    }
}

fn validate_peer(peer: &Value, field: &str, causes: &mut Causes) {
    let selects = peer.has("/podSelector") || peer.has("/namespaceSelector");
    match (peer.has("/ipBlock"), selects) {
        (false, false) => causes.required(field, "must specify a peer"),
        (true, true) => {
            causes.forbidden(field, "may not specify both ipBlock and another peer");
        }
        _ => {}
    }
    if !peer.has("/ipBlock") {
        return;
    }
    let field = format!("{field}.ipBlock");
    let text = peer.text("/ipBlock/cidr");
    let whole = match (text, text.parse::<IpNet>()) {
        ("", _) => return causes.required(format!("{field}.cidr"), ""),
        (_, Err(_)) => {
            let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            return causes.invalid(format!("{field}.cidr"), &json!(text), why);
        }
        (_, Ok(whole)) => whole,
    };
    for (index, hole) in peer.list("/ipBlock/except").iter().enumerate() {
        let field = format!("{field}.except[{index}]");
        match hole.as_str().unwrap_or("").parse::<IpNet>() {
            Err(_) => {
                let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                causes.invalid(field, hole, why);
            }
            Ok(net) if !whole.contains(&net.trunc()) || whole.trunc() == net.trunc() => {
                causes.invalid(field, hole, "must be a strict subset of `cidr`");
            }
            Ok(_) => {}
        }
    }
}

#[test]
fn policies() {
    let port = |port: Value| json!({"ingress": [{"ports": [port]}]});
    let peer = |peer: Value| json!({"egress": [{"to": [peer]}]});
    let cases = [
        (port(json!({"port": 80, "endPort": 90})), ""),
        (port(json!({"port": "http"})), ""),
        (
            port(json!({"port": 80, "endPort": 79})),
            "spec.ingress[0].ports[0].endPort: Invalid value: 79: must be greater than or equal to \
             `port`",
        ),
        (
            port(json!({"port": "http", "endPort": 90})),
            "endPort: Invalid value: 90: may not be specified when `port` is non-numeric",
        ),
        (
            port(json!({"endPort": 90})),
            "endPort: Invalid value: 90: may not be specified when `port` is not specified",
        ),
        (port(json!({"port": 80, "endPort": 70000})), "endPort: Invalid value: 70000: must be"),
        (port(json!({"port": 0})), "port: Invalid value: 0: must be between 1 and 65535"),
        (port(json!({"protocol": "ICMP"})), "protocol: Unsupported value: \"ICMP\""),
        (peer(json!({"podSelector": {}})), ""),
        (peer(json!({})), "spec.egress[0].to[0]: Required value: must specify a peer"),
        (peer(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}})), ""),
        (
            peer(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}})),
            "ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`",
        ),
        (peer(json!({"ipBlock": {"cidr": "x"}})), "ipBlock.cidr: Invalid value: \"x\""),
        (json!({"policyTypes": ["Odd"]}), "spec.policyTypes[0]: Unsupported value: \"Odd\""),
    ];
    for (spec, want) in cases {
        let mut policy = json!({"spec": spec});
        default(&mut policy);
        let mut causes = Causes::default();
        validate(&policy, None, &mut causes);
        let found: Vec<_> = causes.0.iter().map(ToString::to_string).collect();
        let found = found.join("; ");
        assert!(found.contains(want) && found.is_empty() == want.is_empty(), "{spec}: {found}");
    }
    let mut policy = peer(json!({"podSelector": {}}));
    policy = json!({"spec": policy});
    default(&mut policy);
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
}
