//! What the agent asks of the API about one pod.
//!
//! The two writes to its object make sure that it is this pod, and not its successor of the same name;
//! one that is gone already needs neither.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{
    ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodStatus, Secret,
};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use roadstead_pod::pod_name::PodName;
use roadstead_pod::sources::{SourceName, Sources};
use roadstead_pod::volumes::claimed::{self, ClaimedVolume};
use roadstead_pod::volumes::payload::TokenOrder;
use serde_json::json;
use tokio::time;

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
    finish_call(api.patch_status(&pod.name, &PatchParams::default(), &patch)).await
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
    finish_call(api.delete(&pod.name, &params)).await
}

/// The contents of the pod's image pull secrets, and the names of those that cannot be had.
pub(crate) async fn pull_secrets(client: &Client, pod: &Pod) -> (Vec<Vec<u8>>, Vec<String>) {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let named = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    for name in named.map(|secret| &secret.name) {
        let secret = time::timeout(TIMEOUT, api.get(name)).await;
        let data = secret.ok().and_then(Result::ok).and_then(|secret| secret.data);
        let content = data.and_then(|mut data| {
            data.remove(".dockerconfigjson").or_else(|| data.remove(".dockercfg"))
        });
        match content {
            Some(content) => found.push(content.0),
            None => missing.push(name.clone()),
        }
    }
    (found, missing)
}

/// The labels of a node, if it can be asked for.
pub(crate) async fn node_labels(client: &Client, name: &str) -> Option<BTreeMap<String, String>> {
    let api: Api<Node> = Api::all(client.clone());
    let node = time::timeout(TIMEOUT, api.get(name)).await.ok()?.ok()?;
    Some(node.metadata.labels.unwrap_or_default())
}

/// A token of the pod's account that ends with the pod, and how long it is valid.
pub(crate) async fn token(
    client: &Client,
    pod: &Pod,
    order: &TokenOrder,
) -> Result<(String, Duration), String> {
    let name = PodName::of(pod);
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let account = account.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".into());
    let audiences: Vec<_> =
        Some(&order.audience).filter(|one| !one.is_empty()).into_iter().collect();
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {"audiences": audiences, "expirationSeconds": order.lifetime,
                 "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": name.name,
                                    "uid": name.uid}},
    });
    let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", name.namespace);
    let body = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(body)
        .map_err(|error| error.to_string())?;
    let answer: TokenRequest = match time::timeout(TIMEOUT, client.request(request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(kube::Error::Api(answer))) => return Err(answer.message.clone()),
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("the API server did not answer".into()),
    };
    let status = answer.status.ok_or("the API server sent no token")?;
    let text = status.token.ok_or("the API server sent no token")?;
    let end = status.expiration_timestamp.map_or_else(Timestamp::now, |time| time.0);
    let life = end.duration_since(Timestamp::now());
    Ok((text, Duration::try_from(life).unwrap_or_default()))
}

/// What a claim of a pod stands for.
pub(crate) async fn claimed(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<ClaimedVolume, String> {
    let late = |_| "the API server did not answer".to_owned();
    let told = |error: kube::Error| error.to_string();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = time::timeout(TIMEOUT, claims.get_opt(name)).await.map_err(late)?.map_err(told)?;
    let claim = claim.ok_or_else(|| format!("persistentvolumeclaim {name:?} not found"))?;
    let volume = claimed::volume_name(&claim)?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let found = time::timeout(TIMEOUT, volumes.get_opt(&volume)).await.map_err(late)?;
    let found = found.map_err(told)?;
    let found = found.ok_or_else(|| format!("persistentvolume {volume:?} not found"))?;
    claimed::claimed(&claim, &found)
}

/// Those of these objects that exist, as they are now.
pub(crate) async fn sources(
    client: &Client,
    namespace: &str,
    names: BTreeSet<SourceName>,
) -> Result<Sources, String> {
    let mut sources = Sources::default();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    for name in names {
        let late = |_| "the API server did not answer".to_owned();
        let told = |error: kube::Error| error.to_string();
        match name {
            SourceName::ConfigMap(name) => {
                let found = time::timeout(TIMEOUT, maps.get_opt(&name)).await.map_err(late)?;
                let found = found.map_err(told)?.map(|map| (name, map));
                sources.config_maps.extend(found);
            }
            SourceName::Secret(name) => {
                let found = time::timeout(TIMEOUT, secrets.get_opt(&name)).await.map_err(late)?;
                let found = found.map_err(told)?.map(|secret| (name, secret));
                sources.secrets.extend(found);
            }
        }
    }
    Ok(sources)
}

async fn finish_call<T>(call: impl Future<Output = kube::Result<T>>) -> Result<(), String> {
    match time::timeout(TIMEOUT, call).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(kube::Error::Api(answer))) if matches!(answer.code, 404 | 409) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API server did not answer".into()),
    }
}
