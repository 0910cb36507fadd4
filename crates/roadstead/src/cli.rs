//! The command line.

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::apiserver;

/// Kubernetes Services for any Linux machine.
///
/// `roadstead up` starts everything on this machine; the other commands run one part of it.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run only the API server.
    Apiserver(apiserver::Args),
}

/// Carries out a command.
pub async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Apiserver(args) => apiserver::run(args).await,
    }
}

/// A token that is cancelled when the user or the system asks us to stop.
pub fn interrupted() -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let terminate = signal(SignalKind::terminate());
        let mut terminate = terminate.expect("signals can be watched");
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        token.cancel();
    });
    stop
}
