//! What was said about a name once is said about it again: a resolver asks for both families of
//! addresses, at once or one after the other, and must not be told that its search has ended by the
//! one reply, and that it goes on by the other.

use std::time::{Duration, Instant};

/// In this time a resolver has what it wanted to know about one name, or has given up: five seconds
/// twice, and some for the way.
pub(crate) const TRY: Duration = Duration::from_secs(15);
/// How many names of one client are remembered.
const MOST: usize = 64;

/// How a search goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchWay {
    /// The reply says what it ends with.
    Completed,
    /// The client goes on by itself.
    Alone,
}

/// A question for addresses: what a program asked for, as a number, the family as a bit, and the number
/// of the message, which is the same when a resolver sends it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookupQuestion {
    pub base: u64,
    pub family: u8,
    pub id: u16,
}

/// What one client was told.
#[derive(Debug, Default)]
pub(crate) struct Agreements {
    all: Vec<Agreement>,
    /// Until then there were more names than are remembered, and everybody goes alone.
    crowded: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Agreement {
    base: u64,
    way: SearchWay,
    since: Instant,
    used: Instant,
    /// The families that the newest lookup has asked for so far.
    families: u8,
    /// The numbers of its messages, by family.
    ids: [u16; 2],
}

impl Agreement {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.used) >= TRY
    }

    /// Whether it binds the answer to a question. The other half of a lookup is always bound, and so is a
    /// message that is sent again, because the reply was lost. Any other about the same family is of a
    /// new lookup, or of the old one by a resolver that gives its messages new numbers: only time tells.
    fn binds(&self, question: LookupQuestion, now: Instant) -> bool {
        let known = self.families & question.family != 0 && !self.has_sent(question);
        !self.is_over(now) && (!known || now.saturating_duration_since(self.since) < TRY)
    }

    fn has_sent(&self, question: LookupQuestion) -> bool {
        self.families & question.family != 0 && self.ids[place(question.family)] == question.id
    }

    /// Takes in a question that it binds.
    fn go_on(&mut self, question: LookupQuestion, now: Instant) {
        self.used = now;
        if self.has_sent(question) {
            return;
        }
        if self.families & question.family != 0 {
            self.families = 0;
        }
        self.families |= question.family;
        self.ids[place(question.family)] = question.id;
    }
}

fn place(family: u8) -> usize {
    usize::from(family > 1)
}

impl Agreements {
    /// How the search has to go on because of what was said before.
    pub(crate) fn held(&self, question: LookupQuestion, now: Instant) -> Option<SearchWay> {
        let known = self.all.iter().find(|one| one.base == question.base);
        match known.filter(|one| one.binds(question, now)) {
            Some(one) => Some(one.way),
            None => self.crowded.filter(|until| now < *until).map(|_| SearchWay::Alone),
        }
    }

    /// Takes in how the search would go on; returns how it does.
    pub(crate) fn agree(
        &mut self,
        question: LookupQuestion,
        way: SearchWay,
        now: Instant,
    ) -> SearchWay {
        let Some(held) = self.held(question, now) else { return self.begin(question, way, now) };
        match self.all.iter_mut().find(|one| one.base == question.base) {
            Some(one) => one.go_on(question, now),
            None => return self.begin(question, held, now),
        }
        held
    }

    /// Goes on in this way whatever was said before; returns how it goes on if that cannot be
    /// remembered.
    pub(crate) fn begin(
        &mut self,
        question: LookupQuestion,
        way: SearchWay,
        now: Instant,
    ) -> SearchWay {
        let LookupQuestion { base, family, id } = question;
        let new = Agreement { base, way, since: now, used: now, families: family, ids: [id; 2] };
        let known = self.all.iter().position(|one| one.base == base);
        let over = || self.all.iter().position(|one| one.is_over(now));
        match known.or_else(over) {
            Some(at) => self.all[at] = new,
            None if self.all.len() < MOST => self.all.push(new),
            None => {
                self.crowded = Some(now + TRY);
                return SearchWay::Alone;
            }
        }
        way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u8 = 1;
    const AAAA: u8 = 2;

    /// What is asked when, and how it would go on; returns how it does. `4@0=c` asks for IPv4 at the
    /// start, when the search could be completed, and `6@5=a` for IPv6 later, when it could not; `6!@5=a`
    /// is the last message about that family once more.
    fn told(script: &str) -> String {
        let mut agreements = Agreements::default();
        let start = Instant::now();
        let mut id = 0;
        let mut ids = [0; 2];
        let one = |word: &str| {
            let (family, rest) = word.split_once('@').unwrap();
            let again = family.ends_with('!');
            let (at, would) = rest.split_once('=').unwrap();
            let now = start + Duration::from_millis((at.parse::<f64>().unwrap() * 1e3) as u64);
            let family = if family.starts_with('4') { A } else { AAAA };
            id += 1;
            if !again {
                ids[place(family)] = id;
            }
            let question = LookupQuestion { base: 7, family, id: ids[place(family)] };
            let way = if would == "c" { SearchWay::Completed } else { SearchWay::Alone };
            match agreements.agree(question, way, now) {
                SearchWay::Completed => 'c',
                SearchWay::Alone => 'a',
            }
        };
        script.split(' ').map(one).collect()
    }

    #[test]
    fn both_families_go_the_same_way() {
        let cases = [
            ("both at once", "4@0=c 6@0=c", "cc"),
            ("it could be completed only later", "4@0=a 6@0=c", "aa"),
            ("only at first", "4@0=c 6@0=a", "cc"),
            ("the other reply was lost", "4@0=a 6@9.9=c", "aa"),
            ("and this one, too", "4@0=a 6@0=a 4@5=c 6@9.9=c", "aaaa"),
            ("another lookup, much later", "4@0=a 6@0=a 4@16=c 6@16=c", "aacc"),
            ("one that is asked for all the time", "4@0=a 4@8=a 4@16=c", "aac"),
            ("one that begins just before the end", "4@0=a 6@0=a 4@14.9=c 6@15.1=c", "aaaa"),
            ("and the next after that", "4@0=a 6@0=a 4@14.9=c 6@15.1=c 4@15.2=c 6@16=c", "aaaacc"),
            (
                "a late reply to a later lookup was lost",
                "4@0=a 6@0=a 4@14=c 6@14=c 6!@19=c",
                "aaaaa",
            ),
            ("a message sent again begins no lookup", "4@0=c 6@0=c 6!@5=c 4@18=a 6@18=a", "cccaa"),
            ("only one family, and another later", "4@0=c 6@15=a", "ca"),
        ];
        for (name, script, want) in cases {
            assert_eq!(told(script), want, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_remembered_goes_alone() {
        let mut agreements = Agreements::default();
        let now = Instant::now();
        let ask = |base, family| LookupQuestion { base, family, id: 1 };
        for base in 0..MOST as u64 {
            assert_eq!(
                agreements.agree(ask(base, A), SearchWay::Completed, now),
                SearchWay::Completed
            );
        }
        assert_eq!(
            agreements.agree(ask(99, A), SearchWay::Completed, now),
            SearchWay::Alone,
            "no room"
        );
        assert_eq!(
            agreements.agree(ask(0, AAAA), SearchWay::Alone, now),
            SearchWay::Completed,
            "known"
        );
        let soon = now + TRY - Duration::from_millis(1);
        assert_eq!(agreements.held(ask(99, AAAA), soon), Some(SearchWay::Alone), "its other half");
        let later = now + TRY;
        assert_eq!(agreements.agree(ask(99, A), SearchWay::Completed, later), SearchWay::Completed);
        assert_eq!(agreements.all.len(), MOST);
    }
}
