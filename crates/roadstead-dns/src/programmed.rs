//! Publishes which revision is being answered from, as an annotation of a Lease of our own.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use roadstead_component::lease::{
    LeaseContent, LeasePace, LeaseWriter, NAMESPACE, PROGRAMMED_REVISION,
};
use tokio::sync::watch;

use crate::agent::Programmed;

const PACE: LeasePace = LeasePace { pause: Duration::from_secs(1), renew: Duration::from_secs(10) };
/// How long the Lease holds without being renewed.
const DURATION: Duration = Duration::from_secs(40);

/// Keeps the Lease up to date for ever. It may be that we are not allowed to; answering goes on.
pub(crate) async fn run(client: Client, name: String, programmed: watch::Receiver<Programmed>) {
    let content = |programmed: &Programmed| {
        let revision = programmed.revision.to_string();
        (programmed.revision > 0).then(|| LeaseContent {
            holder: name.clone(),
            duration: DURATION,
            annotations: BTreeMap::from([(PROGRAMMED_REVISION.to_owned(), revision)]),
            labels: BTreeMap::new(),
            owner: None,
        })
    };
    let writer = LeaseWriter {
        client,
        namespace: NAMESPACE,
        name: name.clone(),
        field_manager: "roadstead-dns",
    };
    writer.keep(programmed, PACE, content, |_| {}).await;
}
