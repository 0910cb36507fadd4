//! Keys waiting to be worked on.

use std::collections::{BTreeMap, BTreeSet};
use std::future;
use std::time::Duration;

use tokio::time::{self, Instant};

/// The first retry comes after this; each further one waits twice as long.
const FIRST_RETRY: Duration = Duration::from_millis(5);
/// No retry waits longer than this.
const LAST_RETRY: Duration = Duration::from_secs(30);

/// A set of keys, some due now and some later. Adding a waiting key again changes nothing.
#[derive(Debug)]
pub struct Queue<K> {
    due: BTreeSet<K>,
    later: BTreeMap<(Instant, K), ()>,
    failures: BTreeMap<K, u32>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { due: BTreeSet::new(), later: BTreeMap::new(), failures: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// Makes a key due now.
    pub fn add(&mut self, key: K) {
        self.due.insert(key);
    }

    /// Makes a key due after a while.
    pub fn add_after(&mut self, key: K, delay: Duration) {
        self.later.insert((Instant::now() + delay, key), ());
    }

    /// Makes a key due again after a failure, later each time; returns the delay.
    pub fn retry(&mut self, key: K) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = FIRST_RETRY.saturating_mul(1 << (*failures).min(16)).min(LAST_RETRY);
        *failures += 1;
        self.add_after(key, delay);
        delay
    }

    /// Forgets the failures of a key, after a success.
    pub fn succeeded(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Takes a key that is due, if there is one.
    pub fn pop(&mut self) -> Option<K> {
        let now = Instant::now();
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (_, key) = entry.remove_entry().0;
            self.due.insert(key);
        }
        self.due.pop_first()
    }

    /// Waits until a key is due. Safe to drop at any moment.
    pub async fn ready(&self) {
        if !self.due.is_empty() {
            return;
        }
        match self.later.first_key_value() {
            Some(((at, _), ())) => time::sleep_until(*at).await,
            None => future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bursts_collapse_and_retries_back_off() {
        let mut queue = Queue::default();
        queue.add("a");
        queue.add("a");
        assert_eq!((queue.pop(), queue.pop()), (Some("a"), None));

        let delays: Vec<_> = (0..3).map(|_| queue.retry("a").as_millis()).collect();
        assert_eq!(delays, [5, 10, 20]);
        queue.ready().await;
        assert_eq!(queue.pop(), Some("a"));
        queue.succeeded(&"a");
        assert_eq!(queue.retry("a").as_millis(), 5);
    }
}
