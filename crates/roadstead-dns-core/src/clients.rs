//! The pods that ask: whose search list we know, and so what they will try next.
//!
//! Which pods those are is for `client_pods` to say. Of anybody else nothing is assumed.
//!
//! A pod may ask before we have heard of it, so it is helped only some time after that, when none of
//! its lookups can be one that began without help. And it may ask when it is not to be helped any
//! more: then the lookups that began with help end with it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roadstead_api::key::ObjectKey;
use roadstead_zone::search::SearchList;

use self::agreement::{Agreements, LookupQuestion, SearchWay, TRY};

pub(crate) mod agreement;

/// A resolver has given up after this time.
pub(crate) const WALK: Duration = Duration::from_secs(60);
/// How many of a client's ambiguous tries are remembered.
pub(crate) const MOST_WALKS: usize = 32;

/// All clients whose search list is known.
#[derive(Debug, Default)]
pub struct Clients {
    by_address: BTreeMap<IpAddr, Peer>,
    completed: Arc<AtomicU64>,
}

/// Who has an address.
#[derive(Clone, Debug)]
pub struct AddressOwner {
    /// The name of the pod.
    pub key: ObjectKey,
    /// One of its addresses.
    pub address: IpAddr,
    /// The pod's search list, if it can be known, and if it is to be helped.
    pub search: Option<SearchList>,
}

impl Clients {
    /// Clients with a list each, which are helped at once, for tests and benchmarks.
    pub fn of(all: impl IntoIterator<Item = (IpAddr, SearchList)>, now: Instant) -> Self {
        let named = |(at, (address, search))| {
            let owner = ObjectKey::new("", format!("{at}"));
            let asker = Arc::new(Asker::new(search));
            (address, Peer { owner, asker, help: Help::From(now) })
        };
        let by_address = all.into_iter().enumerate().map(named).collect();
        Self { by_address, completed: Arc::default() }
    }

    /// Who is helped when these have the addresses. Those who were known before keep their memory;
    /// an address with two owners belongs to one that we do not know.
    pub fn next(&self, owners: &[AddressOwner], now: Instant) -> Self {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for owner in owners {
            *counts.entry(owner.address).or_default() += 1;
        }
        let single = owners.iter().filter(|owner| counts[&owner.address] == 1);
        let client = |owner: &AddressOwner| {
            let old = self.by_address.get(&owner.address).filter(|old| old.owner == owner.key);
            Some((owner.address, Peer::next(old, owner, now)?))
        };
        Self { by_address: single.filter_map(client).collect(), completed: self.completed.clone() }
    }

    pub(crate) fn get(&self, address: IpAddr) -> Option<&Peer> {
        self.by_address.get(&address)
    }

    /// Whether that is one of them.
    pub fn knows(&self, address: IpAddr) -> bool {
        self.by_address.contains_key(&address)
    }

    pub(crate) fn count(&self) {
        self.completed.fetch_add(1, Ordering::Relaxed);
    }

    /// How many searches were completed.
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    /// How many clients are known.
    pub fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Whether nobody is known.
    pub fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }
}

/// A client, as it is known at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    owner: ObjectKey,
    pub asker: Arc<Asker>,
    help: Help,
}

/// When a client is helped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Help {
    /// What it asked before that may have been the half of a lookup that we know nothing of.
    From(Instant),
    /// No lookup begins with help any more.
    Until(Instant),
}

impl Peer {
    /// What becomes of a client; `None` if nothing has to be known about the owner of the address.
    fn next(old: Option<&Self>, new: &AddressOwner, now: Instant) -> Option<Self> {
        let from_now = Help::From(now + TRY);
        let client = |asker, help| Some(Self { owner: new.key.clone(), asker, help });
        match (old, &new.search) {
            (Some(old), Some(search)) if old.asker.search == *search => match old.help {
                Help::From(_) => Some(old.clone()),
                Help::Until(_) => client(old.asker.clone(), from_now),
            },
            (_, Some(search)) => client(Arc::new(Asker::new(search.clone())), from_now),
            (Some(old), None) => match old.help {
                Help::From(start) if now < start => None,
                Help::From(_) => client(old.asker.clone(), Help::Until(now)),
                Help::Until(end) if now >= end + 2 * TRY => None,
                Help::Until(_) => Some(old.clone()),
            },
            (None, None) => None,
        }
    }

    /// Whether a lookup may begin with help.
    pub(crate) fn is_helped(&self, now: Instant) -> bool {
        matches!(self.help, Help::From(start) if start <= now)
    }
}

/// What a client asked before.
#[derive(Debug)]
pub(crate) struct Asker {
    pub search: SearchList,
    memory: Mutex<AskerMemory>,
}

#[derive(Debug, Default)]
struct AskerMemory {
    /// Names whose first try looks like nothing else, but whose later ones do.
    walks: Vec<(Instant, Box<[u8]>)>,
    agreements: Agreements,
}

impl Asker {
    fn new(search: SearchList) -> Self {
        Self { search, memory: Mutex::default() }
    }

    fn memory(&self) -> MutexGuard<'_, AskerMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the first try for a name; returns whether the search may be completed, as far as
    /// earlier questions are concerned. `fresh` is whether it might if there had been none.
    pub(crate) fn may_complete(
        &self,
        asked: SearchQuestion<'_>,
        fresh: bool,
        now: Instant,
    ) -> bool {
        let mut memory = self.memory();
        let first = memory.is_first(&self.search, asked.base, now);
        if asked.family == 0 {
            return fresh && first;
        }
        let question = asked.of_lookup();
        match memory.agreements.held(question, now) {
            Some(SearchWay::Completed) if first => return true,
            Some(SearchWay::Completed) => memory.agreements.begin(question, SearchWay::Alone, now),
            None if fresh && first => return true,
            Some(SearchWay::Alone) | None => {
                memory.agreements.agree(question, SearchWay::Alone, now)
            }
        };
        false
    }

    /// Takes in how the search would go on; returns how it does, so that both families go the same
    /// way.
    pub(crate) fn agree(
        &self,
        asked: SearchQuestion<'_>,
        way: SearchWay,
        now: Instant,
    ) -> SearchWay {
        if asked.family == 0 {
            return way;
        }
        self.memory().agreements.agree(asked.of_lookup(), way, now)
    }
}

/// What a client asks for with the first name that it tries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchQuestion<'a> {
    /// What the program asked for, in small letters.
    pub base: &'a [u8],
    /// The family of addresses as a bit; 0 for a question that is not about addresses.
    pub family: u8,
    /// The number of the message.
    pub id: u16,
}

impl SearchQuestion<'_> {
    fn of_lookup(&self) -> LookupQuestion {
        let mut hasher = DefaultHasher::new();
        self.base.hash(&mut hasher);
        LookupQuestion { base: hasher.finish(), family: self.family, id: self.id }
    }
}

impl AskerMemory {
    /// Takes in the first try for a name; returns whether it may be taken for one, rather than
    /// for a later try of a longer name.
    fn is_first(&mut self, search: &SearchList, base: &[u8], now: Instant) -> bool {
        let walks = &mut self.walks;
        walks.retain(|(since, _)| now.saturating_duration_since(*since) < WALK);
        let known = |longer: &[u8]| walks.iter().any(|(_, known)| **known == *longer);
        let is_later = !walks.is_empty() && search.longer(base).any(|longer| known(&longer));
        // Without memory we could not tell, so nothing is a first try until there is room again.
        let full = walks.len() >= MOST_WALKS;
        if search.is_ambiguous(base) {
            match walks.iter_mut().find(|(_, known)| **known == *base) {
                Some((since, _)) => *since = now,
                None if full => {}
                None => walks.push((now, base.into())),
            }
        }
        !is_later && !full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has the address from when on: `a` and `b` are pods, `a-` is one whose list is not to be
    /// used; `ab` are two at once.
    fn helped(script: &str) -> String {
        let start = Instant::now();
        let address = [10, 244, 0, 2].into();
        let mut clients = Clients::default();
        let search = SearchList::new(&["shop.svc.cluster.local".into()], 5).unwrap();
        let step = |word: &str| {
            let (who, at) = word.split_once('@').unwrap();
            let now = start + Duration::from_secs(at.parse().unwrap());
            let names = who.chars().filter(char::is_ascii_alphabetic);
            let search = Some(&search).filter(|_| !who.ends_with('-'));
            let owner = |name: char| AddressOwner {
                key: ObjectKey::new("shop", name),
                address,
                search: search.cloned(),
            };
            clients = clients.next(&names.map(owner).collect::<Vec<_>>(), now);
            match clients.get(address) {
                None => "nobody",
                Some(client) if client.is_helped(now) => "helped",
                Some(_) => "known",
            }
        };
        script.split(' ').map(step).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn when_a_pod_is_helped() {
        let cases = [
            ("not at once", "a@0 a@14 a@15", "known known helped"),
            ("until it goes", "a@0 a@15 -@16 a@17 a@32", "known helped nobody known helped"),
            ("it changes hands", "a@0 a@15 b@16 b@31", "known helped known helped"),
            (
                "it may not be helped any more",
                "a@0 a@15 a-@16 a-@45 a-@46",
                "known helped known known nobody",
            ),
            ("and is again", "a@0 a@15 a-@16 a@17 a@32", "known helped known known helped"),
            ("it never was", "a@0 a-@14 a-@15", "known nobody nobody"),
            ("two have it", "a@0 a@15 ab@16 b@17", "known helped nobody known"),
        ];
        for (name, script, want) in cases {
            assert_eq!(helped(script), want, "{name}");
        }
    }
}
