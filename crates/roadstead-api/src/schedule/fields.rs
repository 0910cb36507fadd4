//! The five fields: what they may say, and what is wrong with what they say.

use super::Fields;

/// Which values a field has, and what they are called.
struct Bounds {
    least: u32,
    most: u32,
    names: &'static [&'static str],
}

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

const BOUNDS: [Bounds; 5] = [
    Bounds { least: 0, most: 59, names: &[] },
    Bounds { least: 0, most: 23, names: &[] },
    Bounds { least: 1, most: 31, names: &[] },
    Bounds { least: 1, most: 12, names: &MONTHS },
    Bounds { least: 0, most: 6, names: &DAYS },
];

/// Reads `minute hour day month weekday`.
pub(super) fn parse(text: &str) -> Result<Fields, String> {
    if text.is_empty() {
        return Err("empty spec string".to_owned());
    }
    let words: Vec<_> = text.split_whitespace().collect();
    if words.len() != BOUNDS.len() {
        let (count, all) = (words.len(), words.join(" "));
        return Err(format!("expected exactly 5 fields, found {count}: [{all}]"));
    }
    let mut values = [0; BOUNDS.len()];
    let mut whole = [false; BOUNDS.len()];
    for (field, (word, bounds)) in words.iter().zip(&BOUNDS).enumerate() {
        for part in word.split(',').filter(|part| !part.is_empty()) {
            let (bits, every) = range(part, bounds)?;
            values[field] |= bits;
            whole[field] |= every;
        }
    }
    let [minutes, hours, days, months, weekdays] = values;
    Ok(Fields { minutes, hours, days, months, weekdays, both_days: whole[2] || whole[4] })
}

/// `7`, `mon-fri`, `*/15`, `9-17/2`, `20/5`: the values, and whether that is simply all of them.
fn range(part: &str, bounds: &Bounds) -> Result<(u64, bool), String> {
    let (span, steps) =
        part.split_once('/').map_or((part, None), |(span, step)| (span, Some(step)));
    let (low, high) = span.split_once('-').map_or((span, None), |(low, high)| (low, Some(high)));
    let whole = matches!(low, "*" | "?");
    let (start, mut end) = match (whole, high) {
        (true, _) => (bounds.least, bounds.most),
        (false, None) => value(low, bounds).map(|value| (value, value))?,
        (false, Some(high)) if high.contains('-') => {
            return Err(format!("too many hyphens: {part}"));
        }
        (false, Some(high)) => (value(low, bounds)?, value(high, bounds)?),
    };
    let step = match steps {
        None => 1,
        Some(step) if step.contains('/') => return Err(format!("too many slashes: {part}")),
        Some(step) => {
            if !whole && high.is_none() {
                end = bounds.most;
            }
            number(step)?
        }
    };
    let Bounds { least, most, .. } = bounds;
    if start < *least {
        return Err(format!("beginning of range ({start}) below minimum ({least}): {part}"));
    }
    if end > *most {
        return Err(format!("end of range ({end}) above maximum ({most}): {part}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {part}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    let bits = (start..=end).step_by(step as usize).fold(0, |bits, value| bits | 1 << value);
    Ok((bits, whole && step == 1))
}

fn value(word: &str, bounds: &Bounds) -> Result<u32, String> {
    let lower = word.to_lowercase();
    let named = bounds.names.iter().position(|name| *name == lower);
    match named.and_then(|index| u32::try_from(index).ok()) {
        Some(index) => Ok(index + bounds.least),
        None => number(word),
    }
}

fn number(word: &str) -> Result<u32, String> {
    let digits = word.strip_prefix(['+', '-']).unwrap_or(word);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let why = if is_number { "value out of range" } else { "invalid syntax" };
    let failed =
        || format!("failed to parse int from {word}: strconv.Atoi: parsing {word:?}: {why}");
    let found: i64 = word.parse().map_err(|_| failed())?;
    match u32::try_from(found) {
        Ok(found) => Ok(found),
        Err(_) if found < 0 => Err(format!("negative number ({found}) not allowed: {word}")),
        Err(_) => Ok(u32::MAX),
    }
}
