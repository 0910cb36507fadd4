//! The token by which policies are enforced here: of an account that sees all pods, which the node does not.
//! It ends with the Node.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time;
use tracing::warn;

use crate::join::identity::Files;

const ACCOUNT: &str = "roadstead-network-policy";
const FILE: &str = "policies.token";
/// Long enough for whoever restarts the API server to take a while.
const LIFETIME: i64 = 6 * 3600;
const RENEW_EVERY: Duration = Duration::from_secs(3600);
const RETRY: Duration = Duration::from_secs(10);

/// Gets tokens and writes them down.
pub(super) struct PolicyToken {
    pub(super) client: Client,
    pub(super) files: Files,
    pub(super) node: String,
    pub(super) uid: String,
}

impl PolicyToken {
    /// Where the token is.
    pub(super) fn path(&self) -> PathBuf {
        self.files.path(FILE)
    }

    /// Gets one now.
    async fn fetch(&self) -> anyhow::Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), "kube-system");
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Node".into()),
                    name: Some(self.node.clone()),
                    uid: Some(self.uid.clone()),
                }),
                expiration_seconds: Some(LIFETIME),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let asked = accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await;
        let answer = asked.with_context(|| {
            format!(
                "cannot get a token of kube-system/{ACCOUNT}, by which NetworkPolicies are read"
            )
        })?;
        let token = answer.status.and_then(|status| status.token).unwrap_or_default();
        self.files.write(FILE, &token)
    }

    /// Gets one now, or goes on with the last one if there is no server to be asked.
    /// Returns when to get the next one.
    pub(super) async fn fetch_if_possible(&self, is_offline: bool) -> anyhow::Result<Duration> {
        if is_offline && self.files.read(FILE).is_some() {
            return Ok(RETRY);
        }
        self.fetch().await.map(|()| RENEW_EVERY)
    }

    /// Gets others in time.
    pub(super) async fn keep(self, mut pause: Duration) {
        loop {
            time::sleep(pause).await;
            pause = match self.fetch().await {
                Ok(()) => RENEW_EVERY,
                Err(error) => {
                    warn!("the token for NetworkPolicies is as before: {error:#}");
                    RETRY
                }
            };
        }
    }
}
