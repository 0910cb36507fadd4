//! The one place where numbers are drawn by chance; everything that is decided takes them as given.

use std::hash::{BuildHasher, RandomState};

use roadstead_zone::seed::Seed;

/// A number that nobody can foretell.
pub(crate) fn number() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// A seed for an index of names.
pub(crate) fn seed() -> Seed {
    Seed::new(number())
}
