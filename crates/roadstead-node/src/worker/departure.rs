//! Waits until nobody sends new connections to a pod.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client};
use roadstead_pod::departure::{is_programmed, left_slices};
use tokio::time;

/// Where the Leases of proxies are.
const NAMESPACE: &str = "kube-system";
/// The first pause between two questions, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// How long connections that were sent to the pod before may take until it has accepted and answered them.
const SETTLE: Duration = Duration::from_millis(200);

/// Returns when all slices have let go of the pod and all proxies have carried that out, or when nobody
/// can be asked.
pub(super) async fn left_everywhere(client: Client, namespace: String, uid: String) {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), &namespace);
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    // What the server has in its memory will do.
    let lately = ListParams::default().at("0");
    let mut revision = None;
    let (mut pause, longest) = PAUSES;
    loop {
        if revision.is_none() {
            let Ok(found) = slices.list(&lately).await else { return };
            revision = left_slices(&found.items, &uid);
        }
        if let Some(revision) = revision {
            if revision == 0 {
                return;
            }
            let Ok(found) = leases.list(&lately).await else { return };
            if is_programmed(&found.items, revision, Timestamp::now()) {
                time::sleep(SETTLE).await;
                return;
            }
        }
        time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}
