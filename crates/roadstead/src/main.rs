//! Kubernetes Services for any Linux machine, in one binary.
//!
//! The only place that starts components: `cli` reads the command, `up` and the files beside it
//! carry it out, `compose` keeps the tasks together.

mod apiserver;
mod certificates;
mod cli;
mod compose;
mod config_file;
mod control_plane;
mod controller_pages;
mod controllers;
mod culprit;
mod data_directory;
mod definitions;
mod dns;
mod duration;
mod etcd;
mod etcd_args;
mod identities;
mod image;
mod join;
mod kube_proxy_flags;
mod lab;
mod leave;
mod log_level;
mod machine;
mod manifests;
mod netpol;
mod network_claim;
mod node;
mod node_args;
mod node_cidr_sizes;
mod notify;
mod part_logs;
mod prometheus;
mod proxy;
mod ranges;
mod render;
mod renewal;
mod rules_claim;
mod server_tasks;
mod servers;
mod shell;
mod snapshot;
mod store_args;
mod token;
mod token_text;
mod trace;
mod up;
mod visible;
mod wait;
mod world;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// Objects come and go for months: this allocator returns what is free, needs less room for what is
/// not, and a quarter less time for a request than the C library's. Its settings are in
/// `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // The processes of pods are this very program in another role.
    if let Some(code) = roadstead_node::applet::applet_main() {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    roadstead_dns::own_lookups::stay_inside();
    let given = match config_file::expand(&cli::Cli::command(), std::env::args_os().collect()) {
        Ok(given) => given,
        Err(why) => {
            eprintln!("roadstead: {why}");
            return ExitCode::FAILURE;
        }
    };
    let cli = cli::Cli::parse_from(given);
    // Free memory is returned even when nothing else happens.
    if let Err(error) = tikv_jemalloc_ctl::background_thread::write(true) {
        eprintln!("roadstead: memory is returned late: {error}");
    }
    // Whoever is busy with long answers looks often whether somebody has a short question.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().event_interval(7).build();
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
