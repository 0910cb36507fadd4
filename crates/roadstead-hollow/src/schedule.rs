//! When things are due. Pure.

use std::time::Duration;

/// The moments at which one of many does what all of them do in each period: they are spread evenly.
pub(crate) fn beats(
    number: u32,
    all: u32,
    period: Duration,
) -> impl Iterator<Item = Duration> + use<> {
    let first = period * number / all.max(1);
    (0u32..).map(move |beat| first + period * beat)
}

/// Moments that come at a rate, independently of each other, as requests of many clients do.
pub(crate) fn arrivals(rate: f64, seed: u64) -> impl Iterator<Item = Duration> + use<> {
    let (mut at, mut state) = (0.0, seed);
    std::iter::from_fn(move || {
        if rate <= 0.0 {
            return None;
        }
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // In (0, 1]: the time to the next is exponentially distributed.
        let part = ((mixed(state) >> 11) as f64 + 1.0) / (1u64 << 53) as f64;
        at += -part.ln() / rate;
        Some(Duration::from_secs_f64(at))
    })
}

/// How long a pod takes to run: between half a second and two, by its number.
pub(crate) fn stage(number: u64) -> Duration {
    Duration::from_millis(500 + mixed(number) % 1_500)
}

fn mixed(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beats_are_spread() {
        for (number, all, period, want) in [
            (0, 4, 10, [0, 10_000, 20_000]),
            (1, 4, 10, [2_500, 12_500, 22_500]),
            (3, 4, 10, [7_500, 17_500, 27_500]),
            (0, 0, 300, [0, 300_000, 600_000]),
        ] {
            let found = beats(number, all, Duration::from_secs(period)).take(3);
            let found: Vec<_> = found.map(|at| at.as_millis()).collect();
            assert_eq!(found, want, "{number} of {all}");
        }
    }

    #[test]
    fn arrivals_come_at_their_rate() {
        for (rate, seed) in [(1.0, 1), (20.0, 2), (500.0, 3)] {
            let until = Duration::from_secs_f64(2_000.0 / rate);
            let all: Vec<_> = arrivals(rate, seed).take_while(|at| *at < until).collect();
            assert!((1_800..2_200).contains(&all.len()), "{rate}: {}", all.len());
            assert!(all.is_sorted(), "{rate}");
            // In half of the usual distance the next comes with a probability of 1 - 1/√e.
            let soon = all.windows(2).filter(|two| (two[1] - two[0]).as_secs_f64() < 0.5 / rate);
            let share = soon.count() as f64 / all.len() as f64;
            assert!((0.35..0.44).contains(&share), "{rate}: {share}");
            assert_eq!(arrivals(rate, seed).next(), all.first().copied(), "a seed repeats them");
        }
        assert_eq!(arrivals(0.0, 1).next(), None);
    }

    #[test]
    fn pods_run_after_a_while() {
        let all: Vec<_> = (0..1_000).map(stage).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(least.as_millis() >= 500 && most.as_millis() < 2_000);
        assert!(least.as_millis() < 520 && most.as_millis() > 1_980, "{least:?} {most:?}");
    }
}
