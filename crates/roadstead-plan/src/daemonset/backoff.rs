//! How long a pod of a DaemonSet that has failed stays before it is replaced: on a node where it fails again
//! and again, longer each time.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15 * 60);

/// The pods that failed lately and were replaced, by the DaemonSet's uid and the node.
#[derive(Debug, Default)]
pub struct Backoffs {
    sets: BTreeMap<String, BTreeMap<String, Replaced>>,
}

#[derive(Debug)]
struct Replaced {
    at: Timestamp,
    /// The next one stays for so long.
    pause: Duration,
}

impl Replaced {
    fn age(&self, now: Timestamp) -> Duration {
        Duration::try_from(now.duration_since(self.at)).unwrap_or(Duration::ZERO)
    }

    /// What was so long ago means nothing.
    fn is_forgotten(&self, now: Timestamp) -> bool {
        self.age(now) > 2 * LONGEST
    }
}

impl Backoffs {
    /// On which nodes failed pods of a DaemonSet stay, and for how long.
    pub fn held(&self, set: &str, now: Timestamp) -> BTreeMap<String, Duration> {
        let all = self.sets.get(set).into_iter().flatten();
        let left = all
            .filter(|(_, last)| !last.is_forgotten(now))
            .map(|(node, last)| (node.clone(), last.pause.saturating_sub(last.age(now))));
        left.filter(|(_, left)| !left.is_zero()).collect()
    }

    /// A failed pod is replaced.
    pub fn note(&mut self, set: &str, node: &str, now: Timestamp) {
        let nodes = self.sets.entry(set.to_owned()).or_default();
        nodes.retain(|_, last| !last.is_forgotten(now));
        let last = nodes.get(node).map(|last| last.pause);
        let pause = last.map_or(FIRST, |last| (last * 2).min(LONGEST));
        nodes.insert(node.to_owned(), Replaced { at: now, pause });
    }

    /// A DaemonSet is gone.
    pub fn forget(&mut self, set: &str) {
        self.sets.remove(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_each_time_and_forgotten_in_the_end() {
        let at = |second: i64| Timestamp::from_second(second).unwrap_or_default();
        let mut backoffs = Backoffs::default();
        let left = |backoffs: &Backoffs, now: i64| {
            backoffs.held("set", at(now)).get("n").map_or(0, Duration::as_secs)
        };
        assert_eq!(left(&backoffs, 0), 0, "the first one goes at once");
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            backoffs.note("set", "n", at(now));
            pauses.push(left(&backoffs, now));
            now += pauses[pauses.len() - 1] as i64;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900]);
        assert!(backoffs.held("set", at(now)).is_empty(), "its time has come");
        assert!(backoffs.held("another", at(0)).is_empty());
        backoffs.note("set", "n", at(now + 4000));
        assert_eq!(left(&backoffs, now + 4000), 1, "it has worked for an hour");
        backoffs.forget("set");
        assert_eq!(left(&backoffs, now + 4000), 0);
    }
}
