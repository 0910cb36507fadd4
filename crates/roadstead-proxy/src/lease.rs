//! Publishes which revision is in the kernel, so that "is my change live?" has an exact answer.
//!
//! The same Lease says that this proxy is alive: whoever answers for load balancers renews it
//! more often. At the end it is given up, so that nobody waits for us.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::Client;
use roadstead_component::lease::{
    LeaseContent, LeasePace, LeaseWriter, NAMESPACE, PROGRAMMED_REVISION,
};
use roadstead_forwarding::announce::ANNOUNCES_LABEL;
use tokio::sync::watch;
use tokio::time;
use tracing::debug;

use crate::agent::config::{Programmed, Revisions};

/// Each is named like this, followed by the name of the node.
pub const PREFIX: &str = "kube-proxy-";
/// The annotations that hold the newest revision among the Services and among the slices: each
/// kind has a watch of its own, and one may be ahead of the other.
pub const OF_SERVICES: &str = "roadstead.dev/programmed-services";
/// See [`OF_SERVICES`].
pub const OF_SLICES: &str = "roadstead.dev/programmed-endpointslices";

/// No end waits longer for its Lease than this.
const FAREWELL: Duration = Duration::from_secs(2);

/// How often a Lease is renewed, and how long it is good for.
#[derive(Clone, Copy, Debug)]
struct Validity {
    renew: Duration,
    good_for: Duration,
}

/// Often enough that one of a dead proxy can be told.
const LEISURELY: Validity =
    Validity { renew: Duration::from_secs(10), good_for: Duration::from_secs(40) };
/// Others take over the addresses of whoever is late.
const BRISK: Validity =
    Validity { renew: Duration::from_secs(2), good_for: Duration::from_secs(10) };

/// What to publish, and how.
pub(crate) struct Publisher {
    pub(crate) client: Client,
    pub(crate) node: String,
    /// The shortest time between two updates.
    pub(crate) pause: Duration,
    /// Whether this node answers for load balancers.
    pub(crate) announces: bool,
    /// Until when nobody else can believe us dead.
    pub(crate) good_until: watch::Sender<Option<Instant>>,
}

impl Publisher {
    /// Keeps the newest revision in the Lease of the node, until the agent is gone.
    pub(crate) async fn run(&self, programmed: watch::Receiver<Programmed>) {
        let Validity { renew, good_for } = self.validity();
        let content = |programmed: &Programmed| {
            (programmed.commits > 0).then(|| self.content(&self.node, *programmed))
        };
        let written = |began: time::Instant| {
            self.good_until.send_replace(Some(began.into_std() + good_for));
        };
        let pace = LeasePace { pause: self.pause, renew };
        self.writer().keep(programmed, pace, content, written).await;
    }

    /// Says that this proxy is no longer there, so that others need not wait to find out.
    pub(crate) async fn give_up(&self, programmed: Programmed) {
        if self.good_until.send_replace(None).is_none() {
            return;
        }
        let (writer, content) = (self.writer(), self.content("", programmed));
        match time::timeout(FAREWELL, writer.write(&content)).await {
            Ok(Ok(())) => {}
            outcome => debug!(?outcome, "cannot give up the Lease, others will notice"),
        }
    }

    fn validity(&self) -> Validity {
        if self.announces { BRISK } else { LEISURELY }
    }

    fn writer(&self) -> LeaseWriter {
        LeaseWriter {
            client: self.client.clone(),
            namespace: NAMESPACE,
            name: format!("{PREFIX}{}", self.node),
            field_manager: "roadstead-proxy",
        }
    }

    fn content(&self, holder: &str, programmed: Programmed) -> LeaseContent {
        let Revisions { services, slices } = programmed.revisions;
        let annotations = [
            (PROGRAMMED_REVISION, programmed.revision),
            (OF_SERVICES, services),
            (OF_SLICES, slices),
        ];
        let annotation = |(name, revision): (&str, u64)| (name.to_owned(), revision.to_string());
        let label = self.announces.then(|| (ANNOUNCES_LABEL.to_owned(), "true".to_owned()));
        LeaseContent {
            holder: holder.to_owned(),
            duration: self.validity().good_for,
            annotations: annotations.map(annotation).into(),
            labels: label.into_iter().collect::<BTreeMap<_, _>>(),
            owner: None,
        }
    }
}
