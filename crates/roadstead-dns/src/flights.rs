//! Questions to others that are under way. Whoever asks the same in the meantime waits for the same
//! answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roadstead_dns_core::cache::{QuestionKey, StoredAnswer};
use roadstead_dns_core::upstream::UpstreamFailure;
use tokio::sync::watch;

/// What came of a question to others.
pub(crate) type FlightOutcome = Result<Arc<StoredAnswer>, UpstreamFailure>;
/// Where those who ask the same wait for what comes of it.
pub(crate) type Flight = watch::Receiver<Option<FlightOutcome>>;

/// All questions that are under way.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<HashMap<QuestionKey, Flight>>);

impl Flights {
    fn lock(&self) -> MutexGuard<'_, HashMap<QuestionKey, Flight>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins those who ask the same. Whoever is the first becomes the pilot, and has to find out.
    pub(crate) fn join(self: &Arc<Self>, key: &QuestionKey) -> (Flight, Option<Pilot>) {
        let mut flights = self.lock();
        if let Some(flight) = flights.get(key) {
            return (flight.clone(), None);
        }
        let (sender, flight) = watch::channel(None);
        flights.insert(key.clone(), flight.clone());
        let guard = FlightGuard { flights: self.clone(), key: key.clone() };
        (flight, Some(Pilot { guard, sender }))
    }
}

/// Whoever finds something out for all who ask the same.
#[derive(Debug)]
pub(crate) struct Pilot {
    guard: FlightGuard,
    sender: watch::Sender<Option<FlightOutcome>>,
}

impl Pilot {
    /// Tells all who wait.
    pub(crate) fn land(self, outcome: FlightOutcome) {
        // First away with the flight, so that whoever comes now begins another.
        drop(self.guard);
        self.sender.send_replace(Some(outcome));
    }
}

/// Frees the way for the next one, even if the pilot was lost.
#[derive(Debug)]
struct FlightGuard {
    flights: Arc<Flights>,
    key: QuestionKey,
}

impl Drop for FlightGuard {
    fn drop(&mut self) {
        self.flights.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn flights() {
        let flights = Arc::new(Flights::default());
        let key = |kind| QuestionKey { name: [0].into(), kind, dnssec: false, unchecked: false };
        let (_, first) = flights.join(&key(1));
        let (mut second, none) = flights.join(&key(1));
        assert!(none.is_none(), "they share a flight");
        assert!(flights.join(&key(2)).1.is_some(), "another question is another flight");
        first.unwrap().land(Err(UpstreamFailure::Busy));
        assert_eq!(
            second.wait_for(Option::is_some).await.unwrap().clone(),
            Some(Err(UpstreamFailure::Busy))
        );
        let (mut third, lost) = flights.join(&key(1));
        drop(lost.expect("it has landed, so there is another one"));
        assert!(third.wait_for(Option::is_some).await.is_err(), "nobody waits for a lost pilot");
        assert!(flights.join(&key(1)).1.is_some(), "and the next one tries again");
    }
}
