//! Signs requests for certificates that somebody has approved, for the signers that node agents and
//! other clients of the API server use. Nothing is approved here.

use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Client};
use roadstead_api::key::ObjectKey;
use roadstead_plan::certificate::{self, Verdict};
use roadstead_watch::cache::Cache;
use roadstead_watch::informer::{Selection, informer};
use roadstead_watch::queue::Queue;
use roadstead_watch::write::Write;
use tracing::{info, warn};

mod der;
mod request;
pub mod signer;

use request::Request;
use signer::Signer;

/// Runs the controller.
pub async fn run(client: Client, signer: Arc<Signer>) {
    let mut requests =
        informer(Api::<CertificateSigningRequest>::all(client.clone()), Selection::all());
    let mut known = Cache::default();
    let mut queue: Queue<ObjectKey> = Queue::default();
    loop {
        tokio::select! {
            biased;
            Some(change) = requests.next() => {
                if let Some((key, _)) = known.observe(&change) {
                    queue.add(key);
                }
            }
            () = queue.ready() => {
                let Some(key) = queue.pop() else { continue };
                let Some(request) = known.get(&key) else { continue };
                let Some(answered) = answer(&signer, request, Timestamp::now()) else { continue };
                match Write::replace_status(key.clone(), &answered).send(&client).await {
                    Ok(_) => queue.succeeded(&key),
                    // The next state of it is on its way.
                    Err(error) if crate::is_gone(&error) => queue.succeeded(&key),
                    Err(error) => {
                        let again_in = queue.retry(key.clone());
                        warn!(request = key.name, %error, ?again_in, "certificate not handed out");
                    }
                }
            }
        }
    }
}

/// The request with a certificate, or with the reason why it gets none; `None` if it is not due.
fn answer(
    signer: &Signer,
    request: &CertificateSigningRequest,
    now: Timestamp,
) -> Option<CertificateSigningRequest> {
    let value = serde_json::to_value(request).expect("API objects can be written as JSON");
    if !certificate::is_due(&value) {
        return None;
    }
    let outcome =
        Request::parse(&request.spec.request.0).and_then(|parsed| {
            match certificate::judge(&value, &parsed.contents(), signer.longest()) {
                Verdict::Sign(usages, seconds) => signer.sign(&parsed, usages, now, seconds),
                Verdict::Fail(why) => Err(why),
            }
        });
    let mut answered = request.clone();
    let status = answered.status.get_or_insert_default();
    let (name, signer) = (request.metadata.name.as_deref(), &request.spec.signer_name);
    match outcome {
        Ok(pem) => {
            info!(request = name, signer, "certificate signed");
            status.certificate = Some(ByteString(pem.into_bytes()));
        }
        Err(why) => {
            warn!(request = name, signer, why, "certificate refused");
            status.conditions.get_or_insert_default().push(failed(why, now));
        }
    }
    Some(answered)
}

fn failed(why: String, now: Timestamp) -> CertificateSigningRequestCondition {
    CertificateSigningRequestCondition {
        type_: "Failed".into(),
        status: "True".into(),
        reason: Some("SignerValidationFailure".into()),
        message: Some(why),
        last_update_time: Some(Time(now)),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
