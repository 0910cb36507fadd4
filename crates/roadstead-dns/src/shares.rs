//! Places to wait for others, of which no client may take all.
//!
//! A client may have a quarter of the places, or less if others have many: never more than a third of
//! what is free. So whoever has none gets one, however many of the others want all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many times as many places must be free as a client has that wants another one.
const FREE: usize = 3;

/// Places, and who has them.
#[derive(Debug)]
pub(crate) struct Shares {
    most: usize,
    taken: Mutex<TakenShares>,
}

#[derive(Debug, Default)]
struct TakenShares {
    all: usize,
    by_client: HashMap<IpAddr, usize>,
}

/// Why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShareRefusal {
    /// All are taken.
    Full,
    /// The client has its share.
    Share,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    client: Option<IpAddr>,
}

impl Shares {
    /// So many places; 0 is without limit.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let most = if most == 0 { usize::MAX } else { most };
        Arc::new(Self { most, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, TakenShares> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place. What is nobody's own has no share.
    pub(crate) fn take(self: &Arc<Self>, client: Option<IpAddr>) -> Result<Share, ShareRefusal> {
        let mut taken = self.taken();
        let free = self.most - taken.all;
        if free == 0 {
            return Err(ShareRefusal::Full);
        }
        if let Some(client) = client {
            let own = taken.by_client.entry(client).or_default();
            if *own > 0 && own.saturating_mul(FREE) >= free {
                return Err(ShareRefusal::Share);
            }
            *own += 1;
        }
        taken.all += 1;
        Ok(Share { shares: self.clone(), client })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.taken();
        taken.all -= 1;
        let Some(client) = self.client else { return };
        if let Some(own) = taken.by_client.get_mut(&client) {
            *own -= 1;
            if *own == 0 {
                taken.by_client.remove(&client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets clients take as many places as they get, one after the other; returns how many that are.
    fn taken(most: usize, clients: &str) -> Vec<usize> {
        let shares = Shares::new(most);
        let mut places = Vec::new();
        let as_many_as_possible = |client: u8| {
            let client = Some(IpAddr::from([10, 0, 0, client]));
            let before = places.len();
            places.extend(std::iter::from_fn(|| shares.take(client).ok()).take(2000));
            places.len() - before
        };
        clients.bytes().map(as_many_as_possible).collect()
    }

    #[test]
    fn nobody_takes_all() {
        let cases = [
            (1000, "a", vec![250]),
            (1000, "aa", vec![250, 0]),
            (1000, "abcd", vec![250, 188, 141, 106]),
            (10, "ab", vec![3, 2]),
            (1, "ab", vec![1, 0]),
            (2, "abc", vec![1, 1, 0]),
            (0, "a", vec![2000]),
        ];
        for (most, clients, want) in cases {
            assert_eq!(taken(most, clients), want, "{most} places for {clients}");
        }
    }

    #[test]
    fn places_become_free() {
        let shares = Shares::new(2);
        let client = Some(IpAddr::from([10, 0, 0, 1]));
        let first = shares.take(client).unwrap();
        assert_eq!(shares.take(client).err(), Some(ShareRefusal::Share));
        let second = shares.take(None).unwrap();
        assert_eq!(shares.take(None).err(), Some(ShareRefusal::Full));
        drop((first, second));
        assert!(shares.take(client).is_ok());
        assert_eq!(shares.taken().all, 0);
        assert!(shares.taken().by_client.is_empty(), "nobody is remembered");
    }
}
