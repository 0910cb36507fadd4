//! The one place where tasks are started: each has a name, and none may end by surprise.

use std::future::Future;

use anyhow::{Context, bail};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The running parts of the process.
pub struct Tasks {
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
}

impl Tasks {
    /// No parts yet; `stop` ends all of them.
    pub fn new(stop: CancellationToken) -> Self {
        Self { set: JoinSet::new(), stop }
    }

    /// Starts a part.
    pub fn spawn(
        &mut self,
        name: &'static str,
        work: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.set.spawn(async move { (name, work.await) });
    }

    /// Waits for all parts. The first that ends before it was asked to ends the others.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        while let Some(ended) = self.set.join_next().await {
            let surprise = !self.stop.is_cancelled();
            let result = match ended {
                Ok((name, Err(error))) => Err(error).with_context(|| format!("the {name} failed")),
                Ok((name, Ok(()))) if surprise => bail_with(name),
                Ok(_) => Ok(()),
                Err(panic) => Err(panic).context("a part of roadstead panicked"),
            };
            if outcome.is_ok() {
                outcome = result;
            }
            self.stop.cancel();
        }
        outcome
    }
}

fn bail_with(name: &str) -> anyhow::Result<()> {
    bail!("the {name} ended without being asked to")
}
