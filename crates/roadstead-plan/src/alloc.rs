//! Which cluster address or node port a Service gets.
//!
//! Both ranges begin with a static band that is spared for people who ask for a certain address
//! or port, as long as there is room elsewhere (KEP-3070, KEP-3668).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use ipnet::IpNet;

/// The node ports of a stock cluster.
pub const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// An address of `range` that is not taken, preferably from the upper band.
///
/// The search begins at a place that `seed` chooses, so that an address just given back is not
/// given out again at once.
pub fn cluster_ip(range: IpNet, taken: impl Fn(IpAddr) -> bool, seed: u64) -> Option<IpAddr> {
    let band = if all(range) <= 16 { 0 } else { (all(range) / 16).clamp(16, 256) };
    search(usable(range), band, seed, |offset| {
        let address = nth(range, offset + 1);
        (!taken(address)).then_some(address)
    })
}

/// Whether the address may be given to a Service: inside the range, but not its first address,
/// nor, in IPv4, its last.
pub fn may_be_allocated(range: IpNet, address: IpAddr) -> bool {
    let edge = match range {
        IpNet::V4(v4) => address == v4.network() || address == v4.broadcast(),
        IpNet::V6(v6) => address == v6.network(),
    };
    range.contains(&address) && !edge
}

/// Whether addresses can be given out from the range at all: IPv6 ranges may be too large.
pub fn is_usable(range: IpNet) -> bool {
    range.addr().is_ipv4() || range.prefix_len() >= 64
}

/// The address at a position of the range; 0 is the network address.
pub fn nth(range: IpNet, offset: u64) -> IpAddr {
    match range {
        IpNet::V4(v4) => Ipv4Addr::from_bits(u32::from(v4.network()) + offset as u32).into(),
        IpNet::V6(v6) => Ipv6Addr::from_bits(u128::from(v6.network()) + u128::from(offset)).into(),
    }
}

/// A node port of `range` that is not taken, preferably from the upper band.
pub fn node_port(
    range: &RangeInclusive<u16>,
    taken: impl Fn(u16) -> bool,
    seed: u64,
) -> Option<u16> {
    let size = u64::from(range.end().saturating_sub(*range.start())) + 1;
    let band = if size <= 16 { 0 } else { (size / 32).clamp(16, 128) };
    search(size, band, seed, |offset| {
        let port = range.start() + offset as u16;
        (!taken(port)).then_some(port)
    })
}

/// Looks through the upper band from a place chosen by the seed, then through the lower band.
fn search<T>(size: u64, band: u64, seed: u64, take: impl Fn(u64) -> Option<T>) -> Option<T> {
    let around = |size: u64| {
        let start = if size == 0 { 0 } else { seed % size };
        (start..size).chain(0..start)
    };
    let band = band.min(size);
    let upper = around(size - band).map(|offset| band + offset);
    upper.chain(around(band)).find_map(take)
}

/// How many addresses there are. More than 2⁶⁴ of them are as good as 2⁶⁴.
fn all(range: IpNet) -> u64 {
    let bits = range.max_prefix_len() - range.prefix_len();
    if bits >= 64 { u64::MAX } else { 1 << bits }
}

/// How many addresses can be given out.
pub fn usable(range: IpNet) -> u64 {
    all(range).saturating_sub(if range.addr().is_ipv4() { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn the_lower_band_is_spared() {
        let cases = [
            ("10.96.0.0/16", 0, "10.96.1.1"),
            ("10.96.0.0/12", 0, "10.96.1.1"),
            ("10.0.0.0/20", 0, "10.0.1.1"),
            ("10.0.0.0/24", 0, "10.0.0.17"),
            ("10.0.0.0/27", 0, "10.0.0.17"),
            ("10.0.0.0/28", 0, "10.0.0.1"),
            ("fd00:10:96::/112", 0, "fd00:10:96::101"),
            ("fd00:10:96::/64", 0, "fd00:10:96::101"),
        ];
        for (range, seed, want) in cases {
            let got = cluster_ip(net(range), |_| false, seed).unwrap();
            assert_eq!(got.to_string(), want, "{range}");
        }
        assert_eq!(node_port(&NODE_PORTS, |_| false, 0), Some(30_086));
    }

    #[test]
    fn the_edges_are_never_given_out() {
        let range = net("10.96.0.0/16");
        for (address, want) in [
            ("10.96.0.0", false),
            ("10.96.255.255", false),
            ("10.96.0.1", true),
            ("10.97.0.1", false),
        ] {
            assert_eq!(may_be_allocated(range, address.parse().unwrap()), want, "{address}");
        }
    }

    #[test]
    fn small_ranges_of_ports_have_no_lower_band() {
        let first = |range| node_port(&range, |_| false, 0);
        assert_eq!(first(30_000..=30_015), Some(30_000));
        assert_eq!(first(30_000..=30_016), Some(30_016));
        assert_eq!(first(30_000..=30_999), Some(30_031));
        assert_eq!(node_port(&(30_000..=30_016), |port| port != 30_003, 9), Some(30_003));
        assert_eq!(node_port(&(30_000..=30_016), |_| true, 9), None);
    }

    proptest! {
        /// Until the range is full every request is met, with an address nobody has.
        #[test]
        fn a_range_is_given_out_once_and_completely(prefix in 24u8..=30, seeds: Vec<u64>) {
            let range = IpNet::new("10.0.0.0".parse().unwrap(), prefix).unwrap();
            let mut taken = BTreeSet::new();
            let mut seeds = seeds.into_iter().chain(std::iter::repeat(7));
            while let Some(address) =
                cluster_ip(range, |address| taken.contains(&address), seeds.next().unwrap())
            {
                prop_assert!(may_be_allocated(range, address));
                prop_assert!(taken.insert(address));
            }
            prop_assert_eq!(taken.len(), (1 << (32 - prefix)) - 2);
        }
    }
}
