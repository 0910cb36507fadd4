//! Texts that are more than text: moments, bytes and quantities.
//!
//! A typed client that cannot read one of them cannot read the whole list that it is in, so what Go
//! would refuse is refused here, in Go's words; and what Go would accept is accepted.

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::Offset;

const RFC_3339: &str = "2006-01-02T15:04:05Z07:00";

/// A moment in the form in which upstream stores it: UTC, in whole seconds.
pub(super) fn time(text: &str) -> Result<String, String> {
    let moment = moment(text).ok_or_else(|| not_a_time(text))?;
    let whole = Timestamp::from_second(moment.as_second()).map_err(|_| not_a_time(text))?;
    Ok(whole.to_string())
}

/// A moment with microseconds, as it is written.
pub(super) fn micro_time(text: &str) -> Result<String, String> {
    let moment = moment(text).ok_or_else(|| not_a_time(text))?;
    Ok(format!("{moment:.6}"))
}

fn not_a_time(text: &str) -> String {
    format!("parsing time {text:?} as {RFC_3339:?}: cannot parse {text:?} as \"2006\"")
}

/// As Go reads RFC 3339: hours may have one digit, and fractions a comma.
fn moment(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_once('T')?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let end = rest.find(['Z', '+', '-'])?;
    let (clock, zone) = rest.split_at(end);
    let (clock, fraction) = clock.split_once(['.', ',']).unwrap_or((clock, "0"));
    let padded = if clock.find(':') == Some(1) { format!("0{clock}") } else { clock.to_owned() };
    let [hour, minute, second] = numbers(&padded, ':', [2, 2, 2])?;
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit()) && !fraction.is_empty();
    let nanoseconds: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds = digits.then(|| nanoseconds.parse().ok())??;
    let date = Date::new(year, i8::try_from(month).ok()?, i8::try_from(day).ok()?).ok()?;
    let small = |number| i8::try_from(number).ok();
    let time = Time::new(small(hour)?, small(minute)?, small(second)?, nanoseconds).ok()?;
    offset(zone)?.to_timestamp(date.to_datetime(time)).ok()
}

fn offset(zone: &str) -> Option<Offset> {
    if zone == "Z" {
        return Some(Offset::UTC);
    }
    let [hours, minutes] = numbers(&zone[1..], ':', [2, 2])?;
    let seconds = (i32::from(hours) * 60 + i32::from(minutes)) * 60;
    let seconds = if zone.starts_with('-') { -seconds } else { seconds };
    (hours <= 24 && minutes < 60).then(|| Offset::from_seconds(seconds).ok())?
}

/// Numbers of exactly so many digits.
fn numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[i16; N]> {
    let mut parts = text.split(between);
    let mut found = [0; N];
    for (found, digits) in found.iter_mut().zip(digits) {
        let part = parts.next()?;
        let fits = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        *found = fits.then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(found)
}

/// Checks bytes in base64, which may have line breaks.
pub(super) fn bytes(text: &str) -> Result<(), String> {
    let wrong = |at: usize| Err(format!("illegal base64 data at input byte {at}"));
    let mut letters = 0;
    let mut padding = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\r' | b'\n' => {}
            b'=' if letters % 4 >= 2 && (letters + padding) % 4 != 0 => padding += 1,
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'+' | b'/' if padding == 0 => letters += 1,
            _ => return wrong(at),
        }
    }
    if (letters + padding) % 4 == 0 { Ok(()) } else { wrong(text.len()) }
}

const QUANTITY: &str = "quantities must match the regular expression \
    '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// Checks a quantity such as `500m` or `1.5Gi`.
pub(super) fn quantity(text: &str) -> Result<(), String> {
    let text = text.trim();
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let digits = number.bytes().filter(u8::is_ascii_digit).count();
    if digits == 0 || number.matches('.').count() > 1 {
        return Err(QUANTITY.into());
    }
    match suffix {
        "" | "n" | "u" | "m" | "k" | "M" | "G" | "T" | "P" | "E" => Ok(()),
        "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei" => Ok(()),
        exponent if exponent.starts_with(['e', 'E']) => {
            let power = exponent[1..].strip_prefix(['+', '-']).unwrap_or(&exponent[1..]);
            let fits = power.bytes().all(|byte| byte.is_ascii_digit());
            match power.parse::<i32>() {
                Ok(_) if fits => Ok(()),
                _ => Err("unable to parse quantity's suffix".into()),
            }
        }
        letters if letters.bytes().all(|byte| b"eEinumkKMGTP".contains(&byte)) => {
            Err("unable to parse quantity's suffix".into())
        }
        _ => Err(QUANTITY.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let cases = [
            ("2024-02-29T01:02:03Z", Some("2024-02-29T01:02:03Z")),
            ("2024-02-29T01:02:03.999999999Z", Some("2024-02-29T01:02:03Z")),
            ("2024-02-29T01:02:03,5Z", Some("2024-02-29T01:02:03Z")),
            ("2024-02-29T1:02:03+02:00", Some("2024-02-28T23:02:03Z")),
            ("2024-02-29T23:02:03-02:30", Some("2024-03-01T01:32:03Z")),
            ("0001-01-01T00:00:00Z", Some("0001-01-01T00:00:00Z")),
            ("2023-02-29T01:02:03Z", None),
            ("2024-02-29T01:02:60Z", None),
            ("2024-02-29T24:02:03Z", None),
            ("2024-02-29 01:02:03Z", None),
            ("2024-02-29t01:02:03z", None),
            ("2024-02-29T01:02:03", None),
            ("2024-02-29T01:02:03.Z", None),
            ("2024-02-29T01:02:03+0200", None),
            ("2024-2-29T01:02:03Z", None),
            ("yesterday", None),
            ("", None),
            ("T-", None),
            ("2024-02-29T01:02:03é", None),
        ];
        for (text, want) in cases {
            assert_eq!(time(text).ok().as_deref(), want, "{text}");
        }
        assert_eq!(micro_time("2024-02-29T01:02:03.5Z").unwrap(), "2024-02-29T01:02:03.500000Z");
        assert_eq!(
            time("x").unwrap_err(),
            "parsing time \"x\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"x\" as \"2006\""
        );
    }

    #[test]
    fn base64() {
        for good in ["", "YQ==", "YWI=", "YWJj", "YWJj\nYQ==\r\n", "YR=="] {
            assert_eq!(bytes(good), Ok(()), "{good:?}");
        }
        for (bad, at) in
            [("YQ", 2), ("Y", 1), ("YQ=", 3), ("a-b_", 1), ("YQ==YQ==", 4), ("====", 0), ("é", 0)]
        {
            let want = Err(format!("illegal base64 data at input byte {at}"));
            assert_eq!(bytes(bad), want, "{bad:?}");
        }
    }

    #[test]
    fn quantities() {
        for good in
            ["1", "0.5", "+1", "-1", " 2 ", ".5", "5.", "500m", "1.5Gi", "1e3", "1E-3", "1E"]
        {
            assert_eq!(quantity(good), Ok(()), "{good:?}");
        }
        for bad in ["", "x", "1.2.3", ".", "1 Gi", "1Gb", "--1", "1é"] {
            assert_eq!(quantity(bad), Err(QUANTITY.to_owned()), "{bad:?}");
        }
        for bad in ["1KiB", "1ki", "1e", "1e99999999999"] {
            assert!(quantity(bad).is_err(), "{bad:?}");
        }
    }
}
