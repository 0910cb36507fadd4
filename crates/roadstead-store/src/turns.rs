//! Threads of a test that run one at a time, in an order that follows from a seed: whatever can happen
//! between two of their points can be made to happen, again and again.
//!
//! The code under test has a [`point`] wherever others may come in between: before it takes the lock of
//! the replica, and before it waits. Elsewhere a point is nothing. A future that waits gives its turn to
//! others until it is woken; when nobody can go on, somebody has not been woken, and the test fails.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

/// Who may run.
#[derive(Debug)]
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    random: u64,
    running: usize,
    /// Whether each can go on: it does not wait, or was woken.
    ready: Vec<bool>,
    /// Whether each was woken since it began to look.
    woken: Vec<bool>,
    done: Vec<bool>,
    /// Something went wrong: everybody ends.
    over: bool,
    switches: usize,
}

impl State {
    /// Picks who is next; false if nobody can go on.
    fn pick(&mut self) -> bool {
        let able: Vec<_> =
            (0..self.ready.len()).filter(|one| self.ready[*one] && !self.done[*one]).collect();
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if !able.is_empty() {
            let number = usize::try_from(self.random % able.len() as u64).unwrap();
            self.running = able[number];
        }
        self.switches += 1;
        !able.is_empty()
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the turn away, and returns when it is back.
    fn pass(&self, me: usize) {
        let mut state = self.lock();
        if !state.pick() {
            state.over = true;
        }
        self.changed.notify_all();
        self.wait(state, me);
    }

    fn wait(&self, mut state: MutexGuard<'_, State>, me: usize) {
        while state.running != me && !state.over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let over = state.over;
        drop(state);
        assert!(!over, "nobody can go on: somebody waits and was not woken, or failed before");
    }

    fn end(&self, me: usize) {
        let mut state = self.lock();
        state.done[me] = true;
        state.over |= thread::panicking();
        if !state.pick() {
            state.over |= state.done.iter().any(|done| !done);
        }
        self.changed.notify_all();
    }
}

thread_local! {
    static MINE: RefCell<Option<(Arc<Turns>, usize)>> = const { RefCell::new(None) };
}

fn mine() -> Option<(Arc<Turns>, usize)> {
    MINE.try_with(|mine| mine.borrow().clone()).ok().flatten()
}

/// Here others may come in between.
pub(crate) fn point() {
    if let Some((turns, me)) = mine().filter(|_| !thread::panicking()) {
        turns.pass(me);
    }
}

struct Woken(Arc<Turns>, usize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let mut state = self.0.lock();
        (state.ready[self.1], state.woken[self.1]) = (true, true);
    }
}

/// Drives a future; while it waits, others have their turns.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let (turns, me) = mine().expect("this is a thread with turns");
    let waker = Waker::from(Arc::new(Woken(turns.clone(), me)));
    let mut future = pin!(future);
    loop {
        turns.lock().woken[me] = false;
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(value) = polled {
            return value;
        }
        {
            let mut state = turns.lock();
            state.ready[me] = state.woken[me];
        }
        turns.pass(me);
    }
}

/// Ends the turns of a thread, however it ends.
struct Turn(Arc<Turns>, usize);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.end(self.1);
        MINE.with(|mine| mine.borrow_mut().take());
    }
}

/// Runs all of them in turns; returns how often the turn changed.
pub(crate) fn run(seed: u64, work: Vec<Box<dyn FnOnce() + Send>>) -> usize {
    let count = work.len();
    let state = State {
        random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        running: 0,
        ready: vec![true; count],
        woken: vec![false; count],
        done: vec![false; count],
        over: false,
        switches: 0,
    };
    let turns = Arc::new(Turns { state: Mutex::new(state), changed: Condvar::new() });
    thread::scope(|scope| {
        for (me, work) in work.into_iter().enumerate() {
            let turns = turns.clone();
            scope.spawn(move || {
                MINE.with(|mine| mine.borrow_mut().replace((turns.clone(), me)));
                let turn = Turn(turns.clone(), me);
                turns.wait(turns.lock(), me);
                work();
                drop(turn);
            });
        }
    });
    turns.lock().switches
}

#[test]
fn every_order_comes() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..500 {
        let order = Arc::new(Mutex::new(String::new()));
        let work = ['a', 'b'].map(|name| -> Box<dyn FnOnce() + Send> {
            let order = order.clone();
            Box::new(move || {
                for _ in 0..3 {
                    point();
                    order.lock().unwrap().push(name);
                }
            })
        });
        run(seed, work.into());
        seen.insert(order.lock().unwrap().clone());
    }
    // Six letters, three of each kind.
    assert_eq!(seen.len(), 20, "{seen:?}");
}
