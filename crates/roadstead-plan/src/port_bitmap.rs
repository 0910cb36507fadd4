//! Node ports that are taken, as kube-apiserver keeps them (`pkg/registry/core/service/allocator/bitmap.go`): a
//! range, and one number whose bit `i` says that the port `i` after the first is taken. The number is stored as
//! bytes, the highest first, without zeros before it.

use std::ops::RangeInclusive;

/// Taken ports of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortBitmap {
    range: RangeInclusive<u16>,
    /// The lowest byte first.
    bytes: Vec<u8>,
}

impl PortBitmap {
    /// All of a range are free.
    pub fn new(range: RangeInclusive<u16>) -> Self {
        Self { range, bytes: Vec::new() }
    }

    /// Reads what is stored: the range as `30000-32767`, and the number.
    pub fn read(range: &str, number: &[u8]) -> Result<Self, String> {
        let wrong = || format!("{range:?} is not a range of ports");
        let (first, last) = range.split_once('-').ok_or_else(wrong)?;
        let (first, last) = first.parse().ok().zip(last.parse().ok()).ok_or_else(wrong)?;
        if last < first {
            return Err(wrong());
        }
        let mut bytes = number.to_vec();
        bytes.reverse();
        Ok(Self { range: first..=last, bytes })
    }

    /// The range as it is stored.
    pub fn range_text(&self) -> String {
        format!("{}-{}", self.range.start(), self.range.end())
    }

    /// The number as it is stored.
    pub fn number(&self) -> Vec<u8> {
        let end = self.bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        self.bytes[..end].iter().rev().copied().collect()
    }

    /// The range.
    pub fn range(&self) -> &RangeInclusive<u16> {
        &self.range
    }

    /// The same ports, as far as they are in another range.
    pub fn within(&self, range: &RangeInclusive<u16>) -> Self {
        let mut other = Self::new(range.clone());
        self.taken().for_each(|port| other.take(port));
        other
    }

    /// Whether a port is taken. One beyond the range never is.
    pub fn contains(&self, port: u16) -> bool {
        let place = self.place(port);
        place.is_some_and(|(byte, bit)| self.bytes.get(byte).is_some_and(|byte| byte & bit != 0))
    }

    /// Takes a port; of one beyond the range nothing is remembered.
    pub fn take(&mut self, port: u16) {
        let Some((byte, bit)) = self.place(port) else { return };
        if self.bytes.len() <= byte {
            self.bytes.resize(byte + 1, 0);
        }
        self.bytes[byte] |= bit;
    }

    /// Gives a port back.
    pub fn give_back(&mut self, port: u16) {
        if let Some((byte, bit)) = self.place(port)
            && let Some(byte) = self.bytes.get_mut(byte)
        {
            *byte &= !bit;
        }
    }

    /// All taken ports, in order.
    pub fn taken(&self) -> impl Iterator<Item = u16> {
        self.range.clone().filter(|port| self.contains(*port))
    }

    /// The byte and the bit of a port, if it is in the range.
    fn place(&self, port: u16) -> Option<(usize, u8)> {
        let at = port.checked_sub(*self.range.start()).filter(|_| port <= *self.range.end())?;
        Some((usize::from(at / 8), 1 << (at % 8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn numbers_of_kube_apiserver() {
        // Ports of 30000-32767, and the bytes that Go's big.Int has for them.
        let cases: [(&[u16], &[u8]); 5] = [
            (&[], &[]),
            (&[30_000], &[1]),
            (&[30_000, 30_001, 30_007], &[0x83]),
            (&[30_008], &[1, 0]),
            (&[30_000, 30_017], &[2, 0, 1]),
        ];
        for (ports, number) in cases {
            let mut bitmap = PortBitmap::new(30_000..=32_767);
            ports.iter().for_each(|port| bitmap.take(*port));
            assert_eq!(
                (bitmap.range_text().as_str(), &bitmap.number()[..]),
                ("30000-32767", number)
            );
            let read = PortBitmap::read("30000-32767", number).unwrap();
            assert!(read.taken().eq(ports.iter().copied()), "{ports:?}");
        }
        let mut bitmap = PortBitmap::read("30000-32767", &[1, 0]).unwrap();
        bitmap.give_back(30_008);
        assert!(bitmap.number().is_empty(), "no zeros before the number");
        for wrong in ["", "30000", "30000-x", "3-2", "0-70000"] {
            assert!(PortBitmap::read(wrong, &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_beyond_the_range() {
        let mut bitmap = PortBitmap::read("30000-30003", &[0xff]).unwrap();
        assert!(bitmap.taken().eq(30_000..=30_003), "not even if the number says so");
        bitmap.take(29_999);
        bitmap.take(30_004);
        assert!(!bitmap.contains(29_999) && !bitmap.contains(30_004));
        assert!(bitmap.within(&(30_002..=40_000)).taken().eq([30_002, 30_003]));
    }

    proptest! {
        /// It is a set of the ports of its range, and is read as it was written.
        #[test]
        fn it_is_a_set(first in 1u16..60_000, size in 0u16..3_000,
            acts in prop::collection::vec((0u16..3_100, any::<bool>()), 0..200)) {
            let range = first..=first + size;
            let (mut bitmap, mut set) = (PortBitmap::new(range.clone()), BTreeSet::new());
            for (offset, take) in acts {
                let port = first.saturating_sub(50) + offset;
                match take {
                    true => bitmap.take(port),
                    false => bitmap.give_back(port),
                }
                let _ = if take { range.contains(&port) && set.insert(port) } else { set.remove(&port) };
            }
            prop_assert!(bitmap.taken().eq(set.iter().copied()));
            let read = PortBitmap::read(&bitmap.range_text(), &bitmap.number()).unwrap();
            prop_assert!(read.taken().eq(set.iter().copied()));
        }
    }
}
