//! Keeping the replica level: what the watch tells is applied; if it ends, another one begins where it
//! ended; if that is forgotten, everything is loaded again.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use roadstead_etcd::client::{Client, Watch};
use roadstead_etcd::failure::Failure;
use roadstead_etcd::messages::{KeyEvent as Change, WatchCreate};
use tokio::time::{self, Instant};
use tracing::{error, info, warn};

use crate::entry::{Entry, Event, Key, Millis, Revision};
use crate::layout::KeyLayout;
use crate::log::Group;
use crate::log::etcd::Remote;
use crate::log::etcd::load::Loading;
use crate::log::etcd::told::{Pieces, Told};
use crate::state::State;

/// How many revisions are applied while readers wait.
const TURN: usize = 64;
/// How long to wait before trying again, at first and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A watch of all keys.
#[derive(Debug)]
pub(super) struct Follower {
    watch: Watch,
    pieces: Pieces,
}

/// Why a follower cannot go on.
#[derive(Debug)]
pub(super) enum Lost {
    /// Others may: by another connection, from where this one has ended.
    Connection(String),
    /// Nobody can: up to this revision everything is forgotten.
    Compacted(Revision),
}

/// A revision that does not follow on the one before.
#[derive(Debug)]
pub(super) struct Gap(pub(super) Revision);

impl Follower {
    /// Follows everything after a revision.
    pub(super) async fn after(client: &Client, revision: Revision) -> Result<Self, Failure> {
        let all = || b"\0"[..].into();
        let start_revision = revision.0 as i64 + 1;
        let create = WatchCreate { key: all(), range_end: all(), start_revision, fragment: true };
        Ok(Self { watch: client.watch(create).await?, pieces: Pieces::default() })
    }

    /// What happened next; may be nothing. Safe to drop at any moment.
    pub(super) async fn next(&mut self) -> Result<Vec<Told>, Lost> {
        let lost = |failure: Failure| Lost::Connection(failure.to_string());
        let answer = self.watch.next().await.map_err(lost)?;
        match answer.canceled {
            true if answer.compact_revision > 0 => {
                Err(Lost::Compacted(Revision(answer.compact_revision.unsigned_abs())))
            }
            true => Err(Lost::Connection(answer.cancel_reason)),
            false => Ok(self.pieces.add(answer)),
        }
    }
}

/// The writes of one revision to entries of ours: what was put, or `None` for what was removed.
#[derive(Debug)]
pub(super) struct Writes {
    revision: Revision,
    values: Vec<(Key, Option<Bytes>)>,
}

impl Writes {
    /// Reads what etcd has told: this takes time, and is done before anybody has to wait for it.
    pub(super) fn of(Told { revision, events }: Told, layout: &dyn KeyLayout) -> Self {
        let values = events.into_iter().filter_map(|change: Change| {
            let kv = change.kv?;
            let key = layout.key(str::from_utf8(&kv.key).ok()?)?;
            let value = (change.kind == 0).then(|| layout.value(&key, kv.value));
            Some((key, value))
        });
        Self { revision, values: values.collect() }
    }
}

/// Takes in some revisions. Every one must follow on the one before: since all keys are watched, none is
/// about nothing.
pub(super) fn absorb(
    state: &mut State,
    revisions: impl IntoIterator<Item = Writes>,
    now: Millis,
) -> Result<(), Gap> {
    for Writes { revision, values } in revisions {
        if revision <= state.revision {
            continue;
        }
        if revision.0 != state.revision.0 + 1 {
            return Err(Gap(revision));
        }
        let events = values.into_iter();
        let events = events.filter_map(|(key, value)| event(state, (key, value), revision, now));
        let events: Vec<_> = events.collect();
        let compact = state.compactable(&events, now);
        state.apply(Group { events, compact, reached: revision });
    }
    Ok(())
}

/// A write as an event, unless it removes what was not there.
fn event(
    state: &State,
    (key, value): (Key, Option<Bytes>),
    revision: Revision,
    at: Millis,
) -> Option<Arc<Event>> {
    let key = state.shared_key(key);
    let before = state.get(&key).cloned();
    let after = value.map(|value| Arc::new(Entry { key: key.clone(), value, revision }));
    let encoded = OnceLock::new();
    let happened = before.is_some() || after.is_some();
    happened.then(|| Arc::new(Event { revision, key, before, after, at, encoded }))
}

pub(super) async fn follow(remote: Arc<Remote>, mut follower: Follower) {
    loop {
        let told = tokio::select! {
            told = follower.next() => told,
            () = remote.silent.notified() => Err(Lost::Connection("it was silent".to_owned())),
            () = remote.gone_back.notified() => {
                error!("etcd has gone back: another one answers, or it was restored; everything is loaded again");
                follower = reload(&remote).await;
                continue;
            }
        };
        #[cfg(test)]
        crate::mutation::lag().await;
        let lost = match told.map(|told| apply(&remote, told)) {
            Ok(Ok(())) => continue,
            Ok(Err(Gap(revision))) => {
                let reached = remote.waiters.reached();
                error!(%reached, %revision, "etcd has left out revisions; everything is loaded again");
                follower = reload(&remote).await;
                continue;
            }
            Err(lost) => lost,
        };
        follower = match lost {
            Lost::Connection(why) => {
                info!(%why, after = %remote.waiters.reached(), "the watch of etcd begins again");
                again(&remote).await
            }
            Lost::Compacted(oldest) => {
                warn!(%oldest, "etcd has forgotten what was to come next; everything is loaded again");
                reload(&remote).await
            }
        };
    }
}

fn apply(remote: &Remote, told: Vec<Told>) -> Result<(), Gap> {
    let mut rest = told.into_iter().map(|told| Writes::of(told, &*remote.layout)).peekable();
    while rest.peek().is_some() {
        let turn: Vec<_> = rest.by_ref().take(TURN).collect();
        let mut state = remote.replica.write();
        let absorbed = absorb(&mut state, turn, remote.clock.now());
        let reached = state.revision;
        drop(state);
        remote.waiters.reach(reached);
        absorbed?;
    }
    Ok(())
}

/// Another watch from where the replica is.
async fn again(remote: &Remote) -> Follower {
    let mut pause = PAUSE.0;
    loop {
        match Follower::after(&remote.client, remote.waiters.reached()).await {
            Ok(follower) => return follower,
            Err(_) => time::sleep(pause).await,
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}

/// Another state, and a watch from there.
async fn reload(remote: &Remote) -> Follower {
    let mut pause = PAUSE.0;
    loop {
        let loading = Loading {
            client: &remote.client,
            layout: &*remote.layout,
            history: remote.history,
            clock: &remote.clock,
        };
        match loading.run(Instant::now() + Duration::from_secs(60)).await {
            Ok(loaded) => {
                let revision = loaded.state.revision;
                remote.replica.write().replace(loaded.state);
                remote.waiters.reach(revision);
                info!(%revision, "loaded from etcd again");
                return loaded.follower;
            }
            Err(why) => {
                warn!(why, "cannot load from etcd");
                time::sleep(pause).await;
            }
        }
        pause = (pause * 2).min(PAUSE.1);
    }
}
