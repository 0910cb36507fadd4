//! Which API servers there are: those that an operator has named, and those to which the Service `kubernetes`
//! leads. They are kept in a file, so that one of them is found after a restart, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client};
use roadstead_server::identity::secret_file::write_secret;
use roadstead_watch::informer::{Change, Selection, informer, key_of};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::Server;
use super::archive::Question;

/// What `kube::Client` takes for an error, and for an answer.
pub(super) type BoxedError = Box<dyn std::error::Error + Send + Sync>;
pub(super) type AnswerBody = UnsyncBoxBody<Bytes, BoxedError>;
pub(super) type Answer = Response<AnswerBody>;

/// The slices of the Service by which pods find them.
const SLICES: &str = "kubernetes.io/service-name=kubernetes";

/// The servers of a cluster, for all clients in this process.
#[derive(Debug, Default)]
pub(crate) struct Servers {
    given: Vec<Server>,
    found: Mutex<Vec<Server>>,
    /// Where those are kept that were found.
    file: Option<PathBuf>,
    /// Since when none of them answers, and of when the state is that we go on with.
    offline: watch::Sender<Option<Offline>>,
}

/// No server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Offline {
    since: Timestamp,
    state_of: Option<Timestamp>,
}

impl Servers {
    /// Those that somebody has named.
    pub(crate) fn given(given: Vec<Server>) -> Arc<Self> {
        Arc::new(Self { given, ..Self::default() })
    }

    /// Those that somebody has named, and those that a file knows.
    pub(crate) fn kept_in(file: PathBuf, given: Vec<Server>) -> Arc<Self> {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let found = text.lines().filter_map(|line| line.parse().ok()).collect();
        Arc::new(Self { given, found: Mutex::new(found), file: Some(file), ..Self::default() })
    }

    /// All of them, each once.
    pub(crate) fn all(&self) -> Vec<Server> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let all: BTreeSet<_> = self.given.iter().chain(&*found).cloned().collect();
        all.into_iter().collect()
    }

    /// Whether no server was there when it was tried last.
    pub(crate) fn is_offline(&self) -> bool {
        self.offline.borrow().is_some()
    }

    /// None answers; returns whether that is new.
    pub(super) fn goes_offline(&self, state_of: Option<Timestamp>) -> bool {
        let since = Timestamp::now();
        let is_new = self.offline.send_if_modified(|offline| {
            let is_new = offline.is_none();
            offline.get_or_insert(Offline { since, state_of });
            is_new
        });
        let state_of = state_of.map(|state_of| state_of.to_string());
        if is_new {
            warn!(%since, state_of, "offline: no API server answers; what was known before counts");
        }
        is_new
    }

    /// One answers.
    pub(super) fn is_back(&self) {
        if let Some(Offline { since, .. }) = self.offline.send_replace(None) {
            info!(%since, "no longer offline: an API server answers");
        }
    }

    /// What was known before, as an answer. A watch lasts until there is a server.
    pub(super) fn tell(&self, question: &Question, known: Bytes) -> Answer {
        let mut offline = self.offline.subscribe();
        let is_watch = question.is_watch;
        let told = stream::iter([Ok::<_, BoxedError>(Frame::data(known))]);
        let rest = stream::once(async move {
            if is_watch {
                let _ = offline.wait_for(Option::is_none).await;
            }
            Ok(Frame::data(Bytes::new()))
        });
        Response::new(StreamBody::new(told.chain(rest)).boxed_unsync())
    }

    /// What there is to be seen of them.
    pub(crate) fn show(&self) -> Value {
        let all: Vec<_> = self.all().iter().map(ToString::to_string).collect();
        json!({"servers": all, "offline": *self.offline.borrow()})
    }

    /// Takes in where the Service leads, for ever; ends if that must not be seen.
    pub(crate) async fn follow(self: Arc<Self>, client: Client) {
        let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
        let once = ListParams { limit: Some(1), ..ListParams::default() };
        if let Err(kube::Error::Api(status)) = slices.list(&once).await
            && status.code == 403
        {
            return debug!("where the other API servers are is not for us to know");
        }
        let mut present = BTreeMap::new();
        let mut changes = informer(slices, Selection::all().labels(SLICES));
        let mut is_synced = false;
        while let Some(change) = changes.next().await {
            match change {
                Change::Set(slice) => drop(present.insert(key_of(&*slice), slice)),
                Change::Gone(key, _) => drop(present.remove(&key)),
                Change::Synced => is_synced = true,
            }
            if is_synced {
                self.take(servers_of(present.values().map(|slice| &**slice)));
            }
        }
    }

    fn take(&self, new: Vec<Server>) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        // If there is none, it is not the servers that are gone but who writes the slice.
        if new.is_empty() || *found == new {
            return;
        }
        let names: Vec<_> = new.iter().map(ToString::to_string).collect();
        info!(servers = names.join(" "), "the API servers of the cluster");
        *found = new;
        drop(found);
        if let Some(file) = &self.file
            && let Err(error) = write_secret(file, &(names.join("\n") + "\n"))
        {
            warn!(%error, file = %file.display(), "which API servers there are is not kept");
        }
    }
}

/// The servers to which slices lead.
fn servers_of<'a>(slices: impl Iterator<Item = &'a EndpointSlice>) -> Vec<Server> {
    let mut found = BTreeSet::new();
    for slice in slices {
        let ports =
            slice.ports.iter().flatten().filter(|port| port.name.as_deref() == Some("https"));
        let ports: Vec<_> = ports.filter_map(|port| u16::try_from(port.port?).ok()).collect();
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.as_ref();
            if conditions.and_then(|conditions| conditions.ready) == Some(false) {
                continue;
            }
            let each = endpoint.addresses.iter();
            found.extend(each.flat_map(|ip| ports.iter().map(|port| Server::at(ip, *port))));
        }
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_service_leads() {
        let slice = |addresses: &[&str], ready: bool, port: &str| -> EndpointSlice {
            serde_json::from_value(
                json!({"metadata": {"name": "kubernetes"}, "addressType": "IPv4",
                "endpoints": [{"addresses": addresses, "conditions": {"ready": ready}}],
                "ports": [{"name": port, "port": 6443}]}),
            )
            .unwrap()
        };
        let slices = [
            slice(&["192.0.2.2", "192.0.2.1"], true, "https"),
            slice(&["fd00::1"], true, "https"),
            slice(&["192.0.2.3"], false, "https"),
            slice(&["192.0.2.4"], true, "metrics"),
        ];
        let found: Vec<_> = servers_of(slices.iter()).iter().map(ToString::to_string).collect();
        let want = ["https://192.0.2.1:6443", "https://192.0.2.2:6443", "https://[fd00::1]:6443"];
        assert_eq!(found, want);
    }

    #[test]
    fn servers_are_known_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = || directory.path().join("servers");
        let given = || Server::list("https://a:1").unwrap();
        Servers::kept_in(path(), given()).take(Server::list("https://b:2,https://a:1").unwrap());
        let again = Servers::kept_in(path(), given());
        assert_eq!(again.all(), Server::list("https://a:1,https://b:2").unwrap());
        again.take(Vec::new());
        assert_eq!(again.all().len(), 2, "nobody believes that there is none");
    }
}
