//! Publishes which revision is in the kernel, so that "is my change live?" has an exact answer.

use std::time::Duration;

use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio::time;
use tracing::{debug, warn};

use crate::agent::Programmed;

/// Where the Leases are.
pub const NAMESPACE: &str = "kube-system";
/// Each is named like this, followed by the name of the node.
pub const PREFIX: &str = "kube-proxy-";
/// The annotation that holds the revision.
pub const ANNOTATION: &str = "roadstead.dev/programmed-revision";

/// A Lease is renewed at least so often, so that one of a dead proxy can be told.
const RENEW: Duration = Duration::from_secs(10);
/// How long a Lease is good for.
pub const DURATION_SECONDS: u64 = 40;

/// The kind, by its name only: this is all we need of it.
pub fn leases() -> ApiResource {
    ApiResource {
        group: "coordination.k8s.io".into(),
        version: "v1".into(),
        api_version: "coordination.k8s.io/v1".into(),
        kind: "Lease".into(),
        plural: "leases".into(),
    }
}

/// Writes the newest revision into the Lease of `node`, at most once in `pause`.
pub async fn publish(
    client: Client,
    node: String,
    mut programmed: watch::Receiver<Programmed>,
    pause: Duration,
) {
    let api: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &leases());
    let name = format!("{PREFIX}{node}");
    let mut complained = false;
    loop {
        let now = *programmed.borrow_and_update();
        if now.commits > 0 {
            let outcome = write(&api, &name, &node, now.revision).await;
            match outcome {
                Ok(()) => complained = false,
                Err(error) if complained => debug!(%error, "revision not published"),
                Err(error) => {
                    complained = true;
                    warn!(%error, lease = name, "cannot publish the programmed revision");
                }
            }
        }
        time::sleep(pause).await;
        if let Ok(Err(_)) = time::timeout(RENEW, programmed.changed()).await {
            return;
        }
    }
}

async fn write(
    api: &Api<DynamicObject>,
    name: &str,
    node: &str,
    revision: u64,
) -> Result<(), kube::Error> {
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "annotations": {ANNOTATION: revision.to_string()}},
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": format!("{:.6}", jiff::Timestamp::now()),
        },
    });
    let by = PatchParams::apply("roadstead-proxy").force();
    api.patch(name, &by, &Patch::Apply(&lease)).await.map(drop)
}
