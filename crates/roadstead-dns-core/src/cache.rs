//! What other servers said, for as long as they said it holds.
//!
//! Names of the cluster never get here. Messages are kept as they came, less the part that was
//! for us alone; ages are subtracted when they are used.

#[expect(clippy::disallowed_types, reason = "see below")]
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::message::{HEADER_LENGTH, Section, TYPE_OPT, read_name, read_u16, records};
use crate::reply::types;
use crate::secret::Secret;
use crate::setup::{Block, CacheRule, Setup};

const SHARDS: usize = 64;
/// All shards together hold twice as many as CoreDNS does of answers, in less memory.
const MOST_PER_SHARD: usize = 312;
/// All shards together take 16 MiB at most.
const BYTES_PER_SHARD: usize = (16 << 20) / SHARDS;
/// Longer messages are not worth the room.
const LONGEST: usize = 16 << 10;
/// What a message takes besides its bytes and its name.
const OVERHEAD: usize = 128;
/// How long a failure of others is remembered (RFC 9520).
const FAILURE: Duration = Duration::from_secs(1);

/// What is asked of others. Two clients with the same key can share an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuestionKey {
    /// In wire form and small letters.
    pub name: Box<[u8]>,
    /// The number of the type.
    pub kind: u16,
    /// Whether the records of DNSSEC are wanted.
    pub dnssec: bool,
    /// Whether signatures are to be left unchecked.
    pub unchecked: bool,
}

/// A message from another server.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredAnswer {
    /// The message, with one question and without OPT.
    pub bytes: Box<[u8]>,
    /// When it came.
    pub received: Instant,
    /// For how long it holds.
    pub lifetime: Duration,
    /// For how many seconds anything in it may hold at most.
    pub longest: u32,
}

impl StoredAnswer {
    /// Takes over a message; `None` if it is not well-formed throughout.
    pub fn read(message: &[u8], rule: &CacheRule, now: Instant) -> Option<Self> {
        let mut bytes = message.to_vec();
        let code = bytes.get(3)? & 0x0f;
        let mut answers: Option<u32> = None;
        let mut denial: Option<u32> = None;
        let mut end = question_end(message)?;
        let mut additional: u16 = 0;
        for item in records(message) {
            let (section, record) = item.ok()?;
            if record.kind == TYPE_OPT {
                // Whatever may follow is only a courtesy, and might point behind this place.
                break;
            }
            end = record.end();
            let sooner = |known: Option<u32>| Some(known.unwrap_or(u32::MAX).min(record.lifetime));
            match section {
                Section::Answer => answers = sooner(answers),
                Section::Authority if record.kind == types::SOA => {
                    let minimum = message.get(end - 4..end)?.try_into().ok()?;
                    denial = Some(record.lifetime.min(u32::from_be_bytes(minimum)));
                }
                Section::Authority => {}
                Section::Additional => additional += 1,
            }
        }
        bytes.truncate(end);
        bytes[10..12].copy_from_slice(&additional.to_be_bytes());
        let (lifetime, longest) = match (code, answers) {
            (0, Some(lifetime)) => (lifetime, rule.success),
            (0 | 3, _) => (denial.unwrap_or(0), rule.denial),
            _ => (u32::MAX, FAILURE),
        };
        let lifetime = match message[2] & 0x02 {
            0 => Duration::from_secs(lifetime.into()).min(longest),
            // Who asks again may get all of it.
            _ => Duration::ZERO,
        };
        let longest = u32::try_from(longest.as_secs()).unwrap_or(u32::MAX);
        Some(Self { bytes: bytes.into(), received: now, lifetime, longest })
    }

    /// The same, `now`.
    pub(crate) fn aged(&self, now: Instant) -> AgedAnswer<'_> {
        let age = now.saturating_duration_since(self.received).as_secs();
        AgedAnswer { stored: self, age: u32::try_from(age).unwrap_or(u32::MAX) }
    }

    /// Whether it still holds.
    pub fn is_fresh(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.received) < self.lifetime
    }

    /// Whether it says that there is nothing.
    pub fn is_absence(&self) -> bool {
        self.bytes.get(6..8) == Some(&[0, 0])
    }

    /// Whether it is about a failure.
    pub fn is_failure(&self) -> bool {
        !matches!(self.bytes.get(3).map(|flags| flags & 0x0f), Some(0 | 3))
    }
}

/// A message from another server, and how many seconds ago it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgedAnswer<'a> {
    pub stored: &'a StoredAnswer,
    age: u32,
}

impl AgedAnswer<'_> {
    /// How long a record in it may still be remembered. What must not be remembered was not.
    pub(crate) fn rest(&self, lifetime: u32) -> u32 {
        let rest = lifetime.min(self.stored.longest).saturating_sub(self.age).max(1);
        rest.min(lifetime)
    }
}

fn question_end(bytes: &[u8]) -> Option<usize> {
    let (_, at) = read_name(bytes, HEADER_LENGTH).filter(|_| read_u16(bytes, 4) == Some(1))?;
    bytes.get(at..at + 4).map(|_| at + 4)
}

/// Messages by key.
#[derive(Debug)]
pub struct AnswerCache {
    secret: Secret,
    shards: Box<[Mutex<Shard>]>,
}

#[derive(Debug)]
struct Shard {
    #[expect(
        clippy::disallowed_types,
        reason = "the hasher is given, and nobody asks for an order"
    )]
    known: HashMap<QuestionKey, Arc<StoredAnswer>, Secret>,
    bytes: usize,
}

impl Shard {
    #[expect(clippy::disallowed_types, reason = "as above")]
    fn new(secret: Secret) -> Self {
        Self { known: HashMap::with_hasher(secret), bytes: 0 }
    }

    fn remove(&mut self, key: &QuestionKey) {
        if let Some(stored) = self.known.remove(key) {
            self.bytes -= size(key, &stored);
        }
    }

    fn insert(&mut self, key: QuestionKey, stored: Arc<StoredAnswer>) {
        self.bytes += size(&key, &stored);
        self.known.insert(key, stored);
    }

    fn is_full(&self, more: usize) -> bool {
        self.known.len() >= MOST_PER_SHARD || self.bytes + more > BYTES_PER_SHARD
    }

    /// What can be spared.
    fn victim(&self, now: Instant) -> Option<QuestionKey> {
        let old = self.known.iter().find(|(_, known)| !known.is_fresh(now));
        // The order of a HashMap is as good as chance.
        old.or_else(|| self.known.iter().next()).map(|(key, _)| key.clone())
    }
}

fn size(key: &QuestionKey, stored: &StoredAnswer) -> usize {
    key.name.len() + stored.bytes.len() + OVERHEAD
}

impl AnswerCache {
    /// An empty one, with a number that clients do not know.
    pub fn new(seed: u64) -> Self {
        // Within a shard all hashes share the bits that chose it.
        let own = Secret(seed.rotate_left(32));
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new(own))).collect();
        Self { secret: Secret(seed), shards }
    }

    fn shard(&self, key: &QuestionKey) -> MutexGuard<'_, Shard> {
        let at = usize::try_from(self.secret.hash_one(key) % SHARDS as u64).unwrap_or(0);
        self.shards[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known, whether it still holds or not.
    pub fn get(&self, key: &QuestionKey) -> Option<Arc<StoredAnswer>> {
        self.shard(key).known.get(key).cloned()
    }

    /// Remembers a message, if that is of any use.
    pub fn learn(&self, key: QuestionKey, stored: &Arc<StoredAnswer>) {
        // A failure must not push out an answer that may still help.
        let worse = || stored.is_failure() && self.get(&key).is_some_and(|old| !old.is_failure());
        if !stored.lifetime.is_zero() && stored.bytes.len() <= LONGEST && !worse() {
            self.insert(key, stored.clone());
        }
    }

    /// Remembers a message. Something else is forgotten if there is no room.
    pub fn insert(&self, key: QuestionKey, stored: Arc<StoredAnswer>) {
        let mut shard = self.shard(&key);
        shard.remove(&key);
        while shard.is_full(size(&key, &stored)) {
            let Some(victim) = shard.victim(stored.received) else { break };
            shard.remove(&victim);
        }
        shard.insert(key, stored);
    }

    /// How many answers there are.
    pub fn len(&self) -> usize {
        let lock =
            |shard: &Mutex<Shard>| shard.lock().unwrap_or_else(PoisonError::into_inner).known.len();
        self.shards.iter().map(lock).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What others said, apart for each block of rules: their servers may say different things.
#[derive(Debug)]
pub struct AnswerCaches(Box<[AnswerCache]>);

impl AnswerCaches {
    /// Empty ones for all blocks, with a number that clients do not know.
    pub fn new(setup: &Setup, seed: u64) -> Self {
        Self(setup.blocks().iter().map(|_| AnswerCache::new(seed)).collect())
    }

    /// That of a block.
    pub fn of(&self, block: &Block) -> &AnswerCache {
        &self.0[block.number()]
    }

    /// How many answers there are in all.
    pub fn len(&self) -> usize {
        self.0.iter().map(AnswerCache::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{message, seconds};

    #[test]
    fn how_long_it_holds() {
        let cases = [
            ("the shortest of the answers", "answer 60, answer 30", Some(30)),
            ("no longer than we like", "answer 999999", Some(3600)),
            ("an absence as its authority says", "soa 300 60", Some(60)),
            ("an absence no longer than its record", "soa 20 60", Some(20)),
            ("a missing name", "nxdomain, soa 300 60", Some(60)),
            ("an absence without authority", "", Some(0)),
            ("a failure", "servfail", Some(1)),
            ("a part of the answers", "tc, answer 60", Some(0)),
            ("damage", "answer 60, cut 3", None),
            ("more records promised", "answer 60, claim 3", None),
        ];
        for (name, given, want) in cases {
            let stored = StoredAnswer::read(&message(given), &CacheRule::default(), Instant::now());
            assert_eq!(stored.map(|stored| stored.lifetime), want.map(seconds), "{name}");
        }
    }

    fn stored(words: &str) -> StoredAnswer {
        StoredAnswer::read(&message(words), &CacheRule::default(), Instant::now()).unwrap()
    }

    fn key(number: u32) -> QuestionKey {
        QuestionKey { name: number.to_be_bytes().into(), kind: 1, dnssec: false, unchecked: false }
    }

    #[test]
    fn room_is_bounded() {
        // The length of each message, and how many of them are kept.
        for (length, fewest, most) in
            [(60, 10_000, SHARDS * MOST_PER_SHARD), (8 << 10, 1500, 2048), (LONGEST + 1, 0, 0)]
        {
            let cache = AnswerCache::new(1);
            let bytes = vec![0; length].into();
            let stored = Arc::new(StoredAnswer { bytes, ..stored("answer 60") });
            (0..50_000).for_each(|n| cache.learn(key(n), &stored));
            let kept = cache.len();
            assert!((fewest..=most).contains(&kept), "{kept} messages of {length} bytes");
            let bytes = |shard: &Mutex<Shard>| shard.lock().unwrap().bytes;
            assert!(cache.shards.iter().map(bytes).sum::<usize>() <= 16 << 20);
        }
    }

    #[test]
    fn the_same_again_takes_no_more_room() {
        let cache = AnswerCache::new(1);
        let all = [stored("answer 60"), stored("answer 60, answer 60")].map(Arc::new);
        (0..10_000).for_each(|n| cache.learn(key(7), &all[n % 2]));
        assert_eq!(cache.shard(&key(7)).bytes, size(&key(7), &all[1]));
    }

    #[test]
    fn what_must_not_be_remembered_is_passed_on_as_such() {
        let stored = stored("answer 60");
        for (lifetime, age, want) in [(60, 0, 60), (60, 20, 40), (60, 90, 1), (0, 0, 0), (0, 5, 0)]
        {
            let aged = AgedAnswer { stored: &stored, age };
            assert_eq!(aged.rest(lifetime), want, "{lifetime} after {age}");
        }
    }

    #[test]
    fn no_record_holds_longer_than_we_like() {
        let rule = CacheRule { success: seconds(30), ..CacheRule::default() };
        let stored = StoredAnswer::read(&message("answer 300"), &rule, Instant::now()).unwrap();
        let rests = [(300, 0), (300, 10), (20, 10), (20, 50)]
            .map(|(l, age)| AgedAnswer { stored: &stored, age }.rest(l));
        assert_eq!(rests, [30, 20, 10, 1]);
    }
}
