//! Whom to ask next, and when, as long as there is no good answer.
//!
//! Every server is asked once, each as soon as the one before it is slower than usual or has failed.
//! Datagrams get lost, so those that have said nothing are asked again, after ever longer pauses.

use std::time::Duration;

/// How long the pauses are in the second round; in each further one they are twice as long.
const AGAIN: Duration = Duration::from_millis(800);

/// The servers, by their place in the order in which they are to be asked.
#[derive(Debug)]
pub struct Rounds {
    /// Whether each of them may still answer.
    open: Vec<bool>,
    /// How many times one was asked, or passed over.
    turn: usize,
    /// Whether somebody has answered, though not well.
    answered: bool,
}

impl Rounds {
    /// So many servers, none of which has been asked.
    pub fn new(count: usize) -> Self {
        Self { open: vec![true; count], turn: 0, answered: false }
    }

    /// Notes that one has failed, so that asking it again would be pointless.
    pub fn failed(&mut self, server: usize) {
        self.open[server] = false;
    }

    /// Notes that one has answered, though not well. Others may know better, but nobody is asked
    /// twice for that.
    pub fn answered(&mut self, server: usize) {
        self.failed(server);
        self.answered = true;
    }

    /// Whether nobody is being asked for the second time yet.
    pub fn is_first(&self) -> bool {
        self.turn < self.open.len()
    }

    /// Whether there is anybody to ask.
    pub fn go_on(&self) -> bool {
        self.is_first() || (!self.answered && self.open.contains(&true))
    }

    /// Takes the next one.
    pub fn take(&mut self) -> Option<usize> {
        while self.go_on() {
            let server = self.turn % self.open.len();
            self.turn += 1;
            if self.open[server] {
                return Some(server);
            }
        }
        None
    }

    /// How long to wait before the next one is asked, if the last one that was usually takes less
    /// than `patience`.
    pub fn pause(&self, patience: Duration) -> Duration {
        match self.turn / self.open.len().max(1) {
            0 => patience,
            round => AGAIN * (1 << (round - 1).min(6)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who is asked after how many milliseconds. Of the servers `.` says nothing, `x` fails when it
    /// is asked, and `?` answers badly then.
    fn asked(servers: &str) -> Vec<(usize, u128)> {
        let mut rounds = Rounds::new(servers.len());
        let (mut all, mut now) = (Vec::new(), Duration::ZERO);
        while now < Duration::from_secs(4) {
            let Some(server) = rounds.take() else { break };
            all.push((server, now.as_millis()));
            match servers.as_bytes()[server] {
                b'x' => rounds.failed(server),
                b'?' => rounds.answered(server),
                _ => now += rounds.pause(Duration::from_millis(20)),
            }
        }
        all
    }

    #[test]
    fn who_is_asked_when() {
        type Asked = &'static [(usize, u128)];
        let cases: [(&str, &str, Asked); 6] = [
            ("one that is silent", ".", &[(0, 0), (0, 800), (0, 2400)]),
            ("the next one soon", "..", &[(0, 0), (1, 20), (0, 820), (1, 1620), (0, 3220)]),
            ("a failure is final", "x.", &[(0, 0), (1, 0), (1, 800), (1, 2400)]),
            ("all have failed", "xx", &[(0, 0), (1, 0)]),
            ("a bad answer is enough", ".?", &[(0, 0), (1, 20)]),
            ("nobody", "", &[]),
        ];
        for (name, servers, want) in cases {
            assert_eq!(asked(servers), want, "{name}");
        }
    }
}
