//! The requests of one priority level: which are under way, which wait, and who is next.
//!
//! A flow may wait in a few of the queues only, its *hand*, which its hash deals. So a flow that sends much
//! fills the queues of its hand, and hardly another flow has the same. The queues take turns by virtual
//! time: each has a clock that advances by the work of what it has started, in seats times seconds, and
//! the one that would be done first is next (upstream's fairqueuing/queueset/doc.go). How long a request
//! takes is guessed when it starts, and put right when it ends.
//!
//! Time is what has passed since the server began. Only queues that somebody is in exist.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::shares::{Demand, Discipline, MOST_QUEUES_OF_A_FLOW, Queuing};

/// How long a request takes, before anybody knows.
const GUESS: f64 = 0.003;

/// A request that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Of its flow: deals the hand.
    pub hash: u64,
    /// How many seats it takes.
    pub seats: u32,
    /// How much work comes of it after its end, in seats times time.
    pub aftermath: Duration,
}

/// By which a request is known that is under way or waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It begins now.
    Starts(Ticket),
    /// It begins when [`QueueSet::next_started`] says so.
    Waits(Ticket),
    /// It does not begin.
    Refused(Refusal),
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There are no seats, and nobody waits in this level.
    ConcurrencyLimit,
    /// All queues of its hand are full.
    QueueFull,
    /// It has waited too long.
    TimeOut,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ConcurrencyLimit, Self::QueueFull, Self::TimeOut];

    /// The word for it in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::ConcurrencyLimit => "concurrency-limit",
            Self::QueueFull => "queue-full",
            Self::TimeOut => "time-out",
        }
    }
}

/// The requests of one priority level.
#[derive(Debug)]
pub struct QueueSet {
    discipline: Discipline,
    limit: u32,
    queues: BTreeMap<u32, Queue>,
    requests: BTreeMap<Ticket, Request>,
    /// Those that have stopped waiting, and were not told yet.
    started: VecDeque<Ticket>,
    last: Last,
    clock: Clock,
    totals: Totals,
    demand: Demand,
}

/// Where the next one comes after.
#[derive(Debug, Default)]
struct Last {
    ticket: u64,
    /// The queue that something was started from.
    queue: u32,
    deal: usize,
}

/// Virtual time: how much work each queue has been given since the server began.
#[derive(Debug, Default)]
struct Clock {
    work: f64,
    at: Duration,
}

/// How much is going on in a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests under way.
    pub executing: usize,
    /// Seats that they have.
    pub seats_in_use: u32,
    /// Requests in queues.
    pub waiting: usize,
    /// Seats that they want.
    pub seats_waiting: u32,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Ticket>,
    executing: usize,
    seats_in_use: u32,
    seats_waiting: u32,
    /// The work that waits.
    backlog: f64,
    /// When, in virtual time, its next request starts.
    next: f64,
}

#[derive(Debug)]
struct Request {
    /// `None` where there are no queues.
    queue: Option<u32>,
    seats: u32,
    aftermath: f64,
    /// In virtual time.
    arrived: f64,
    /// `None` while it waits.
    began: Option<Duration>,
}

impl Request {
    fn work(&self) -> f64 {
        f64::from(self.seats) * GUESS + self.aftermath
    }
}

/// What is going on in a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueState {
    /// Its number.
    pub index: u32,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests under way that came from it.
    pub executing: usize,
    /// Seats that they have.
    pub seats_in_use: u32,
    /// When, in virtual time, its next request starts.
    pub next: f64,
    /// Seats that those want who wait.
    pub seats_waiting: u32,
    /// The work that waits, in seats times seconds.
    pub backlog: f64,
}

impl QueueSet {
    /// A level with so many seats.
    pub fn new(discipline: Discipline, limit: u32, now: Duration) -> Self {
        Self {
            discipline,
            limit,
            queues: BTreeMap::new(),
            requests: BTreeMap::new(),
            started: VecDeque::new(),
            last: Last::default(),
            clock: Clock { work: 0.0, at: now },
            totals: Totals::default(),
            demand: Demand::new(now),
        }
    }

    /// From now on requests are treated like this. Those that wait keep their queues.
    pub fn reconfigure(&mut self, now: Duration, discipline: Discipline, limit: u32) {
        self.advance(now);
        (self.discipline, self.limit) = (discipline, limit);
        self.start_waiting(now);
    }

    /// From now on the level has so many seats.
    pub fn set_limit(&mut self, now: Duration, limit: u32) {
        self.reconfigure(now, self.discipline, limit);
    }

    /// How many seats the level has.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Takes in a request.
    pub fn arrive(&mut self, now: Duration, arrival: &Arrival) -> Decision {
        self.advance(now);
        let queue = match self.discipline {
            Discipline::Exempt => None,
            Discipline::Reject if self.fits(arrival.seats) => None,
            Discipline::Reject => return Decision::Refused(Refusal::ConcurrencyLimit),
            Discipline::Queue(queuing) => match self.shortest(queuing, arrival.hash) {
                Some(queue) => Some(queue),
                None => return Decision::Refused(Refusal::QueueFull),
            },
        };
        self.last.ticket += 1;
        let ticket = Ticket(self.last.ticket);
        let (seats, aftermath) = (arrival.seats.max(1), arrival.aftermath.as_secs_f64());
        let request = Request { queue, seats, aftermath, arrived: self.clock.work, began: None };
        match queue {
            None => self.requests.insert(ticket, request),
            Some(queue) => self.enqueue(queue, ticket, request),
        };
        if queue.is_none() {
            self.start(now, ticket);
            return Decision::Starts(ticket);
        }
        self.start_waiting(now);
        match self.started.back() == Some(&ticket) {
            true => {
                self.started.pop_back();
                Decision::Starts(ticket)
            }
            false => Decision::Waits(ticket),
        }
    }

    /// A request that was under way has ended.
    pub fn finish(&mut self, now: Duration, ticket: Ticket) {
        self.advance(now);
        let Some(request) = self.requests.remove(&ticket) else { return };
        let Some(began) = request.began else { return };
        self.totals.executing -= 1;
        self.totals.seats_in_use -= request.seats;
        if let Some((index, queue)) =
            request.queue.and_then(|index| Some((index, self.queues.get_mut(&index)?)))
        {
            queue.executing -= 1;
            queue.seats_in_use -= request.seats;
            let took = now.saturating_sub(began).as_secs_f64();
            queue.next -= f64::from(request.seats) * (GUESS - took);
            self.tidy(index);
        }
        self.start_waiting(now);
    }

    /// A request does not wait any longer; whether it did.
    pub fn give_up(&mut self, now: Duration, ticket: Ticket) -> bool {
        self.advance(now);
        if self.requests.get(&ticket).is_none_or(|request| request.began.is_some()) {
            return false;
        }
        let Some(request) = self.requests.remove(&ticket) else { return false };
        if let Some(index) = request.queue {
            if let Some(queue) = self.queues.get_mut(&index) {
                queue.waiting.retain(|other| *other != ticket);
            }
            self.leave(index, &request);
            self.tidy(index);
        }
        // It may have been in the way of others.
        self.start_waiting(now);
        true
    }

    /// A request that has stopped waiting, and begins now.
    pub fn next_started(&mut self) -> Option<Ticket> {
        self.started.pop_front()
    }

    /// How much is going on.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What is going on in the queues that anybody is in.
    pub fn queues(&self) -> impl Iterator<Item = QueueState> {
        self.queues.iter().map(|(index, queue)| QueueState {
            index: *index,
            waiting: queue.waiting.len(),
            executing: queue.executing,
            seats_in_use: queue.seats_in_use,
            next: queue.next,
            seats_waiting: queue.seats_waiting,
            backlog: queue.backlog,
        })
    }

    /// Ends a period: the most seats that could have been used in it, and about how many will.
    pub fn end_period(&mut self, now: Duration) -> (u32, f64) {
        self.advance(now);
        self.demand.end(now)
    }

    /// Lets virtual time go on: each queue that somebody is in has had an equal part of the seats.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.clock.at).as_secs_f64();
        self.clock.at = now.max(self.clock.at);
        if !self.queues.is_empty() {
            let wanted = self.totals.seats_in_use + self.totals.seats_waiting;
            let used = f64::from(wanted.min(self.limit));
            self.clock.work += passed * used / self.queues.len() as f64;
        }
    }

    /// Whether so many seats are free. Who wants more than there are gets them when nobody else has any.
    fn fits(&self, seats: u32) -> bool {
        let after = self.totals.seats_in_use.saturating_add(seats);
        after <= self.limit || seats > self.limit && self.totals.executing == 0
    }

    /// The queue of a flow's hand in which the least work waits; `None` if that is full.
    fn shortest(&mut self, queuing: Queuing, hash: u64) -> Option<u32> {
        let mut hand = [0; MOST_QUEUES_OF_A_FLOW as usize];
        let hand = deal(queuing, hash, &mut hand);
        // Flows whose hands overlap begin to look at different places.
        self.last.deal = self.last.deal.wrapping_add(1);
        let first = self.last.deal % hand.len();
        let (before, after) = hand.split_at(first);
        let backlog = |index: &u32| self.queues.get(index).map_or(0.0, |queue| queue.backlog);
        let all = after.iter().chain(before);
        let index = *all.min_by(|one, other| backlog(one).total_cmp(&backlog(other)))?;
        let waiting = self.queues.get(&index).map_or(0, |queue| queue.waiting.len());
        (waiting < queuing.length).then_some(index)
    }

    fn enqueue(&mut self, index: u32, ticket: Ticket, request: Request) -> Option<Request> {
        let queue = self.queues.entry(index).or_insert_with(|| {
            // Whoever was away has saved nothing up.
            Queue { next: self.clock.work, ..Queue::default() }
        });
        queue.waiting.push_back(ticket);
        queue.seats_waiting += request.seats;
        queue.backlog += request.work();
        self.totals.waiting += 1;
        self.totals.seats_waiting += request.seats;
        let before = self.requests.insert(ticket, request);
        self.bound(index);
        before
    }

    /// Starts those who may, in the order of their turns.
    fn start_waiting(&mut self, now: Duration) {
        while self.totals.waiting > 0 && self.totals.seats_in_use < self.limit {
            let Some(index) = self.next_queue() else { break };
            let Some(queue) = self.queues.get_mut(&index) else { break };
            let Some(&ticket) = queue.waiting.front() else { break };
            let Some(request) = self.requests.get(&ticket) else { break };
            // The seats stay free for whoever is next, however many others want fewer.
            if !self.fits(request.seats) {
                break;
            }
            let Some(queue) = self.queues.get_mut(&index) else { break };
            queue.waiting.pop_front();
            queue.next += request.work();
            self.last.queue = index;
            self.start(now, ticket);
            self.started.push_back(ticket);
            self.bound(index);
        }
        let wanted = self.totals.seats_in_use + self.totals.seats_waiting;
        self.demand.set(now, wanted);
    }

    /// The queue whose next request would be done first; of several, the one after the last.
    fn next_queue(&self) -> Option<u32> {
        let after = self.queues.range(self.last.queue.saturating_add(1)..);
        let before = self.queues.range(..=self.last.queue);
        let end = |queue: &Queue| {
            let request = self.requests.get(queue.waiting.front()?)?;
            Some(queue.next + request.work())
        };
        let ends = after.chain(before).filter_map(|(index, queue)| Some((end(queue)?, *index)));
        ends.min_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, index)| index)
    }

    /// From now on the request is under way.
    fn start(&mut self, now: Duration, ticket: Ticket) {
        let Some(mut request) = self.requests.remove(&ticket) else { return };
        request.began = Some(now);
        self.totals.executing += 1;
        self.totals.seats_in_use += request.seats;
        match request.queue {
            Some(index) => {
                self.leave(index, &request);
                if let Some(queue) = self.queues.get_mut(&index) {
                    queue.executing += 1;
                    queue.seats_in_use += request.seats;
                }
            }
            None => {
                let wanted = self.totals.seats_in_use + self.totals.seats_waiting;
                self.demand.set(now, wanted);
            }
        }
        self.requests.insert(ticket, request);
    }

    /// Counts a request no longer among those that wait.
    fn leave(&mut self, index: u32, request: &Request) {
        self.totals.waiting -= 1;
        self.totals.seats_waiting -= request.seats;
        if let Some(queue) = self.queues.get_mut(&index) {
            queue.seats_waiting -= request.seats;
            queue.backlog -= request.work();
        }
    }

    /// A queue that gets less than its part because it wants no more saves nothing up.
    fn bound(&mut self, index: u32) {
        let Some(queue) = self.queues.get_mut(&index) else { return };
        let head = queue.waiting.front().and_then(|ticket| self.requests.get(ticket));
        if let Some(head) = head {
            queue.next = queue.next.max(head.arrived);
        }
    }

    /// Forgets a queue that nobody is in.
    fn tidy(&mut self, index: u32) {
        self.bound(index);
        let idle = |queue: &Queue| queue.executing == 0 && queue.waiting.is_empty();
        if self.queues.get(&index).is_some_and(idle) {
            self.queues.remove(&index);
        }
    }
}

/// Deals a hand of different queues: which ones depends on the hash alone.
fn deal(queuing: Queuing, mut hash: u64, hand: &mut [u32]) -> &[u32] {
    let size = (queuing.hand as usize).clamp(1, hand.len());
    for dealt in 0..size {
        let left = u64::from(queuing.queues).saturating_sub(dealt as u64).max(1);
        // The place among those that are not dealt yet.
        let mut card = u32::try_from(hash % left).unwrap_or(0);
        hash /= left;
        hand[..dealt].sort_unstable();
        for other in &hand[..dealt] {
            card += u32::from(card >= *other);
        }
        hand[dealt] = card;
    }
    &hand[..size]
}

#[cfg(test)]
mod tests;
