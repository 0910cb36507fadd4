//! Those who are served and who wait in one priority level: its queues, with a clock and with channels.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roadstead_plan::flow_control::queues::{
    Arrival, Decision, QueueSet, QueueState, Refusal, Ticket, Totals,
};
use roadstead_plan::flow_control::shares::Discipline;
use tokio::sync::oneshot;

use super::Class;

/// The queues of a level.
pub(super) struct Line {
    began: Instant,
    state: Mutex<State>,
}

struct State {
    set: QueueSet,
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
}

impl State {
    /// Tells those who need not wait any longer.
    fn tell(&mut self) {
        while let Some(ticket) = self.set.next_started() {
            if let Some(turn) = self.waiting.remove(&ticket) {
                // Whoever has left gives the seats back.
                let _ = turn.send(());
            }
        }
    }
}

impl Line {
    pub(super) fn new(began: Instant, now: Duration, discipline: Discipline, seats: u32) -> Self {
        let set = QueueSet::new(discipline, seats, now);
        Self { began, state: Mutex::new(State { set, waiting: HashMap::new() }) }
    }

    /// Takes a request in: its place, and what to wait for if it does not begin at once.
    pub(super) fn arrive(
        class: &Arc<Class>,
        arrival: &Arrival,
    ) -> Result<(Seats, Option<oneshot::Receiver<()>>), Refusal> {
        let line = &class.level.line;
        let mut state = line.lock();
        let (ticket, turn) = match state.set.arrive(line.began.elapsed(), arrival) {
            Decision::Starts(ticket) => (ticket, None),
            Decision::Refused(refusal) => return Err(refusal),
            Decision::Waits(ticket) => {
                let (sender, receiver) = oneshot::channel();
                state.waiting.insert(ticket, sender);
                (ticket, Some(receiver))
            }
        };
        // Others may have begun: time has passed.
        state.tell();
        drop(state);
        let (class, count) = (class.clone(), arrival.seats.max(1));
        class.counts.arrived(count);
        Ok((Seats { class, ticket, count, phase: Phase::Waiting }, turn))
    }

    pub(super) fn reconfigure(&self, now: Duration, discipline: Discipline, seats: u32) {
        let mut state = self.lock();
        state.set.reconfigure(now, discipline, seats);
        state.tell();
    }

    pub(super) fn set_limit(&self, now: Duration, seats: u32) {
        let mut state = self.lock();
        state.set.set_limit(now, seats);
        state.tell();
    }

    pub(super) fn limit(&self) -> u32 {
        self.lock().set.limit()
    }

    pub(super) fn end_period(&self, now: Duration) -> (u32, f64) {
        self.lock().set.end_period(now)
    }

    /// How much is going on, and in which queues.
    pub(super) fn look(&self) -> (Totals, Vec<QueueState>) {
        let state = self.lock();
        (state.set.totals(), state.set.queues().collect())
    }

    fn leave(&self, ticket: Ticket) {
        let mut state = self.lock();
        let now = self.began.elapsed();
        state.waiting.remove(&ticket);
        if !state.set.give_up(now, ticket) {
            state.set.finish(now, ticket);
        }
        state.tell();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The seats of a request, or its place in a queue; given back when dropped.
pub(crate) struct Seats {
    class: Arc<Class>,
    ticket: Ticket,
    count: u32,
    phase: Phase,
}

enum Phase {
    Waiting,
    /// It has waited too long, and heard so.
    Refused,
    /// Counted with its like.
    Executing(Arc<AtomicUsize>),
}

impl Seats {
    /// From now on the request is served.
    pub(super) fn begin(&mut self, under_way: &Arc<AtomicUsize>) {
        under_way.fetch_add(1, Ordering::Relaxed);
        self.phase = Phase::Executing(under_way.clone());
        self.class.counts.began(self.count);
    }

    pub(super) fn is_refused(&mut self) {
        self.phase = Phase::Refused;
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.class.level.line.leave(self.ticket);
        match &self.phase {
            Phase::Waiting => self.class.counts.left(self.count, true),
            Phase::Refused => self.class.counts.left(self.count, false),
            Phase::Executing(under_way) => {
                under_way.fetch_sub(1, Ordering::Relaxed);
                self.class.counts.ended(self.count);
            }
        }
    }
}
