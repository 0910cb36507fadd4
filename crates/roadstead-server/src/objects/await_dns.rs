//! Waiting until a write has taken effect elsewhere in this process, before it is acknowledged.
//!
//! With everything in one process, a Service's name should resolve as soon as the request that
//! made the Service returns. So writes of such a kind wait until the component in question has
//! taken them in: usually less than a millisecond, and never longer than a bound, because a
//! component that is stuck must not hold up the API.

use std::time::Duration;

use roadstead_store::entry::Revision;
use roadstead_store::transaction::Transaction;
use tokio::sync::watch;
use tokio::time;

/// How long a write waits at most. Usually it is less than a millisecond; a machine that is busy with
/// other things may keep the other component waiting for much longer.
const PATIENCE: Duration = Duration::from_millis(500);

/// A component that follows one kind.
#[derive(Debug)]
pub struct DnsProgress {
    /// The resource, such as `services`.
    pub resource: String,
    /// The newest revision of that kind that has taken effect.
    pub revision: watch::Receiver<u64>,
}

impl DnsProgress {
    /// Whether a transaction is about the kind that is followed.
    pub(crate) fn concerns(&self, transaction: &Transaction) -> bool {
        transaction.writes_to(&self.resource)
    }

    /// Waits until a revision has taken effect, or for as long as seems reasonable.
    pub(crate) async fn wait(&self, revision: Revision) {
        let mut seen = self.revision.clone();
        let _ = time::timeout(PATIENCE, seen.wait_for(|seen| *seen >= revision.0)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use roadstead_store::entry::Key;

    #[tokio::test]
    async fn a_write_waits_no_longer_than_it_must() {
        let (sender, revision) = watch::channel(5);
        let settled = DnsProgress { resource: "services".into(), revision };
        let about = |bucket: &str| Transaction::new().put(Key::new(bucket, "a/b"), "x".into());
        assert!(settled.concerns(&about("services")) && !settled.concerns(&about("pods")));
        settled.wait(Revision(5)).await;
        let later = tokio::spawn(async move {
            settled.wait(Revision(7)).await;
            settled
        });
        sender.send_replace(7);
        let settled = later.await.unwrap();
        let began = time::Instant::now();
        settled.wait(Revision(8)).await;
        assert!(began.elapsed() >= PATIENCE, "a bound, if nothing happens");
    }
}
