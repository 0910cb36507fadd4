//! The one place where tasks are started: each has a name, and none may end by surprise.

use std::future::Future;

use anyhow::{Context, bail};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// A part by its name, and what came of it.
type Ended = (&'static str, anyhow::Result<()>);

/// The running parts of the process.
pub(crate) struct Tasks {
    set: JoinSet<Ended>,
    stop: CancellationToken,
}

impl Tasks {
    /// No parts yet; `stop` ends all of them.
    pub(crate) fn new(stop: CancellationToken) -> Self {
        Self { set: JoinSet::new(), stop }
    }

    /// Starts a part.
    pub(crate) fn spawn(
        &mut self,
        name: &'static str,
        work: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.set.spawn(async move { (name, work.await) });
    }

    /// Starts a part that goes on until it is dropped.
    pub(crate) fn spawn_endless(
        &mut self,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.spawn(name, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = work => {}
            }
            Ok(())
        });
    }

    /// Waits for `work`, or for a part to fail first: then there is nothing left to wait for.
    pub(crate) async fn unless_one_fails(
        &mut self,
        work: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        tokio::select! {
            outcome = work => outcome,
            Some(ended) = self.set.join_next() => self.judge(ended),
        }
    }

    /// Waits for all parts. The first that ends before it was asked to ends the others.
    pub(crate) async fn finish(mut self) -> anyhow::Result<()> {
        let mut outcome = Ok(());
        while let Some(ended) = self.set.join_next().await {
            let result = self.judge(ended);
            if outcome.is_ok() {
                outcome = result;
            }
            self.stop.cancel();
        }
        outcome
    }

    fn judge(&self, ended: Result<Ended, JoinError>) -> anyhow::Result<()> {
        match ended {
            Ok((name, Err(error))) => Err(error).with_context(|| format!("the {name} failed")),
            Ok((name, Ok(()))) if !self.stop.is_cancelled() => {
                bail!("the {name} ended without being asked to")
            }
            Ok(_) => Ok(()),
            Err(panic) => Err(panic).context("a part of roadstead panicked"),
        }
    }
}
