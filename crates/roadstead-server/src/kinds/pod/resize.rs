//! Pods that are to get more than their node has at all are told so, before the node hears of it.

use k8s_openapi::api::core::v1::PodSpec;
use roadstead_api::kinds::pod;
use roadstead_api::quantity;
use roadstead_api::requests::Requests;
use roadstead_schema::json::Pointer;
use roadstead_store::transaction::Transaction;
use serde_json::Value;

use crate::error::ApiError;
use crate::kinds::admission::AdmissionPlugin;
use crate::objects::write::Context;
use crate::reading::object;

/// Looks at the node of a pod that is resized.
pub(in crate::kinds) struct PodResizeValidator;

impl AdmissionPlugin for PodResizeValidator {
    fn complete(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &Value,
        transaction: Transaction,
    ) -> Result<Transaction, ApiError> {
        let name = new.text("/spec/nodeName");
        let changes = old.is_some_and(|old| old["spec"] != new["spec"]);
        if context.subresource != pod::RESIZE || name.is_empty() || !changes {
            return Ok(transaction);
        }
        let registry = context.api.registry();
        let nodes = registry.core("nodes");
        let refuse = |why: &str| Err(super::refusal(context, new, why));
        let Some(entry) = context.api.storage.store.get(&nodes.key("", name)) else {
            return refuse(&format!("node {name:?} not found"));
        };
        let node = object::value(&entry);
        let system = node["metadata"]["labels"]["kubernetes.io/os"].as_str().unwrap_or("linux");
        if system != "linux" {
            let why =
                format!("pod resize is only supported on linux nodes, node {name:?} is {system:?}");
            return refuse(&why);
        }
        match beyond(new, &node) {
            None => Ok(transaction),
            Some(what) => refuse(&format!("node didn't have enough allocatable resources: {what}")),
        }
    }
}

/// Of what the pod asks for more than the node has.
fn beyond(pod: &Value, node: &Value) -> Option<String> {
    let spec: PodSpec = serde_json::from_value(pod["spec"].clone()).ok()?;
    let asked = Requests::of_pod(&spec);
    let has = |name: &str, unit: f64| {
        let amount = quantity::read(node.text(&format!("/status/allocatable/{name}")));
        (amount.unwrap_or(0.0) * unit) as u64
    };
    let pairs =
        [("cpu", asked.cpu, has("cpu", 1000.0)), ("memory", asked.memory, has("memory", 1.0))];
    let short = pairs.into_iter().filter(|(_, asked, has)| asked > has);
    let short =
        short.map(|(name, asked, has)| format!("{name}, requested: {asked}, allocatable: {has}"));
    let short: Vec<_> = short.collect();
    (!short.is_empty()).then(|| short.join("; "))
}

#[test]
fn what_a_node_does_not_have() {
    use serde_json::json;
    let node = json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}});
    for (cpu, memory, want) in [
        ("2", "1Gi", ""),
        ("2100m", "1Mi", "cpu, requested: 2100, allocatable: 2000"),
        (
            "3",
            "2Gi",
            "cpu, requested: 3000, allocatable: 2000; memory, requested: 2147483648, allocatable: \
             1073741824",
        ),
    ] {
        let pod = json!({"spec": {"containers": [{"name": "a", "resources":
            {"requests": {"cpu": cpu, "memory": memory}}}]}});
        assert_eq!(beyond(&pod, &node).unwrap_or_default(), want, "{cpu} {memory}");
    }
}
