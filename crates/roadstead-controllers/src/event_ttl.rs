//! Events are forgotten after an hour, where the API server keeps them itself. In etcd they have a lease and
//! end by themselves, whether kube-apiserver has written them or ours.

use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, Client};
use roadstead_schema::json::Pointer;
use roadstead_watch::informer::key_of;
use roadstead_watch::queue::Backoff;
use roadstead_watch::write::{Collection, Write};

use crate::Context;
use crate::runner::{self, Controller, Inputs, WritePlan};

const LIFETIME: i64 = 3600;
const LOOK_EVERY: Duration = Duration::from_secs(60);
const EVENTS: Collection = Collection::of::<Event>();

pub(crate) async fn run(context: Context) {
    let client = context.client.clone();
    // The only key: all events are looked at together.
    let inputs = Inputs::new().begin_with("old events", LOOK_EVERY);
    runner::run(context, State { client }, inputs).await;
}

struct State {
    client: Client,
}

impl Controller for State {
    type Key = &'static str;
    const COMPONENT: &'static str = "event-ttl-controller";
    const QUEUE: &'static str = "event_ttl";

    fn plan(&mut self, _: &&'static str, now: Timestamp) -> WritePlan<&'static str> {
        let survey = Some(find_old(self.client.clone(), now).boxed());
        WritePlan { survey, again_after: Some(LOOK_EVERY), ..WritePlan::none() }
    }

    fn backoff(_: &&'static str) -> Backoff {
        Backoff { first: LOOK_EVERY, longest: LOOK_EVERY }
    }
}

async fn find_old(client: Client, now: Timestamp) -> Result<WritePlan<&'static str>, kube::Error> {
    if !keeps_events(&client).await? {
        return Ok(WritePlan::none());
    }
    // Not typed: one event that makes no sense would keep all others.
    let all: Api<DynamicObject> = Api::all_with(client, &ApiResource::erase::<Event>(&()));
    let events = all.list(&ListParams::default()).await?;
    let old = events.iter().filter(|event| is_old(event, now));
    let delete =
        |event: &DynamicObject| Write::delete(EVENTS, key_of(event), event.metadata.uid.as_deref());
    Ok(WritePlan::writes(old.map(delete).collect()))
}

/// Whether the server has a store of its own: it says so among its checks, and no other server does.
async fn keeps_events(client: &Client) -> Result<bool, kube::Error> {
    let request = http::Request::get("/readyz?verbose").body(Vec::new());
    let request = request.map_err(kube::Error::HttpError)?;
    Ok(client.request_text(request).await?.contains("]storage-scrub "))
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
