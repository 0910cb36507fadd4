//! `roadstead render`: what the proxy would write, without writing it.

use std::io::{self, Write};

use clap::Parser;
use roadstead_forwarding::ipvs::model::Scheduler;
use roadstead_forwarding::{iptables, ipvs, nft};
use roadstead_proxy::plane::Mode;

use crate::world::Source;

/// Print what the proxy would write into the kernel.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(flatten)]
    source: Source,
    /// How traffic would be carried.
    #[arg(long, default_value_t = Mode::default(), value_name = "MODE")]
    mode: Mode,
}

/// Carries out `roadstead render`.
pub async fn run(mut args: Args) -> anyhow::Result<()> {
    let tables = args.source.tables().await?;
    if tables.iter().all(|table| table.port_count() == 0) {
        eprintln!("roadstead: no Service has an address to forward: is spec.clusterIP missing?");
    }
    let mut out = io::stdout().lock();
    for table in tables {
        match args.mode {
            Mode::Nftables => write!(out, "{}", nft::compile::compile(&table))?,
            Mode::Iptables => {
                let nothing = iptables::listing::Listing::default();
                write!(out, "{}", iptables::diff::Layout::adopt(&table, &nothing).1)?;
            }
            Mode::Ipvs => {
                write!(out, "{}", ipvs::compile::compile(&table, Scheduler::default()))?;
            }
        }
    }
    Ok(())
}
