//! Which of several addresses comes first: another one by chance each time.
//!
//! To count would not do. Most clients ask for both families at once, so that every second number
//! would go to the questions about the other family, and of two addresses one would never be first.

use std::sync::atomic::{AtomicU64, Ordering};

/// An odd number, so that all others come before the first one comes again.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A series of numbers that nobody can foretell who does not know where it began.
#[derive(Debug)]
pub struct Rotation(AtomicU64);

impl Rotation {
    /// Begins at a number that nobody knows.
    pub fn new(seed: u64) -> Self {
        Self(seed.into())
    }

    /// The next number. Threads that take one at the same moment may get the same, which does no
    /// harm, and costs less than to keep them apart.
    pub fn take(&self) -> usize {
        let state = self.0.load(Ordering::Relaxed).wrapping_add(STEP);
        self.0.store(state, Ordering::Relaxed);
        // SplitMix64 (Steele, Lea and Flood, 2014). The upper half is a number on any machine.
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from(mixed >> 33).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each of some endpoints comes first for a client that puts so many questions at a
    /// time, of which the first is about the endpoints.
    fn firsts(endpoints: usize, questions: usize) -> Vec<usize> {
        let rotation = Rotation::new(1);
        let mut firsts = vec![0; endpoints];
        for _ in 0..1000 {
            let all: Vec<_> = (0..questions).map(|_| rotation.take()).collect();
            firsts[all[0] % endpoints] += 1;
        }
        firsts
    }

    #[test]
    fn everyone_comes_first_as_often_as_the_others() {
        for (endpoints, questions) in [(2, 1), (2, 2), (4, 2), (3, 3), (10, 10)] {
            let fair = 1000 / endpoints;
            let firsts = firsts(endpoints, questions);
            let is_fair = |count: &usize| (fair * 3 / 4..=fair * 5 / 4 + 1).contains(count);
            assert!(firsts.iter().all(is_fair), "{questions} at a time: {firsts:?}");
        }
    }

    #[test]
    fn two_servers_begin_elsewhere() {
        let [one, two] = [Rotation::new(1), Rotation::new(2)];
        assert!((0..4).any(|_| one.take() != two.take()));
    }
}
