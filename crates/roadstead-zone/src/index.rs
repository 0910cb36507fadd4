//! A map whose copies are cheap: a snapshot shares all of it, and a change copies one small leaf.
//!
//! Values are found by a hash of 64 bits; the caller tells apart those few that share one. The
//! tree has a fixed shape of two levels, which suits the tens of thousands of names of a cluster.

use std::sync::Arc;

const BRANCHES: usize = 64;

/// Values by hash. With fewer leaves per branch all branches stay in the processor's cache, and a
/// search fetches little more than the leaf; with more of them a change copies less.
#[derive(Clone, Debug)]
pub(crate) struct Index<V, const LEAVES: usize = 64> {
    branches: Box<[Arc<Branch<V, LEAVES>>]>,
}

/// A leaf for each value of some bits of the hash.
type Branch<V, const LEAVES: usize> = [Arc<[(u64, V)]>; LEAVES];

impl<V, const LEAVES: usize> Default for Index<V, LEAVES> {
    fn default() -> Self {
        let branch: Arc<Branch<V, LEAVES>> = Arc::new(std::array::from_fn(|_| Arc::default()));
        Self { branches: (0..BRANCHES).map(|_| branch.clone()).collect() }
    }
}

impl<V: Clone, const LEAVES: usize> Index<V, LEAVES> {
    /// All values with that hash.
    pub(crate) fn get(&self, hash: u64) -> impl Iterator<Item = &V> {
        let (branch, leaf) = place::<LEAVES>(hash);
        let all = self.branches[branch][leaf].iter();
        all.filter(move |(known, _)| *known == hash).map(|(_, value)| value)
    }

    /// Every value there is.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &V> {
        let leaves = self.branches.iter().flat_map(|branch| branch.iter());
        leaves.flat_map(|leaf| leaf.iter().map(|(_, value)| value))
    }

    /// Puts a value in the place of the one that `same` recognises, or adds it.
    pub(crate) fn insert(&mut self, hash: u64, value: V, same: impl Fn(&V) -> bool) {
        let leaf = self.leaf(hash);
        let mut values = leaf.to_vec();
        match values.iter_mut().find(|(known, value)| *known == hash && same(value)) {
            Some((_, old)) => *old = value,
            None => {
                values.reserve_exact(1);
                values.push((hash, value));
            }
        }
        *leaf = values.into();
    }

    /// Removes the values that `same` recognises.
    pub(crate) fn remove(&mut self, hash: u64, same: impl Fn(&V) -> bool) {
        let leaf = self.leaf(hash);
        let gone = |(known, value): &(u64, V)| *known == hash && same(value);
        if leaf.iter().any(gone) {
            *leaf = leaf.iter().filter(|item| !gone(item)).cloned().collect();
        }
    }

    fn leaf(&mut self, hash: u64) -> &mut Arc<[(u64, V)]> {
        let (branch, leaf) = place::<LEAVES>(hash);
        &mut Arc::make_mut(&mut self.branches[branch])[leaf]
    }
}

fn place<const LEAVES: usize>(hash: u64) -> (usize, usize) {
    let part = |shift: u32, count: usize| (hash >> shift) as usize % count;
    (part(58, BRANCHES), part(40, LEAVES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_does_not_change() {
        let mut index: Index<u64> = Index::default();
        for n in 0..1000_u64 {
            let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            index.insert(hash, n, |known| *known == n);
        }
        let copy = index.clone();
        index.insert(0, 7, |known| *known == 0);
        index.insert(0, 8, |known| *known == 8);
        index.remove(0x9e37_79b9_7f4a_7c15, |known| *known == 1);
        assert_eq!(index.get(0).collect::<Vec<_>>(), [&7, &8], "replaced and added");
        assert_eq!(copy.get(0).collect::<Vec<_>>(), [&0]);
        assert_eq!((index.iter().count(), copy.iter().count()), (1000, 1000));
        assert_eq!(index.get(0x9e37_79b9_7f4a_7c15).next(), None);
        assert_eq!(copy.get(0x9e37_79b9_7f4a_7c15).next(), Some(&1));
    }
}
