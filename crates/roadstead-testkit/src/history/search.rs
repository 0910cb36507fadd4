//! Looks for an order of the operations on one object that explains all their answers.
//!
//! An operation may be the next one if nothing that is still missing was answered before it began. If
//! its answer fits what is there now, the search goes on behind it; what was tried once is not tried
//! again. Two things keep it short: an answer that changes nothing and fits now can nearly always be
//! taken at once, and of the writes whose revision somebody was told, only the one with the smallest is next.

use std::collections::HashSet;

use super::{Answer, Call, Fault, Listing, Operation, Revision, Time, Value};

/// So many states of a search are enough; then it gives up.
const LIMIT: usize = 200_000;

/// An operation, as far as the search needs it.
#[derive(Debug)]
pub(super) struct Step {
    invoked: Time,
    answered: Time,
    call: Call,
    answer: Answer,
    /// The revision of what it wrote, if anybody was told.
    revision: Option<Revision>,
}

impl Step {
    pub(super) fn new(operation: &Operation, revision: Option<Revision>) -> Self {
        let Operation { invoked, answered, call, answer, .. } = operation.clone();
        Self { invoked, answered, call, answer, revision }
    }

    /// What a list says of the object.
    pub(super) fn read(listing: &Listing, found: Option<(Value, Revision)>) -> Self {
        let Listing { invoked, answered, .. } = *listing;
        Self { invoked, answered, call: Call::Get, answer: Answer::Found(found), revision: None }
    }

    /// Whether it certainly happened: it was answered, or somebody saw what it wrote.
    fn is_certain(&self) -> bool {
        self.answer != Answer::Unknown || self.revision.is_some()
    }

    /// Whether it is known to change nothing.
    fn only_looks(&self) -> bool {
        self.call == Call::Get || !matches!(self.answer, Answer::Written(_) | Answer::Unknown)
    }

    /// What is there after it, if what is there before it explains its answer. The revision is
    /// that of a value, if anybody was told.
    fn apply(&self, now: Now) -> Option<Now> {
        let guard = |demanded: Option<Revision>| match (now, demanded) {
            (None, _) => Answer::Missing,
            (Some((_, at)), Some(demanded)) if at != Some(demanded) => Answer::Conflict,
            _ => Answer::Written(None),
        };
        let would = match &self.call {
            Call::Create(_) if now.is_some() => Answer::Exists,
            Call::Create(_) => Answer::Written(None),
            Call::Update(_, demanded) | Call::Delete(demanded) => guard(*demanded),
            Call::Get => {
                let found = match &self.answer {
                    Answer::Found(found) => *found,
                    Answer::Missing => None,
                    _ => return Some(now),
                };
                return (found.map(|(value, at)| (value, Some(at))) == now).then_some(now);
            }
        };
        let fits = match &self.answer {
            Answer::Written(_) | Answer::Unknown => matches!(would, Answer::Written(_)),
            told => *told == would,
        };
        fits.then(|| match (&would, self.call.value()) {
            (Answer::Written(_), Some(value)) => Some((value, self.revision)),
            (Answer::Written(_), None) => None,
            _ => now,
        })
    }
}

/// What is there: the value, and its revision if anybody was told.
type Now = Option<(Value, Option<Revision>)>;

/// Which steps have been taken, and what is there then.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    taken: Box<[u64]>,
    value: Option<Value>,
}

impl State {
    fn has(&self, step: usize) -> bool {
        self.taken[step / 64] & (1 << (step % 64)) != 0
    }
}

/// A place in the search: what is there, what was taken last, and what else could have been.
struct Place {
    state: State,
    now: Now,
    /// Everything before this step is taken.
    first: usize,
    /// How many of the known revisions are taken.
    known: usize,
    /// How many that are certain are missing.
    missing: usize,
    /// When the last one of those taken began.
    begun: Time,
    choices: Vec<usize>,
}

/// Returns whether the steps, all on one object, can have happened one after the other.
pub(super) fn check(key: &str, mut steps: Vec<Step>) -> Result<(), Fault> {
    steps.sort_by_key(|step| step.invoked);
    let mut revisions: Vec<_> = steps.iter().filter_map(|step| step.revision).collect();
    revisions.sort_unstable();
    let mut seen: HashSet<State> = HashSet::new();
    let mut best = (usize::MAX, String::new());
    let missing = steps.iter().filter(|step| step.is_certain()).count();
    let state = State { taken: vec![0; steps.len().div_ceil(64)].into(), value: None };
    let mut path = vec![Place {
        state,
        now: None,
        first: 0,
        known: 0,
        missing,
        begun: 0,
        choices: Vec::new(),
    }];
    path[0].choices = choices(&steps, &path[0], &revisions);
    while let Some(place) = path.last_mut() {
        if place.missing == 0 {
            return Ok(());
        }
        if place.missing < best.0 {
            best = (place.missing, explain(&steps, place));
        }
        let Some(step) = place.choices.pop() else {
            path.pop();
            continue;
        };
        let next = take(&steps, place, step);
        if seen.len() > LIMIT {
            return Err(Fault::Undecided(key.to_owned()));
        }
        if seen.insert(next.state.clone()) {
            let mut next = next;
            next.choices = choices(&steps, &next, &revisions);
            path.push(next);
        }
    }
    Err(Fault::NoOrder(key.to_owned(), best.1))
}

fn take(steps: &[Step], place: &Place, step: usize) -> Place {
    let now = steps[step].apply(place.now).expect("only what fits is a choice");
    let mut state = place.state.clone();
    state.taken[step / 64] |= 1 << (step % 64);
    state.value = now.map(|(value, _)| value);
    let mut first = place.first;
    while first < steps.len() && state.has(first) {
        first += 1;
    }
    let missing = place.missing - usize::from(steps[step].is_certain());
    let begun = place.begun.max(steps[step].invoked);
    let known = place.known + usize::from(steps[step].revision.is_some());
    Place { state, now, first, known, missing, begun, choices: Vec::new() }
}

/// Those that can be next, the most promising one last.
fn choices(steps: &[Step], place: &Place, revisions: &[Revision]) -> Vec<usize> {
    let open: Vec<_> = open(steps, place).collect();
    let (looks, mut found): (Vec<_>, Vec<_>) = open
        .iter()
        .copied()
        .filter(|step| steps[*step].apply(place.now).is_some())
        .partition(|step| steps[*step].only_looks());
    // What may have happened has until then to do so: an answer to a later question can be too early.
    let doubtful = open.iter().filter(|step| !steps[**step].is_certain());
    let until = doubtful.map(|step| steps[*step].answered).min().unwrap_or(Time::MAX);
    if let Some(look) = looks.iter().find(|step| steps[**step].invoked <= until) {
        return vec![*look];
    }
    // Revisions are taken in order; writes without a known one may be anywhere.
    let next = revisions.get(place.known);
    found.retain(|step| steps[*step].revision.is_none_or(|revision| Some(&revision) == next));
    // Without an answer is the last resort, except that deletions have no revision to be known.
    found.sort_by_key(|step| steps[*step].is_certain());
    found.extend(looks);
    found
}

/// Those that nothing else must precede.
fn open<'a>(steps: &'a [Step], place: &'a Place) -> impl Iterator<Item = usize> + 'a {
    let mut end = Time::MAX;
    let missing = (place.first..steps.len()).filter(|step| !place.state.has(*step));
    let near = missing.map_while(move |step| {
        if steps[step].invoked > end {
            return None;
        }
        if steps[step].is_certain() {
            end = end.min(steps[step].answered);
        }
        Some(step)
    });
    // What nobody answered did not happen after the moment that it names.
    near.filter(|step| place.begun <= steps[*step].answered)
}

fn explain(steps: &[Step], place: &Place) -> String {
    let open: Vec<_> = open(steps, place).take(6).map(|step| &steps[step]).collect();
    format!("{} are left; at {:?} none of {open:?} can be next", place.missing, place.now)
}
