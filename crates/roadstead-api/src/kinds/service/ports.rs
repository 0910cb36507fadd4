//! The ports of a Service, one by one and together.

use std::collections::BTreeSet;

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::kinds::port_fields;
use crate::names;

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
            names::check(names::label, format!("{field}.name"), name, causes);
            if !seen.insert(name) {
                causes.duplicate(format!("{field}.name"), &json!(name));
            }
        }
        port_fields::number(port, "port", &field, causes);
        port_fields::protocol(port, &field, causes);
        validate_target(&port["targetPort"], &format!("{field}.targetPort"), causes);
        port_fields::app_protocol(port, &field, causes);
    }
}

fn validate_target(target: &Value, field: &str, causes: &mut Causes) {
    match target {
        Value::Number(number) if port_fields::is_port(number.as_i64().unwrap_or(0)) => {}
        Value::String(name) => {
            names::port(name).iter().for_each(|wrong| causes.invalid(field, target, wrong));
        }
        _ => causes.invalid(field, target, port_fields::RANGE),
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
