//! `roadstead render`: what the proxy would write, without writing it.

use std::io::{self, Write};

use clap::Parser;
use roadstead_forwarding::{iptables, ipvs, nft};
use roadstead_proxy::data_plane::ProxyMode;

use crate::world::{Source, World};

/// Print what the proxy would write into the kernel.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    source: Source,
}

/// Carries out `roadstead render`.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let world = args.source.world().await?;
    world.say_assumed();
    let World { tables, config, .. } = world;
    if tables.iter().all(|table| table.port_count() == 0) {
        eprintln!("roadstead: no Service has an address to forward: is spec.clusterIP missing?");
    }
    let mut out = io::stdout().lock();
    for table in tables {
        match config.mode {
            ProxyMode::Nftables => write!(out, "{}", nft::compile::compile(&table))?,
            ProxyMode::Iptables => {
                let nothing = iptables::listing::Listing::default();
                write!(out, "{}", iptables::diff::Layout::adopt(&table, &nothing).1)?;
            }
            ProxyMode::Ipvs => {
                write!(out, "{}", ipvs::compile::compile(&table, config.ipvs.scheduler))?;
            }
        }
    }
    Ok(())
}
