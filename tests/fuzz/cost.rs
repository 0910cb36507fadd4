//! What a thread costs: memory at once, and time on a processor, however many others want it, too.

#![allow(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: isize) {
    // A thread that ends has nothing to count with.
    let _ = NOW.try_with(|now| {
        now.set(now.get().wrapping_add(bytes));
        let _ = MOST.try_with(|most| most.set(most.get().max(now.get())));
    });
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// From a moment on.
pub(crate) struct Measure {
    memory: isize,
    time: Duration,
}

impl Measure {
    pub(crate) fn begin() -> Self {
        let memory = NOW.get();
        MOST.set(memory);
        Self { memory, time: time() }
    }

    /// How much more memory than at the beginning this thread had at most.
    pub(crate) fn memory(&self) -> usize {
        usize::try_from(MOST.get() - self.memory).unwrap_or(0)
    }

    /// For how long it has been running.
    pub(crate) fn time(&self) -> Duration {
        time().saturating_sub(self.time)
    }
}

/// As the kernel counts it; by the clock on the wall where it does not.
fn time() -> Duration {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|first| first.parse().ok());
    nanoseconds.filter(|time| *time > 0).map_or_else(|| BEGIN.elapsed(), Duration::from_nanos)
}

#[test]
fn memory_is_counted() {
    let measure = Measure::begin();
    let large = vec![1_u8; 1 << 20];
    drop(vec![2_u8; 1 << 20]);
    drop(large);
    let counted = measure.memory();
    assert!((2 << 20..3 << 20).contains(&counted), "{counted}");
    assert!(measure.time() < Duration::from_secs(1));
}
