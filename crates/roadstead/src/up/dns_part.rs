//! The DNS server of `up`, which begins anew with every pod that is to be it.
//!
//! Its sockets stay: who asks in between waits for as long as the names of the cluster are read again.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use roadstead_dns::agent::{DnsAgent, DnsError, Programmed};
use roadstead_dns::server::DnsServer;
use roadstead_node::runtime::parts::PartLog;
use roadstead_watch::events::{self, EventDraft, InvolvedObject, Severity};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::part_logs::Spoken;

/// The DNS server, its sockets and its log.
pub(super) struct DnsPart {
    pub(super) agent: DnsAgent,
    pub(super) server: DnsServer,
    pub(super) spoken: Spoken,
    /// The containers that are to be it. None come where there are no pods.
    pub(super) starts: mpsc::Receiver<PartLog>,
}

/// Why a run is over.
enum Next {
    Again,
    Ended(Result<(), DnsError>),
}

impl DnsPart {
    /// Answers until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) -> anyhow::Result<()> {
        let mut pods = 0_u64;
        loop {
            info!(target: "roadstead_dns", listen = ?self.agent.config.listen, "DNS starts");
            let over = stop.child_token();
            let answering = self.agent.clone().serve(self.server.again()?, over.clone());
            tokio::pin!(answering);
            let next = loop {
                tokio::select! {
                    ended = &mut answering => break Next::Ended(ended),
                    Some(log) = self.starts.recv() => {
                        self.spoken.write_to(log);
                        pods += 1;
                        // The first one is what runs already.
                        if pods == 1 {
                            continue;
                        }
                        // It goes on while the configuration is looked at.
                        tokio::select! {
                            ended = &mut answering => break Next::Ended(ended),
                            sane = is_sane(&self.agent) => if sane {
                                break Next::Again;
                            },
                        }
                    }
                }
            };
            if let Next::Ended(ended) = next {
                return Ok(ended?);
            }
            over.cancel();
            answering.await?;
            self.agent.outputs.programmed.send_replace(Programmed::default());
        }
    }
}

/// Whether the Corefile that is there now can be used. One that cannot must not cost the one that is.
async fn is_sane(agent: &DnsAgent) -> bool {
    let maps: Api<ConfigMap> = Api::namespaced(agent.client.clone(), "kube-system");
    let map = maps.get_opt("coredns").await.ok().flatten();
    let Some(map) = map else { return true };
    let text = map.data.as_ref().and_then(|data| data.get("Corefile"));
    let Some(Err(why)) = text.map(|text| agent.check(text)) else { return true };
    let message = format!("{why}; the old configuration goes on");
    error!(target: "roadstead_dns", why = message, "configuration refused");
    let draft = EventDraft {
        about: InvolvedObject::of(&map),
        severity: Severity::Warning,
        reason: "ConfigurationRefused".into(),
        message,
    };
    events::record_once(agent.client.clone(), "coredns", draft).await;
    false
}
