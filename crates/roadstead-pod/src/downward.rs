//! What a pod can be told about itself, in variables and in files: pure.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::api::core::v1::{Container, ObjectFieldSelector, Pod, ResourceFieldSelector};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use roadstead_api::quantity;

use crate::addresses::Addresses;

/// What is more by less than this was meant to be equal.
const NOISE: f64 = 1e-9;

/// What a pod can learn besides its own object.
#[derive(Clone, Copy, Debug)]
pub struct DownwardFacts {
    /// The pod's addresses; a pod has none before its network is made.
    pub pod: Option<Addresses>,
    /// The node's addresses.
    pub host: Addresses,
    /// What the node has for pods: the limit of who has none.
    pub allocatable: Allocatable,
}

/// What a node has for pods.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allocatable {
    /// In thousandths of a processor.
    pub cpu_milli: u64,
    /// In bytes.
    pub memory: u64,
    /// The disk that pods share, in bytes.
    pub storage: u64,
}

/// Returns the text that a field has.
pub(crate) fn field(
    pod: &Pod,
    field: &ObjectFieldSelector,
    around: &DownwardFacts,
) -> Result<String, String> {
    let (meta, spec) = (&pod.metadata, pod.spec.as_ref());
    let path = field.field_path.as_str();
    let unsupported = || format!("unsupported fieldPath: {path}");
    if let Some((map, key)) = path.strip_suffix("']").and_then(|path| path.split_once("['")) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return Err(unsupported()),
        };
        return Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    let text = match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "metadata.uid" => meta.uid.clone(),
        "metadata.labels" => Some(lines(meta.labels.as_ref())),
        "metadata.annotations" => Some(lines(meta.annotations.as_ref())),
        "spec.nodeName" => spec.and_then(|spec| spec.node_name.clone()),
        "spec.serviceAccountName" => spec.and_then(|spec| spec.service_account_name.clone()),
        "status.podIP" => around.pod.map(|own| own.first.to_string()),
        "status.podIPs" => around.pod.map(|own| own.to_string()),
        "status.hostIP" => Some(around.host.first.to_string()),
        "status.hostIPs" => Some(around.host.to_string()),
        _ => return Err(unsupported()),
    };
    Ok(text.unwrap_or_default())
}

/// Returns how much of a resource a container may or wants to use, in units of the divisor, rounded up.
pub(crate) fn resource(
    pod: &Pod,
    container: Option<&Container>,
    selector: &ResourceFieldSelector,
    around: &DownwardFacts,
) -> Result<String, String> {
    let named = selector.container_name.as_deref().filter(|name| !name.is_empty());
    let spec = pod.spec.iter();
    let mut all =
        spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    let container = match named {
        Some(name) => Some(
            all.find(|one| one.name == name)
                .ok_or_else(|| format!("container {name} not found"))?,
        ),
        None => container,
    };
    let (list, name) = selector.resource.split_once('.').unwrap_or_default();
    let resources = container.and_then(|container| container.resources.as_ref());
    let amounts = resources.and_then(|resources| match list {
        "limits" => resources.limits.as_ref(),
        _ => resources.requests.as_ref(),
    });
    let given = amounts.and_then(|amounts| amounts.get(name)).and_then(read);
    let whole = match (list, name) {
        ("limits" | "requests", "cpu") => around.allocatable.cpu_milli as f64 / 1000.0,
        ("limits" | "requests", "memory") => around.allocatable.memory as f64,
        ("limits" | "requests", "ephemeral-storage") => around.allocatable.storage as f64,
        ("limits" | "requests", name) if name.starts_with("hugepages-") => 0.0,
        _ => return Err(format!("unsupported container resource : {}", selector.resource)),
    };
    // Who has no limit is limited by the node; who requests nothing gets nothing for certain.
    let amount = given.unwrap_or(if list == "limits" { whole } else { 0.0 });
    let divisor = selector.divisor.as_ref().and_then(read).filter(|divisor| *divisor > 0.0);
    Ok(((amount / divisor.unwrap_or(1.0) - NOISE).ceil().max(0.0) as u64).to_string())
}

fn read(quantity: &Quantity) -> Option<f64> {
    quantity::read(&quantity.0)
}

/// `key="value"`, line by line, in the order of the keys.
fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quoted(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// As Go quotes texts.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0b' => out.push_str("\\v"),
            '\x0c' => out.push_str("\\f"),
            letter if letter.is_ascii_control() => {
                let _ = write!(out, "\\x{:02x}", u32::from(letter));
            }
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out + "\""
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    /// A pod and a node with addresses of both families.
    pub(crate) fn around() -> DownwardFacts {
        DownwardFacts {
            pod: "10.244.0.2,fd00:10:244::2".parse().ok(),
            host: "192.0.2.1,2001:db8::1".parse().unwrap(),
            allocatable: Allocatable { cpu_milli: 2000, memory: 8 << 30, storage: 1 << 40 },
        }
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "week", "uid": "u",
                         "labels": {"b": "2", "a": "1"}, "annotations": {"note": "a\n\"b\"\\"}},
            "spec": {"nodeName": "n1", "serviceAccountName": "robot", "containers": [
                {"name": "a", "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"},
                                             "requests": {"cpu": "250m", "memory": "32Mi"}}},
                {"name": "b"}]},
        }))
        .unwrap()
    }

    #[test]
    fn fields() {
        for (path, want) in [
            ("metadata.name", Ok("web-1")),
            ("metadata.namespace", Ok("week")),
            ("metadata.uid", Ok("u")),
            ("metadata.labels", Ok("a=\"1\"\nb=\"2\"")),
            ("metadata.labels['b']", Ok("2")),
            ("metadata.labels['c']", Ok("")),
            ("metadata.annotations", Ok("note=\"a\\n\\\"b\\\"\\\\\"")),
            ("metadata.annotations['note']", Ok("a\n\"b\"\\")),
            ("spec.nodeName", Ok("n1")),
            ("spec.serviceAccountName", Ok("robot")),
            ("status.podIP", Ok("10.244.0.2")),
            ("status.podIPs", Ok("10.244.0.2,fd00:10:244::2")),
            ("status.hostIP", Ok("192.0.2.1")),
            ("status.hostIPs", Ok("192.0.2.1,2001:db8::1")),
            ("status.phase", Err("unsupported fieldPath: status.phase")),
        ] {
            let selector =
                ObjectFieldSelector { field_path: path.into(), ..ObjectFieldSelector::default() };
            let found = field(&pod(), &selector, &around());
            assert_eq!(found.as_deref().map_err(String::as_str), want, "{path}");
        }
    }

    #[test]
    fn resources() {
        for (container, name, divisor, want) in [
            ("a", "limits.cpu", "", Ok("2")),
            ("a", "limits.cpu", "1m", Ok("1500")),
            ("a", "requests.cpu", "", Ok("1")),
            ("a", "limits.memory", "", Ok("67108864")),
            ("a", "limits.memory", "1Mi", Ok("64")),
            ("a", "requests.memory", "1Gi", Ok("1")),
            ("b", "limits.cpu", "", Ok("2")),
            ("b", "limits.memory", "1Gi", Ok("8")),
            ("b", "limits.ephemeral-storage", "1Gi", Ok("1024")),
            ("b", "requests.cpu", "", Ok("0")),
            ("c", "limits.cpu", "", Err("container c not found")),
            ("a", "limits.x", "", Err("unsupported container resource : limits.x")),
        ] {
            let selector: ResourceFieldSelector = serde_json::from_value(
                json!({"containerName": container, "resource": name, "divisor": divisor}),
            )
            .unwrap();
            let found = resource(&pod(), None, &selector, &around());
            assert_eq!(found.as_deref().map_err(String::as_str), want, "{container} {name}");
        }
    }
}
