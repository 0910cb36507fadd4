//! Publishes which revision is in the kernel, so that "is my change live?" has an exact answer.
//!
//! The same Lease says that this proxy is alive: whoever answers for load balancers renews it
//! more often. At the end it is given up, so that nobody waits for us.

use std::time::{Duration, Instant};

use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
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

/// The annotations that hold the newest revision among the Services and among the slices: each
/// kind has a watch of its own, and one may be ahead of the other.
pub const OF_SERVICES: &str = "roadstead.dev/programmed-services";
/// See [`OF_SERVICES`].
pub const OF_SLICES: &str = "roadstead.dev/programmed-endpointslices";
/// The Leases of proxies that answer for load balancers have this label.
pub const LABEL: &str = "roadstead.dev/announces";

/// No end waits longer for its Lease than this.
const FAREWELL: Duration = Duration::from_secs(2);

/// How often a Lease is renewed, and how long it is good for.
#[derive(Clone, Copy, Debug)]
struct Pace {
    renew: Duration,
    good_for: Duration,
}

/// Often enough that one of a dead proxy can be told.
const LEISURELY: Pace = Pace { renew: Duration::from_secs(10), good_for: Duration::from_secs(40) };
/// Others take over the addresses of whoever is late.
const BRISK: Pace = Pace { renew: Duration::from_secs(2), good_for: Duration::from_secs(10) };

/// When the Lease was last renewed.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    at: Instant,
    good_for: Duration,
}

impl Renewal {
    /// One that is good for a while from then on.
    pub(crate) fn new(at: Instant, good_for: Duration) -> Self {
        Self { at, good_for }
    }

    /// Whether nobody else can believe us dead.
    pub fn is_valid(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.at) < self.good_for
    }
}

/// What to publish, and how.
#[derive(Debug)]
pub struct Publisher {
    /// The name of the node.
    pub node: String,
    /// The shortest time between two updates.
    pub pause: Duration,
    /// Whether this proxy answers for load balancers.
    pub announces: bool,
    /// Shows when the Lease was last renewed.
    pub renewed: watch::Sender<Option<Renewal>>,
}

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

impl Publisher {
    /// Writes the newest revision into the Lease of the node, for ever.
    pub async fn run(&self, client: Client, mut programmed: watch::Receiver<Programmed>) {
        let api: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &leases());
        let pace = self.pace();
        let mut complained = false;
        loop {
            let now = *programmed.borrow_and_update();
            if now.commits > 0 {
                let at = Instant::now();
                let outcome = self.write(&api, &self.lease(&self.node, now)).await;
                match outcome {
                    Ok(()) => {
                        complained = false;
                        self.renewed.send_replace(Some(Renewal::new(at, pace.good_for)));
                    }
                    Err(error) if complained => debug!(%error, "revision not published"),
                    Err(error) => {
                        complained = true;
                        warn!(%error, node = self.node, "cannot publish the programmed revision");
                    }
                }
            }
            time::sleep(self.pause).await;
            if let Ok(Err(_)) = time::timeout(pace.renew, programmed.changed()).await {
                return;
            }
        }
    }

    /// Says that this proxy is no longer there, so that others need not wait to find out.
    pub async fn give_up(&self, client: Client, programmed: Programmed) {
        if self.renewed.send_replace(None).is_none() {
            return;
        }
        let api: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &leases());
        let write = async { self.write(&api, &self.lease("", programmed)).await };
        match time::timeout(FAREWELL, write).await {
            Ok(Ok(())) => {}
            outcome => debug!(?outcome, "cannot give up the Lease, others will notice"),
        }
    }

    fn pace(&self) -> Pace {
        if self.announces { BRISK } else { LEISURELY }
    }

    fn lease(&self, holder: &str, programmed: Programmed) -> Value {
        let annotations = json!({
            ANNOTATION: programmed.revision.to_string(),
            OF_SERVICES: programmed.of_services.to_string(),
            OF_SLICES: programmed.of_slices.to_string(),
        });
        let labels = if self.announces { json!({LABEL: "true"}) } else { json!({}) };
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": format!("{PREFIX}{}", self.node), "annotations": annotations,
                "labels": labels},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": self.pace().good_for.as_secs(),
                "renewTime": format!("{:.6}", jiff::Timestamp::now()),
            },
        })
    }

    async fn write(&self, api: &Api<DynamicObject>, lease: &Value) -> Result<(), kube::Error> {
        let by = PatchParams::apply("roadstead-proxy").force();
        let name = format!("{PREFIX}{}", self.node);
        api.patch(&name, &by, &Patch::Apply(lease)).await.map(drop)
    }
}
