//! Kubernetes Services for any Linux machine, in one binary.
//!
//! The only place that starts components: `cli` reads the command, `up` and the files beside it
//! carry it out, `compose` keeps the tasks together.

mod apiserver;
mod cli;
mod compose;
mod controllers;
mod culprit;
mod dns;
mod machine;
mod proxy;
mod render;
mod snapshot;
mod trace;
mod up;
mod visible;
mod wait;
mod world;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // The processes of pods are this very program in another role.
    if let Some(code) = roadstead_node::applet::applet_main() {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    let cli = cli::Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("roadstead: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(cli::run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("roadstead: {error:#}");
            ExitCode::FAILURE
        }
    }
}
