//! Events are forgotten after an hour.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt};
use roadstead_api::look::Look;
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
    // Not typed: one event that makes no sense would keep all others.
    let all: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<Event>(&()));
    let now = Timestamp::now();
    for event in all.list(&ListParams::default()).await? {
        if is_old(&event, now) {
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

/// Whether nobody has seen the event for an hour; one that does not say when is as old as it is.
fn is_old(event: &DynamicObject, now: Timestamp) -> bool {
    let created = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let last = event.data.text("/lastTimestamp").parse().ok().or(created);
    last.is_none_or(|last| last.as_second() < now.as_second() - LIFETIME)
}

#[test]
fn old_events() {
    let now: Timestamp = "2024-01-01T12:00:00Z".parse().unwrap();
    // When it was made, when it was last seen.
    let cases = [
        ("2024-01-01T10:00:00Z", "2024-01-01T10:30:00Z", true),
        ("2024-01-01T10:00:00Z", "2024-01-01T11:30:00Z", false),
        ("2024-01-01T11:30:00Z", "", false),
        ("2024-01-01T10:00:00Z", "yesterday", true),
        ("2024-01-01T11:30:00Z", "yesterday", false),
    ];
    for (created, last, want) in cases {
        let event = serde_json::json!({"metadata": {"creationTimestamp": created},
            "lastTimestamp": last});
        let event: DynamicObject = serde_json::from_value(event).unwrap();
        assert_eq!(is_old(&event, now), want, "{created} {last}");
    }
}
