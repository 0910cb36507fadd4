//! The two writes that the agent makes to a pod's object. Both make sure that it is this pod, and
//! not its successor of the same name; one that is gone already needs neither.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use tokio::time;

use crate::runtime::PodName;

/// A call that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Replaces what the agent writes of the status.
pub(crate) async fn write_status(
    client: &Client,
    pod: &PodName,
    status: &PodStatus,
) -> Result<(), String> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let patch = Patch::Merge(json!({"metadata": {"uid": pod.uid}, "status": status}));
    settle(api.patch_status(&pod.name, &PatchParams::default(), &patch)).await
}

/// Removes the object at once: its processes are gone.
pub(crate) async fn delete(client: &Client, pod: &PodName) -> Result<(), String> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let uid = Some(pod.uid.clone());
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    };
    settle(api.delete(&pod.name, &params)).await
}

async fn settle<T>(call: impl Future<Output = kube::Result<T>>) -> Result<(), String> {
    match time::timeout(TIMEOUT, call).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(answer))) if matches!(answer.code, 404 | 409) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API server did not answer".into()),
    }
}
