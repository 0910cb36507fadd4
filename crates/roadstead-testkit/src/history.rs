//! Judges what clients of the API server were told: whether there is one order of all operations
//! that explains every answer, with crashes in between.
//!
//! Two judges look at one [`History`]. `evidence` takes revisions at their word: they are the order of
//! everything, and all that anybody was told of a revision must agree, lists and watches too. `search`
//! needs none, and uses those that it has to be quick: for each object it looks for a sequence of the
//! operations that respects time and explains the answers (Wing and Gong's search, with Lowe's memory
//! of what was tried). Each finds faults that the other cannot see.
//!
//! Values are numbers that are written once only, so that what is read tells who wrote it.

pub mod allocations;
mod evidence;
mod reads;
mod search;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod tests;
mod watches;

use std::collections::BTreeMap;
use std::fmt;

use evidence::Evidence;

/// What the API calls a resource version.
pub type Revision = u64;
/// What is stored of an object: a number that no other write wrote.
pub type Value = u64;
/// A moment, in any unit, by one clock for all clients.
pub type Time = u64;

/// What a client asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Only if there is none.
    Create(Value),
    /// Only if there is one, and it is at the revision if one is named.
    Update(Value, Option<Revision>),
    /// Only if there is one, and it is at the revision if one is named.
    Delete(Option<Revision>),
    /// The newest.
    Get,
}

/// What it was told.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Written at this revision; of a deletion nobody is told it.
    Written(Option<Revision>),
    /// What is there.
    Found(Option<(Value, Revision)>),
    /// Refused, because there is one already.
    Exists,
    /// Refused, because there is none.
    Missing,
    /// Refused, because it is at another revision.
    Conflict,
    /// Nobody answered: it may have happened until the moment that `answered` names.
    Unknown,
}

/// What one client did to one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The object.
    pub key: String,
    /// Before it was sent.
    pub invoked: Time,
    /// After its answer had come.
    pub answered: Time,
    /// The question.
    pub call: Call,
    /// The answer.
    pub answer: Answer,
}

/// A list of all objects.
#[derive(Clone, Debug, PartialEq)]
pub struct Listing {
    /// Before it was sent.
    pub invoked: Time,
    /// After its answer had come.
    pub answered: Time,
    /// Whether a revision was named: the answer may be old then, but must be of that revision.
    pub exact: bool,
    /// The revision of the list.
    pub revision: Revision,
    /// What is in it.
    pub items: BTreeMap<String, (Value, Revision)>,
}

/// What a watch told.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When it happened.
    pub revision: Revision,
    /// The object.
    pub key: String,
    /// What it became; `None` if it is gone.
    pub value: Option<Value>,
}

/// What one client was told that watches all objects, over all its connections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watched {
    /// It asked for everything after this.
    pub after: Revision,
    /// In the order in which they came.
    pub events: Vec<Event>,
    /// It was told, or waited until, everything up to this had come.
    pub complete_to: Revision,
}

/// What all clients were told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The revision at which there was nothing yet.
    pub empty_at: Revision,
    /// Of single objects.
    pub operations: Vec<Operation>,
    /// Of all at once.
    pub listings: Vec<Listing>,
    /// By watching.
    pub watches: Vec<Watched>,
    /// Values that were written in one transaction: they have one revision, and only they.
    pub transactions: Vec<Vec<Value>>,
}

/// How much there was to judge by revisions, and how much of it was wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reckoning {
    /// Writes that were acknowledged.
    pub written: usize,
    /// Writes without an answer that happened, as somebody saw, and those that nobody saw.
    pub unknown: (usize, usize),
    /// Events that were told, by all watches.
    pub events: usize,
    /// Changes that a watch did not tell.
    pub lost: usize,
    /// Events that a watch told again.
    pub doubled: usize,
}

impl fmt::Display for Reckoning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { written, unknown: (seen, unseen), events, lost, doubled } = self;
        write!(
            f,
            "{written} writes acknowledged, {seen} unanswered ones seen and {unseen} not; {events} events: \
             lost {lost}, doubled {doubled}"
        )
    }
}

/// What cannot have been told by one store.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// One revision means two things.
    RevisionTwice(Revision, String),
    /// One write has two revisions.
    WrittenTwice(String, Revision, Revision),
    /// Something was acknowledged before it began, and has a revision that is not smaller.
    OutOfTime(String),
    /// A value that nobody wrote, or whose writer was refused.
    FromNowhere(String),
    /// A write happened although what it demanded was not so.
    Unguarded(String),
    /// A transaction happened in part.
    Torn(String),
    /// A read shows what was replaced before it was asked.
    Stale(String),
    /// At a revision two hold one thing, or what is held is not what is taken.
    Allocation(Revision, String),
    /// A list is not what was there at its revision.
    Listing(Revision, String),
    /// A watch told events in another order than that of their revisions, or one of them twice.
    Disorder(Revision, String),
    /// A watch did not tell what happened.
    Skipped(Revision, String),
    /// No order of the operations on the object explains their answers.
    NoOrder(String, String),
    /// There may be one, but the search became too long.
    Undecided(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RevisionTwice(revision, what) => {
                write!(f, "revision {revision} is two things: {what}")
            }
            Self::WrittenTwice(what, one, two) => {
                write!(f, "{what} was written at {one} and at {two}")
            }
            Self::OutOfTime(what) => write!(f, "time goes back: {what}"),
            Self::FromNowhere(what) => write!(f, "nobody wrote {what}"),
            Self::Unguarded(what) => write!(f, "the demand was not met: {what}"),
            Self::Torn(what) => write!(f, "it happened in part: {what}"),
            Self::Stale(what) => write!(f, "an old answer: {what}"),
            Self::Allocation(revision, what) => write!(f, "at revision {revision}: {what}"),
            Self::Listing(revision, what) => write!(f, "the list at {revision}: {what}"),
            Self::Disorder(revision, what) => {
                write!(f, "watched at {revision}, out of order: {what}")
            }
            Self::Skipped(revision, what) => {
                write!(f, "a watch did not tell of {revision}: {what}")
            }
            Self::NoOrder(key, what) => write!(f, "no order explains {key}: {what}"),
            Self::Undecided(key) => write!(f, "{key}: too many orders to try them all"),
        }
    }
}

impl History {
    /// Returns the first fault that either judge finds.
    pub fn check(&self) -> Result<(), Fault> {
        let evidence = Evidence::gather(self)?;
        self.by_revisions(&evidence)?;
        self.search(&evidence)
    }

    /// Only what follows from revisions: it takes no longer than sorting, however long the history is.
    pub fn check_revisions(&self) -> Result<(), Fault> {
        self.by_revisions(&Evidence::gather(self)?)
    }

    fn by_revisions(&self, evidence: &Evidence) -> Result<(), Fault> {
        evidence.check_transactions(self)?;
        evidence.check_time(self)?;
        evidence.check_guards(self)?;
        evidence.check_listings(self)?;
        reads::check(self, evidence)?;
        self.watches.iter().try_for_each(|watched| watches::check(watched, evidence))
    }

    /// Counts what the watches told wrongly, and what else there was. Fails where nothing can be counted,
    /// because the answers contradict each other.
    pub fn tally(&self) -> Result<Reckoning, Fault> {
        let evidence = Evidence::gather(self)?;
        let mut tally = Reckoning::default();
        for operation in &self.operations {
            let seen = operation.call.value().and_then(|value| evidence.revision_of(value));
            match (operation.took_effect(), seen) {
                (Some(true), _) => tally.written += 1,
                (None, Some(_)) => tally.unknown.0 += 1,
                (None, None) => tally.unknown.1 += 1,
                (Some(false), _) => {}
            }
        }
        for watched in &self.watches {
            let (lost, doubled) = watches::count(watched, &evidence);
            tally.events += watched.events.len();
            tally.lost += lost;
            tally.doubled += doubled;
        }
        Ok(tally)
    }

    /// Only the search, as if revisions were mere names.
    fn search(&self, evidence: &Evidence) -> Result<(), Fault> {
        let mut steps: BTreeMap<&str, Vec<search::Step>> = BTreeMap::new();
        for operation in &self.operations {
            let known = operation.call.value().and_then(|value| evidence.revision_of(value));
            // What nobody answered, and what no watch of everything has told, did not happen.
            let never = operation.call.value().is_some() && known.is_none();
            if never && operation.answer == Answer::Unknown && evidence.is_all_told {
                continue;
            }
            let step = search::Step::new(operation, known);
            steps.entry(&operation.key).or_default().push(step);
        }
        // A list that asks for the newest reads each object.
        for listing in self.listings.iter().filter(|listing| !listing.exact) {
            for (key, steps) in &mut steps {
                steps.push(search::Step::read(listing, listing.items.get(*key).copied()));
            }
        }
        steps.into_iter().try_for_each(|(key, steps)| search::check(key, steps))
    }

    /// How much there was to judge.
    pub fn summary(&self) -> String {
        let unknown = |operation: &&Operation| operation.answer == Answer::Unknown;
        let objects: std::collections::BTreeSet<_> =
            self.operations.iter().map(|operation| &operation.key).collect();
        let events = self.watches.iter().map(|watched| watched.events.len()).sum::<usize>();
        format!(
            "{} histories (one for each object) of {} operations, {} of them without an answer; {} \
             lists; {events} events on {} watches",
            objects.len(),
            self.operations.len(),
            self.operations.iter().filter(unknown).count(),
            self.listings.len(),
            self.watches.len(),
        )
    }
}

impl Call {
    /// What it writes.
    pub fn value(&self) -> Option<Value> {
        match self {
            Self::Create(value) | Self::Update(value, _) => Some(*value),
            Self::Delete(_) | Self::Get => None,
        }
    }
}

impl Operation {
    /// Whether it changed something, may have, or certainly did not.
    fn took_effect(&self) -> Option<bool> {
        match (&self.answer, &self.call) {
            (_, Call::Get) => Some(false),
            (Answer::Written(_), _) => Some(true),
            (Answer::Unknown, _) => None,
            _ => Some(false),
        }
    }
}
