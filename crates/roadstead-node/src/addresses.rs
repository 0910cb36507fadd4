//! Which pod gets which address: a pure pool.
//!
//! The lowest address that was never used comes first. Freed addresses wait in line and are used
//! again only when nothing else is left, oldest first, so that a client with a stale address meets
//! nobody rather than a stranger.

use std::collections::{BTreeSet, VecDeque};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

#[derive(Debug)]
pub(crate) struct AddressPool {
    subnet: Ipv4Net,
    used: BTreeSet<Ipv4Addr>,
    freed: VecDeque<Ipv4Addr>,
}

impl AddressPool {
    /// All hosts of the subnet except the first, which is the gateway's.
    pub(crate) fn new(subnet: Ipv4Net) -> Self {
        Self { subnet, used: subnet.hosts().take(1).collect(), freed: VecDeque::new() }
    }

    pub(crate) fn allocate(&mut self) -> Option<Ipv4Addr> {
        let fresh = self
            .subnet
            .hosts()
            .find(|host| !self.used.contains(host) && !self.freed.contains(host));
        let address = fresh.or_else(|| self.freed.pop_front())?;
        self.used.insert(address);
        Some(address)
    }

    /// Takes a certain address, for a pod that has it already.
    pub(crate) fn reserve(&mut self, address: Ipv4Addr) {
        self.freed.retain(|freed| *freed != address);
        self.used.insert(address);
    }

    pub(crate) fn release(&mut self, address: Ipv4Addr) {
        if self.used.remove(&address) && self.subnet.contains(&address) {
            self.freed.push_back(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays `+` (allocate), `-n` (release .n) and `=n` (reserve .n); returns what `+` gave.
    fn play(subnet: &str, moves: &str) -> String {
        let mut pool = AddressPool::new(subnet.parse().unwrap());
        let address = |text: &str| Ipv4Addr::new(10, 0, 0, text.parse().unwrap());
        let mut given = Vec::new();
        for word in moves.split_whitespace() {
            match word.split_at(1) {
                ("+", _) => given
                    .push(pool.allocate().map_or("none".into(), |got| got.octets()[3].to_string())),
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
        ];
        for (name, subnet, moves, want) in cases {
            assert_eq!(play(subnet, moves), want, "{name}");
        }
    }
}
