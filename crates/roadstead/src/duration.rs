//! Times on the command line, as Kubernetes writes them: `8760h`, `1h30m`, `10s`.

use std::time::Duration;

/// Reads hours, minutes and seconds, in this order.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time such as 8760h or 1h30m");
    let mut rest = text;
    let mut seconds = 0_u64;
    for (unit, length) in [('h', 3600), ('m', 60), ('s', 1)] {
        if let Some((number, after)) = rest.split_once(unit) {
            let number: u32 = number.parse().map_err(|_| wrong())?;
            seconds += u64::from(number) * length;
            rest = after;
        }
    }
    if rest.is_empty() && seconds > 0 { Ok(Duration::from_secs(seconds)) } else { Err(wrong()) }
}

#[test]
fn times() {
    for (text, want) in [
        ("8760h", Some(31_536_000)),
        ("1h30m", Some(5400)),
        ("90m", Some(5400)),
        ("10s", Some(10)),
        ("0s", None),
        ("10", None),
        ("", None),
        ("h", None),
        ("1m1h", None),
        ("-1h", None),
    ] {
        assert_eq!(parse(text).ok().map(|time| time.as_secs()), want, "{text}");
    }
}
