//! Which node gets which addresses for its pods: blocks of the cluster's ranges, one of each IP family, none
//! twice.

use std::collections::BTreeSet;

use ipnet::IpNet;

/// Where blocks come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterRange {
    /// The range.
    pub range: IpNet,
    /// How long the prefix of each block is.
    pub block: u8,
}

impl ClusterRange {
    /// A range with blocks of the usual size: /24 of IPv4, /64 of IPv6; smaller where the range is.
    #[cfg(test)]
    fn usual(range: IpNet) -> Self {
        let usual = if range.addr().is_ipv4() { 24 } else { 64 };
        Self { range, block: usual.max(range.prefix_len()) }
    }

    /// Why it is of no use, if it is of none.
    pub fn check(&self) -> Result<(), String> {
        let Self { range, block } = self;
        let longest = range.max_prefix_len() - 4;
        match *block {
            short if short < range.prefix_len() => {
                Err(format!("blocks of /{short} are larger than {range}"))
            }
            long if long > longest => {
                Err(format!("blocks of /{long} have no room for pods: /{longest} is the least"))
            }
            _ => Ok(()),
        }
    }

    /// How many blocks there are, as far as anybody counts.
    fn count(&self) -> u128 {
        1_u128.checked_shl(u32::from(self.block - self.range.prefix_len())).unwrap_or(u128::MAX)
    }

    /// The block of that number.
    fn nth(&self, number: u128) -> Option<IpNet> {
        let room = self.range.max_prefix_len() - self.block;
        let offset = number.checked_shl(room.into())?;
        let first = bits(&self.range.trunc()).checked_add(offset)?;
        match self.range {
            IpNet::V4(_) => {
                let address = u32::try_from(first).ok()?;
                Some(ipnet::Ipv4Net::new(address.into(), self.block).ok()?.into())
            }
            IpNet::V6(_) => Some(ipnet::Ipv6Net::new(first.into(), self.block).ok()?.into()),
        }
    }

    /// The numbers of the blocks that a network has something of: the first and the last.
    fn numbers(&self, taken: &IpNet) -> Option<(u128, u128)> {
        if taken.addr().is_ipv4() != self.range.addr().is_ipv4() || !overlap(taken, &self.range) {
            return None;
        }
        if taken.contains(&self.range) {
            return Some((0, self.count() - 1));
        }
        let room = u32::from(self.range.max_prefix_len() - self.block);
        let first = (bits(&taken.trunc()) - bits(&self.range.trunc())) >> room;
        let size = taken.max_prefix_len() - taken.prefix_len();
        let last = bits(&taken.trunc()) - bits(&self.range.trunc()) + ((1_u128 << size) - 1);
        Some((first, last >> room))
    }
}

/// Whether two networks have an address in common.
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// The lowest block of each range that nobody has; the range that has none left, if there is one.
pub fn plan_blocks<'a>(
    ranges: &'a [ClusterRange],
    taken: &[IpNet],
) -> Result<Vec<IpNet>, &'a ClusterRange> {
    ranges.iter().map(|range| lowest(range, taken).ok_or(range)).collect()
}

fn lowest(range: &ClusterRange, taken: &[IpNet]) -> Option<IpNet> {
    // As spans, in their order: a large one that somebody has is passed in one step.
    let spans: BTreeSet<_> = taken.iter().filter_map(|one| range.numbers(one)).collect();
    let mut next = 0;
    for (first, last) in spans {
        if first > next {
            break;
        }
        next = next.max(last + 1);
    }
    if next < range.count() { range.nth(next) } else { None }
}

fn bits(network: &IpNet) -> u128 {
    match network {
        IpNet::V4(network) => u32::from(network.addr()).into(),
        IpNet::V6(network) => network.addr().into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn networks(text: &str) -> Vec<IpNet> {
        text.split_whitespace().map(|one| one.parse().unwrap()).collect()
    }

    #[test]
    fn blocks() {
        let cases = [
            ("the first", "10.244.0.0/16", "", "10.244.0.0/24"),
            ("the next", "10.244.0.0/16", "10.244.0.0/24", "10.244.1.0/24"),
            ("a gap is filled", "10.244.0.0/16", "10.244.0.0/24 10.244.2.0/24", "10.244.1.0/24"),
            ("larger ones count whole", "10.244.0.0/16", "10.244.0.0/22", "10.244.4.0/24"),
            ("smaller ones, too", "10.244.0.0/16", "10.244.0.128/25", "10.244.1.0/24"),
            (
                "one inside of another",
                "10.244.0.0/16",
                "10.244.0.0/22 10.244.1.0/24",
                "10.244.4.0/24",
            ),
            ("others are no matter", "10.244.0.0/16", "10.0.0.0/24 fd00::/64", "10.244.0.0/24"),
            ("all of it is taken", "10.244.0.0/24", "10.0.0.0/8", "none left of 10.244.0.0/24"),
            ("a range of one", "10.244.7.0/24", "", "10.244.7.0/24"),
            ("none left", "10.244.7.0/24", "10.244.7.0/25", "none left of 10.244.7.0/24"),
            (
                "both families",
                "10.244.0.0/16 fd00::/48",
                "10.244.0.0/24",
                "10.244.1.0/24 fd00::/64",
            ),
            ("IPv6 alone", "fd00::/48", "fd00::/64", "fd00:0:0:1::/64"),
        ];
        for (name, ranges, taken, want) in cases {
            let ranges: Vec<_> = networks(ranges).into_iter().map(ClusterRange::usual).collect();
            let got = match plan_blocks(&ranges, &networks(taken)) {
                Ok(blocks) => blocks.iter().map(IpNet::to_string).collect::<Vec<_>>().join(" "),
                Err(range) => format!("none left of {}", range.range),
            };
            assert_eq!(got, want, "{name}");
        }
    }

    #[test]
    fn sizes() {
        let check =
            |range: &str, block| ClusterRange { range: range.parse().unwrap(), block }.check();
        assert_eq!(check("10.0.0.0/16", 24), Ok(()));
        assert!(check("10.0.0.0/16", 8).unwrap_err().contains("larger than 10.0.0.0/16"));
        assert!(check("10.0.0.0/16", 30).unwrap_err().contains("/28 is the least"));
    }

    proptest! {
        /// Whatever is taken, what is given is inside of the range and nobody else's; and there is none only
        /// when every block is somebody's.
        #[test]
        fn nobody_has_anything_of_a_block(
            block in 20_u8..=26,
            taken in prop::collection::vec((0_u32..1 << 14, 18_u8..=32), 0..40),
        ) {
            let range = ClusterRange { range: "10.1.64.0/18".parse().unwrap(), block };
            let network = |(offset, length): &(u32, u8)| {
                let address = u32::from(std::net::Ipv4Addr::new(10, 1, 64, 0)) + offset;
                IpNet::from(ipnet::Ipv4Net::new(address.into(), *length).unwrap()).trunc()
            };
            let taken: Vec<_> = taken.iter().map(network).collect();
            let free = |block: &IpNet| !taken.iter().any(|one| overlap(one, block));
            let mut all = range.range.subnets(block).unwrap();
            let want = all.find(|block| free(block));
            prop_assert_eq!(plan_blocks(&[range], &taken).ok().map(|found| found[0]), want);
        }
    }
}
