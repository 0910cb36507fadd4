//! How many requests may be under way: in all, and for one user.
//!
//! A single busy client cannot take all places: above half of the total nobody may hold more than
//! a fair share. Watches count only until they have started.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::ApiError;

/// Upstream's defaults.
const READING: usize = 400;
const WRITING: usize = 200;

/// The requests under way.
#[derive(Clone, Debug)]
pub struct Limits {
    reading: Arc<Mutex<Pool>>,
    writing: Arc<Mutex<Pool>>,
}

#[derive(Debug)]
struct Pool {
    size: usize,
    taken: usize,
    by_user: HashMap<String, usize>,
}

/// A place in the pool, given back when dropped.
#[derive(Debug)]
pub struct Place {
    pool: Arc<Mutex<Pool>>,
    user: String,
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(READING, WRITING)
    }
}

impl Limits {
    /// Pools of these sizes.
    pub fn new(reading: usize, writing: usize) -> Self {
        let pool = |size| Arc::new(Mutex::new(Pool { size, taken: 0, by_user: HashMap::new() }));
        Self { reading: pool(reading), writing: pool(writing) }
    }

    /// Takes a place, or says when to come back.
    pub fn enter(&self, user: &str, mutating: bool) -> Result<Place, ApiError> {
        let pool = if mutating { &self.writing } else { &self.reading };
        let mut state = pool.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.take(user) {
            let why =
                "The server has received too many requests and has asked us to try again later";
            return Err(ApiError::too_many_requests(why, 1));
        }
        Ok(Place { pool: pool.clone(), user: user.to_owned() })
    }

    /// How many are reading and writing now.
    pub fn now(&self) -> (usize, usize) {
        let taken = |pool: &Mutex<Pool>| pool.lock().unwrap_or_else(PoisonError::into_inner).taken;
        (taken(&self.reading), taken(&self.writing))
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
    let limits = Limits::new(10, 10);
    let greedy: Vec<_> = (0..20).map_while(|_| limits.enter("greedy", false).ok()).collect();
    assert_eq!(greedy.len(), 6);
    let polite: Vec<_> = (0..20).map_while(|_| limits.enter("polite", false).ok()).collect();
    assert_eq!(polite.len(), 4, "the rest is for others");
    assert!(limits.enter("greedy", true).is_ok(), "writers have places of their own");
    let full = limits.enter("third", false).unwrap_err();
    assert_eq!((full.code.as_u16(), full.reason), (429, "TooManyRequests"));
    drop(greedy);
    assert!(limits.enter("third", false).is_ok());
    assert_eq!(limits.now(), (4, 0));
}
