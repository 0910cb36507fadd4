//! How long requests took, by verb, kind and scope. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

/// What a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Object,
    Namespace,
    Cluster,
}

/// Requests that are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row {
    pub(crate) verb: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) scope: Scope,
}

/// Many times of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The smallest time that so many of a hundred do not exceed; `None` without any.
    pub(crate) fn percentile(&self, percent: usize) -> Option<Duration> {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(rank - 1).copied()
    }
}

/// The times of all requests, and those that failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    pub(crate) rows: BTreeMap<Row, Times>,
    /// By what they were answered.
    pub(crate) failures: BTreeMap<(Row, String), usize>,
}

impl Latencies {
    pub(crate) fn add(&mut self, row: Row, time: Duration) {
        self.rows.entry(row).or_default().add(time);
    }

    pub(crate) fn fail(&mut self, row: Row, why: String) {
        *self.failures.entry((row, why)).or_default() += 1;
    }

    /// All requests that were answered as they should.
    pub(crate) fn count(&self) -> usize {
        self.rows.values().map(Times::count).sum()
    }
}

#[test]
fn percentiles() {
    let times = |all: &[u64]| Times(all.iter().copied().map(Duration::from_millis).collect());
    let hundred: Vec<u64> = (1..=100).rev().collect();
    for (all, percent, want) in [
        (&[][..], 50, None),
        (&[7], 50, Some(7)),
        (&[7], 99, Some(7)),
        (&[1, 2], 50, Some(1)),
        (&[3, 1, 2], 50, Some(2)),
        (&hundred, 50, Some(50)),
        (&hundred, 99, Some(99)),
        (&hundred, 100, Some(100)),
        (&hundred, 0, Some(1)),
    ] {
        let found = times(all).percentile(percent).map(|time| time.as_millis() as u64);
        assert_eq!(found, want, "{percent} of {all:?}");
    }
}
