//! How the levels divide the seats of the server, and lend what they do not use.

use std::time::Duration;

use roadstead_schema::json::Pointer;
use serde_json::Value;

/// A PriorityLevelConfiguration, as far as it decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityLevel {
    /// Its name.
    pub name: String,
    /// What clients hear of it.
    pub uid: String,
    /// What becomes of a request that finds no free seat.
    pub discipline: Discipline,
    shares: u32,
    /// How much of its seats others may use, in percent.
    lendable: u32,
    /// How much of its own number it may use of others, in percent; `None` for as much as there is.
    borrowing: Option<u32>,
}

/// What becomes of a request that finds no free seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discipline {
    /// It is served all the same.
    Exempt,
    /// It is refused.
    #[default]
    Reject,
    /// It waits.
    Queue(Queuing),
}

/// How requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queuing {
    /// How many queues there are.
    pub queues: u32,
    /// In how many of them a flow may wait.
    pub hand: u32,
    /// How many requests may wait in one.
    pub length: usize,
}

impl PriorityLevel {
    /// Reads a level as it is stored.
    pub fn read(object: &Value) -> Self {
        let spec = &object["spec"];
        let (part, discipline) = match spec.text("/type") {
            "Exempt" => (&spec["exempt"], Discipline::Exempt),
            _ => (&spec["limited"], discipline(&spec["limited"]["limitResponse"])),
        };
        let number = |pointer| u32::try_from(part.int(pointer)).unwrap_or(0);
        let borrowing = part.has("/borrowingLimitPercent");
        Self {
            name: object.text("/metadata/name").to_owned(),
            uid: object.text("/metadata/uid").to_owned(),
            discipline,
            shares: number("/nominalConcurrencyShares"),
            lendable: number("/lendablePercent").min(100),
            borrowing: borrowing.then(|| number("/borrowingLimitPercent")),
        }
    }
}

fn discipline(response: &Value) -> Discipline {
    if response.text("/type") != "Queue" {
        return Discipline::Reject;
    }
    let number = |pointer| u32::try_from(response.int(pointer)).unwrap_or(1).max(1);
    let queues = number("/queuing/queues");
    let hand = number("/queuing/handSize").min(queues).min(MOST_QUEUES_OF_A_FLOW);
    let length = number("/queuing/queueLengthLimit") as usize;
    Discipline::Queue(Queuing { queues, hand, length })
}

/// More than validation lets anybody ask for.
pub(super) const MOST_QUEUES_OF_A_FLOW: u32 = 15;

/// How many seats a level may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeatLimits {
    /// Its own.
    pub nominal: u32,
    /// What it has if others borrow all that it lends.
    pub lower: u32,
    /// What it has if it borrows as much as it may.
    pub upper: u32,
}

impl SeatLimits {
    /// What a level begins with, before anybody knows what it needs.
    pub fn initial(self) -> u32 {
        self.nominal - (self.nominal - self.lower) / 2
    }
}

/// Divides the seats of the server by shares. Rounding makes them a few more.
pub fn limits(levels: &[&PriorityLevel], seats: u32) -> Vec<SeatLimits> {
    let all: u64 = levels.iter().map(|level| u64::from(level.shares)).sum();
    let percent = |of: u32, percent: u32| {
        let part = (u64::from(of) * u64::from(percent) + 50) / 100;
        u32::try_from(part).unwrap_or(u32::MAX)
    };
    let of = |level: &&PriorityLevel| {
        let part = (u64::from(seats) * u64::from(level.shares)).div_ceil(all.max(1));
        let nominal = u32::try_from(part).unwrap_or(seats);
        let borrowed = level.borrowing.map_or(seats, |own| percent(nominal, own));
        SeatLimits {
            nominal,
            lower: nominal - percent(nominal, level.lendable).min(nominal),
            upper: nominal.saturating_add(borrowed),
        }
    };
    levels.iter().map(of).collect()
}

/// How many seats a level could have used: those in use, and those waited for.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    since: Duration,
    changed: Duration,
    now: u32,
    highest: u32,
    /// Seats times seconds, and their squares.
    sum: f64,
    squares: f64,
    /// What it is about, over some time.
    smoothed: f64,
}

/// How much of what was believed before counts after another period.
const INERTIA: f64 = 0.977;

impl Demand {
    /// Nothing has been asked for.
    pub(super) fn new(now: Duration) -> Self {
        let (sum, squares, smoothed) = (0.0, 0.0, 0.0);
        Self { since: now, changed: now, now: 0, highest: 0, sum, squares, smoothed }
    }

    /// From now on so many seats could be used.
    pub(super) fn set(&mut self, now: Duration, seats: u32) {
        let (for_, level) = (now.saturating_sub(self.changed).as_secs_f64(), f64::from(self.now));
        self.sum += level * for_;
        self.squares += level * level * for_;
        (self.changed, self.now) = (now.max(self.changed), seats);
        self.highest = self.highest.max(seats);
    }

    /// Ends a period: the most that was asked for in it, and about how much will be.
    pub(super) fn end(&mut self, now: Duration) -> (u32, f64) {
        self.set(now, self.now);
        let whole = now.saturating_sub(self.since).as_secs_f64();
        let mean = if whole > 0.0 { self.sum / whole } else { f64::from(self.now) };
        let spread = if whole > 0.0 { self.squares / whole - mean * mean } else { 0.0 };
        let wanted = mean + spread.max(0.0).sqrt();
        // More is believed at once, less only after some time.
        self.smoothed = wanted.max(INERTIA * self.smoothed + (1.0 - INERTIA) * wanted);
        let highest = self.highest;
        (self.since, self.sum, self.squares, self.highest) = (now, 0.0, 0.0, self.now);
        (highest, self.smoothed)
    }
}

/// What is known of a level when the seats are divided anew.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Between what it may have.
    pub limits: SeatLimits,
    /// Whether it takes what it needs without being asked.
    pub exempt: bool,
    /// The most that it asked for lately.
    pub highest: u32,
    /// About how much it will ask for.
    pub smoothed: f64,
}

impl Need {
    /// What it has a right to: what it lately used of its own.
    fn least(&self) -> u32 {
        match self.exempt {
            true => self.highest.max(self.limits.lower),
            false => self.highest.min(self.limits.nominal).max(self.limits.lower),
        }
    }

    fn target(&self) -> f64 {
        self.smoothed.max(f64::from(self.least())).max(0.001)
    }

    /// Its part, where everybody has `fraction` of what they want, within their bounds.
    fn part(&self, fraction: f64) -> f64 {
        let (least, most) = (f64::from(self.least()), f64::from(self.limits.upper));
        (fraction * self.target()).clamp(least, most.max(least))
    }
}

/// Divides the seats by need: everybody has at least what they lately used of their own, and the same
/// fraction of what they want, as far as they may borrow.
pub fn adjust(needs: &[Need]) -> Vec<u32> {
    let all: u32 = needs.iter().map(|need| need.limits.nominal).sum();
    let exempt: u32 = needs.iter().filter(|need| need.exempt).map(Need::least).sum();
    let limited = || needs.iter().filter(|need| !need.exempt);
    let left = all.saturating_sub(exempt);
    let lower: u32 = limited().map(|need| need.limits.lower).sum();
    let least: u32 = limited().map(Need::least).sum();
    let part: Box<dyn Fn(&Need) -> f64> = if left <= lower {
        Box::new(|need: &Need| f64::from(need.limits.lower))
    } else if left <= least {
        let fraction = f64::from(left - lower) / f64::from(least - lower);
        Box::new(move |need: &Need| {
            let lower = f64::from(need.limits.lower);
            lower + (f64::from(need.least()) - lower) * fraction
        })
    } else {
        let fraction = fair_fraction(&limited().collect::<Vec<_>>(), f64::from(left));
        Box::new(move |need: &Need| need.part(fraction))
    };
    let seats = |need: &Need| match need.exempt {
        true => need.least(),
        false => part(need).round() as u32,
    };
    needs.iter().map(seats).collect()
}

/// The fraction of their targets at which all of them together have `seats`.
fn fair_fraction(needs: &[&Need], seats: f64) -> f64 {
    let together = |fraction: f64| needs.iter().map(|need| need.part(fraction)).sum::<f64>();
    // Nobody is far from a bound outside of this.
    let (mut low, mut high) = (0.0, 1e9);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        match together(middle) < seats {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use roadstead_api::kinds::flow_control::bootstrap;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_levels_of_every_cluster() {
        let all = bootstrap::objects().into_iter().filter(|one| one.plural == bootstrap::LEVELS);
        let all: Vec<_> = all.map(|one| PriorityLevel::read(&one.object)).collect();
        let limits = limits(&all.iter().collect::<Vec<_>>(), 600);
        let found = all.iter().zip(limits).map(|(level, limits)| {
            format!("{} {} {} {}", level.name, limits.lower, limits.nominal, limits.initial())
        });
        // As kube-apiserver says in apiserver_flowcontrol_{lower,nominal}_limit_seats.
        let want = [
            "system 50 74 62",
            "node-high 73 98 86",
            "leader-election 25 25 25",
            "workload-high 49 98 74",
            "workload-low 24 245 135",
            "global-default 24 49 37",
            "exempt 0 0 0",
            "catch-all 13 13 13",
        ];
        assert_eq!(found.collect::<Vec<_>>(), want);
    }

    #[test]
    fn odd_levels_are_read_as_something_that_works() {
        let read = |limited: Value| {
            let spec = json!({"type": "Limited", "limited": limited});
            PriorityLevel::read(&json!({"metadata": {"name": "a"}, "spec": spec}))
        };
        let huge = json!({"type": "Queue", "queuing": {"queues": -3, "handSize": 99}});
        let level = read(
            json!({"nominalConcurrencyShares": -7, "lendablePercent": 900, "limitResponse": huge}),
        );
        let queuing = Queuing { queues: 1, hand: 1, length: 1 };
        assert_eq!(level.discipline, Discipline::Queue(queuing));
        assert_eq!(limits(&[&level], 600), [SeatLimits { nominal: 0, lower: 0, upper: 600 }]);
        let jail = read(json!({"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0}));
        assert_eq!(limits(&[&jail], 600)[0].upper, 0);
    }

    fn need(lower: u32, nominal: u32, highest: u32) -> Need {
        let limits = SeatLimits { nominal, lower, upper: nominal + 600 };
        Need { limits, exempt: false, highest, smoothed: f64::from(highest) }
    }

    #[test]
    fn idle_levels_lend_to_busy_ones() {
        let cases = [
            ("nobody wants anything", vec![need(50, 100, 0), need(50, 100, 0)], vec![100, 100]),
            ("one is busy", vec![need(50, 100, 400), need(50, 100, 0)], vec![150, 50]),
            (
                "who lends nothing keeps it",
                vec![need(10, 100, 400), need(100, 100, 0)],
                vec![100, 100],
            ),
            ("both are", vec![need(50, 100, 400), need(50, 100, 400)], vec![100, 100]),
            (
                "the exempt come first",
                vec![need(50, 100, 400), Need { exempt: true, ..need(0, 0, 30) }],
                vec![70, 30],
            ),
            (
                "but do not take what others never lend",
                vec![need(50, 100, 400), Need { exempt: true, ..need(0, 0, 5000) }],
                vec![50, 5000],
            ),
        ];
        for (name, needs, want) in cases {
            assert_eq!(adjust(&needs), want, "{name}");
        }
    }

    proptest! {
        #[test]
        fn everybody_stays_within_bounds_and_nothing_is_wasted(
            all in prop::collection::vec((0..100_u32, 0..100_u32, 0..500_u32, 0..300_u32), 1..9),
        ) {
            let needs: Vec<_> = all.iter().map(|(lower, more, highest, borrowed)| Need {
                limits: SeatLimits { nominal: lower + more, lower: *lower, upper: lower + more + borrowed },
                ..need(0, 0, *highest)
            }).collect();
            let parts = adjust(&needs);
            for (need, part) in needs.iter().zip(&parts) {
                prop_assert!((need.least()..=need.limits.upper).contains(part), "{need:?} has {part}");
            }
            let sum = |of: &dyn Fn(&Need) -> u32| needs.iter().map(of).sum::<u32>();
            let given: u32 = parts.iter().sum();
            let nominal = sum(&|need| need.limits.nominal);
            // Each is rounded.
            prop_assert!(given.abs_diff(nominal) <= needs.len() as u32, "{given} of {nominal}");
        }

        #[test]
        fn demand_is_between_what_was_asked_for(steps in prop::collection::vec((1..1000_u64, 0..50_u32), 1..40)) {
            let mut demand = Demand::new(Duration::ZERO);
            let mut now = Duration::ZERO;
            for (pause, seats) in &steps {
                demand.set(now, *seats);
                now += Duration::from_millis(*pause);
            }
            let most = steps.iter().map(|(_, seats)| *seats).max().unwrap();
            let (highest, smoothed) = demand.end(now);
            prop_assert_eq!(highest, most);
            prop_assert!(smoothed >= 0.0 && smoothed <= 2.0 * f64::from(most));
        }
    }
}
