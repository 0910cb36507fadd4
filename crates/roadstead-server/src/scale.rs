//! `/scale`: the number of replicas, apart from what they are.

use roadstead_api::look::Look;
use serde_json::{Value, json};

use crate::error::ApiError;

/// The `autoscaling/v1` Scale of a Deployment or ReplicaSet.
pub fn scale_of(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let labels = object.fields("/spec/selector/matchLabels");
    let selector = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")));
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": object.int("/spec/replicas")},
        "status": {
            "replicas": object.int("/status/replicas"),
            "selector": selector.collect::<Vec<_>>().join(","),
        },
    })
}

/// The object with the number of replicas that its Scale asks for.
pub fn scaled(object: &Value, scale: &Value) -> Result<Value, ApiError> {
    let Some(replicas) = scale["spec"]["replicas"].as_i64().or(Some(0)).filter(|&n| n >= 0) else {
        let message = "spec.replicas: Invalid value: must be greater than or equal to 0";
        return Err(ApiError::unprocessable(message));
    };
    let mut new = object.clone();
    new["spec"]["replicas"] = replicas.into();
    match scale.text("/metadata/resourceVersion") {
        "" => {
            new["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
        }
        version => new["metadata"]["resourceVersion"] = version.into(),
    }
    Ok(new)
}
