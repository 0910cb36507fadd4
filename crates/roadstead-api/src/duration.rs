//! Lengths of time as Go writes them: `1h30m`, `90s`, `1.5h`.

use jiff::SignedDuration;

/// Reads a length; says what is wrong with it in Go's words.
pub fn parse(text: &str) -> Result<SignedDuration, String> {
    let wrong = || format!("time: invalid duration {text:?}");
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if unsigned == "0" {
        return Ok(SignedDuration::ZERO);
    }
    let mut total = 0.0;
    let mut rest = unsigned;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let factor = match unit {
            "h" => 3.6e12,
            "m" => 6e10,
            "s" => 1e9,
            "ms" => 1e6,
            "us" | "µs" | "μs" => 1e3,
            "ns" => 1.0,
            "" => return Err(format!("time: missing unit in duration {text:?}")),
            unit => return Err(format!("time: unknown unit {unit:?} in duration {text:?}")),
        };
        total += number * factor;
        rest = after;
    }
    let nanoseconds = if text.starts_with('-') { -(total as i64) } else { total as i64 };
    match total < i64::MAX as f64 {
        true => Ok(SignedDuration::from_nanos(nanoseconds)),
        false => Err(wrong()),
    }
}

#[test]
fn lengths() {
    for (text, want) in [
        ("1h30m", Some(5400.0)),
        ("1.5h", Some(5400.0)),
        ("15.03s", Some(15.03)),
        ("-2m", Some(-120.0)),
        ("0", Some(0.0)),
        ("250ms", Some(0.25)),
        ("5", None),
        ("x", None),
        ("1d", None),
        ("", None),
        ("9999999999h", None),
    ] {
        assert_eq!(parse(text).ok().map(|length| length.as_secs_f64()), want, "{text}");
    }
}
