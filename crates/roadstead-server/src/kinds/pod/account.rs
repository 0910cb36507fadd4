//! The account of a pod: it must exist, and the pod gets its token and the secrets that it pulls images with.

use roadstead_api::kinds::pod;
use roadstead_schema::json::{Pointer, child};
use serde_json::{Value, json};

use super::refusal;
use crate::error::ApiError;
use crate::kinds::admission::AdmissionPlugin;
use crate::objects::write::{Context, generated};
use crate::reading::object;

/// Where programs look for the token, the certificate of the API server, and their namespace.
const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// What an agent shows of a pod that it has from a file: such a pod has no account.
const MIRROR: &str = "kubernetes.io/config.mirror";

pub(in crate::kinds) struct ServiceAccount;

impl AdmissionPlugin for ServiceAccount {
    fn admit(
        &self,
        context: &Context<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match old {
            None => admit(context, new),
            Some(_) => Ok(()),
        }
    }
}

/// Gives a new pod its account and what comes with it.
fn admit(context: &Context<'_>, pod: &mut Value) -> Result<(), ApiError> {
    if !pod["metadata"]["annotations"][MIRROR].is_null() {
        return match named(pod) {
            None => Ok(()),
            Some(_) => {
                Err(refusal(context, pod, "a mirror pod may not reference service accounts"))
            }
        };
    }
    let account = find(context, pod)?.unwrap_or_default();
    let spec = child(pod, "spec");
    pod::give_account(spec);
    if spec.list("/imagePullSecrets").is_empty() && !account.list("/imagePullSecrets").is_empty() {
        spec["imagePullSecrets"] = account["imagePullSecrets"].clone();
    }
    let said = [&*spec, &account].map(|object| object["automountServiceAccountToken"].as_bool());
    if said.into_iter().flatten().next().unwrap_or(true) {
        mount_token(spec, &generated("kube-api-access-"));
    }
    Ok(())
}

/// An account that somebody names must exist. The default one is on its way if it does not.
fn find(context: &Context<'_>, pod: &Value) -> Result<Option<Value>, ApiError> {
    let Context { api, namespace, .. } = context;
    let name = named(pod).unwrap_or("default");
    let key = api.registry().core("serviceaccounts").key(namespace, name);
    match api.storage.store.get(&key) {
        Some(entry) => Ok(Some(object::value(&entry))),
        None if name == "default" => Ok(None),
        None => {
            let why = format!(
                "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
            );
            Err(refusal(context, pod, &why))
        }
    }
}

/// The account that somebody chose.
fn named(pod: &Value) -> Option<&str> {
    let named = [pod.text("/spec/serviceAccountName"), pod.text("/spec/serviceAccount")];
    named.into_iter().find(|name| !name.is_empty())
}

/// Mounts the token in every container that has nothing else in its place.
fn mount_token(spec: &mut Value, volume: &str) {
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = container.list("/volumeMounts");
            if mounts.iter().any(|mount| mount.text("/mountPath") == TOKEN_DIRECTORY) {
                continue;
            }
            let mount = json!({"name": volume, "readOnly": true, "mountPath": TOKEN_DIRECTORY});
            append(container, "volumeMounts", mount);
            mounted = true;
        }
    }
    if mounted {
        append(spec, "volumes", token_volume(volume));
    }
}

fn token_volume(name: &str) -> Value {
    let namespace = json!({"path": "namespace",
        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}});
    json!({"name": name, "projected": {"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]}})
}

fn append(object: &mut Value, list: &str, item: Value) {
    match object.get_mut(list).and_then(Value::as_array_mut) {
        Some(items) => items.push(item),
        None => object[list] = json!([item]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_mounted_where_nothing_else_is() {
        let mounted = json!([{"name": "own", "mountPath": TOKEN_DIRECTORY}]);
        for (name, mut spec, want) in [
            ("all", json!({"initContainers": [{}], "containers": [{}, {}]}), 3),
            ("not where something is", json!({"containers": [{"volumeMounts": mounted}, {}]}), 1),
            ("nowhere", json!({"containers": [{"volumeMounts": mounted}]}), 0),
        ] {
            mount_token(&mut spec, "kube-api-access-abcde");
            assert!(!spec.to_string().contains("null"), "nothing else is added: {spec}");
            let mounts = spec.to_string().matches("\"kube-api-access-abcde\"").count();
            let volumes = spec.list("/volumes").len();
            assert_eq!(
                (mounts - volumes, volumes),
                (want, usize::from(want > 0)),
                "{name}: {spec}"
            );
        }
    }
}
