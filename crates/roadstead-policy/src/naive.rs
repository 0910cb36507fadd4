//! A second opinion: what the documentation of NetworkPolicies says, word for word, over objects as they are
//! written. It shares no code with what it judges, and knows nothing of sets, indexes or cost.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::{Map, Value};

/// A pod as its users see it.
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The names of its ports, with protocol and number.
    pub(crate) ports: Vec<(String, String, u16)>,
}

/// Who one of two parties is: an address, and perhaps a pod.
pub(crate) struct Party<'a> {
    pub(crate) address: IpAddr,
    pub(crate) pod: Option<&'a Pod>,
}

/// Somebody who calls somebody.
pub(crate) struct Call<'a> {
    pub(crate) client: Party<'a>,
    pub(crate) server: Party<'a>,
    pub(crate) protocol: &'a str,
    pub(crate) port: u16,
}

/// All that policies speak of.
pub(crate) struct World {
    /// The labels of namespaces.
    pub(crate) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// The namespace and the spec of each policy.
    pub(crate) policies: Vec<(String, Value)>,
}

impl World {
    /// Whether the client reaches the server.
    pub(crate) fn lets(&self, call: &Call<'_>) -> bool {
        call.client.address == call.server.address
            || self.side("Egress", call) && self.side("Ingress", call)
    }

    /// Whether one of the two may, as far as its own policies say.
    fn side(&self, kind: &str, call: &Call<'_>) -> bool {
        let (own, other, rules, peers) = match kind {
            "Ingress" => (&call.server, &call.client, "ingress", "from"),
            _ => (&call.client, &call.server, "egress", "to"),
        };
        let Some(pod) = own.pod else { return true };
        let mine = self.policies.iter().filter(|(namespace, spec)| {
            *namespace == pod.namespace
                && selects(&spec["podSelector"], &pod.labels)
                && is_about(spec, kind)
        });
        let mine: Vec<_> = mine.collect();
        mine.is_empty()
            || mine.iter().any(|(namespace, spec)| {
                items(&spec[rules]).iter().any(|rule| {
                    let (who, which) = (items(&rule[peers]), items(&rule["ports"]));
                    (who.is_empty() || who.iter().any(|peer| self.is_peer(peer, namespace, other)))
                        && (which.is_empty() || which.iter().any(|one| is_port(one, call)))
                })
            })
    }

    fn is_peer(&self, peer: &Value, namespace: &str, other: &Party<'_>) -> bool {
        if let Value::Object(block) = &peer["ipBlock"] {
            return is_in(&block["cidr"], other.address)
                && !block
                    .get("except")
                    .map(items)
                    .unwrap_or_default()
                    .iter()
                    .any(|network| is_in(network, other.address));
        }
        let Some(pod) = other.pod else { return false };
        let there = match &peer["namespaceSelector"] {
            Value::Null => pod.namespace == namespace,
            selector => {
                self.namespaces.get(&pod.namespace).is_some_and(|own| selects(selector, own))
            }
        };
        there && (peer["podSelector"].is_null() || selects(&peer["podSelector"], &pod.labels))
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// "If no policyTypes are specified, Ingress will always be set and Egress will be set if the
/// NetworkPolicy has any egress rules."
fn is_about(spec: &Value, kind: &str) -> bool {
    match spec["policyTypes"].as_array() {
        Some(types) if !types.is_empty() => types.iter().any(|own| own == kind),
        _ => kind == "Ingress" || !items(&spec["egress"]).is_empty(),
    }
}

fn is_port(wanted: &Value, call: &Call<'_>) -> bool {
    let Call { server, protocol, port, .. } = call;
    if wanted["protocol"].as_str().unwrap_or("TCP") != *protocol {
        return false;
    }
    match &wanted["port"] {
        Value::Null => true,
        Value::String(name) => server.pod.is_some_and(|pod| {
            pod.ports.iter().any(|own| own.0 == *name && own.1 == *protocol && own.2 == *port)
        }),
        first => {
            let first = first.as_u64().unwrap();
            let last = wanted["endPort"].as_u64().unwrap_or(first);
            first <= u64::from(*port) && u64::from(*port) <= last
        }
    }
}

fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let none = Map::new();
    let equal = selector["matchLabels"].as_object().unwrap_or(&none);
    equal.iter().all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str())
        && items(&selector["matchExpressions"]).iter().all(|one| {
            let own = labels.get(one["key"].as_str().unwrap());
            let among =
                own.is_some_and(|own| items(&one["values"]).iter().any(|value| value == own));
            match one["operator"].as_str().unwrap() {
                "In" => among,
                "NotIn" => !among,
                "Exists" => own.is_some(),
                "DoesNotExist" => own.is_none(),
                other => panic!("{other}"),
            }
        })
}

/// Whether an address begins with as many bits of a network as that says.
fn is_in(network: &Value, address: IpAddr) -> bool {
    let (network, length) = network.as_str().unwrap().split_once('/').unwrap();
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let ((own, family), (other, size)) = (bits(address), bits(network.parse().unwrap()));
    let length: u32 = length.parse().unwrap();
    family == size && (length == 0 || (own ^ other) >> (128 - length) == 0)
}
