//! What API servers do by themselves, beside answering. Of several in front of one etcd one does it at a time: the
//! holder of a Lease. All of it are guarded writes, so that two at once, at a change, do no harm.

use std::sync::Arc;

use roadstead_controllers::leader::Election;
use roadstead_server::api::Api;
use roadstead_server::bootstrap;
use tokio_util::sync::CancellationToken;

use crate::{identities, machine};

/// In kube-system.
const LEASE: &str = "roadstead-apiserver-tasks";

/// Does what is to be done when it is this server's turn, until `stop`.
pub(crate) async fn run(api: Arc<Api>, is_shared: bool, stop: CancellationToken) {
    if !is_shared {
        return bootstrap::tend(api, stop).await;
    }
    let client = identities::master(&api);
    let identity = format!("{}_{}", machine::host_name(), std::process::id());
    let election = Election { name: LEASE.into(), ..Election::new(identity) };
    while !stop.is_cancelled() {
        tokio::select! {
            () = election.win(&client) => {}
            () = stop.cancelled() => return,
        }
        let turn = stop.child_token();
        tokio::select! {
            () = bootstrap::tend(api.clone(), turn.clone()) => {}
            // Begun anew by whoever has it next.
            () = election.hold(&client) => turn.cancel(),
        }
    }
    election.resign(&client).await;
}
