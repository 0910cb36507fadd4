//! Who is served now, and who waits: the priority levels and flows of `roadstead-plan`, followed from the
//! feed of the store, with a clock and with those who wait.
//!
//! A request keeps its seats until its answer begins. What is long in it after that is done in turns
//! (`rotation`).

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;
use roadstead_api::kinds::flow_control::GROUP;
use roadstead_api::kinds::flow_control::bootstrap::{self, LEVELS, SCHEMAS};
use roadstead_plan::flow_control::classify::{FlowSchema, RequestDigest};
use roadstead_plan::flow_control::queues::{Arrival, Refusal};
use roadstead_plan::flow_control::shares::{self, Discipline, Need, PriorityLevel, SeatLimits};
use roadstead_plan::flow_control::work;
use roadstead_store::entry::{Entry, Revision};
use roadstead_store::feed::Feed;
use roadstead_store::kv::Store;
use tokio::time;

use crate::reading::object;

mod counts;
pub(crate) mod line;
mod report;

use counts::Counts;
use line::{Line, Seats};

/// How many seats the server has: upstream's 400 for reads and 200 for writes.
const SEATS: u32 = 600;

/// How long a request waits at most: a quarter of what upstream gives it in all.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often levels lend what they do not use.
const PERIOD: Duration = Duration::from_secs(10);

/// Which requests belong to which levels, and what goes on in them.
pub(crate) struct Fairness {
    store: Arc<Store>,
    /// Moments are counted from here.
    began: Instant,
    /// Nobody can foresee whose hands overlap.
    hasher: RandomState,
    state: Mutex<State>,
    /// Requests that only read, and others.
    under_way: [Arc<AtomicUsize>; 2],
}

#[derive(Default)]
struct State {
    /// Of levels and schemas.
    feeds: Option<[Feed; 2]>,
    /// Nothing has happened since then.
    seen: Option<Revision>,
    /// By their paths in the store.
    levels: BTreeMap<Arc<str>, PriorityLevel>,
    schemas: BTreeMap<Arc<str>, FlowSchema>,
    config: Arc<Configuration>,
    /// When levels lent for the last time.
    lent: Duration,
}

/// What counts now.
#[derive(Default)]
struct Configuration {
    levels: Vec<Arc<ActiveLevel>>,
    /// In the order in which they are asked.
    classes: Vec<Arc<Class>>,
}

/// A priority level, and what goes on in it.
struct ActiveLevel {
    level: PriorityLevel,
    limits: SeatLimits,
    /// How many seats one request may take.
    most: u32,
    uid: Option<HeaderValue>,
    /// The same whatever becomes of the level's configuration.
    line: Arc<Line>,
}

/// A schema, and the level that it leads to.
pub(crate) struct Class {
    schema: FlowSchema,
    uid: Option<HeaderValue>,
    level: Arc<ActiveLevel>,
    counts: Arc<Counts>,
}

impl Class {
    /// How many seats one request may take.
    pub(crate) fn most_seats(&self) -> u32 {
        self.level.most
    }

    /// What clients hear: the schema and the level that a request belongs to.
    pub(crate) fn uids(&self) -> [Option<&HeaderValue>; 2] {
        [self.uid.as_ref(), self.level.uid.as_ref()]
    }
}

/// How much work a request is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) seats: u32,
    pub(crate) writes: bool,
}

impl Fairness {
    /// Follows the objects of a store.
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            began: Instant::now(),
            hasher: RandomState::new(),
            state: Mutex::default(),
            under_way: Default::default(),
        }
    }

    /// What a request belongs to.
    pub(crate) fn classify(&self, request: &RequestDigest<'_>) -> Option<Arc<Class>> {
        let config = self.now();
        let mut classes = config.classes.iter();
        // The last one is for everybody.
        let found = classes.find(|class| class.schema.matches(request));
        found.or(config.classes.last()).cloned()
    }

    /// Waits for the seats of a request.
    pub(crate) async fn enter(
        &self,
        class: &Arc<Class>,
        request: &RequestDigest<'_>,
        work: Work,
    ) -> Result<Seats, Refusal> {
        let hash = match class.level.level.discipline {
            Discipline::Queue(_) => {
                self.hasher.hash_one((&class.schema.name, class.schema.distinguisher(request)))
            }
            Discipline::Exempt | Discipline::Reject => 0,
        };
        let aftermath = if work.writes { work::AFTERMATH } else { Duration::ZERO };
        let arrival = Arrival { hash, seats: work.seats, aftermath };
        let under_way = &self.under_way[usize::from(work.writes)];
        let (mut seats, turn) = Line::arrive(class, &arrival).inspect_err(|refusal| {
            class.counts.refused(*refusal);
        })?;
        if let Some(turn) = turn {
            let arrived = Instant::now();
            let started = matches!(time::timeout(PATIENCE, turn).await, Ok(Ok(())));
            class.counts.waited(arrived.elapsed(), started);
            if !started {
                class.counts.refused(Refusal::TimeOut);
                seats.is_refused();
                return Err(Refusal::TimeOut);
            }
        } else if class.level.level.discipline != Discipline::Exempt {
            class.counts.waited(Duration::ZERO, true);
        }
        seats.begin(under_way);
        Ok(seats)
    }

    /// How many requests are reading and writing now.
    pub(crate) fn under_way(&self) -> [usize; 2] {
        [0, 1].map(|kind| self.under_way[kind].load(Ordering::Relaxed))
    }

    /// What counts now: an object does as soon as its creation has been answered.
    fn now(&self) -> Arc<Configuration> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.began.elapsed();
        let revision = self.store.revision();
        if state.seen != Some(revision) {
            if state.refresh(&self.store) {
                state.configure(self.began, now);
            }
            state.seen = Some(revision);
        }
        if now.saturating_sub(state.lent) >= PERIOD {
            state.lent = now;
            lend(&state.config, now);
        }
        state.config.clone()
    }
}

impl State {
    /// Takes in what has happened; whether that changes anything.
    fn refresh(&mut self, store: &Arc<Store>) -> bool {
        let Some(feeds) = &mut self.feeds else { return self.read_all(store) };
        let mut changed = false;
        for (kind, feed) in feeds.iter_mut().enumerate() {
            let Ok(batch) = feed.now() else {
                // We slept through more history than is kept.
                return self.read_all(store);
            };
            for event in &batch.events {
                let (path, after) = (event.key.path.clone(), event.after.as_deref());
                changed |= match kind {
                    0 => observe(
                        &mut self.levels,
                        path,
                        after.map(|e| PriorityLevel::read(&value(e))),
                    ),
                    _ => {
                        observe(&mut self.schemas, path, after.map(|e| FlowSchema::read(&value(e))))
                    }
                };
            }
        }
        changed
    }

    fn read_all(&mut self, store: &Arc<Store>) -> bool {
        let mut feeds = Vec::new();
        self.levels.clear();
        self.schemas.clear();
        for (kind, plural) in [LEVELS, SCHEMAS].into_iter().enumerate() {
            let bucket = format!("{plural}.{GROUP}");
            let Ok(snapshot) = store.list(&bucket, "", None) else { return true };
            for entry in &snapshot.entries {
                let path = entry.key.path.clone();
                match kind {
                    0 => drop(self.levels.insert(path, PriorityLevel::read(&value(entry)))),
                    _ => drop(self.schemas.insert(path, FlowSchema::read(&value(entry)))),
                }
            }
            feeds.extend(store.feed(&bucket, snapshot.revision).ok());
        }
        self.feeds = feeds.try_into().ok();
        true
    }

    /// Makes the configuration anew. Who waits, waits on.
    fn configure(&mut self, began: Instant, now: Duration) {
        let (levels, schemas) = self.complete();
        let old = self.config.clone();
        let limits = shares::limits(&levels.iter().collect::<Vec<_>>(), SEATS);
        let levels = levels.into_iter().zip(limits).map(|(level, limits)| {
            let uid = HeaderValue::from_str(&level.uid).ok().filter(|uid| !uid.is_empty());
            let most = work::most_seats(level.discipline, limits.nominal);
            let known = old.levels.iter().find(|known| known.level.name == level.name);
            let line = match known {
                Some(known) => {
                    // What it has borrowed is looked at again in time.
                    let same = known.limits == limits;
                    let seats = if same { known.line.limit() } else { limits.initial() };
                    known.line.reconfigure(now, level.discipline, seats);
                    known.line.clone()
                }
                None => Arc::new(Line::new(began, now, level.discipline, limits.initial())),
            };
            Arc::new(ActiveLevel { level, limits, most, uid, line })
        });
        let levels: Vec<_> = levels.collect();
        let class = |schema: FlowSchema| {
            // Who leads nowhere is not asked.
            let level = levels.iter().find(|level| level.level.name == schema.level)?.clone();
            let uid = HeaderValue::from_str(&schema.uid).ok().filter(|uid| !uid.is_empty());
            let is_it = |known: &&Arc<Class>| {
                known.schema.name == schema.name && known.schema.level == schema.level
            };
            let known = old.classes.iter().find(is_it);
            let counts = known.map_or_else(Arc::default, |known| known.counts.clone());
            Some(Arc::new(Class { schema, uid, level, counts }))
        };
        let classes = schemas.into_iter().filter_map(class).collect();
        self.config = Arc::new(Configuration { levels, classes });
    }

    /// The levels by name, and the schemas in their order; what is mandatory is there in any case.
    fn complete(&self) -> (Vec<PriorityLevel>, Vec<FlowSchema>) {
        let mut levels: Vec<_> = self.levels.values().cloned().collect();
        let mut schemas: Vec<_> = self.schemas.values().cloned().collect();
        for name in ["exempt", "catch-all"] {
            if !levels.iter().any(|level| level.name == name) {
                levels
                    .extend(bootstrap::mandatory_level(name).map(|own| PriorityLevel::read(&own)));
            }
            if !schemas.iter().any(|schema| schema.name == name) {
                schemas.extend(bootstrap::mandatory_schema(name).map(|own| FlowSchema::read(&own)));
            }
        }
        levels.sort_by(|one, other| one.name.cmp(&other.name));
        schemas.sort_by(FlowSchema::order);
        (levels, schemas)
    }
}

fn value(entry: &Entry) -> serde_json::Value {
    object::value(entry)
}

/// Takes in an object as it is now; whether that is another than before.
fn observe<T: PartialEq>(
    known: &mut BTreeMap<Arc<str>, T>,
    path: Arc<str>,
    new: Option<T>,
) -> bool {
    match new {
        Some(new) if known.get(&path) == Some(&new) => false,
        Some(new) => {
            known.insert(path, new);
            true
        }
        None => known.remove(&path).is_some(),
    }
}

/// Divides the seats by what the levels lately needed.
fn lend(config: &Configuration, now: Duration) {
    let need = |level: &Arc<ActiveLevel>| {
        let (highest, smoothed) = level.line.end_period(now);
        let exempt = level.level.discipline == Discipline::Exempt;
        Need { limits: level.limits, exempt, highest, smoothed }
    };
    let needs: Vec<_> = config.levels.iter().map(need).collect();
    for (level, seats) in config.levels.iter().zip(shares::adjust(&needs)) {
        level.line.set_limit(now, seats);
    }
}

#[cfg(test)]
mod tests;
