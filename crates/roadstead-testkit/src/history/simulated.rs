//! A store and its clients in one thread, by a seed: it crashes now and then, and tells the truth, or
//! lies in one way.

use std::collections::BTreeMap;

use super::{Answer, Call, Event, History, Listing, Operation, Revision, Time, Value, Watched};

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Lie {
    /// A write is acknowledged and not kept.
    LostWrite,
    /// Two writes get one revision.
    DuplicatedRevision,
    /// Somebody reads what was there before.
    StaleRead,
    /// Two events change places.
    ReorderedEvents,
    /// An event is not told.
    SkippedEvent,
    /// An event is told twice.
    RepeatedEvent,
    /// A write happens again, later.
    AppliedTwice,
    /// A write whose answer a crash ate is seen, and then undone.
    FlipsBack,
    /// A write succeeds at another revision than the one that it demanded.
    IgnoredGuard,
    /// A list has an object from before.
    StaleList,
    /// A list lacks an object.
    HoleInList,
    /// A write is refused for a conflict, and happens.
    RefusedAndDone,
    /// A crash takes back the last acknowledged write.
    ForgottenInCrash,
}

impl Lie {
    pub(super) const ALL: [Self; 13] = [
        Self::LostWrite,
        Self::DuplicatedRevision,
        Self::StaleRead,
        Self::ReorderedEvents,
        Self::SkippedEvent,
        Self::RepeatedEvent,
        Self::AppliedTwice,
        Self::FlipsBack,
        Self::IgnoredGuard,
        Self::StaleList,
        Self::HoleInList,
        Self::RefusedAndDone,
        Self::ForgottenInCrash,
    ];
}

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// What a client is doing.
enum Client {
    Idle,
    /// Sent at this time, and not yet looked at.
    Asked(u64, String, Call),
    /// Done; the answer is on its way.
    Done(u64, String, Call, Answer),
}

type Objects = BTreeMap<String, (Value, Revision)>;

pub(super) struct World {
    random: Random,
    now: u64,
    revision: Revision,
    value: Value,
    objects: Objects,
    /// What was there before the last change, and which object it changed.
    before: Objects,
    log: Vec<Event>,
    /// The revisions that somebody was told.
    known: BTreeMap<String, Revision>,
    clients: Vec<Client>,
    history: History,
    lie: Option<Lie>,
    /// Whether the lie has been told.
    pub(super) lied: bool,
    /// What a crash left in doubt, and then was seen.
    doubtful: Option<(String, Value)>,
}

/// Returns what the clients were told, and whether the lie was among it.
pub(super) fn run(seed: u64, lie: Option<Lie>, is_watched: bool) -> (History, bool) {
    let mut world = World {
        random: Random(seed),
        now: 0,
        revision: 0,
        value: 0,
        objects: Objects::new(),
        before: Objects::new(),
        log: Vec::new(),
        known: BTreeMap::new(),
        clients: (0..4).map(|_| Client::Idle).collect(),
        history: History::default(),
        lie,
        lied: false,
        doubtful: None,
    };
    for _ in 0..400 {
        world.tick();
    }
    world.crash();
    if is_watched {
        world.watch();
    }
    (world.history, world.lied)
}

impl World {
    /// Whether now is the moment, in the middle of the run.
    fn lies(&mut self, lie: Lie) -> bool {
        let due = self.lie == Some(lie) && !self.lied && self.now > 60 && self.random.below(3) == 0;
        self.lied |= due;
        due
    }

    fn tick(&mut self) {
        self.now += 1;
        if self.random.below(60) == 0 {
            return self.crash();
        }
        if self.random.below(12) == 0 {
            return self.list();
        }
        let client = self.random.below(self.clients.len() as u64) as usize;
        let state = std::mem::replace(&mut self.clients[client], Client::Idle);
        self.clients[client] = match state {
            Client::Idle => {
                let key = format!("k{}", self.random.below(3));
                let call = self.question(&key);
                Client::Asked(self.now, key, call)
            }
            Client::Asked(invoked, key, call) => {
                let answer = self.act(&key, &call, invoked);
                Client::Done(invoked, key, call, answer)
            }
            Client::Done(invoked, key, call, answer) => {
                let answered = self.now;
                if let Answer::Written(Some(told)) | Answer::Found(Some((_, told))) = answer {
                    self.known.insert(key.clone(), told);
                }
                self.history.operations.push(Operation { key, invoked, answered, call, answer });
                Client::Idle
            }
        };
    }

    fn question(&mut self, key: &str) -> Call {
        let known = self.known.get(key).copied();
        // Some know an older revision.
        let known =
            if self.random.below(5) == 0 { known.map(|known| known.max(2) - 1) } else { known };
        self.value += 1;
        match self.random.below(8) {
            0 | 1 => Call::Create(self.value),
            2 | 3 => Call::Update(self.value, known),
            4 => Call::Update(self.value, None),
            5 => Call::Delete(known.filter(|_| self.now.is_multiple_of(2))),
            _ => Call::Get,
        }
    }

    fn act(&mut self, key: &str, call: &Call, invoked: Time) -> Answer {
        let found = self.objects.get(key).copied();
        let (demanded, value) = match *call {
            Call::Get => {
                let stale = self.before.get(key).copied();
                // A value that is still there, or a place where nothing ever was, is no lie.
                let is_known = found != stale && self.is_known(key, invoked);
                let lie = is_known && self.lies(Lie::StaleRead);
                return Answer::Found(if lie { stale } else { found });
            }
            Call::Create(value) if found.is_none() => return self.write(key, Some(value)),
            Call::Create(_) => return Answer::Exists,
            Call::Update(value, demanded) => (demanded, Some(value)),
            Call::Delete(demanded) => (demanded, None),
        };
        let Some((_, revision)) = found else { return Answer::Missing };
        if demanded.is_some_and(|demanded| demanded != revision) {
            if value.is_some() && self.lies(Lie::IgnoredGuard) {
                return self.write(key, value);
            }
            if value.is_some() && self.lies(Lie::RefusedAndDone) {
                self.write(key, value);
            }
            return Answer::Conflict;
        }
        self.write(key, value)
    }

    /// Whether the last change of the object was acknowledged before this moment: who is told something
    /// older then is deceived.
    fn is_known(&self, key: &str, invoked: Time) -> bool {
        let last = self.log.iter().rev().find(|event| event.key == key);
        let Some(value) = last.and_then(|event| event.value) else { return false };
        self.history.operations.iter().any(|operation| {
            operation.call.value() == Some(value)
                && operation.took_effect() == Some(true)
                && operation.answered < invoked
        })
    }

    fn write(&mut self, key: &str, value: Option<Value>) -> Answer {
        if value.is_some() && self.lies(Lie::LostWrite) {
            self.revision += 1;
            return Answer::Written(Some(self.revision));
        }
        let repeats = self.revision > 0 && value.is_some() && self.lies(Lie::DuplicatedRevision);
        self.revision += u64::from(!repeats);
        self.set(key, value);
        if let Some(value) = value
            && self.lies(Lie::AppliedTwice)
        {
            let answer = Answer::Written(Some(self.revision));
            self.revision += 1;
            self.set(key, Some(value));
            return answer;
        }
        Answer::Written(value.is_some().then_some(self.revision))
    }

    fn set(&mut self, key: &str, value: Option<Value>) {
        self.before = self.objects.clone();
        match value {
            Some(value) => self.objects.insert(key.to_owned(), (value, self.revision)),
            None => self.objects.remove(key),
        };
        self.log.push(Event { revision: self.revision, key: key.to_owned(), value });
    }

    fn list(&mut self) {
        let (invoked, mut items) = (self.now, self.objects.clone());
        self.now += 1;
        let changed = self.log.last().map(|event| event.key.clone());
        if let Some(key) = changed
            && let Some(old) = self.before.get(&key).copied()
            && items.contains_key(&key)
            && self.lies(Lie::StaleList)
        {
            items.insert(key, old);
        }
        if items.contains_key("k0") && self.is_known("k0", invoked) && self.lies(Lie::HoleInList) {
            items.remove("k0");
        }
        self.flip_back();
        let (revision, exact) = (self.revision, self.random.below(3) == 0);
        let answered = self.now;
        self.history.listings.push(Listing { invoked, answered, exact, revision, items });
    }

    /// Undoes what a crash left in doubt, after somebody saw it in this list.
    fn flip_back(&mut self) {
        let Some((key, value)) = self.doubtful.take() else { return };
        let is_there = self.objects.get(&key).is_some_and(|(there, _)| *there == value);
        if is_there && self.lies(Lie::FlipsBack) {
            let items = self.objects.clone();
            let (invoked, answered, revision) = (self.now, self.now, self.revision);
            self.history.listings.push(Listing {
                invoked,
                answered,
                exact: false,
                revision,
                items,
            });
            self.now += 1;
            self.objects = self.before.clone();
            self.log.pop();
            self.revision -= 1;
        }
    }

    fn crash(&mut self) {
        self.now += 1;
        let acknowledged = self.history.operations.last().filter(|operation| {
            let value = self.log.last().and_then(|event| event.value);
            value.is_some() && operation.call.value() == value
        });
        if acknowledged.is_some() && self.lies(Lie::ForgottenInCrash) {
            self.objects = self.before.clone();
            self.log.pop();
        }
        for client in &mut self.clients {
            let (invoked, key, call) = match std::mem::replace(client, Client::Idle) {
                Client::Idle => continue,
                Client::Asked(invoked, key, call) | Client::Done(invoked, key, call, _) => {
                    (invoked, key, call)
                }
            };
            if let (Some(value), Some(last)) = (call.value(), self.log.last())
                && last.value == Some(value)
            {
                self.doubtful = Some((key.clone(), value));
            }
            let (answered, answer) = (self.now, Answer::Unknown);
            self.history.operations.push(Operation { key, invoked, answered, call, answer });
        }
    }

    /// One watches from the beginning, one from the middle.
    fn watch(&mut self) {
        let all = self.log.clone();
        for after in [0, self.revision / 2] {
            let mut events: Vec<_> =
                all.iter().filter(|event| event.revision > after).cloned().collect();
            if events.len() > 4 {
                let at = 1 + self.random.below(events.len() as u64 - 3) as usize;
                if self.lies(Lie::ReorderedEvents) || self.is_due(Lie::ReorderedEvents, after) {
                    events.swap(at, at + 1);
                }
                if self.is_due(Lie::SkippedEvent, after) {
                    events.remove(at);
                }
                if self.is_due(Lie::RepeatedEvent, after) {
                    events.insert(at, events[at].clone());
                }
            }
            let complete_to = self.revision;
            self.history.watches.push(Watched { after, events, complete_to });
        }
    }

    /// Whether the second watch is to lie.
    fn is_due(&mut self, lie: Lie, after: Revision) -> bool {
        let due = self.lie == Some(lie) && !self.lied && after > 0;
        self.lied |= due;
        due
    }
}
