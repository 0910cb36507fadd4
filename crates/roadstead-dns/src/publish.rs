//! The newest of a series of immutable values, for readers that must never wait.
//!
//! A reader keeps the value it saw last and compares one number per use; only after a change does
//! it take the lock, for as long as it takes to copy a pointer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The newest value.
#[derive(Debug)]
pub struct Published<T> {
    generation: AtomicU64,
    current: Mutex<Arc<T>>,
}

impl<T> Published<T> {
    /// The first value.
    pub fn new(value: Arc<T>) -> Arc<Self> {
        Arc::new(Self { generation: AtomicU64::new(0), current: Mutex::new(value) })
    }

    /// Replaces the value. When this returns, every later use sees it.
    pub fn publish(&self, value: Arc<T>) {
        let old = {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            let old = std::mem::replace(&mut *current, value);
            self.generation.fetch_add(1, Ordering::Release);
            old
        };
        // Not under the lock: it may be much work to forget the old one.
        drop(old);
    }

    /// The newest value.
    pub fn get(&self) -> Arc<T> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A reader for one thread.
    pub(crate) fn reader(self: &Arc<Self>) -> PublishedReader<T> {
        let seen = self.generation.load(Ordering::Acquire);
        PublishedReader { source: self.clone(), seen, current: self.get() }
    }
}

/// One thread's view of the newest value.
#[derive(Debug)]
pub(crate) struct PublishedReader<T> {
    source: Arc<Published<T>>,
    seen: u64,
    current: Arc<T>,
}

impl<T> PublishedReader<T> {
    /// The newest value.
    pub(crate) fn latest(&mut self) -> &Arc<T> {
        let generation = self.source.generation.load(Ordering::Acquire);
        if generation != self.seen {
            self.current = self.source.get();
            self.seen = generation;
        }
        &self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_was_published_before() {
        let published = Published::new(Arc::new(0_u64));
        let done = std::thread::scope(|scope| {
            let mut reader = published.reader();
            let watching = scope.spawn(move || {
                let mut last = 0;
                while last < 10_000 {
                    let now = **reader.latest();
                    assert!(now >= last, "never backwards");
                    last = now;
                }
                last
            });
            let mut own = published.reader();
            for value in 1..=10_000 {
                published.publish(Arc::new(value));
                assert_eq!(**own.latest(), value, "at once");
            }
            watching.join().unwrap()
        });
        assert_eq!(done, 10_000);
    }
}
