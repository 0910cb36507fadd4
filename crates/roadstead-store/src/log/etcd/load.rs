//! Everything that etcd holds, with as much of its past as it still has: the state at one revision, and
//! a watch of what came after it.

use bytes::Bytes;
use roadstead_etcd::client::Client;
use roadstead_etcd::failure::Failure;
use roadstead_etcd::messages::{KeyValue, RangeRequest};
use tokio::time::{self, Instant};
use tracing::warn;

use crate::clock::Clock;
use crate::entry::{Entry, Revision};
use crate::error::OpenError;
use crate::kv::Options;
use crate::layout::KeyLayout;
use crate::log::disk::contents::Contents;
use crate::log::etcd::follow::{Follower, Gap, Lost, Writes, absorb};
use crate::log::etcd::{BREATH, newest};
use crate::retention::Limits;
use crate::state::State;

/// How many keys are asked for at once.
const PAGE: i64 = 10_000;
/// No more of the past is replayed.
const PAST: u64 = 200_000;

/// What it takes.
pub(super) struct Loading<'a> {
    pub(super) client: &'a Client,
    pub(super) layout: &'a dyn KeyLayout,
    pub(super) history: Limits,
    pub(super) clock: &'a Clock,
}

/// A state, and what comes after it.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) state: State,
    pub(super) follower: Follower,
}

impl Loading<'_> {
    /// Tries until the deadline, if etcd does not answer yet.
    pub(super) async fn patiently(&self, deadline: Instant) -> Result<Loaded, OpenError> {
        let mut told = false;
        loop {
            match self.run(deadline).await {
                Ok(loaded) => return Ok(loaded),
                Err(why) if Instant::now() >= deadline => {
                    return Err(OpenError::Etcd { endpoints: self.client.to_string(), why });
                }
                Err(why) if !told => warn!(why, "cannot load from etcd yet"),
                Err(_) => {}
            }
            told = true;
            time::sleep(BREATH).await;
        }
    }

    /// Loads once; what etcd forgets meanwhile makes it begin again.
    pub(super) async fn run(&self, deadline: Instant) -> Result<Loaded, String> {
        loop {
            match self.attempt(deadline).await {
                Ok(loaded) => return Ok(loaded),
                Err(Failure::Compacted(_)) if Instant::now() < deadline => {}
                Err(failure) => return Err(failure.to_string()),
            }
        }
    }

    async fn attempt(&self, deadline: Instant) -> Result<Loaded, Failure> {
        let newest = newest(self.client, deadline).await?;
        let oldest = self.compacted(newest).await?;
        // Its first revision is that of an empty etcd.
        let base = Revision(oldest.0.max(newest.0.saturating_sub(PAST)).max(1));
        let entries = match base {
            Revision(1) => Vec::new(),
            _ => self.entries(base, deadline).await?,
        };
        let options = Options { history: self.history, ..Options::default() };
        let contents = Contents { entries, compacted: base, log: Vec::new() };
        let mut state = State::load(contents, &options).map_err(Failure::Refused)?;
        let mut follower = Follower::after(self.client, base).await?;
        while state.revision < newest {
            let told = match time::timeout_at(deadline, follower.next()).await {
                Ok(Ok(told)) => told,
                Ok(Err(Lost::Compacted(oldest))) => {
                    return Err(Failure::Compacted(oldest.to_string()));
                }
                Ok(Err(Lost::Connection(why))) => return Err(Failure::Unknown(why)),
                Err(_) => return Err(Failure::Unknown("its watch is silent".to_owned())),
            };
            let writes = told.into_iter().map(|told| Writes::of(told, self.layout));
            let absorbed = absorb(&mut state, writes, self.clock.now());
            let left_out =
                |Gap(at)| Failure::Unknown(format!("its watch has left out revisions before {at}"));
            absorbed.map_err(left_out)?;
        }
        Ok(Loaded { state, follower })
    }

    /// The revision up to which etcd has forgotten what was overwritten: who asks for all of the past is
    /// told. 0: nothing.
    async fn compacted(&self, newest: Revision) -> Result<Revision, Failure> {
        if newest <= Revision(1) {
            return Ok(Revision(0));
        }
        let mut follower = Follower::after(self.client, Revision(0)).await?;
        loop {
            match follower.next().await {
                Ok(told) if told.is_empty() => {}
                Ok(_) => return Ok(Revision(0)),
                Err(Lost::Compacted(revision)) => return Ok(revision),
                Err(Lost::Connection(why)) => return Err(Failure::Unknown(why)),
            }
        }
    }

    /// All entries as they were at a revision, page by page.
    async fn entries(&self, revision: Revision, deadline: Instant) -> Result<Vec<Entry>, Failure> {
        let prefix = self.layout.prefix();
        let (mut key, end) = (Bytes::from(prefix.to_owned()), after_all(prefix));
        let (mut entries, mut limit) = (Vec::new(), PAGE);
        loop {
            let request = RangeRequest {
                key: key.clone(),
                range_end: end.clone(),
                limit,
                revision: revision.0 as i64,
                ..RangeRequest::default()
            };
            let page = match self.client.range(&request, deadline).await {
                Err(Failure::TooLarge(_)) if limit > 1 => {
                    limit = (limit / 4).max(1);
                    continue;
                }
                page => page?,
            };
            let Some(last) = page.kvs.last() else { return Ok(entries) };
            key = [&last.key[..], b"\0"].concat().into();
            entries.extend(page.kvs.into_iter().filter_map(|kv| self.entry(kv)));
            if !page.more {
                return Ok(entries);
            }
        }
    }

    fn entry(&self, kv: KeyValue) -> Option<Entry> {
        let key = self.layout.key(str::from_utf8(&kv.key).ok()?)?;
        let value = self.layout.value(&key, kv.value);
        Some(Entry { key, value, revision: Revision(kv.mod_revision.unsigned_abs()) })
    }
}

/// The first key after all that begin with a prefix.
fn after_all(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end.into();
        }
    }
    b"\0"[..].into()
}

#[test]
fn what_comes_after_a_prefix() {
    for (prefix, want) in [("/registry/", "/registry0"), ("a", "b"), ("", "\0")] {
        assert_eq!(after_all(prefix), want.as_bytes());
    }
}
