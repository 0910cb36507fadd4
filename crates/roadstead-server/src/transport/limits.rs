//! How many connections to pods and Services may be in the making: in all, and for one user.
//!
//! They take as long as whoever answers them, so they have no part in the priority levels
//! (`fairness`). A single busy client cannot take all places: above half of the total nobody may hold
//! more than a fair share. A place is given back when there is an answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::ApiError;

/// As many as there are seats for other requests.
const PLACES: usize = 600;

/// The connections in the making.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pool: Arc<Mutex<Pool>>,
}

#[derive(Debug)]
struct Pool {
    size: usize,
    taken: usize,
    by_user: HashMap<String, usize>,
}

/// A place in the pool, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pool: Arc<Mutex<Pool>>,
    user: String,
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(PLACES)
    }
}

impl Limits {
    /// A pool of this size.
    pub(crate) fn new(size: usize) -> Self {
        Self { pool: Arc::new(Mutex::new(Pool { size, taken: 0, by_user: HashMap::new() })) }
    }

    /// Takes a place, or says when to come back.
    pub(crate) fn enter(&self, user: &str) -> Result<Place, ApiError> {
        let mut state = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.take(user) {
            return Err(ApiError::busy());
        }
        Ok(Place { pool: self.pool.clone(), user: user.to_owned() })
    }
}

impl Pool {
    fn take(&mut self, user: &str) -> bool {
        let own = self.by_user.get(user).copied().unwrap_or(0);
        let users = self.by_user.len() + usize::from(own == 0);
        // Somebody new always finds the half that one user alone cannot fill.
        let share = if users <= 1 { self.size / 2 + 1 } else { self.size.div_ceil(users) };
        if self.taken >= self.size || own >= share.max(1) {
            return false;
        }
        self.taken += 1;
        *self.by_user.entry(user.to_owned()).or_default() += 1;
        true
    }

    fn give_back(&mut self, user: &str) {
        self.taken -= 1;
        if let Some(own) = self.by_user.get_mut(user) {
            *own -= 1;
            if *own == 0 {
                self.by_user.remove(user);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.give_back(&self.user);
    }
}

#[test]
fn one_user_cannot_take_all_places() {
    let limits = Limits::new(10);
    let greedy: Vec<_> = (0..20).map_while(|_| limits.enter("greedy").ok()).collect();
    assert_eq!(greedy.len(), 6);
    let polite: Vec<_> = (0..20).map_while(|_| limits.enter("polite").ok()).collect();
    assert_eq!(polite.len(), 4, "the rest is for others");
    let full = limits.enter("third").unwrap_err();
    assert_eq!((full.code.as_u16(), full.reason), (429, "TooManyRequests"));
    drop(greedy);
    assert!(limits.enter("third").is_ok());
}
