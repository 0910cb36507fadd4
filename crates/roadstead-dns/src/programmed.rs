//! Publishes which revision is being answered from, as an annotation of a Lease of our own.

use std::time::Duration;

use http::Request;
use kube::Client;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time;
use tracing::debug;

use crate::agent::Programmed;
use crate::follow::lease;

/// How often the Lease is renewed when nothing changes.
const RENEW: Duration = Duration::from_secs(10);
/// How often it is written at most.
const PACE: Duration = Duration::from_secs(1);

/// Keeps the Lease up to date for ever.
pub(crate) async fn run(client: Client, name: String, mut programmed: watch::Receiver<Programmed>) {
    loop {
        let revision = programmed.borrow_and_update().revision;
        if revision > 0 {
            let body = lease(&name, revision, jiff::Timestamp::now());
            // It may be that we are not allowed to; answering goes on.
            if let Err(error) = write(&client, &name, &body).await {
                debug!(%error, lease = name, "cannot publish the programmed revision");
            }
        }
        time::sleep(PACE).await;
        let Ok(Err(_)) = time::timeout(RENEW, programmed.changed()).await else { continue };
        return;
    }
}

async fn write(client: &Client, name: &str, body: &Value) -> Result<Value, kube::Error> {
    let path = format!(
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}\
         ?fieldManager=roadstead-dns&force=true"
    );
    let request = Request::patch(path)
        .header("Content-Type", "application/apply-patch+yaml")
        .body(body.to_string().into_bytes())
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}
