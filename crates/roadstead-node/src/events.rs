//! Events about pods, in the words of a kubelet. Writing and counting them is the business of
//! `roadstead-watch`.

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use roadstead_watch::events::{self, About, Happening, Severity, Writer};
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

    /// About the node itself.
    pub(crate) fn of_node(&self, node: &str, reason: &str, message: String) {
        let about = About {
            api_version: "v1".into(),
            kind: "Node".into(),
            namespace: String::new(),
            name: node.to_owned(),
            // As the kubelet has it.
            uid: node.to_owned(),
            field: String::new(),
        };
        let reason = reason.to_owned();
        self.0.tell(Happening { about, severity: Severity::Warning, reason, message });
    }

    fn record(
        &self,
        pod: &Pod,
        container: Option<&str>,
        severity: Severity,
        reason: &'static str,
        message: String,
    ) {
        let field = container.map(|container| format!("spec.containers{{{container}}}"));
        let about = About { field: field.unwrap_or_default(), ..About::object(pod) };
        self.0.tell(Happening { about, severity, reason: reason.to_owned(), message });
    }
}

/// Writes events until `stop`.
pub(crate) async fn run(writer: Writer, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = writer.run() => {}
    }
}
