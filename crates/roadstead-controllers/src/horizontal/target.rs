//! What an autoscaler is about: anything that has a `scale`, its pods, and what they use.

use k8s_openapi::api::autoscaling::v1;
use k8s_openapi::api::autoscaling::v2::{CrossVersionObjectReference, MetricSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::api::{DynamicObject, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use roadstead_plan::horizontal::{Measured, PodMetrics};
use roadstead_watch::write::read;
use serde_json::json;

/// So many objects are asked for at a time.
const PAGE: u32 = 500;
/// The APIs that have metrics of other kinds, and which kinds these are.
const ADAPTERS: [(&str, &[&str]); 2] =
    [("custom.metrics.k8s.io", &["Pods", "Object"]), ("external.metrics.k8s.io", &["External"])];

/// An object that has a `scale`.
pub(crate) struct Target {
    client: Client,
    namespace: String,
    name: String,
    objects: Api<DynamicObject>,
}

/// Its number of replicas.
pub(crate) struct Scale(v1::Scale);

impl Scale {
    pub(crate) fn replicas(&self) -> i32 {
        self.0.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0)
    }

    /// Which pods are its own, as text.
    pub(crate) fn selector(&self) -> &str {
        self.0.status.as_ref().and_then(|status| status.selector.as_deref()).unwrap_or("")
    }
}

impl Target {
    /// Asks the API server which resource the reference means.
    pub(crate) async fn find(
        client: &Client,
        namespace: &str,
        reference: &CrossVersionObjectReference,
    ) -> Result<Self, String> {
        let version =
            reference.api_version.as_deref().filter(|own| !own.is_empty()).unwrap_or("v1");
        let (group, short) = version.rsplit_once('/').unwrap_or(("", version));
        let part = |text: &str| {
            text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
        };
        if !part(group) || !part(short) {
            return Err(format!("invalid API version in scale target reference: {version:?}"));
        }
        let kind = &reference.kind;
        let name = &reference.name;
        if name.contains(['/', '%']) || matches!(name.as_str(), "" | "." | "..") {
            return Err(format!("invalid name in scale target reference: {name:?}"));
        }
        let no_match = || {
            format!(
                "unable to determine resource for scale target reference: no matches for kind \
                 {kind:?} in group {group:?}"
            )
        };
        let root = if group.is_empty() { "/api" } else { "/apis" };
        let known: APIResourceList = match read(client, &format!("{root}/{version}")).await {
            Ok(known) => known,
            Err(error) if is_missing(&error) => return Err(no_match()),
            Err(error) => return Err(said(&error)),
        };
        let mut own = known.resources.into_iter().filter(|own| own.kind == *kind);
        let own = own.find(|own| !own.name.contains('/')).ok_or_else(no_match)?;
        let kind = GroupVersionKind::gvk(group, short, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &own.name);
        Ok(Self {
            objects: Api::namespaced_with(client.clone(), namespace, &resource),
            client: client.clone(),
            namespace: namespace.to_owned(),
            name: name.clone(),
        })
    }

    pub(crate) async fn scale(&self) -> Result<Scale, String> {
        self.objects.get_scale(&self.name).await.map(Scale).map_err(|error| said(&error))
    }

    /// Asks for another number of replicas, if nobody else has meanwhile.
    pub(crate) async fn resize(&self, scale: Scale, replicas: i32) -> Result<(), String> {
        let mut wanted = scale.0;
        wanted.spec.get_or_insert_default().replicas = Some(replicas);
        let done = self.objects.replace_scale(&self.name, &PostParams::default(), &wanted).await;
        done.map(drop).map_err(|error| said(&error))
    }

    /// The pods that are selected.
    pub(crate) async fn pods(&self, selector: &str) -> Result<Vec<Pod>, kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        all(&api, selector).await
    }

    /// What they use.
    pub(crate) async fn measured(&self, selector: &str) -> Measured {
        let kind = GroupVersionKind::gvk("metrics.k8s.io", "v1beta1", "PodMetrics");
        let resource = ApiResource::from_gvk_with_plural(&kind, "pods");
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let found = all(&api, selector).await.map_err(|error| match is_missing(&error) {
            true => "the server could not find the requested resource (get pods.metrics.k8s.io)"
                .to_owned(),
            false => said(&error),
        })?;
        let read = |pod| serde_json::from_value::<PodMetrics>(json!(pod));
        found.iter().map(read).collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    /// Which of the APIs are served that these metrics are from.
    pub(crate) async fn adapters(&self, metrics: Option<&[MetricSpec]>) -> Vec<&'static str> {
        let mut served = Vec::new();
        for (group, kinds) in ADAPTERS {
            let all = metrics.unwrap_or_default();
            if all.iter().any(|metric| kinds.contains(&metric.type_.as_str()))
                && read::<serde_json::Value>(&self.client, &format!("/apis/{group}")).await.is_ok()
            {
                served.push(group);
            }
        }
        served
    }
}

async fn all<K>(api: &Api<K>, selector: &str) -> Result<Vec<K>, kube::Error>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let mut found = Vec::new();
    let mut next = Some(String::new());
    while let Some(token) = next {
        let page = ListParams {
            continue_token: (!token.is_empty()).then_some(token),
            ..ListParams::default().labels(selector).limit(PAGE)
        };
        let list = api.list(&page).await?;
        found.extend(list.items);
        next = list.metadata.continue_.filter(|next| !next.is_empty());
    }
    Ok(found)
}

fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// An error as the API server words it.
fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}
