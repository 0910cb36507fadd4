//! Telling users what happened to an object, where they look for it: `kubectl describe`.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client, Resource, ResourceExt};
use tracing::debug;

/// Whether an event is good news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// As planned.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Writes events in the name of one component.
#[derive(Clone)]
pub struct Recorder {
    client: Client,
    component: String,
}

impl Recorder {
    /// A recorder for that component.
    pub fn new(client: Client, component: impl Into<String>) -> Self {
        Self { client, component: component.into() }
    }

    /// Tells about an object. Events are best effort: a failure is not worth a retry.
    pub async fn tell<K>(&self, about: &K, severity: Severity, reason: &str, message: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Debug,
    {
        let namespace = about.namespace().unwrap_or_else(|| "default".into());
        let now = Timestamp::now();
        let name = about.name_any();
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", now.as_nanosecond())),
                namespace: Some(namespace.clone()),
                ..Default::default()
            },
            involved_object: ObjectReference {
                api_version: Some(K::api_version(&()).into_owned()),
                kind: Some(K::kind(&()).into_owned()),
                name: Some(name),
                namespace: about.namespace(),
                uid: about.uid(),
                resource_version: about.resource_version(),
                ..Default::default()
            },
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            type_: Some(format!("{severity:?}")),
            source: Some(EventSource { component: Some(self.component.clone()), host: None }),
            reporting_component: Some(self.component.clone()),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            ..Default::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            debug!(%error, reason, "event lost");
        }
    }
}
