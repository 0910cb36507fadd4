//! What goes with a block of rules: the answers of those whom it has asked, and the questions to them
//! that are under way.
//!
//! New rules begin with nothing, so what comes late for the old ones reaches nobody who asks under the
//! new ones. Nor do the answers of two blocks mix: their servers may say different things.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::cache::{Cache, Key, Stored};
use crate::upstream::Failure;

/// What came of a question to others.
pub(crate) type Outcome = Result<Arc<Stored>, Failure>;
/// Where those who ask the same wait for what comes of it.
pub(crate) type Flight = watch::Receiver<Option<Outcome>>;

/// Answers, and questions that are under way.
#[derive(Debug, Default)]
pub struct Memory {
    /// What others said.
    pub answers: Cache,
    flights: Mutex<HashMap<Key, Flight>>,
}

impl Memory {
    fn flights(&self) -> MutexGuard<'_, HashMap<Key, Flight>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins those who ask the same. Whoever is the first becomes the pilot, and has to find out.
    pub(crate) fn join(self: &Arc<Self>, key: &Key) -> (Flight, Option<Pilot>) {
        let mut flights = self.flights();
        if let Some(flight) = flights.get(key) {
            return (flight.clone(), None);
        }
        let (sender, flight) = watch::channel(None);
        flights.insert(key.clone(), flight.clone());
        let way = Way { memory: self.clone(), key: key.clone() };
        (flight, Some(Pilot { way, sender }))
    }
}

/// Whoever finds something out for all who ask the same.
#[derive(Debug)]
pub(crate) struct Pilot {
    way: Way,
    sender: watch::Sender<Option<Outcome>>,
}

impl Pilot {
    /// Tells all who wait.
    pub fn land(self, outcome: Outcome) {
        // First away with the flight, so that whoever comes now begins another.
        drop(self.way);
        self.sender.send_replace(Some(outcome));
    }
}

/// Frees the way for the next one, even if the pilot was lost.
#[derive(Debug)]
struct Way {
    memory: Arc<Memory>,
    key: Key,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.memory.flights().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn flights() {
        let memory = Arc::new(Memory::default());
        let key = |kind| Key { name: [0].into(), kind, dnssec: false, unchecked: false };
        let (_, first) = memory.join(&key(1));
        let (mut second, none) = memory.join(&key(1));
        assert!(none.is_none(), "they share a flight");
        assert!(memory.join(&key(2)).1.is_some(), "another question is another flight");
        first.unwrap().land(Err(Failure::Busy));
        assert_eq!(
            second.wait_for(Option::is_some).await.unwrap().clone(),
            Some(Err(Failure::Busy))
        );
        let (mut third, lost) = memory.join(&key(1));
        drop(lost.expect("it has landed, so there is another one"));
        assert!(third.wait_for(Option::is_some).await.is_err(), "nobody waits for a lost pilot");
        assert!(memory.join(&key(1)).1.is_some(), "and the next one tries again");
    }
}
