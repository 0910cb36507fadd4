//! What is counted of the requests of one schema. All of it is written without waiting for anybody.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use roadstead_plan::flow_control::queues::Refusal;

/// Figures of one schema.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) dispatched: AtomicU64,
    /// By [`Refusal`].
    refused: [AtomicU64; 3],
    /// Left by whoever waited.
    pub(super) cancelled: AtomicU64,
    pub(super) waiting: AtomicU64,
    pub(super) seats_waiting: AtomicU64,
    pub(super) executing: AtomicU64,
    pub(super) seats_in_use: AtomicU64,
    /// Of those who were refused, and of those who were served.
    waits: [Histogram; 2],
}

fn add(count: &AtomicU64, number: u32) {
    count.fetch_add(number.into(), Ordering::Relaxed);
}

fn subtract(count: &AtomicU64, number: u32) {
    count.fetch_sub(number.into(), Ordering::Relaxed);
}

impl Counts {
    pub(super) fn arrived(&self, seats: u32) {
        add(&self.waiting, 1);
        add(&self.seats_waiting, seats);
    }

    pub(super) fn left(&self, seats: u32, by_themselves: bool) {
        subtract(&self.waiting, 1);
        subtract(&self.seats_waiting, seats);
        add(&self.cancelled, by_themselves.into());
    }

    pub(super) fn began(&self, seats: u32) {
        self.left(seats, false);
        add(&self.dispatched, 1);
        add(&self.executing, 1);
        add(&self.seats_in_use, seats);
    }

    pub(super) fn ended(&self, seats: u32) {
        subtract(&self.executing, 1);
        subtract(&self.seats_in_use, seats);
    }

    pub(super) fn refused(&self, refusal: Refusal) {
        add(&self.refused[refusal as usize], 1);
    }

    pub(super) fn waited(&self, time: Duration, served: bool) {
        self.waits[usize::from(served)].observe(time);
    }

    /// How many were refused for a reason.
    pub(super) fn refusals(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize].load(Ordering::Relaxed)
    }

    /// Appends how long requests waited; `labels` come first in each line.
    pub(super) fn write_waits(&self, name: &str, labels: &str, out: &mut String) {
        for (served, waits) in [("false", &self.waits[0]), ("true", &self.waits[1])] {
            waits.write(name, &format!("{labels},execute=\"{served}\""), out);
        }
    }
}

/// Upstream's buckets, in seconds.
const BUCKETS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

#[derive(Debug, Default)]
struct Histogram {
    /// By the first bucket that is not too small; the last is for the rest.
    counts: [AtomicU64; BUCKETS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn write(&self, name: &str, labels: &str, out: &mut String) {
        let mut sum = 0;
        let bounds = BUCKETS.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        let mut lines = String::new();
        for (count, bound) in self.counts.iter().zip(bounds) {
            sum += count.load(Ordering::Relaxed);
            let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"{bound}\"}} {sum}");
        }
        if sum > 0 {
            let seconds = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
            out.push_str(&lines);
            let _ = writeln!(out, "{name}_sum{{{labels}}} {seconds}");
            let _ = writeln!(out, "{name}_count{{{labels}}} {sum}");
        }
    }
}
