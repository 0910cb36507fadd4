//! `@hourly` and its like, and `@every 90m`.

use jiff::SignedDuration;

use super::{Rule, fields};
use crate::duration;

const NAMED: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// Reads what begins with an `@`.
pub(super) fn parse(text: &str) -> Result<Rule, String> {
    if let Some((_, fields)) = NAMED.iter().find(|(name, _)| *name == text) {
        return fields::parse(fields).map(Rule::Clock);
    }
    let Some(period) = text.strip_prefix("@every ") else {
        return Err(format!("unrecognized descriptor: {text}"));
    };
    let wrong = |why: String| format!("failed to parse duration {text}: {why}");
    let period = duration::parse(period).map_err(wrong)?;
    // Less than a second is a second, and parts of one do not count.
    Ok(Rule::Every(SignedDuration::from_secs(period.as_secs().max(1))))
}
