//! Keys waiting to be worked on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{self, Instant};

/// How long a key waits after a failure: twice as long each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Never longer than this.
    pub longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(5), longest: Duration::from_secs(30) }
    }
}

impl Backoff {
    /// The wait after that many failures before this one.
    pub fn after(&self, failures: u32) -> Duration {
        self.first.saturating_mul(1 << failures.min(20)).min(self.longest)
    }
}

/// How many keys are in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueCounts {
    /// Due now.
    pub due: usize,
    /// Due later.
    pub later: usize,
    /// Failed last time.
    pub failing: usize,
}

/// Somebody who counts what a queue does.
pub trait Meter<K>: Send + Sync {
    /// A key became due that was not waiting.
    fn added(&self, key: &K);
    /// A key was taken after waiting that long.
    fn taken(&self, key: &K, waited: Duration);
    /// A key failed and comes again.
    fn retried(&self, key: &K);
}

/// A set of keys, some due now and some later. Adding a waiting key again changes nothing; those
/// that are due leave in the order they came.
pub struct Queue<K> {
    order: VecDeque<K>,
    due: BTreeMap<K, Instant>,
    later: BTreeSet<(Instant, K)>,
    /// When a key in `later` is due: a key waits for one moment only, the earliest.
    moments: BTreeMap<K, Instant>,
    failures: BTreeMap<K, u32>,
    meter: Option<Arc<dyn Meter<K>>>,
    /// The first is the one with the smallest key, not the one that came first.
    by_key: bool,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            due: BTreeMap::new(),
            later: BTreeSet::new(),
            moments: BTreeMap::new(),
            failures: BTreeMap::new(),
            meter: None,
            by_key: false,
        }
    }
}

impl<K: fmt::Debug> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut view = f.debug_struct("Queue");
        view.field("order", &self.order).field("later", &self.later).finish_non_exhaustive()
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// A queue that is watched.
    pub fn with_meter(meter: Arc<dyn Meter<K>>) -> Self {
        Self { meter: Some(meter), ..Self::default() }
    }

    /// The same queue, in which those that are due leave in the order of their keys.
    #[must_use]
    pub fn by_key(self) -> Self {
        Self { by_key: true, ..self }
    }

    /// Makes a key due now.
    pub fn add(&mut self, key: K) {
        if self.due.contains_key(&key) {
            return;
        }
        if let Some(meter) = &self.meter {
            meter.added(&key);
        }
        if !self.by_key {
            self.order.push_back(key.clone());
        }
        self.due.insert(key, Instant::now());
    }

    /// Makes a key due after a while, unless it will be sooner anyway.
    pub fn add_after(&mut self, key: K, delay: Duration) {
        let at = Instant::now() + delay;
        match self.moments.get(&key) {
            Some(known) if *known <= at => return,
            Some(known) => drop(self.later.remove(&(*known, key.clone()))),
            None => {}
        }
        self.moments.insert(key.clone(), at);
        self.later.insert((at, key));
    }

    /// Makes a key due again after a failure, later each time; returns the delay.
    pub fn retry(&mut self, key: K) -> Duration {
        self.retry_with(key, Backoff::default())
    }

    /// The same with another patience.
    pub fn retry_with(&mut self, key: K, backoff: Backoff) -> Duration {
        if let Some(meter) = &self.meter {
            meter.retried(&key);
        }
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = backoff.after(*failures);
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
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.later.pop_first() else { break };
            self.moments.remove(&key);
            self.add(key);
        }
        let first = || self.due.first_key_value().map(|(key, _)| key.clone());
        let key = if self.by_key { first()? } else { self.order.pop_front()? };
        let since = self.due.remove(&key);
        if let Some(meter) = &self.meter {
            meter.taken(&key, since.map_or(Duration::ZERO, |since| now - since));
        }
        Some(key)
    }

    /// How many keys there are.
    pub fn counts(&self) -> QueueCounts {
        QueueCounts { due: self.due.len(), later: self.later.len(), failing: self.failures.len() }
    }

    /// Waits until a key is due. Safe to drop at any moment.
    pub async fn ready(&self) {
        if !self.due.is_empty() {
            return;
        }
        match self.later.first() {
            Some((at, _)) => time::sleep_until(*at).await,
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
        ["b", "a", "b"].into_iter().for_each(|key| queue.add(key));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some("b"), Some("a"), None));

        let delays: Vec<_> = (0..3).map(|_| queue.retry("a").as_millis()).collect();
        assert_eq!(delays, [5, 10, 20]);
        queue.ready().await;
        assert_eq!(queue.pop(), Some("a"));
        time::sleep(Duration::from_secs(1)).await;
        assert_eq!(queue.pop(), None, "a key waits for the earliest of its moments only");
        queue.succeeded(&"a");
        assert_eq!(queue.retry("a").as_millis(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn some_do_not_stand_in_line() {
        let mut queue = Queue::default().by_key();
        ["b", "c", "a", "c"].into_iter().for_each(|key| queue.add(key));
        assert_eq!((queue.counts().due, queue.pop()), (3, Some("a")));
        queue.add_after("a", Duration::from_secs(1));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some("b"), Some("c"), None));
        queue.ready().await;
        assert_eq!(queue.pop(), Some("a"));
    }

    #[test]
    fn patience_has_an_end() {
        let backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(100) };
        let waits: Vec<_> = [0, 1, 6, 7, 60].map(|n| backoff.after(n).as_secs()).into();
        assert_eq!(waits, [1, 2, 64, 100, 100]);
    }
}
