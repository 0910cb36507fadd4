//! Random owners, deleted in random ways, on a server that is told of late.
//!
//! Everything that should go goes, nothing else does, and nothing waits for ever.

use std::collections::VecDeque;

use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

const HOLD: &str = "example.com/hold";
const KINDS: usize = 3;

/// One object: its owners (those beyond the last object never existed; with or without waiting) and
/// whether somebody else holds it for a while.
type Drawn = (Vec<(usize, bool)>, bool);

#[derive(Debug, Clone)]
struct Case {
    objects: Vec<Drawn>,
    deleted: BTreeMap<usize, Policy>,
    schedule: Vec<Index>,
}

fn cases() -> impl Strategy<Value = Case> {
    let policy = prop_oneof![
        2 => Just(Policy::Background),
        3 => Just(Policy::Foreground),
        1 => Just(Policy::Orphan),
    ];
    (1..8_usize).prop_flat_map(move |count| {
        let owners = vec((0..count + 1, prop::bool::weighted(0.7)), 0..4);
        let objects = vec((owners, prop::bool::weighted(0.1)), count);
        let deleted = prop::collection::btree_map(0..count, policy.clone(), 0..=count);
        let schedule = vec(any::<Index>(), 64);
        (objects, deleted, schedule).prop_map(|(objects, deleted, schedule)| Case {
            objects,
            deleted,
            schedule,
        })
    })
}

/// What a server keeps, and what it has still to tell the collector, by kind.
struct Cluster {
    live: BTreeMap<String, ObjectMeta>,
    told: [VecDeque<(String, Option<ObjectMeta>)>; KINDS],
    version: u64,
    graph: Graph<()>,
    queue: BTreeSet<String>,
    /// Those who wait for the next news.
    later: BTreeSet<String>,
}

fn kind(uid: &str) -> usize {
    usize::from(uid.as_bytes()[0]) % KINDS
}

fn name(index: usize) -> String {
    char::from(b'a' + u8::try_from(index).unwrap()).to_string()
}

impl Cluster {
    fn new(case: &Case) -> Self {
        let mut cluster = Self {
            live: BTreeMap::new(),
            told: Default::default(),
            version: 0,
            graph: Graph::default(),
            queue: BTreeSet::new(),
            later: BTreeSet::new(),
        };
        for (index, (owners, held)) in case.objects.iter().enumerate() {
            let owner = |(owner, blocks): &(usize, bool)| {
                format!("{}{}", name(*owner), if *blocks { "!" } else { "" })
            };
            let owners: Vec<_> = owners.iter().map(owner).collect();
            let mut text = name(index);
            if !owners.is_empty() {
                text += &format!(" owner={}", owners.join(","));
            }
            if *held {
                text += &format!(" finalizer={HOLD}");
            }
            cluster.write(metadata(&text));
        }
        // Nobody is judged before all have been seen.
        while let Some(kind) = (0..KINDS).find(|kind| !cluster.told[*kind].is_empty()) {
            cluster.hear(kind);
        }
        cluster
    }

    fn hear(&mut self, kind: usize) {
        let suspects = match self.told[kind].pop_front().unwrap() {
            (_, Some(metadata)) => self.graph.observe((), metadata),
            (uid, None) => self.graph.forget(&uid),
        };
        self.queue.extend(suspects);
        self.queue.append(&mut self.later);
    }

    fn write(&mut self, mut metadata: ObjectMeta) {
        self.version += 1;
        metadata.resource_version = Some(self.version.to_string());
        let uid = metadata.uid.clone().unwrap();
        let free = metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
        if metadata.deletion_timestamp.is_some() && free {
            self.live.remove(&uid);
            self.told[kind(&uid)].push_back((uid, None));
        } else {
            self.live.insert(uid.clone(), metadata.clone());
            self.told[kind(&uid)].push_back((uid, Some(metadata)));
        }
    }

    /// As the API server deletes.
    fn delete(&mut self, uid: &str, policy: Policy) {
        let Some(mut metadata) = self.live.get(uid).cloned() else { return };
        let finalizers = metadata.finalizers.get_or_insert_default();
        finalizers.retain(|own| own == HOLD);
        match policy {
            Policy::Background => {}
            Policy::Foreground => finalizers.push(FOREGROUND.to_owned()),
            Policy::Orphan => finalizers.push(ORPHAN.to_owned()),
        }
        metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        self.write(metadata);
    }

    fn change(&mut self, uid: &str, change: impl Fn(&mut ObjectMeta)) {
        let Some(mut metadata) = self.live.get(uid).cloned() else { return };
        change(&mut metadata);
        if self.live.get(uid) != Some(&metadata) {
            self.write(metadata);
        }
    }

    fn drop_owners(&mut self, uid: &str, owners: &[String]) {
        self.change(uid, |metadata| {
            let own = metadata.owner_references.iter_mut();
            own.for_each(|own| own.retain(|owner| !owners.contains(&owner.uid)));
        });
    }

    /// Whether the collector has still to hear how an object is now.
    fn is_stale(&self, uid: &str) -> bool {
        let known = &self.graph.get(uid).unwrap().1.resource_version;
        self.live.get(uid).is_some_and(|now| now.resource_version != *known)
    }

    /// As the collector acts.
    fn judge(&mut self, uid: &str) {
        match self.graph.verdict(uid) {
            Verdict::Keep => {}
            Verdict::Delete { unless, policy } => {
                let stale = self.is_stale(uid);
                if unless.iter().any(|owner| self.live.contains_key(&owner.uid)) {
                    self.later.insert(uid.to_owned());
                } else if !stale {
                    self.delete(uid, policy);
                }
            }
            Verdict::RemoveOwners { waiting, unknown } => {
                let absent = unknown.iter().filter(|owner| !self.live.contains_key(&owner.uid));
                let absent = absent.map(|owner| owner.uid.clone()).chain(waiting);
                let absent: Vec<_> = absent.collect();
                if !absent.is_empty() && !self.is_stale(uid) {
                    self.drop_owners(uid, &absent);
                }
            }
            Verdict::Orphan(dependents) => {
                for dependent in dependents {
                    self.drop_owners(&dependent, &[uid.to_owned()]);
                }
            }
            Verdict::RemoveFinalizer(finalizer) => self.change(uid, |metadata| {
                let own = metadata.finalizers.iter_mut();
                own.for_each(|own| own.retain(|own| own != finalizer));
            }),
        }
    }

    /// Tells of one change or judges one suspect, until there is neither; `schedule` says what comes
    /// first. Whether it ever ended.
    fn settle(&mut self, schedule: &[Index]) -> bool {
        for step in 0..5_000 {
            let kinds = (0..KINDS).filter(|kind| !self.told[*kind].is_empty());
            let kinds: Vec<_> = kinds.collect();
            let choices = kinds.len() + self.queue.len();
            if choices == 0 {
                return true;
            }
            let choice = schedule[step % schedule.len()].index(choices);
            match kinds.get(choice) {
                Some(kind) => self.hear(*kind),
                None => {
                    let uid = self.queue.iter().nth(choice - kinds.len()).unwrap().clone();
                    self.queue.remove(&uid);
                    self.judge(&uid);
                }
            }
        }
        false
    }
}

/// Who goes, if the owners that leave their dependents behind count as staying or as never having
/// been there: which of them is true for an object with other owners is a matter of chance.
fn doomed(case: &Case, orphaning_owners_stay: bool) -> BTreeSet<usize> {
    let orphans = |owner: usize| case.deleted.get(&owner) == Some(&Policy::Orphan);
    let mut gone: BTreeSet<_> = case.deleted.keys().copied().collect();
    loop {
        let before = gone.len();
        for (index, (owners, _)) in case.objects.iter().enumerate() {
            let mut owners: Vec<_> = owners.iter().map(|(owner, _)| *owner).collect();
            if !orphaning_owners_stay {
                owners.retain(|owner| !orphans(*owner));
            }
            let lost = |owner: &usize| {
                *owner >= case.objects.len() || (gone.contains(owner) && !orphans(*owner))
            };
            if !owners.is_empty() && owners.iter().all(lost) {
                gone.insert(index);
            }
        }
        if gone.len() == before {
            return gone;
        }
    }
}

proptest! {
    #[test]
    fn everything_that_should_go_goes_and_nothing_else(case in cases()) {
        let mut cluster = Cluster::new(&case);
        for (index, policy) in &case.deleted {
            cluster.delete(&name(*index), *policy);
        }
        prop_assert!(cluster.settle(&case.schedule), "it never rests: {:?}", cluster.live);
        for index in 0..case.objects.len() {
            cluster.change(&name(index), |metadata| {
                let own = metadata.finalizers.iter_mut();
                own.for_each(|own| own.retain(|own| own != HOLD));
            });
        }
        prop_assert!(cluster.settle(&case.schedule), "it never rests: {:?}", cluster.live);
        let (must, may) = (doomed(&case, true), doomed(&case, false));
        for index in 0..case.objects.len() {
            let left = cluster.live.get(&name(index));
            prop_assert!(left.is_none() || !must.contains(&index), "{left:?} stays");
            prop_assert!(left.is_some() || may.contains(&index), "{} went", name(index));
            prop_assert!(left.is_none_or(|left| left.deletion_timestamp.is_none()), "{left:?}");
        }
    }
}
