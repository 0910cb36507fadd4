//! The fields that the ports of Services, Endpoints, slices and containers have in common.

use roadstead_schema::invalid::Causes;
use roadstead_schema::json::Pointer;
use serde_json::{Value, json};

use crate::names;

pub(super) const RANGE: &str = "must be between 1 and 65535, inclusive";
const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];

/// Whether it can be the number of a port.
pub(super) fn is_port(number: i64) -> bool {
    (1..=65535).contains(&number)
}

/// Checks the number of a port in one of its fields.
pub(super) fn number(port: &Value, name: &str, field: &str, causes: &mut Causes) {
    let number = port[name].as_i64().unwrap_or(0);
    if !is_port(number) {
        causes.invalid(format!("{field}.{name}"), &json!(number), RANGE);
    }
}

/// Checks that the protocol is one that exists.
pub(super) fn protocol(port: &Value, field: &str, causes: &mut Causes) {
    if !PROTOCOLS.contains(&port.text("/protocol")) {
        causes.unsupported(format!("{field}.protocol"), &port["protocol"], &PROTOCOLS);
    }
}

/// Checks the name of what is spoken on a port, if there is one.
pub(super) fn app_protocol(port: &Value, field: &str, causes: &mut Causes) {
    if let Some(protocol) = port["appProtocol"].as_str() {
        names::check(names::key, format!("{field}.appProtocol"), protocol, causes);
    }
}
