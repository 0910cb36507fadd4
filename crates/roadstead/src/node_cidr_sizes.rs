//! How large the block of pod addresses is that each node gets.

use anyhow::bail;
use clap::Parser;
use ipnet::IpNet;
use roadstead_plan::node_ranges::ClusterRange;

/// How large blocks are.
#[derive(Clone, Debug, Parser)]
pub(crate) struct NodeCidrSizes {
    /// How long the prefix of each node's block of IPv4 addresses is.
    #[arg(long, value_name = "LENGTH", default_value_t = 24)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=28))]
    node_cidr_mask_size: u8,
    /// The same of IPv6.
    #[arg(long, value_name = "LENGTH", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=124))]
    node_cidr_mask_size_ipv6: u8,
}

impl NodeCidrSizes {
    /// The ranges of a cluster, if they can be used.
    pub(crate) fn ranges(&self, ranges: &[IpNet]) -> anyhow::Result<Vec<ClusterRange>> {
        match ranges {
            [] | [_] => {}
            [one, other] if one.addr().is_ipv4() != other.addr().is_ipv4() => {}
            _ => bail!("--cluster-cidr takes one range, or one of each IP family"),
        }
        let ranges: Vec<_> = ranges.iter().map(|range| self.of(*range)).collect();
        for range in &ranges {
            range
                .check()
                .map_err(|why| anyhow::anyhow!("--cluster-cidr {}: {why}", range.range))?;
        }
        Ok(ranges)
    }

    /// Blocks of a range; one that is smaller than them is one itself.
    fn of(&self, range: IpNet) -> ClusterRange {
        let size = if range.addr().is_ipv4() {
            self.node_cidr_mask_size
        } else {
            self.node_cidr_mask_size_ipv6
        };
        ClusterRange { range: range.trunc(), block: size.max(range.prefix_len()) }
    }
}
