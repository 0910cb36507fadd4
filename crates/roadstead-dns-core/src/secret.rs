//! Hashing that begins with a number which clients do not know, so that they cannot choose names that
//! collide. The number is drawn by whoever starts the server.

use std::hash::{BuildHasher, DefaultHasher, Hasher};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Secret(pub u64);

impl BuildHasher for Secret {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}
