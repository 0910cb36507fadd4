//! Which names above those of addresses exist: `96.10.in-addr.arpa` does, if an address below it has a
//! name.
//!
//! Each is kept with the number of those right below it, so that an address that comes or goes costs
//! no more steps than there are names that come or go with it, and one more.

use std::net::IpAddr;

use crate::index::Index;
use crate::seed::Seed;

/// The beginning of an address: some of its octets, or some half octets of the newer family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Prefix {
    bits: u128,
    /// How many parts of the address it has.
    parts: u8,
    family: ReverseFamily,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ReverseFamily {
    V4,
    V6,
}

impl ReverseFamily {
    fn bits_per_part(self) -> u32 {
        match self {
            ReverseFamily::V4 => 8,
            ReverseFamily::V6 => 4,
        }
    }
}

impl Prefix {
    /// Nothing of an address of the older or the newer family.
    pub(crate) fn none(is_v4: bool) -> Self {
        let family = if is_v4 { ReverseFamily::V4 } else { ReverseFamily::V6 };
        Self { bits: 0, parts: 0, family }
    }

    /// With one part more.
    pub(crate) fn with(self, part: u8) -> Self {
        let bits = self.bits << self.family.bits_per_part() | u128::from(part);
        Self { bits, parts: self.parts + 1, ..self }
    }

    /// With one part less; `None` if nothing is left, which is a zone of its own.
    fn parent(self) -> Option<Self> {
        let bits = self.bits >> self.family.bits_per_part();
        (self.parts > 1).then(|| Self { bits, parts: self.parts - 1, ..self })
    }

    fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => {
                Self { bits: u32::from(address).into(), parts: 4, family: ReverseFamily::V4 }
            }
            IpAddr::V6(address) => {
                Self { bits: address.into(), parts: 32, family: ReverseFamily::V6 }
            }
        }
    }
}

/// The beginnings of all addresses that have names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes {
    /// With how many there are right below each.
    counts: Index<(Prefix, u32)>,
}

impl Prefixes {
    pub(crate) fn contains(&self, seed: &Seed, prefix: Prefix) -> bool {
        self.count(seed.hash(&prefix), prefix) > 0
    }

    fn count(&self, hash: u64, prefix: Prefix) -> u32 {
        let mut found = self.counts.get(hash);
        found.find(|(known, _)| *known == prefix).map_or(0, |(_, count)| *count)
    }

    /// Takes in an address that is not there.
    pub(crate) fn add(&mut self, seed: &Seed, address: IpAddr) {
        let mut next = Prefix::of(address).parent();
        while let Some(prefix) = next {
            let hash = seed.hash(&prefix);
            let count = self.count(hash, prefix);
            self.counts.insert(hash, (prefix, count + 1), |(known, _)| *known == prefix);
            next = prefix.parent().filter(|_| count == 0);
        }
    }

    /// Takes away an address that is there.
    pub(crate) fn remove(&mut self, seed: &Seed, address: IpAddr) {
        let mut next = Prefix::of(address).parent();
        while let Some(prefix) = next {
            let hash = seed.hash(&prefix);
            let count = self.count(hash, prefix).saturating_sub(1);
            if count > 0 {
                self.counts.insert(hash, (prefix, count), |(known, _)| *known == prefix);
                return;
            }
            self.counts.remove(hash, |(known, _)| *known == prefix);
            next = prefix.parent();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn addresses() -> impl Strategy<Value = IpAddr> {
        let v4 = prop::array::uniform4(0..3_u8).prop_map(IpAddr::from);
        let v6 = (0..3_u128, 0..3_u128, 0..40_u128).prop_map(|(high, middle, low)| {
            IpAddr::from((high << 124 | middle << 64 | low).to_be_bytes())
        });
        prop_oneof![v4, v6]
    }

    fn prefixes(address: IpAddr) -> Vec<Prefix> {
        std::iter::successors(Prefix::of(address).parent(), |prefix| prefix.parent()).collect()
    }

    proptest! {
        /// Whatever comes and goes, what begins an address is there, and nothing else.
        #[test]
        fn as_many_as_there_are(changes in prop::collection::vec((addresses(), any::<bool>()), 0..60)) {
            let seed = Seed::new(1);
            let (mut all, mut set) = (Prefixes::default(), BTreeSet::new());
            for (address, comes) in &changes {
                match comes {
                    true if set.insert(*address) => all.add(&seed, *address),
                    false if set.remove(address) => all.remove(&seed, *address),
                    _ => {}
                }
            }
            for prefix in changes.iter().flat_map(|(address, _)| prefixes(*address)) {
                let want = set.iter().any(|address| prefixes(*address).contains(&prefix));
                prop_assert_eq!(all.contains(&seed, prefix), want, "{:?}", prefix);
            }
            for address in &set {
                all.remove(&seed, *address);
            }
            prop_assert_eq!(all.counts.iter().count(), 0);
        }
    }
}
