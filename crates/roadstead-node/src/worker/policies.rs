//! Before a pod's first container starts, its node must know what policies say of it.

use roadstead_pod::static_pods::is_static;
use roadstead_policy::pod::mark;
use tokio::time::{self, Instant};
use tracing::warn;

use super::Worker;
use crate::policy_gate::PAUSE;

impl Worker {
    /// Waits for that, for a bounded time. A pod in the network of its node is under no policy.
    pub(super) async fn await_policies(&mut self) {
        let on_host = self.pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
        let Some(addresses) = self.facts.addresses.filter(|_| !on_host) else { return };
        if std::mem::replace(&mut self.policies_awaited, true) {
            return;
        }
        let mark = mark(&self.name.uid);
        let patience = self.context.config.policies.patience;
        let began = Instant::now();
        while !self.context.policy_gate.is_open(addresses, mark) {
            // Nobody knows a static pod that the API cannot show.
            let hidden = is_static(&self.pod) && self.mirror.is_none();
            if hidden || began.elapsed() > patience {
                warn!(pod = %self.title(), "starts before NetworkPolicies know it");
                let text = "NetworkPolicies do not know the pod yet, and it starts without them";
                return self.context.events.warning(&self.pod, None, "NetworkPolicyUnknown", text);
            }
            // It is known by its addresses, which the API may not have yet.
            self.write_status().await;
            time::sleep(PAUSE).await;
        }
    }
}
