//! ConfigMaps and Secrets that a pod gets content from: pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Volume};

use crate::env_file::VolumeFiles;
use crate::image::ImageFacts;
use crate::volumes::claimed::ClaimedVolume;

/// An object of the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceName {
    /// A ConfigMap of this name.
    ConfigMap(String),
    /// A Secret of this name.
    Secret(String),
}

/// Those that exist.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// By name.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// By name.
    pub secrets: BTreeMap<String, Secret>,
    /// What the pod's claims stand for, by the name of the claim.
    pub claims: BTreeMap<String, ClaimedVolume>,
    /// The files of its volumes that its variables are from.
    pub files: VolumeFiles,
    /// The images that are volumes, by the name of the volume.
    pub images: BTreeMap<String, ImageFacts>,
}

impl Sources {
    /// The content of an object, if it exists.
    pub(crate) fn data(&self, source: &SourceName) -> Option<BTreeMap<String, Vec<u8>>> {
        match source {
            SourceName::ConfigMap(name) => {
                let map = self.config_maps.get(name)?;
                let texts = map.data.iter().flatten();
                let texts = texts.map(|(key, text)| (key.clone(), text.clone().into_bytes()));
                let bytes = map.binary_data.iter().flatten();
                Some(texts.chain(bytes.map(|(key, data)| (key.clone(), data.0.clone()))).collect())
            }
            SourceName::Secret(name) => {
                let secret = self.secrets.get(name)?;
                let data = secret.data.iter().flatten();
                Some(data.map(|(key, data)| (key.clone(), data.0.clone())).collect())
            }
        }
    }
}

impl SourceName {
    /// As the kubelet says that it does not exist.
    pub(crate) fn missing(&self) -> String {
        match self {
            Self::ConfigMap(name) => format!("configmap {name:?} not found"),
            Self::Secret(name) => format!("secret {name:?} not found"),
        }
    }
}

/// The objects that the pod's volumes have their files from.
pub fn of_volumes(pod: &Pod) -> BTreeSet<SourceName> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.flat_map(of_volume).collect()
}

fn of_volume(volume: &Volume) -> Vec<SourceName> {
    let mut names = Vec::new();
    if let Some(map) = &volume.config_map {
        names.push(SourceName::ConfigMap(map.name.clone()));
    }
    if let Some(secret) = &volume.secret {
        names.push(SourceName::Secret(secret.secret_name.clone().unwrap_or_default()));
    }
    let parts = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    for part in parts {
        names.extend(part.config_map.iter().map(|map| SourceName::ConfigMap(map.name.clone())));
        names.extend(part.secret.iter().map(|secret| SourceName::Secret(secret.name.clone())));
    }
    names
}

/// The objects that the container's variables have their values from.
pub fn of_environment(container: &Container) -> BTreeSet<SourceName> {
    let whole = container.env_from.iter().flatten().flat_map(|from| {
        let map = from.config_map_ref.iter().map(|map| SourceName::ConfigMap(map.name.clone()));
        map.chain(from.secret_ref.iter().map(|secret| SourceName::Secret(secret.name.clone())))
    });
    let single = container.env.iter().flatten().filter_map(|variable| {
        let from = variable.value_from.as_ref()?;
        of_variable(from)
    });
    whole.chain(single).collect()
}

fn of_variable(from: &EnvVarSource) -> Option<SourceName> {
    let map = from.config_map_key_ref.as_ref().map(|key| SourceName::ConfigMap(key.name.clone()));
    map.or_else(|| Some(SourceName::Secret(from.secret_key_ref.as_ref()?.name.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_named() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "volumes": [
                {"name": "a", "configMap": {"name": "m1"}},
                {"name": "b", "secret": {"secretName": "s1"}},
                {"name": "c", "projected": {"sources": [
                    {"configMap": {"name": "m2"}}, {"secret": {"name": "s1"}},
                    {"serviceAccountToken": {"path": "token"}}]}},
                {"name": "d", "emptyDir": {}}],
            "containers": [{"name": "a",
                "envFrom": [{"configMapRef": {"name": "m3"}}, {"secretRef": {"name": "s3"}}],
                "env": [{"name": "A", "value": "x"},
                    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "m4", "key": "k"}}},
                    {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s4", "key": "k"}}}]}],
        }}))
        .unwrap();
        let show = |names: BTreeSet<SourceName>| {
            let names = names.into_iter().map(|name| match name {
                SourceName::ConfigMap(name) | SourceName::Secret(name) => name,
            });
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(show(of_volumes(&pod)), "m1 m2 s1");
        assert_eq!(show(of_environment(&pod.spec.unwrap().containers[0])), "m3 m4 s3 s4");
    }
}
