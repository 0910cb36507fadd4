//! Long work is done in turns, so that nobody waits long behind it.
//!
//! Small requests are answered by whoever receives them, at once. What takes long, such as a list of
//! large objects as a table, is cut into pieces of about a millisecond. Each piece needs a *seat*.
//! There are seats for half of the processors, users take turns for them whatever the number of
//! their requests, and what is hard to make is made by threads of lower priority, one for each seat.
//! A seat stays taken while its piece is encrypted and sent, for that is work, too; but not by a
//! client that does not read.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::identity::user::User;

/// How much work makes a turn: so many bytes of objects, which take about a millisecond to read.
pub(crate) const TURN: usize = 64 << 10;
/// How long a piece that is done keeps its seat while it is being sent.
const SENDING: Duration = Duration::from_millis(1);
/// The threads leave the processor to everybody else.
const NICE: i32 = 10;

/// The seats, and who waits for one.
pub(crate) struct Rotation {
    shared: Arc<Shared>,
}

struct Shared {
    seats: usize,
    state: Mutex<State>,
    /// There is work, or a seat to be taken back in time.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// When each taken seat is free again; `None` while work is done on it.
    taken: HashMap<u64, Option<Instant>>,
    next_seat: u64,
    /// Those who keep the cluster running come first.
    waiting: [Queue; 2],
    work: VecDeque<Box<dyn FnOnce() + Send>>,
    threads: usize,
    over: bool,
}

impl State {
    /// Whether anybody waits for a seat.
    fn is_awaited(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.order.is_empty())
    }
}

/// Those who wait, by user.
#[derive(Default)]
struct Queue {
    by_user: HashMap<Arc<str>, VecDeque<oneshot::Sender<Seat>>>,
    /// The users in the order of their turns.
    order: VecDeque<Arc<str>>,
}

impl Queue {
    fn push(&mut self, user: &Arc<str>, waiter: oneshot::Sender<Seat>) {
        let own = self.by_user.entry(user.clone()).or_default();
        if own.is_empty() {
            self.order.push_back(user.clone());
        }
        own.push_back(waiter);
    }

    /// The one whose turn it is: the users one after the other.
    fn pop(&mut self) -> Option<oneshot::Sender<Seat>> {
        let user = self.order.pop_front()?;
        let own = self.by_user.get_mut(&user)?;
        let waiter = own.pop_front();
        match own.is_empty() {
            true => drop(self.by_user.remove(&user)),
            false => self.order.push_back(user),
        }
        waiter
    }
}

impl Default for Rotation {
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::new((processors / 2).max(1))
    }
}

impl Rotation {
    /// So many pieces may be under way at once.
    pub(crate) fn new(seats: usize) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { seats, state, changed }) }
    }

    /// The work of one request.
    pub(crate) fn of(&self, user: &User) -> Arc<Flow> {
        let rank = Rank::of(user);
        let (shared, user) = (self.shared.clone(), user.name.as_str().into());
        Arc::new(Flow { shared, user, rank, held: Mutex::default() })
    }
}

impl Drop for Rotation {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_all();
    }
}

/// Who comes before whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rank {
    /// A part of this process: does not wait at all.
    Own,
    /// Keeps the cluster running: waits for nobody but its like.
    System,
    Other,
}

impl Rank {
    fn of(user: &User) -> Self {
        let component = user.name.strip_prefix("system:").is_some_and(|name| {
            let account = name.strip_prefix("serviceaccount:");
            match account {
                Some(account) => account.starts_with("kube-system:"),
                // Nodes are many, and not all alike.
                None => !name.starts_with("node:") && name != "anonymous",
            }
        });
        match user.in_process {
            true => Self::Own,
            false if user.is_master() || component => Self::System,
            false => Self::Other,
        }
    }
}

/// The work of one request: at most one piece of it is under way.
pub(crate) struct Flow {
    shared: Arc<Shared>,
    user: Arc<str>,
    rank: Rank,
    held: Mutex<Option<Seat>>,
}

impl Flow {
    /// Waits for a turn to do a little work right away. The seat is kept until the next turn.
    /// Those who keep the cluster running need none for so little.
    pub(crate) async fn turn(&self) {
        match self.rank {
            Rank::Own => return,
            Rank::System => return tokio::task::yield_now().await,
            Rank::Other => {}
        }
        let seat = self.seat().await;
        self.hold(seat);
    }

    /// Waits for a turn, and for work that is done on a thread meanwhile.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if self.rank == Rank::Own {
            return work();
        }
        let seat = self.seat().await;
        let (sender, receiver) = oneshot::channel();
        let runtime = Handle::current();
        self.shared.employ(Box::new(move || {
            let _inside = runtime.enter();
            let done = panic::catch_unwind(AssertUnwindSafe(work));
            // Nobody may want it any more; then the seat is free.
            let _ = sender.send((done, seat));
        }));
        let (done, seat) = receiver.await.expect("threads do all work that they are given");
        self.hold(seat);
        done.unwrap_or_else(|panic| panic::resume_unwind(panic))
    }

    /// Follows a future to its end; each of its steps is work.
    pub(crate) async fn follow<F>(&self, future: F) -> F::Output
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        if self.rank == Rank::Own {
            return future.await;
        }
        let bell = Arc::new(Bell::default());
        let mut future = Box::pin(future);
        loop {
            let waker = Waker::from(bell.clone());
            let step = move || {
                let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
                (polled, future)
            };
            let (polled, rest) = self.work(step).await;
            if let Poll::Ready(output) = polled {
                return output;
            }
            drop(self.held().take());
            bell.0.notified().await;
            future = rest;
        }
    }

    async fn seat(&self) -> Seat {
        drop(self.held().take());
        let (sender, receiver) = oneshot::channel();
        self.shared.wait(&self.user, self.rank, sender);
        receiver.await.expect("everybody who waits gets a seat")
    }

    /// Keeps the seat while its piece is sent.
    fn hold(&self, seat: Seat) {
        self.shared.lend(&seat);
        *self.held() = Some(seat);
    }

    fn held(&self) -> MutexGuard<'_, Option<Seat>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct Bell(Notify);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// A seat, free again when dropped, or when its time is over.
struct Seat {
    shared: Arc<Shared>,
    /// `None` if nobody ever sat on it.
    number: Option<u64>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.shared.lock();
        if state.taken.remove(&number).is_some() {
            self.shared.seat_others(&mut state);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(self: &Arc<Self>, user: &Arc<str>, rank: Rank, waiter: oneshot::Sender<Seat>) {
        let mut state = self.lock();
        state.waiting[usize::from(rank == Rank::Other)].push(user, waiter);
        self.seat_others(&mut state);
        if state.taken.len() >= self.seats {
            // Somebody has to look at the clock.
            self.staff(&mut state);
            self.changed.notify_one();
        }
    }

    /// Gives free seats to those whose turn it is.
    fn seat_others(self: &Arc<Self>, state: &mut State) {
        while state.taken.len() < self.seats {
            let waiter = state.waiting[0].pop().or_else(|| state.waiting[1].pop());
            let Some(waiter) = waiter else { break };
            let number = state.next_seat;
            state.next_seat += 1;
            state.taken.insert(number, None);
            let seat = Seat { shared: self.clone(), number: Some(number) };
            if let Err(mut seat) = waiter.send(seat) {
                // Whoever waited has left.
                state.taken.remove(&number);
                seat.number = None;
            }
        }
    }

    /// From now on the seat is only kept for a while.
    fn lend(self: &Arc<Self>, seat: &Seat) {
        let mut state = self.lock();
        let taken = seat.number.and_then(|number| state.taken.get_mut(&number));
        if let Some(until) = taken {
            *until = Some(Instant::now() + SENDING);
            if state.is_awaited() {
                self.changed.notify_one();
            }
        }
    }

    /// Gives work to a thread.
    fn employ(self: &Arc<Self>, work: Box<dyn FnOnce() + Send>) {
        let mut state = self.lock();
        state.work.push_back(work);
        self.staff(&mut state);
        self.changed.notify_one();
    }

    /// Sees to it that there are threads.
    fn staff(self: &Arc<Self>, state: &mut State) {
        while state.threads < self.seats {
            state.threads += 1;
            let shared = self.clone();
            let thread = thread::Builder::new().name(format!("turns-{}", state.threads));
            thread.spawn(move || shared.labour()).expect("a thread can be started");
        }
    }

    /// The life of a thread: works, and takes seats back in time.
    fn labour(self: Arc<Self>) {
        let _ = rustix::process::nice(NICE);
        let mut state = self.lock();
        while !state.over {
            if let Some(work) = state.work.pop_front() {
                drop(state);
                work();
                state = self.lock();
                continue;
            }
            let now = Instant::now();
            state.taken.retain(|_, until| until.is_none_or(|until| until > now));
            self.seat_others(&mut state);
            let next = state.taken.values().flatten().min().filter(|_| state.is_awaited());
            state = match next.copied() {
                Some(next) => {
                    let pause = next.saturating_duration_since(now);
                    let waited = self.changed.wait_timeout(state, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn user(name: &str) -> User {
        User::new(name, vec![])
    }

    #[test]
    fn who_comes_first() {
        let cases = [
            ("system:roadstead", Rank::System),
            ("system:kube-scheduler", Rank::System),
            ("system:serviceaccount:kube-system:a", Rank::System),
            ("system:serviceaccount:kube-systems:a", Rank::Other),
            ("system:node:a", Rank::Other),
            ("system:anonymous", Rank::Other),
            ("jane", Rank::Other),
        ];
        for (name, want) in cases {
            assert_eq!(Rank::of(&user(name)), want, "{name}");
        }
        let admin = User::new("jane", vec!["system:masters".into()]);
        assert_eq!(Rank::of(&admin), Rank::System);
        for own in [User::component(), User::part("system:serviceaccount:shop:a")] {
            assert_eq!(Rank::of(&own), Rank::Own, "{}", own.name);
        }
    }

    #[tokio::test]
    async fn users_take_turns_whatever_they_ask_for() {
        let turns = Rotation::new(1);
        // Nobody has a turn until all of them wait.
        let seat = turns.of(&user("first")).seat().await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let ask = |name: &'static str| {
            let (flow, order) = (turns.of(&user(name)), order.clone());
            tokio::spawn(async move {
                flow.work(move || order.lock().unwrap().push(name)).await;
            })
        };
        let mut all: Vec<_> = (0..4).map(|_| ask("noisy")).collect();
        tokio::task::yield_now().await;
        all.extend([ask("quiet"), ask("system:kube-scheduler")]);
        tokio::task::yield_now().await;
        drop(seat);
        for one in all {
            one.await.unwrap();
        }
        let order = order.lock().unwrap().join(" ");
        assert_eq!(order, "system:kube-scheduler noisy quiet noisy noisy noisy");
    }

    #[tokio::test]
    async fn a_seat_is_not_kept_by_who_does_not_read() {
        let turns = Rotation::new(1);
        let slow = turns.of(&user("slow"));
        slow.turn().await;
        // It never comes back; others do not wait for it.
        for _ in 0..10 {
            turns.of(&user("other")).turn().await;
        }
        let gone = turns.of(&user("gone"));
        let waits = tokio::time::timeout(Duration::ZERO, gone.turn());
        assert!(waits.await.is_err() || turns.shared.lock().taken.len() == 1);
        turns.of(&user("other")).turn().await;
        slow.turn().await;
    }

    #[tokio::test]
    async fn futures_and_panics_come_back() {
        static STEPS: AtomicUsize = AtomicUsize::new(0);
        let turns = Rotation::new(2);
        let flow = turns.of(&user("jane"));
        let answer = flow.follow(async {
            for _ in 0..3 {
                STEPS.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            thread::current().name().unwrap_or("").to_owned()
        });
        assert!(answer.await.starts_with("turns-"));
        assert_eq!(STEPS.load(Ordering::Relaxed), 3);
        let broken = tokio::spawn(async move { flow.work(|| panic!("oh")).await });
        assert!(broken.await.unwrap_err().is_panic());
        turns.of(&user("jane")).turn().await;
    }
}
