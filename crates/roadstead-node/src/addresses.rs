//! Which pod gets which addresses: a pure pool.
//!
//! A pod has a number, and the addresses of that number in the subnets of the node: so one address tells
//! the other. The lowest number that was never used comes first. Freed numbers wait in line and are used
//! again only when nothing else is left, oldest first, so that a client with a stale address meets nobody
//! rather than a stranger.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use ipnet::IpNet;
use roadstead_pod::addresses::Addresses;

/// The number of the gateway.
const GATEWAY: u32 = 1;
/// More than any node has pods: an IPv6 subnet has no end.
const MOST: u32 = 1 << 16;

#[derive(Debug)]
pub(crate) struct AddressPool {
    subnets: Vec<IpNet>,
    /// The last number that every subnet has.
    last: u32,
    /// Those from here on were never given out by this pool.
    next: u32,
    used: BTreeSet<u32>,
    freed: VecDeque<u32>,
}

impl AddressPool {
    /// All hosts of the subnets except the first, which is the gateway's.
    pub(crate) fn new(subnets: &[IpNet]) -> Self {
        let last = subnets.iter().map(last).min().unwrap_or(0);
        let (used, freed) = (BTreeSet::new(), VecDeque::new());
        Self { subnets: subnets.to_vec(), last, next: GATEWAY + 1, used, freed }
    }

    pub(crate) fn allocate(&mut self) -> Option<Addresses> {
        while self.used.contains(&self.next) || self.freed.contains(&self.next) {
            self.next += 1;
        }
        let number = if self.next <= self.last { self.next } else { self.freed.pop_front()? };
        self.used.insert(number);
        Addresses::of(self.subnets.iter().map(|subnet| nth(subnet, number)))
    }

    /// Takes certain addresses, for a pod that has them already.
    pub(crate) fn reserve(&mut self, addresses: Addresses) {
        let numbers = addresses.iter().filter_map(|address| self.number(address));
        for number in numbers.collect::<BTreeSet<_>>() {
            self.freed.retain(|freed| *freed != number);
            self.used.insert(number);
        }
    }

    pub(crate) fn release(&mut self, addresses: Addresses) {
        let numbers = addresses.iter().filter_map(|address| self.number(address));
        for number in numbers.collect::<BTreeSet<_>>() {
            if self.used.remove(&number) {
                self.freed.push_back(number);
            }
        }
    }

    /// `None` is an address of an earlier configuration.
    fn number(&self, address: IpAddr) -> Option<u32> {
        let subnet = self.subnets.iter().find(|subnet| subnet.contains(&address))?;
        let number = bits(address).checked_sub(bits(subnet.network()))?;
        u32::try_from(number).ok().filter(|number| *number <= self.last)
    }
}

/// The first address of a subnet: the bridge has it, and it is the gateway of every pod.
pub(crate) fn gateway(subnet: &IpNet) -> IpAddr {
    nth(subnet, GATEWAY)
}

fn nth(subnet: &IpNet, number: u32) -> IpAddr {
    let bits = bits(subnet.network()) + u128::from(number);
    match subnet {
        IpNet::V4(_) => IpAddr::V4(u32::try_from(bits).unwrap_or(u32::MAX).into()),
        IpNet::V6(_) => IpAddr::V6(bits.into()),
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The last address of an IPv4 subnet is nobody's.
fn last(subnet: &IpNet) -> u32 {
    let room = subnet.max_prefix_len() - subnet.prefix_len();
    let size = 1_u32.checked_shl(room.into()).unwrap_or(MOST).min(MOST);
    size.saturating_sub(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays `+` (allocate), `-n` (release .n) and `=n` (reserve .n); returns what `+` gave.
    fn play(subnets: &str, moves: &str) -> String {
        let subnets: Vec<IpNet> = subnets.split(',').map(|one| one.parse().unwrap()).collect();
        let mut pool = AddressPool::new(&subnets);
        let address = |text: &str| Addresses::from([10, 0, 0, text.parse().unwrap()]);
        let mut given = Vec::new();
        for word in moves.split_whitespace() {
            match word.split_at(1) {
                ("+", _) => given.push(pool.allocate().map_or("none".into(), |got| {
                    got.to_string().replace("10.0.0.", "").replace("fd00::", ":")
                })),
                ("-", which) => pool.release(address(which)),
                ("=", which) => pool.reserve(address(which)),
                _ => panic!("cannot read {word}"),
            }
        }
        given.join(" ")
    }

    #[test]
    fn addresses() {
        let cases = [
            ("the gateway is taken", "10.0.0.0/29", "+ + +", "2 3 4"),
            ("not reused at once", "10.0.0.0/29", "+ + -2 + +", "2 3 4 5"),
            ("oldest freed first", "10.0.0.0/29", "+ + + + + -4 -2 + + +", "2 3 4 5 6 4 2 none"),
            ("recovered pods keep theirs", "10.0.0.0/29", "=2 =4 + +", "3 5"),
            ("reserving a freed one", "10.0.0.0/30", "+ -2 =2 +", "2 none"),
            ("releasing twice is harmless", "10.0.0.0/30", "+ -2 -2 + +", "2 2 none"),
            ("one of each family", "10.0.0.0/29,fd00::/64", "+ =3 +", "2,:2 4,:4"),
            ("the order is the operator's", "fd00::/64,10.0.0.0/29", "+ -2 +", ":2,2 :3,3"),
            ("IPv6 alone", "fd00::/64", "+ +", ":2 :3"),
            ("as many as the smaller one has", "fd00::/64,10.0.0.0/30", "+ +", ":2,2 none"),
            ("of another subnet", "fd00::/64", "=2 +", ":2"),
        ];
        for (name, subnets, moves, want) in cases {
            assert_eq!(play(subnets, moves), want, "{name}");
        }
        assert_eq!(last(&"10.0.0.0/8".parse().unwrap()), MOST - 2);
        assert_eq!(gateway(&"fd00::/64".parse().unwrap()).to_string(), "fd00::1");
    }
}
