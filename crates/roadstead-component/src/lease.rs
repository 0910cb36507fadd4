//! The Lease by which a component says that it is alive, and how far it is.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::Request;
use hyper::header::CONTENT_TYPE;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use kube::Client;
use tokio::sync::watch;
use tokio::time::{self, Instant};
use tracing::{debug, warn};

/// Where the Leases of components are.
pub const NAMESPACE: &str = "kube-system";
/// The annotation that holds the newest revision that a component has carried out.
pub const PROGRAMMED_REVISION: &str = "roadstead.dev/programmed-revision";

/// What a Lease says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LeaseContent {
    /// Who is alive; "" gives the Lease up, so that nobody waits for it to end.
    pub holder: String,
    /// How long others believe it.
    pub duration: Duration,
    /// What else there is to say.
    pub annotations: BTreeMap<String, String>,
    /// How it can be found.
    pub labels: BTreeMap<String, String>,
    /// The object with which the Lease goes.
    pub owner: Option<OwnerReference>,
}

impl LeaseContent {
    /// The spec of the Lease, renewed now.
    pub fn spec(&self, now: Timestamp) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.holder.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_secs()).ok(),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }
    }

    fn lease(&self, name: &str, now: Timestamp) -> Lease {
        let some = |map: &BTreeMap<_, _>| Some(map.clone()).filter(|map| !map.is_empty());
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            annotations: some(&self.annotations),
            labels: some(&self.labels),
            owner_references: self.owner.clone().map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        Lease { metadata, spec: Some(self.spec(now)) }
    }
}

/// How often a Lease is written.
#[derive(Clone, Copy, Debug)]
pub struct LeasePace {
    /// Not more often than this, however much there is to say.
    pub pause: Duration,
    /// At least this often, even if there is nothing new.
    pub renew: Duration,
}

/// Writes one Lease.
#[derive(Clone)]
pub struct LeaseWriter {
    /// Through which it is written.
    pub client: Client,
    /// Where the Lease is.
    pub namespace: &'static str,
    /// What it is called.
    pub name: String,
    /// In whose name its fields are written.
    pub field_manager: &'static str,
}

impl LeaseWriter {
    /// Makes or renews the Lease, whoever wrote it before.
    pub async fn write(&self, content: &LeaseContent) -> Result<(), kube::Error> {
        let Self { namespace, name, field_manager, .. } = self;
        let lease = content.lease(name, Timestamp::now());
        let body = serde_json::to_vec(&lease).map_err(kube::Error::SerdeError)?;
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}\
             ?fieldManager={field_manager}&force=true"
        );
        let request = Request::patch(path).header(CONTENT_TYPE, "application/apply-patch+yaml");
        let request = request.body(body).map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await.map(drop)
    }

    /// Keeps the Lease equal to what `content` makes of the newest state, until the sender of the
    /// states is gone. Nothing is written before there is something to say. `written` is told
    /// when the Lease that was written began to be good.
    pub async fn keep<T>(
        &self,
        mut states: watch::Receiver<T>,
        pace: LeasePace,
        content: impl Fn(&T) -> Option<LeaseContent>,
        written: impl Fn(Instant),
    ) {
        let mut complained = false;
        loop {
            let content = content(&states.borrow_and_update());
            if let Some(content) = content {
                let began = Instant::now();
                match self.write(&content).await {
                    Ok(()) => {
                        complained = false;
                        written(began);
                    }
                    Err(error) if complained => debug!(%error, lease = self.name, "not renewed"),
                    Err(error) => {
                        complained = true;
                        warn!(%error, lease = self.name, "cannot renew the Lease");
                    }
                }
            }
            time::sleep(pace.pause).await;
            if let Ok(Err(_)) = time::timeout(pace.renew, states.changed()).await {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http_body_util::BodyExt;
    use hyper::Response;
    use kube::client::Body;
    use serde_json::Value;

    use super::*;

    /// A client whose requests are noted: the path and the body of each.
    fn client(asked: Arc<Mutex<Vec<(String, Value)>>>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let asked = asked.clone();
            async move {
                let path = request.uri().to_string();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                asked.lock().unwrap().push((path, serde_json::from_slice(&body).unwrap()));
                Ok::<_, Infallible>(Response::new(Body::from(b"{}".to_vec())))
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_kept_up_to_date() {
        let asked: Arc<Mutex<Vec<_>>> = Arc::default();
        let name = "kube-proxy-n1".to_owned();
        let client = client(asked.clone());
        let writer =
            LeaseWriter { client, namespace: NAMESPACE, name, field_manager: "roadstead-proxy" };
        let (send, receive) = watch::channel(0);
        let pace = LeasePace { pause: Duration::from_secs(1), renew: Duration::from_secs(10) };
        let content = |revision: &u64| {
            let annotations = [(PROGRAMMED_REVISION.to_owned(), revision.to_string())].into();
            let (holder, duration) = ("n1".to_owned(), Duration::from_secs(40));
            let content = LeaseContent { holder, duration, annotations, ..LeaseContent::default() };
            (*revision > 0).then_some(content)
        };
        let kept = tokio::spawn(async move { writer.keep(receive, pace, content, |_| {}).await });
        time::sleep(Duration::from_secs(30)).await;
        assert!(asked.lock().unwrap().is_empty(), "there is nothing to say yet");
        for revision in 1..=5 {
            send.send_replace(revision);
            time::sleep(Duration::from_millis(100)).await;
        }
        time::sleep(Duration::from_secs(25)).await;
        drop(send);
        kept.await.unwrap();
        let asked = asked.lock().unwrap();
        let revisions = asked.iter().map(|(_, lease)| {
            lease["metadata"]["annotations"][PROGRAMMED_REVISION].as_str().unwrap()
        });
        assert_eq!(revisions.collect::<Vec<_>>(), ["1", "5", "5", "5"], "a burst is one write");
        let (path, lease) = &asked[0];
        assert_eq!(
            path,
            "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-proxy-n1\
             ?fieldManager=roadstead-proxy&force=true"
        );
        assert_eq!(lease["spec"]["holderIdentity"], "n1");
        assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    }
}
