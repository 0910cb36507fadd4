//! What is in a volume whose files come from API objects: pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, KeyToPath, Pod, ServiceAccountTokenProjection, Volume, VolumeProjection,
};

use crate::downward::{self, DownwardFacts};
use crate::sources::{SourceName, Sources};

/// The mode of files if nobody says another.
const USUAL_MODE: u32 = 0o644;
/// How long a token is valid if nobody says.
const USUAL_LIFETIME: i64 = 3600;

/// The files of a volume, by their paths below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Payload {
    /// Paths have no detours.
    pub files: BTreeMap<String, PayloadFile>,
}

/// A file of a volume.
#[derive(Clone, PartialEq)]
pub struct PayloadFile {
    /// What is in it.
    pub data: Vec<u8>,
    /// Who may read it.
    pub mode: u32,
    /// Whose it is, if not root's.
    pub owner: Option<u32>,
}

/// The content may be a secret: it is not for logs.
impl std::fmt::Debug for PayloadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes, {:o}, {:?}", self.data.len(), self.mode, self.owner)
    }
}

/// What the files are made from.
#[derive(Clone, Copy, Debug)]
pub struct PayloadContext<'a> {
    /// The pod that has the volume.
    pub pod: &'a Pod,
    /// The objects that it names.
    pub sources: &'a Sources,
    /// Tokens by the order for them.
    pub tokens: &'a BTreeMap<TokenOrder, String>,
    /// What the pod can learn of the node.
    pub around: &'a DownwardFacts,
}

/// A token that a volume has a file for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenOrder {
    /// Whom it is for; the API server if empty.
    pub audience: String,
    /// How long it is valid, in seconds.
    pub lifetime: i64,
}

/// Returns the tokens that the pod's volumes have files for.
pub fn tokens(pod: &Pod) -> Vec<TokenOrder> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let projected = volumes.filter_map(|volume| volume.projected.as_ref());
    let parts = projected.flat_map(|projected| projected.sources.iter().flatten());
    let mut orders: Vec<_> =
        parts.filter_map(|part| part.service_account_token.as_ref()).map(order).collect();
    orders.sort();
    orders.dedup();
    orders
}

fn order(token: &ServiceAccountTokenProjection) -> TokenOrder {
    TokenOrder {
        audience: token.audience.clone().unwrap_or_default(),
        lifetime: token.expiration_seconds.unwrap_or(USUAL_LIFETIME),
    }
}

/// Returns the volume's files, or why there are none; `None` if its files are not ours to write.
pub fn payload(volume: &Volume, context: &PayloadContext<'_>) -> Option<Result<Payload, String>> {
    let (parts, mode) = parts(volume)?;
    let mut writer = Writer { context, mode, files: BTreeMap::new() };
    let added = parts.iter().try_for_each(|part| writer.add(part));
    Some(added.map(|()| Payload { files: writer.files }))
}

/// All kinds of such volumes as parts of a projected one, and the mode of their files.
fn parts(volume: &Volume) -> Option<(Vec<VolumeProjection>, Option<i32>)> {
    use k8s_openapi::api::core::v1::{
        ConfigMapProjection, DownwardAPIProjection, SecretProjection,
    };
    if let Some(projected) = &volume.projected {
        return Some((projected.sources.clone().unwrap_or_default(), projected.default_mode));
    }
    let mut part = VolumeProjection::default();
    let mode = if let Some(map) = &volume.config_map {
        let (name, items, optional) = (map.name.clone(), map.items.clone(), map.optional);
        part.config_map = Some(ConfigMapProjection { name, items, optional });
        map.default_mode
    } else if let Some(secret) = &volume.secret {
        let name = secret.secret_name.clone().unwrap_or_default();
        let (items, optional) = (secret.items.clone(), secret.optional);
        part.secret = Some(SecretProjection { name, items, optional });
        secret.default_mode
    } else if let Some(downward) = &volume.downward_api {
        part.downward_api = Some(DownwardAPIProjection { items: downward.items.clone() });
        downward.default_mode
    } else {
        return None;
    };
    Some((vec![part], mode))
}

struct Writer<'a> {
    context: &'a PayloadContext<'a>,
    mode: Option<i32>,
    files: BTreeMap<String, PayloadFile>,
}

impl Writer<'_> {
    fn add(&mut self, part: &VolumeProjection) -> Result<(), String> {
        if let Some(map) = &part.config_map {
            let source = SourceName::ConfigMap(map.name.clone());
            self.object(&source, map.items.as_deref(), map.optional)?;
        }
        if let Some(secret) = &part.secret {
            let source = SourceName::Secret(secret.name.clone());
            self.object(&source, secret.items.as_deref(), secret.optional)?;
        }
        for item in part.downward_api.iter().flat_map(|downward| downward.items.iter().flatten()) {
            self.downward(item)?;
        }
        if let Some(token) = &part.service_account_token {
            let text = self.context.tokens.get(&order(token));
            let text = text.ok_or("failed to fetch token: there is none yet")?;
            self.token(&token.path, text)?;
        }
        if part.cluster_trust_bundle.is_some() || part.pod_certificate.is_some() {
            return Err("this node projects no trust bundles or certificates yet".into());
        }
        Ok(())
    }

    fn object(
        &mut self,
        source: &SourceName,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), String> {
        let optional = optional.unwrap_or(false);
        let Some(data) = self.context.sources.data(source) else {
            return if optional { Ok(()) } else { Err(source.missing()) };
        };
        let items = match items {
            None | Some([]) => {
                return data.into_iter().try_for_each(|(key, data)| self.put(&key, data, None));
            }
            Some(items) => items,
        };
        for item in items {
            match data.get(&item.key) {
                Some(found) => self.put(&item.path, found.clone(), item.mode)?,
                None if optional => {}
                None => {
                    let what = match source {
                        SourceName::ConfigMap(_) => "configmap references non-existent config key",
                        SourceName::Secret(_) => "references non-existent secret key",
                    };
                    return Err(format!("{what}: {}", item.key));
                }
            }
        }
        Ok(())
    }

    fn downward(&mut self, item: &DownwardAPIVolumeFile) -> Result<(), String> {
        let PayloadContext { pod, around, .. } = self.context;
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward::field(pod, field, around)?,
            (None, Some(resource)) => downward::resource(pod, None, resource, around)?,
            (None, None) => return Err(format!("{} has no source", item.path)),
        };
        self.put(&item.path, text.into_bytes(), item.mode)
    }

    /// A token is for whoever the containers run as, if they are all the same.
    fn token(&mut self, path: &str, text: &str) -> Result<(), String> {
        let pod = self.context.pod;
        let owner = only_user(pod);
        let mode = if owner.is_some() || group(pod).is_some() { Some(0o600) } else { None };
        self.put(path, text.as_bytes().to_vec(), mode)?;
        if let Some(file) = self.files.get_mut(path) {
            file.owner = owner;
        }
        Ok(())
    }

    fn put(&mut self, path: &str, data: Vec<u8>, mode: Option<i32>) -> Result<(), String> {
        check(path)?;
        let mode = mode.or(self.mode).map_or(USUAL_MODE, |mode| mode.unsigned_abs() & 0o777);
        let mode = if group(self.context.pod).is_some() { mode | 0o440 } else { mode };
        self.files.insert(path.to_owned(), PayloadFile { data, mode, owner: None });
        Ok(())
    }
}

/// The group that the pod's volumes belong to, if it names one.
pub(super) fn group(pod: &Pod) -> Option<u32> {
    let context = pod.spec.as_ref()?.security_context.as_ref()?;
    u32::try_from(context.fs_group?).ok()
}

/// The user that all containers run as, if they all say the same.
fn only_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let mut users =
        spec.init_containers.iter().flatten().chain(&spec.containers).map(|container| {
            let own = container.security_context.as_ref();
            own.and_then(|own| own.run_as_user).or(of_pod)
        });
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

/// Whoever writes objects chooses these paths: they must stay in the volume, and away from the names that
/// we use in it.
fn check(path: &str) -> Result<(), String> {
    let parts: Vec<_> = path.split('/').collect();
    let is_odd = |part: &&str| matches!(*part, "" | "." | "..") || part.len() > 255;
    if path.len() > 4096 || path.contains('\0') || parts.iter().any(is_odd) {
        return Err(format!("invalid path {path:?}: must be relative, without '..'"));
    }
    if parts[0].starts_with("..") {
        return Err(format!("invalid path {path:?}: must not start with '..'"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::downward::tests::around;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> Pod {
        let meta = json!({"name": "web", "namespace": "week", "labels": {"app": "web"}});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    fn sources() -> Sources {
        let map = json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "Mw=="}});
        let hostile = json!({"data": {"..": "x"}});
        let maps = [("m", map), ("hostile", hostile)];
        let maps = maps.map(|(name, map)| (name.to_owned(), serde_json::from_value(map).unwrap()));
        let secret = serde_json::from_value(json!({"data": {"s": "NA=="}})).unwrap();
        let (config_maps, secrets) = (maps.into(), [("s".to_owned(), secret)].into());
        Sources { config_maps, secrets, ..Sources::default() }
    }

    /// `a=1/644 b=2/644`
    fn show(pod: &Pod, volume: Value) -> String {
        let mut volume = volume;
        volume["name"] = json!("v");
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let order = TokenOrder { audience: "vault".into(), lifetime: 600 };
        let context = PayloadContext {
            pod,
            sources: &sources(),
            tokens: &[(order, "secret".to_owned())].into(),
            around: &around(),
        };
        match payload(&volume, &context).expect("it is ours to write") {
            Ok(payload) => {
                let files = payload.files.iter().map(|(path, file)| {
                    let owner = file.owner.map(|owner| format!("/{owner}")).unwrap_or_default();
                    let text = String::from_utf8_lossy(&file.data);
                    format!("{path}={text}/{:o}{owner}", file.mode)
                });
                files.collect::<Vec<_>>().join(" ")
            }
            Err(why) => format!("! {why}"),
        }
    }

    #[test]
    fn files_of_objects() {
        let plain = pod(json!({"containers": [{"name": "a"}]}));
        for (volume, want) in [
            (json!({"configMap": {"name": "m"}}), "a=1/644 b=2/644 c=3/644"),
            (json!({"configMap": {"name": "m", "defaultMode": 256}}), "a=1/400 b=2/400 c=3/400"),
            (
                json!({"configMap": {"name": "m", "items": [
                    {"key": "a", "path": "x/y", "mode": 438}, {"key": "b", "path": "z"}]}}),
                "x/y=1/666 z=2/644",
            ),
            (json!({"configMap": {"name": "n"}}), "! configmap \"n\" not found"),
            (json!({"configMap": {"name": "n", "optional": true}}), ""),
            (
                json!({"configMap": {"name": "m", "items": [{"key": "n", "path": "n"}]}}),
                "! configmap references non-existent config key: n",
            ),
            (
                json!({"configMap": {"name": "m", "optional": true,
                                      "items": [{"key": "n", "path": "n"}]}}),
                "",
            ),
            (json!({"secret": {"secretName": "s"}}), "s=4/644"),
            (json!({"secret": {"secretName": "n"}}), "! secret \"n\" not found"),
            (
                json!({"secret": {"secretName": "s", "items": [{"key": "n", "path": "n"}]}}),
                "! references non-existent secret key: n",
            ),
            (
                json!({"downwardAPI": {"items": [
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                    {"path": "cpu", "resourceFieldRef":
                        {"containerName": "a", "resource": "limits.cpu"}}]}}),
                "cpu=2/644 labels=app=\"web\"/644",
            ),
            (
                json!({"projected": {"defaultMode": 288, "sources": [
                    {"configMap": {"name": "m", "items": [{"key": "a", "path": "a"}]}},
                    {"secret": {"name": "s"}},
                    {"serviceAccountToken":
                        {"path": "t", "audience": "vault", "expirationSeconds": 600}}]}}),
                "a=1/440 s=4/440 t=secret/440",
            ),
            (
                json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
                "! failed to fetch token: there is none yet",
            ),
            (
                json!({"configMap": {"name": "hostile"}}),
                "! invalid path \"..\": must be relative, without '..'",
            ),
            (
                json!({"configMap": {"name": "m", "items": [{"key": "a", "path": "..data/x"}]}}),
                "! invalid path \"..data/x\": must not start with '..'",
            ),
            (
                json!({"configMap": {"name": "m", "items": [{"key": "a", "path": "/etc/x"}]}}),
                "! invalid path \"/etc/x\": must be relative, without '..'",
            ),
        ] {
            assert_eq!(show(&plain, volume.clone()), want, "{volume}");
        }
    }

    #[test]
    fn whose_they_are() {
        let token = json!({"projected": {"sources": [
            {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}},
            {"configMap": {"name": "m", "items": [{"key": "a", "path": "a"}]}}]}});
        let user = |user: i64| json!({"name": "a", "securityContext": {"runAsUser": user}});
        for (spec, want) in [
            (json!({"containers": [{"name": "a"}]}), "a=1/644 t=secret/644"),
            (json!({"containers": [user(7)]}), "a=1/644 t=secret/600/7"),
            (json!({"containers": [user(7), user(8)]}), "a=1/644 t=secret/644"),
            (json!({"containers": [user(7), {"name": "b"}]}), "a=1/644 t=secret/644"),
            (
                json!({"containers": [{"name": "b"}], "securityContext": {"fsGroup": 9}}),
                "a=1/644 t=secret/640",
            ),
            (
                json!({"containers": [{"name": "b"}],
                       "securityContext": {"fsGroup": 9, "runAsUser": 5}}),
                "a=1/644 t=secret/640/5",
            ),
        ] {
            assert_eq!(show(&pod(spec.clone()), token.clone()), want, "{spec}");
        }
    }

    #[test]
    fn orders_for_tokens() {
        let token = |path: &str| json!({"serviceAccountToken": {"path": path}});
        let pod = pod(json!({"containers": [], "volumes": [
            {"name": "a", "projected": {"sources": [token("x"), token("y")]}}]}));
        let want = TokenOrder { audience: String::new(), lifetime: 3600 };
        assert_eq!(tokens(&pod), [want]);
    }
}
