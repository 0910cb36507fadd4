//! `roadstead-hollow`: very many nodes for an API server, none of which exists.

use std::process::ExitCode;

use clap::Parser;
use roadstead_hollow::options::Simulation;
use roadstead_hollow::run::run;

// One thread: how busy the generator was is a share of one processor.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let report = run(Simulation::parse()).await?;
    #[allow(clippy::print_stdout, reason = "the report is what it is for")]
    {
        println!("{report}");
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
