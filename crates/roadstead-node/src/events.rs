//! Events about pods, written as well as we can: losing one harms nobody.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// As `kubectl describe` shows the source.
const COMPONENT: &str = "kubelet";
/// More events than this may wait to be written; the rest is dropped.
const MOST_WAITING: usize = 256;
/// That many events are remembered, to count repeats.
const MOST_REMEMBERED: usize = 512;

/// Whether an event is good news.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Severity {
    Normal,
    Warning,
}

/// Takes events about pods.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    send: mpsc::Sender<Happening>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Happening {
    namespace: String,
    name: String,
    uid: String,
    container: Option<String>,
    severity: Severity,
    reason: &'static str,
    message: String,
}

impl Recorder {
    /// The recorder, and what its task needs.
    pub(crate) fn new() -> (Self, Waiting) {
        let (send, receive) = mpsc::channel(MOST_WAITING);
        (Self { send }, Waiting { receive })
    }

    pub(crate) fn normal(
        &self,
        pod: &Pod,
        container: Option<&str>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.record(pod, container, Severity::Normal, reason, message.into());
    }

    pub(crate) fn warning(
        &self,
        pod: &Pod,
        container: Option<&str>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.record(pod, container, Severity::Warning, reason, message.into());
    }

    fn record(
        &self,
        pod: &Pod,
        container: Option<&str>,
        severity: Severity,
        reason: &'static str,
        message: String,
    ) {
        let meta = &pod.metadata;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let (namespace, name, uid) = (text(&meta.namespace), text(&meta.name), text(&meta.uid));
        debug!(%namespace, pod = %name, reason, %message, "event");
        let container = container.map(Into::into);
        let happening = Happening { namespace, name, uid, container, severity, reason, message };
        let _ = self.send.try_send(happening);
    }
}

/// Events that wait to be written.
#[derive(Debug)]
pub(crate) struct Waiting {
    receive: mpsc::Receiver<Happening>,
}

/// Writes events until `stop`. One that repeats is counted rather than written again.
pub(crate) async fn run(
    client: Client,
    node: String,
    mut waiting: Waiting,
    stop: CancellationToken,
) {
    let mut seen: HashMap<Happening, (String, i32)> = HashMap::new();
    loop {
        let happening = tokio::select! {
            () = stop.cancelled() => return,
            Some(happening) = waiting.receive.recv() => happening,
            else => return,
        };
        let api: Api<Event> = Api::namespaced(client.clone(), &happening.namespace);
        let now = Timestamp::now();
        if let Some((name, count)) = seen.get_mut(&happening) {
            let patch = json!({"count": *count + 1, "lastTimestamp": Time(now)});
            let params = PatchParams::default();
            if api.patch(name, &params, &Patch::Merge(&patch)).await.is_ok() {
                *count += 1;
                continue;
            }
        }
        let event = event(&happening, &node, now);
        match api.create(&PostParams::default(), &event).await {
            Ok(created) => {
                if seen.len() >= MOST_REMEMBERED {
                    seen.clear();
                }
                seen.insert(happening, (created.metadata.name.unwrap_or_default(), 1));
            }
            Err(error) => debug!(%error, reason = happening.reason, "event lost"),
        }
    }
}

fn event(happening: &Happening, node: &str, now: Timestamp) -> Event {
    let mut event = Event {
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(happening.namespace.clone()),
            name: Some(happening.name.clone()),
            uid: Some(happening.uid.clone()),
            field_path: happening
                .container
                .as_ref()
                .map(|container| format!("spec.containers{{{container}}}")),
            ..ObjectReference::default()
        },
        reason: Some(happening.reason.into()),
        message: Some(happening.message.clone()),
        type_: Some(format!("{:?}", happening.severity)),
        count: Some(1),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        source: Some(EventSource { component: Some(COMPONENT.into()), host: Some(node.into()) }),
        reporting_component: Some(COMPONENT.into()),
        reporting_instance: Some(node.into()),
        ..Event::default()
    };
    event.metadata.name = Some(format!("{}.{:x}", happening.name, now.as_nanosecond()));
    event.metadata.namespace = Some(happening.namespace.clone());
    event
}
