//! `sleep SECONDS | infinity`.

use std::thread;
use std::time::Duration;

pub(super) fn main(arguments: &[String]) -> i32 {
    let mut total = Duration::ZERO;
    for argument in arguments {
        match parse(argument) {
            Some(time) => total = total.saturating_add(time),
            None => {
                eprintln!("sleep: invalid number '{argument}'");
                return 1;
            }
        }
    }
    if arguments.is_empty() {
        eprintln!("Usage: sleep [N]...");
        return 1;
    }
    thread::sleep(total);
    0
}

fn parse(text: &str) -> Option<Duration> {
    if text == "infinity" {
        return Some(Duration::MAX);
    }
    let (number, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let unit = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let cases = [
            ("5", Some(5.0)),
            ("0.25", Some(0.25)),
            ("2m", Some(120.0)),
            ("1x", None),
            ("", None),
            ("-1", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse(text).map(|time| time.as_secs_f64()), want, "{text}");
        }
        assert_eq!(parse("infinity"), Some(Duration::MAX));
    }
}
