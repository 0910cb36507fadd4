//! Which of several API servers is asked next. Pure: the time and chance come from outside.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Server;

/// A server that has failed is not asked for so long; twice as long each time, up to a limit.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// One that has sent us away stops, most likely.
const AFTER_FAREWELL: Duration = Duration::from_secs(10);
/// After so long, and at most twice that, we choose anew: servers that came later get their share.
const LOYALTY: Duration = Duration::from_secs(300);

/// What we know of the servers, and which of them we are with.
#[derive(Debug, Default)]
pub(super) struct Choice {
    standings: BTreeMap<Server, Standing>,
    /// The server, and how long we stay with it.
    current: Option<(Server, Duration)>,
}

#[derive(Debug, Default)]
struct Standing {
    failures: u32,
    /// It is not asked before then if there are others.
    away_until: Duration,
}

impl Choice {
    /// The server to ask, of those that are known and were not tried already: the one we are with; else, by chance,
    /// one that has not failed; else the one whose pause ends first.
    pub(super) fn choose(
        &mut self,
        known: &[Server],
        tried: &[Server],
        (now, chance): (Duration, u32),
    ) -> Option<Server> {
        let left: Vec<_> = known.iter().filter(|server| !tried.contains(server)).collect();
        let away = |server: &Server| {
            self.standings.get(server).map_or(Duration::ZERO, |standing| standing.away_until)
        };
        if let Some((current, until)) = &self.current
            && left.contains(&current)
            && (now < *until || known.len() == 1)
        {
            return Some(current.clone());
        }
        let well: Vec<_> = left.iter().filter(|server| away(server) <= now).collect();
        let Some(count) = u32::try_from(well.len()).ok().filter(|count| *count > 0) else {
            return left.into_iter().min_by_key(|server| away(server)).cloned();
        };
        let chosen = (*well[(chance % count) as usize]).clone();
        let more = LOYALTY.mul_f64(f64::from(chance) / f64::from(u32::MAX));
        self.current = Some((chosen.clone(), now + LOYALTY + more));
        Some(chosen)
    }

    /// It has answered.
    pub(super) fn worked(&mut self, server: &Server) {
        if let Some(standing) = self.standings.get_mut(server) {
            standing.failures = 0;
        }
    }

    /// It could not be reached, was silent, or cannot do its work. Returns whether we were with it.
    pub(super) fn failed(&mut self, server: &Server, now: Duration) -> bool {
        let standing = self.standings.entry(server.clone()).or_default();
        let pause = FIRST_PAUSE.saturating_mul(1 << standing.failures.min(10)).min(LONGEST_PAUSE);
        standing.failures += 1;
        standing.away_until = now + pause;
        self.part_from(server)
    }

    /// It has asked us to go elsewhere.
    pub(super) fn sent_us_away(&mut self, server: &Server, now: Duration) {
        self.standings.entry(server.clone()).or_default().away_until = now + AFTER_FAREWELL;
        self.part_from(server);
    }

    fn part_from(&mut self, server: &Server) -> bool {
        self.current.take_if(|(current, _)| current == server).is_some()
    }

    /// The one we are with.
    #[cfg(test)]
    fn current(&self) -> Option<&Server> {
        self.current.as_ref().map(|(server, _)| server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(text: &str) -> Vec<Server> {
        text.split_whitespace().map(|name| format!("https://{name}").parse().unwrap()).collect()
    }

    /// Carries out a story: `a!` a fails, `a/` it sends us away, `a+` it answers, `@5` it is five seconds later,
    /// `?` asks with chance 0, `?1` with chance 1, `?-a` when a was tried. Returns who was chosen.
    fn story(known: &str, words: &str) -> String {
        let (known, mut choice, mut now) = (servers(known), Choice::default(), Duration::ZERO);
        let mut chosen = Vec::new();
        for word in words.split_whitespace() {
            if let Some(seconds) = word.strip_prefix('@') {
                now = Duration::from_secs(seconds.parse().unwrap());
            } else if let Some(rest) = word.strip_prefix('?') {
                let (chance, tried) = rest.split_once('-').unwrap_or((rest, ""));
                let chance = chance.parse().unwrap_or(0);
                let found = choice.choose(&known, &servers(tried), (now, chance));
                chosen.push(found.map_or("none".into(), |server| server.authority().to_string()));
            } else {
                let (name, what) = word.split_at(word.len() - 1);
                let server = &servers(name)[0];
                match what {
                    "!" => drop(choice.failed(server, now)),
                    "/" => choice.sent_us_away(server, now),
                    "+" => choice.worked(server),
                    _ => panic!("cannot read {word}"),
                }
            }
        }
        chosen.join(" ")
    }

    #[test]
    fn who_is_asked() {
        let cases = [
            ("nobody is known", "", "?", "none"),
            ("by chance", "a b c", "?1", "b"),
            ("and then the same", "a b c", "?1 ?2 @200 ?0", "b b b"),
            ("but not for ever", "a b c", "?1 @601 ?2", "b c"),
            ("one that fails is left at once", "a b c", "? a! ? ?", "a b b"),
            ("and not gone back to before its time", "a b", "? a! ? b! @1 ?", "a b a"),
            ("each of those that are left has its share", "a b c", "? a! ?1", "a c"),
            ("who has failed twice is away for longer", "a b", "a! a! b! @1 ? ?", "b b"),
            ("an answer makes good", "a b", "a! a! a+ a! b! b! @1 ?", "a"),
            ("all have failed: the one that comes back first", "a b", "a! b! b! ? ?-a", "a b"),
            ("nobody is left to try", "a b", "?-a", "b"),
            ("the only one is asked whatever it does", "a", "? a! ? a! ? @9999 ?", "a a a a"),
            ("who is sent away goes, and may come back", "a b", "? a/ ? b! @5 ? @11 ?", "a b b b"),
            ("a server that stops does not count as one that fails", "a b", "a/ b! @2 ?", "b"),
        ];
        for (name, known, words, want) in cases {
            assert_eq!(story(known, words), want, "{name}");
        }
    }

    #[test]
    fn many_clients_do_not_pile_up() {
        let known = servers("a b c");
        let mut counts = BTreeMap::new();
        for chance in (0..3000_u32).map(|number| number.wrapping_mul(0x9E37_79B9)) {
            let mut choice = Choice::default();
            choice.choose(&known, &[], (Duration::ZERO, chance));
            // The one of them that each is with dies; its clients go to both others.
            choice.failed(&known[0], Duration::ZERO);
            choice.choose(&known, &[], (Duration::ZERO, chance.rotate_left(16)));
            *counts.entry(choice.current().cloned()).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 2);
        assert!(counts.values().all(|count| *count > 1300), "{counts:?}");
    }
}
