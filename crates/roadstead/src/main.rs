//! Kubernetes Services for any Linux machine, in one binary.

mod apiserver;
mod cli;
mod culprit;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let command = cli::Cli::parse().command;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("roadstead: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(cli::run(command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("roadstead: {error:#}");
            ExitCode::FAILURE
        }
    }
}
