//! Ways in which tests break the store on purpose, so that it is seen that the judge of histories
//! (`log/etcd/mutations.rs`) finds them. Outside of tests nothing is broken, and none of this is built.

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    /// Who asks for a barrier is answered at once.
    NoBarrier,
    /// After a conflict nobody waits for what was in the way.
    NoWaitAfterConflict,
    /// A batch of events ends in the middle of a revision.
    BatchesByCount,
}

/// Whether this is the one that a test has chosen.
#[cfg(not(test))]
pub(crate) const fn is(_: Mutation) -> bool {
    false
}

#[cfg(test)]
pub(crate) use chosen::{choose, is, lag};

#[cfg(test)]
mod chosen {
    use std::cell::Cell;
    use std::time::Duration;

    use super::Mutation;

    thread_local! {
        static CHOSEN: Cell<Option<Mutation>> = const { Cell::new(None) };
        static LAG: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        static TURN: Cell<u32> = const { Cell::new(0) };
    }

    /// From now on everything on this thread is broken in this way, and hears of what etcd tells up to so
    /// much later.
    pub(crate) fn choose(mutation: Option<Mutation>, lag: Duration) {
        CHOSEN.set(mutation);
        LAG.set(lag);
    }

    pub(crate) fn is(mutation: Mutation) -> bool {
        CHOSEN.get() == Some(mutation)
    }

    /// Waits as long as the test wants the watch to be behind: now not at all, now long, so that one store
    /// knows what the other does not.
    pub(crate) async fn lag() {
        let turn = TURN.replace(TURN.get().wrapping_add(1));
        let lag = LAG.get() * [0, 3, 1, 0, 2][turn as usize % 5] / 3;
        if !lag.is_zero() {
            tokio::time::sleep(lag).await;
        }
    }
}
