//! The ports of a Service, one by one and together.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::invalid::Causes;
use crate::look::Look;
use crate::names;

const RANGE: &str = "must be between 1 and 65535, inclusive";
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Checks each port.
pub(super) fn validate(spec: &Value, causes: &mut Causes) {
    let ports = spec.list("/ports");
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = format!("spec.ports[{index}]");
        let name = port.text("/name");
        if name.is_empty() {
            if ports.len() > 1 {
                causes.required(format!("{field}.name"), "");
            }
        } else {
            for wrong in names::label(name) {
                causes.invalid(format!("{field}.name"), &json!(name), wrong);
            }
            if !seen.insert(name) {
                causes.duplicate(format!("{field}.name"), &json!(name));
            }
        }
        let number = port.int("/port");
        if !(1..=65535).contains(&number) {
            causes.invalid(format!("{field}.port"), &json!(number), RANGE);
        }
        if !PROTOCOLS.contains(&port.text("/protocol")) {
            causes.unsupported(format!("{field}.protocol"), &port["protocol"], &PROTOCOLS);
        }
        validate_target(&port["targetPort"], &format!("{field}.targetPort"), causes);
        if let Some(protocol) = port.get("appProtocol").and_then(Value::as_str) {
            for wrong in names::qualified(protocol) {
                causes.invalid(format!("{field}.appProtocol"), &json!(protocol), wrong);
            }
        }
    }
}

fn validate_target(target: &Value, field: &str, causes: &mut Causes) {
    match target {
        Value::Number(number) if (1..=65535).contains(&number.as_i64().unwrap_or(0)) => {}
        Value::String(name) => {
            names::port(name).iter().for_each(|wrong| causes.invalid(field, target, wrong));
        }
        _ => causes.invalid(field, target, RANGE),
    }
}

/// Checks what the ports must not have in common, and node ports where there are none.
pub(super) fn validate_together(spec: &Value, causes: &mut Causes) {
    let ports = spec.list("/ports");
    let numbered = |field: &'static str| {
        let pairs = ports.iter().map(move |port| (port.text("/protocol"), port.int(field)));
        pairs.enumerate()
    };
    if spec.text("/type") == "ClusterIP" {
        for (index, _) in numbered("/nodePort").filter(|(_, (_, number))| *number != 0) {
            let detail = "may not be used when `type` is 'ClusterIP'";
            causes.forbidden(format!("spec.ports[{index}].nodePort"), detail);
        }
    }
    let mut seen = BTreeSet::new();
    for (index, pair) in numbered("/nodePort").filter(|(_, (_, number))| *number != 0) {
        if !seen.insert(pair) {
            causes.duplicate(format!("spec.ports[{index}].nodePort"), &json!(pair.1));
        }
    }
    let mut seen = BTreeSet::new();
    for (index, pair) in numbered("/port") {
        if !seen.insert(pair) {
            // The order of these fields is part of the text.
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{:?},\"AppProtocol\":null,\"Port\":{},\
                 \"TargetPort\":0,\"NodePort\":0}}",
                pair.0, pair.1
            );
            causes.duplicate_shown(format!("spec.ports[{index}]"), &shown);
        }
    }
}
