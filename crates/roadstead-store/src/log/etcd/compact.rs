//! Making etcd forget the past, as kube-apiservers do it: they and we agree by the key `compact_rev_key`,
//! whose version says who was first. What is forgotten is what was the newest revision one round ago.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use roadstead_etcd::failure::Failure;
use roadstead_etcd::messages::{
    Act, CompactionRequest, Compare, PutRequest, RangeRequest, TxnOperation, TxnRequest,
};
use tokio::time;
use tracing::{info, warn};

use crate::entry::Revision;
use crate::log::etcd::{Remote, revision_of};

/// Where they agree.
const KEY: &str = "compact_rev_key";

/// What is known after a round: how often the key was written, and the newest revision then.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    version: i64,
    newest: Revision,
}

pub(super) async fn run(remote: Arc<Remote>, every: Duration) {
    let mut round = Round::default();
    loop {
        time::sleep(every).await;
        match compact(&remote, round).await {
            Ok(next) => round = next,
            Err(error) => warn!(%error, "etcd was not compacted"),
        }
    }
}

/// Forgets what was the newest revision in the last round, unless somebody else has had a round since.
async fn compact(remote: &Remote, last: Round) -> Result<Round, Failure> {
    let key = Bytes::from_static(KEY.as_bytes());
    let put =
        Act::Put(PutRequest { key: key.clone(), value: last.newest.to_string().into(), lease: 0 });
    let look = Act::Range(RangeRequest { key: key.clone(), ..RangeRequest::default() });
    let txn = TxnRequest {
        compare: vec![Compare::written_times(key, last.version)],
        success: vec![TxnOperation { act: Some(put) }],
        failure: vec![TxnOperation { act: Some(look) }],
    };
    let answer = remote.client.txn(&txn).await?;
    let newest = revision_of(answer.header.as_ref());
    if !answer.succeeded {
        let found =
            answer.responses.first().and_then(|outcome| outcome.range.as_ref()?.kvs.first());
        return Ok(Round { version: found.map_or(0, |kv| kv.version), newest });
    }
    let next = Round { version: last.version + 1, newest };
    if last.newest > Revision(0) {
        let request = CompactionRequest { revision: last.newest.0 as i64, physical: false };
        match remote.client.compact(&request).await {
            Ok(_) => info!(revision = %last.newest, "etcd forgets what is older"),
            Err(Failure::Compacted(_)) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(next)
}
