//! Signs requests for certificates that somebody has approved, for the signers that node agents and
//! other clients of the API server use. Nothing is approved here.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use roadstead_api::key::ObjectKey;
use roadstead_plan::certificate_signing::{self, Decision};
use roadstead_typed::Typed;
use roadstead_watch::cache::Cache;
use roadstead_watch::queue::Queue;
use roadstead_watch::write::Write;
use tracing::{info, warn};

mod der;
pub(crate) mod request;
pub mod signer;

use request::Request;
use signer::Signer;

use crate::Context;
use crate::runner::{self, Changed, Controller, Inputs, Watches, WritePlan, every};

/// What an operator, or whoever runs the API server as well, can say.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Who signs certificates; without one nobody does.
    pub signer: Option<Arc<Signer>>,
    /// Names and addresses of the API server, for which no node gets a certificate.
    pub server_names: Vec<String>,
}

/// Without a signer nobody is signed anything.
pub(crate) async fn run(context: Context) {
    let Some(signer) = context.settings.certificates.signer.clone() else {
        drop(context);
        return std::future::pending().await;
    };
    let inputs = Inputs::new().watch(every::<CertificateSigningRequest>(&context.client));
    runner::run(context, State { signer, requests: Cache::default() }, inputs).await;
}

struct State {
    signer: Arc<Signer>,
    requests: Cache<CertificateSigningRequest>,
}

impl Watches<CertificateSigningRequest> for State {
    fn cache(&mut self) -> &mut Cache<CertificateSigningRequest> {
        &mut self.requests
    }

    fn wake(&mut self, change: &Changed<CertificateSigningRequest>, queue: &mut Queue<ObjectKey>) {
        queue.add(change.key.clone());
    }
}

impl Controller for State {
    type Key = ObjectKey;
    const COMPONENT: &'static str = "certificate-signing-controller";
    const QUEUE: &'static str = "certificate";

    fn plan(&mut self, key: &ObjectKey, now: Timestamp) -> WritePlan {
        let request = self.requests.get(key);
        let answered = request.and_then(|request| answer(&self.signer, request, now));
        let write = |answered| Write::replace_status(key.clone(), &answered).only_if_unchanged();
        WritePlan::writes(answered.map(write).into_iter().collect())
    }
}

/// The request with a certificate, or with the reason why it gets none; `None` if it is not due.
fn answer(
    signer: &Signer,
    request: &CertificateSigningRequest,
    now: Timestamp,
) -> Option<CertificateSigningRequest> {
    let value = request.to_value().expect("API objects can be written as JSON");
    if !certificate_signing::is_due(&value) {
        return None;
    }
    let outcome =
        Request::parse(&request.spec.request.0).and_then(
            |parsed| match certificate_signing::judge(&value, &parsed.contents(), signer.longest())
            {
                Decision::Sign(usages, seconds) => signer.sign(&parsed, usages, now, seconds),
                Decision::Fail(why) => Err(why),
            },
        );
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
