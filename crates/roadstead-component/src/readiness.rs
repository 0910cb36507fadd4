//! Who is not ready yet.
//!
//! Each part of a component registers under a name when it is made and drops the guard when it is
//! ready, so that `/readyz` can say who is missing (ztunnel's idea).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::pages::Page;

/// The parts of a process that are not ready yet; clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<BTreeMap<String, usize>>>);

impl Readiness {
    /// Nobody is ready before this part is: when the guard is dropped.
    #[must_use = "dropping the guard says that the part is ready"]
    pub fn register(&self, part: impl Into<String>) -> ReadyGuard {
        let part = part.into();
        *self.parts().entry(part.clone()).or_default() += 1;
        ReadyGuard { readiness: self.clone(), part }
    }

    /// The names of those who are not ready.
    pub fn missing(&self) -> Vec<String> {
        self.parts().keys().cloned().collect()
    }

    /// `ok`, or who is missing.
    pub fn page(&self) -> Page {
        match self.missing().as_slice() {
            [] => Page::text(200, "ok"),
            missing => Page::text(503, format!("not ready: {}\n", missing.join(", "))),
        }
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part that is not ready until this is dropped.
#[derive(Debug)]
pub struct ReadyGuard {
    readiness: Readiness,
    part: String,
}

impl Drop for ReadyGuard {
    fn drop(&mut self) {
        let mut parts = self.readiness.parts();
        if let Some(count) = parts.get_mut(&self.part) {
            *count -= 1;
            if *count == 0 {
                parts.remove(&self.part);
            }
        }
    }
}

#[test]
fn the_page_says_who_is_missing() {
    let readiness = Readiness::default();
    assert_eq!(readiness.page(), Page::text(200, "ok"));
    let (dns, proxy) = (readiness.register("dns"), readiness.register("proxy"));
    let again = readiness.register("dns");
    assert_eq!(readiness.page(), Page::text(503, "not ready: dns, proxy\n"));
    drop((dns, proxy));
    assert_eq!(readiness.missing(), ["dns"], "one of that name is left");
    drop(again);
    assert_eq!(readiness.page().code, 200);
}
