//! Who waits for whom.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn queuing(queues: u32, hand: u32, length: usize) -> Discipline {
    Discipline::Queue(Queuing { queues, hand, length })
}

fn arrival(hash: u64, seats: u32) -> Arrival {
    Arrival { hash, seats, aftermath: Duration::ZERO }
}

/// Plays a story: `+FLOW[*SEATS]` arrives, `-N` ends what arrived as number N, `xN` gives up, `=N` sets the
/// limit. Each step takes a millisecond. Answers what happened: `N` begins, `N?` waits, `N!` is refused.
fn play(discipline: Discipline, limit: u32, story: &str) -> String {
    let mut set = QueueSet::new(discipline, limit, Duration::ZERO);
    let (mut tickets, mut said, mut now) = (Vec::new(), Vec::new(), Duration::ZERO);
    for step in story.split_whitespace() {
        now += Duration::from_millis(1);
        let (what, rest) = step.split_at(1);
        let (rest, seats) = rest.split_once('*').unwrap_or((rest, "1"));
        let number: u64 = rest.parse().unwrap();
        let ticket = || tickets[number as usize];
        match what {
            "+" => {
                let named = tickets.len();
                let (ticket, how) = match set.arrive(now, &arrival(number, seats.parse().unwrap()))
                {
                    Decision::Starts(ticket) => (ticket, ""),
                    Decision::Waits(ticket) => (ticket, "?"),
                    Decision::Refused(_) => (Ticket(0), "!"),
                };
                tickets.push(ticket);
                said.push(format!("{named}{how}"));
            }
            "-" => set.finish(now, ticket()),
            "x" => assert!(set.give_up(now, ticket())),
            _ => set.set_limit(now, u32::try_from(number).unwrap()),
        }
        while let Some(ticket) = set.next_started() {
            said.push(tickets.iter().position(|own| *own == ticket).unwrap().to_string());
        }
    }
    said.join(" ")
}

#[test]
fn stories() {
    let two = queuing(2, 1, 2);
    let cases = [
        ("the exempt do not wait", Discipline::Exempt, 0, "+1 +1*9 +1", "0 1 2"),
        ("who may not wait is refused", Discipline::Reject, 2, "+1 +1 +1 -0 +1", "0 1 2! 3"),
        ("wide ones need all of it", Discipline::Reject, 2, "+1 +1*2 -0 +1*2 +1", "0 1! 2 3!"),
        ("too wide ones are alone", Discipline::Reject, 2, "+1*5 +1 -0 +1 +1*5", "0 1! 2 3!"),
        ("no seat at all: one by one", Discipline::Reject, 0, "+1 +1 -0 +1", "0 1! 2"),
        ("a jail", two, 0, "+1 +1 +1 =1", "0? 1? 2! 0"),
        ("in their order", two, 1, "+0 +0 +0 +0 -0 -1", "0 1? 2? 3! 1 2"),
        ("queues take turns", two, 1, "+0 +0 +0 +1 -0 -3 -1", "0 1? 2? 3? 3 1 2"),
        ("who gives up is passed over", two, 1, "+0 +0 +0 x1 -0", "0 1? 2? 2"),
        ("and makes room", two, 1, "+0 +0 +0 +0 x1 +0", "0 1? 2? 3! 4?"),
        ("small ones do not overtake for ever", two, 2, "+0 +0*2 +1 -0 -2", "0 1? 2 1"),
        ("more seats", two, 1, "+0 +0 +1 =3", "0 1? 2? 2 1"),
        ("fewer seats", two, 3, "+0 +0 =1 +1 -0 -1", "0 1 2? 2"),
    ];
    for (name, discipline, limit, story, want) in cases {
        assert_eq!(play(discipline, limit, story), want, "{name}");
    }
}

#[test]
fn hands_are_dealt_evenly_and_never_twice_the_same_card() {
    let queuing = Queuing { queues: 16, hand: 4, length: 1 };
    let (mut counts, mut cards) = ([0; 16], [0; 15]);
    for hash in 0..16 * 15 * 14 * 13 {
        let hand = deal(queuing, hash, &mut cards);
        assert_eq!(hand.iter().collect::<BTreeSet<_>>().len(), 4);
        hand.iter().for_each(|card| counts[*card as usize] += 1);
    }
    assert_eq!(counts, [15 * 14 * 13 * 4; 16]);
}

/// A level of one seat, in which somebody always has hundreds of requests waiting.
#[test]
fn who_sends_little_waits_little() {
    let discipline = queuing(128, 6, 50);
    let mut set = QueueSet::new(discipline, 1, Duration::ZERO);
    let (mut now, mut running) = (Duration::ZERO, None);
    for _ in 0..1000 {
        if let Decision::Starts(ticket) = set.arrive(now, &arrival(1, 1)) {
            running = Some(ticket);
        }
    }
    assert_eq!(set.totals().waiting, 6 * 50, "the rest is refused");
    let mut ahead = Vec::new();
    for flow in 0..100_u64 {
        // Each has a hand of their own.
        let hash = 1_000_003 * (flow + 7) + (flow << 40);
        let decision = set.arrive(now, &arrival(hash, 1));
        let Decision::Waits(mine) = decision else { panic!("{decision:?}") };
        for before in 0.. {
            now += Duration::from_millis(5);
            set.finish(now, running.take().unwrap());
            running = set.next_started();
            set.arrive(now, &arrival(1, 1));
            if running == Some(mine) {
                ahead.push(before);
                break;
            }
        }
    }
    ahead.sort_unstable();
    assert!(ahead[50] <= 6 && ahead[99] <= 60, "{ahead:?}");
}

/// Lists that take ten seats and writes with an aftermath count for what they are.
#[test]
fn work_is_shared_by_its_weight() {
    let served = |heavy: Arrival| {
        let mut set = QueueSet::new(queuing(2, 1, 1000), 10, Duration::ZERO);
        let mut flows = std::collections::BTreeMap::new();
        let mut count = [0_u32; 2];
        for _ in 0..400 {
            for (flow, arrival) in [(0, arrival(0, 1)), (1, heavy)] {
                if let Decision::Starts(ticket) | Decision::Waits(ticket) =
                    set.arrive(Duration::ZERO, &arrival)
                {
                    flows.insert(ticket, flow);
                }
            }
        }
        let mut running: Vec<_> =
            set.requests.iter().filter(|(_, r)| r.began.is_some()).map(|(t, _)| *t).collect();
        while set.next_started().is_some() {}
        let mut now = Duration::ZERO;
        for _ in 0..60 {
            now += Duration::from_millis(3);
            for ticket in std::mem::take(&mut running) {
                count[flows[&ticket]] += 1;
                set.finish(now, ticket);
            }
            running.extend(std::iter::from_fn(|| set.next_started()));
        }
        f64::from(count[0]) / f64::from(count[1])
    };
    let lists = served(arrival(1, 5));
    assert!((4.0..6.0).contains(&lists), "{lists}");
    let writes = served(Arrival { aftermath: Duration::from_millis(3), ..arrival(1, 1) });
    assert!((1.6..2.4).contains(&writes), "{writes}");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive { hash: u64, seats: u32 },
    Finish(usize),
    GiveUp(usize),
    Limit(u32),
    Configure(u32),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..40_u64, 1..6_u32).prop_map(|(hash, seats)| Step::Arrive { hash, seats }),
        3 => any::<usize>().prop_map(Step::Finish),
        1 => any::<usize>().prop_map(Step::GiveUp),
        1 => (0..8_u32).prop_map(Step::Limit),
        1 => (0..5_u32).prop_map(Step::Configure),
        2 => (0..50_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #[test]
    fn whatever_happens(steps in prop::collection::vec(step(), 1..200)) {
        let mut set = QueueSet::new(queuing(4, 2, 3), 4, Duration::ZERO);
        let (mut now, mut running, mut waiting) = (Duration::ZERO, Vec::new(), Vec::new());
        let mut widest = 4;
        for step in steps {
            let in_use = set.totals().seats_in_use;
            match step {
                Step::Arrive { hash, seats } => match set.arrive(now, &arrival(hash, seats)) {
                    Decision::Starts(ticket) => running.push(ticket),
                    Decision::Waits(ticket) => waiting.push(ticket),
                    Decision::Refused(why) => prop_assert_ne!(why, Refusal::TimeOut),
                },
                Step::Finish(at) if !running.is_empty() => {
                    set.finish(now, running.swap_remove(at % running.len()));
                }
                Step::GiveUp(at) if !waiting.is_empty() => {
                    prop_assert!(set.give_up(now, waiting.swap_remove(at % waiting.len())));
                }
                Step::Limit(limit) => set.set_limit(now, limit),
                Step::Configure(0) => set.reconfigure(now, Discipline::Reject, set.limit()),
                Step::Configure(queues) => set.reconfigure(now, queuing(queues, 1, 2), set.limit()),
                Step::Pass(time) => now += Duration::from_millis(time),
                Step::Finish(_) | Step::GiveUp(_) => {}
            }
            while let Some(ticket) = set.next_started() {
                let at = waiting.iter().position(|own| *own == ticket);
                running.push(waiting.swap_remove(at.expect("who begins has waited")));
            }
            widest = widest.max(set.limit());
            let totals = set.totals();
            prop_assert_eq!((totals.executing, totals.waiting), (running.len(), waiting.len()));
            // Who is under way stays so; nobody is added beyond the limit, but for one who is alone.
            let grown = totals.seats_in_use > in_use;
            prop_assert!(!grown || totals.seats_in_use <= set.limit() || totals.executing == 1);
            let states: Vec<_> = set.queues().collect();
            prop_assert!(states.iter().all(|queue| queue.waiting + queue.executing > 0));
            prop_assert!(states.iter().all(|queue| queue.waiting <= 3));
            prop_assert_eq!(states.iter().map(|queue| queue.seats_waiting).sum::<u32>(), totals.seats_waiting);
            // Nobody waits while all seats are free.
            prop_assert!(totals.waiting == 0 || totals.executing > 0 || set.limit() == 0);
        }
        // In the end everybody has been served.
        set.set_limit(now, 1);
        while let Some(ticket) = set.next_started() {
            waiting.retain(|own| *own != ticket);
            running.push(ticket);
        }
        while let Some(ticket) = running.pop() {
            now += SECOND;
            set.finish(now, ticket);
            while let Some(ticket) = set.next_started() {
                waiting.retain(|own| *own != ticket);
                running.push(ticket);
            }
        }
        prop_assert!(waiting.is_empty());
        prop_assert_eq!(set.totals(), Totals::default());
        prop_assert_eq!((set.queues.len(), set.requests.len()), (0, 0));
    }
}

/// What a request costs that finds a free seat: printed, and bounded for a build that is not optimized.
#[test]
fn a_free_seat_costs_little() {
    let mut set = QueueSet::new(queuing(128, 6, 50), 49, Duration::ZERO);
    let (began, rounds) = (std::time::Instant::now(), 20_000);
    for number in 0..rounds {
        let now = began.elapsed();
        let Decision::Starts(ticket) = set.arrive(now, &arrival(number % 7, 1)) else {
            panic!("there are seats");
        };
        set.finish(now, ticket);
    }
    let each = began.elapsed() / u32::try_from(rounds).unwrap();
    eprintln!("{each:?} for each request");
    assert!(each < Duration::from_micros(50), "{each:?}");
}
