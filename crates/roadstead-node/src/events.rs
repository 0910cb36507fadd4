//! Events about pods, in the words of a kubelet. Writing and counting them is the business of
//! `roadstead-watch`.

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use roadstead_pod::ephemeral;
use roadstead_watch::events::{self, EventDraft, InvolvedObject, Severity, Writer};
use tokio_util::sync::CancellationToken;

/// As `kubectl describe` shows the source.
const COMPONENT: &str = "kubelet";

/// Takes events about pods.
#[derive(Clone, Debug)]
pub(crate) struct Recorder(events::Recorder);

impl Recorder {
    /// The recorder, and what its task needs.
    pub(crate) fn new(client: Client, node: &str) -> (Self, Writer) {
        let (recorder, writer) = events::Recorder::new(client, COMPONENT, node);
        (Self(recorder), writer)
    }

    pub(crate) fn normal(
        &self,
        pod: &Pod,
        container: Option<&str>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.record(about(pod, container), Severity::Normal, reason, message.into());
    }

    pub(crate) fn warning(
        &self,
        pod: &Pod,
        container: Option<&str>,
        reason: &'static str,
        message: impl Into<String>,
    ) {
        self.record(about(pod, container), Severity::Warning, reason, message.into());
    }

    /// About the node itself.
    pub(crate) fn of_node(&self, severity: Severity, node: &str, reason: &str, message: String) {
        let about = InvolvedObject {
            api_version: "v1".into(),
            kind: "Node".into(),
            namespace: String::new(),
            name: node.to_owned(),
            // As the kubelet has it.
            uid: node.to_owned(),
            field: String::new(),
        };
        self.record(about, severity, reason, message);
    }

    fn record(&self, about: InvolvedObject, severity: Severity, reason: &str, message: String) {
        self.0.record(EventDraft { about, severity, reason: reason.to_owned(), message });
    }
}

fn about(pod: &Pod, container: Option<&str>) -> InvolvedObject {
    let spec = pod.spec.as_ref();
    let is_init = |name: &str| {
        let mut init = spec.into_iter().flat_map(|spec| spec.init_containers.iter().flatten());
        init.any(|init| init.name == name)
    };
    let is_ephemeral = |name: &str| spec.is_some_and(|spec| ephemeral::find(spec, name).is_some());
    let field = container.map(|name| match name {
        name if is_init(name) => format!("spec.initContainers{{{name}}}"),
        name if is_ephemeral(name) => format!("spec.ephemeralContainers{{{name}}}"),
        name => format!("spec.containers{{{name}}}"),
    });
    InvolvedObject { field: field.unwrap_or_default(), ..InvolvedObject::of(pod) }
}

/// Writes events until `stop`.
pub(crate) async fn run(writer: Writer, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = writer.run() => {}
    }
}
