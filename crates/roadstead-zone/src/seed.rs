//! Where hashing begins: a number that whoever chooses names does not know, so that nobody can make
//! many of them collide. It is drawn by whoever starts the server, for nothing here is left to chance.

use std::hash::{Hash, Hasher};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

/// The secret of an index.
#[derive(Clone, Debug)]
pub struct Seed {
    own: u64,
    shared: SharedSeed,
}

impl Seed {
    /// A seed made from a number, which should be drawn by chance.
    pub const fn new(number: u64) -> Self {
        Self { own: number, shared: SharedSeed::from_u64(number.rotate_left(32)) }
    }

    pub(crate) fn hash<T: Hash + ?Sized>(&self, value: &T) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.own, &self.shared);
        value.hash(&mut hasher);
        hasher.finish()
    }
}
