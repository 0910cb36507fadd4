//! Events are forgotten after an hour.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt};
use tokio::time;
use tracing::debug;

const LIFETIME: i64 = 3600;
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Runs the controller.
pub async fn run(client: Client) {
    loop {
        time::sleep(LOOK_EVERY).await;
        if let Err(error) = sweep(&client).await {
            debug!(%error, "old events stay a little longer");
        }
    }
}

async fn sweep(client: &Client) -> Result<(), kube::Error> {
    let all: Api<Event> = Api::all(client.clone());
    let oldest = Timestamp::now().as_second() - LIFETIME;
    for event in all.list(&ListParams::default()).await? {
        let created = event.metadata.creation_timestamp.as_ref();
        let last = event.last_timestamp.as_ref().or(created).map(|time| time.0.as_second());
        if last.is_some_and(|last| last < oldest) {
            let namespace = event.namespace().unwrap_or_default();
            let api: Api<Event> = crate::within(client, &namespace);
            match api.delete(&event.name_any(), &DeleteParams::default()).await {
                Err(error) if !crate::is_gone(&error) => return Err(error),
                _ => {}
            }
        }
    }
    Ok(())
}
