//! Amounts that are added up and compared: nothing is lost, and they are written as Kubernetes writes
//! them, for people compare the sums of a quota with what they asked for.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

const UNIT: i128 = 1_000_000_000;
/// So much that two of them can still be added.
const MOST: i128 = i128::MAX / 4;

/// An amount, to a billionth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quantity {
    billionths: i128,
    form: Form,
}

/// In which units an amount is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Form {
    /// `1500m`, `2k`.
    #[default]
    Decimal,
    /// `1536Mi`.
    Binary,
    /// `1e3`.
    Exponent,
}

const DECIMAL: [(&str, u32); 10] = [
    ("n", 0),
    ("u", 3),
    ("m", 6),
    ("", 9),
    ("k", 12),
    ("M", 15),
    ("G", 18),
    ("T", 21),
    ("P", 24),
    ("E", 27),
];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

impl Quantity {
    /// So many things.
    pub fn count(number: usize) -> Self {
        let number = i128::try_from(number).unwrap_or(MOST / UNIT);
        Self { billionths: number * UNIT, form: Form::Decimal }
    }

    /// What a text says; `None` if it is no quantity. What is smaller than a billionth is rounded up.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_suffix = |letter: char| letter.is_ascii_alphabetic();
        let (number, suffix) = text.split_at(text.find(is_suffix).unwrap_or(text.len()));
        let (power, binary, form) = match suffix {
            binary if binary.ends_with('i') => {
                let steps = BINARY[1..].iter().position(|known| *known == binary)? + 1;
                (9, 1_i128 << (10 * steps), Form::Binary)
            }
            suffix => match DECIMAL.iter().find(|(known, _)| *known == suffix) {
                Some((_, power)) => (i32::try_from(*power).ok()?, 1, Form::Decimal),
                None => {
                    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
                    (exponent.checked_add(9)?, 1, Form::Exponent)
                }
            },
        };
        let billionths = scaled(number, power, binary)?;
        Some(Self { billionths, form })
    }

    /// Whether it is less than nothing.
    pub(crate) fn is_negative(self) -> bool {
        self.billionths < 0
    }

    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.billionths == 0
    }

    /// Whether it is a number of whole things.
    pub fn is_whole(self) -> bool {
        self.billionths % UNIT == 0
    }

    /// Both together, written as the first that is something.
    pub fn plus(self, other: Self) -> Self {
        let form = if self.is_zero() { other.form } else { self.form };
        let billionths = self.billionths.saturating_add(other.billionths);
        Self { billionths: billionths.clamp(-MOST, MOST), form }
    }

    /// What is left; less than nothing, if it was not enough.
    pub fn minus(self, other: Self) -> Self {
        self.plus(Self { billionths: -other.billionths, ..other })
    }

    /// So many thousandths, as decimal text has them: `250m`, `64M`.
    pub fn thousandths(number: i64) -> Self {
        Self { billionths: i128::from(number) * (UNIT / 1000), form: Form::Decimal }
    }

    /// How many thousandths it is; a part of one counts as one.
    pub fn in_thousandths(self) -> i64 {
        let thousandth = UNIT / 1000;
        let whole = self.billionths.div_euclid(thousandth);
        let more = i128::from(self.billionths.rem_euclid(thousandth) != 0);
        i64::try_from(whole + more).unwrap_or(i64::MAX)
    }

    /// As a number that is not exact.
    pub fn approximate(self) -> f64 {
        self.billionths as f64 / UNIT as f64
    }
}

/// A decimal number times ten to a power, times a factor; rounded away from zero.
fn scaled(number: &str, power: i32, factor: i128) -> Option<i128> {
    let (negative, digits) = match number.as_bytes().first()? {
        b'-' => (true, &number[1..]),
        b'+' => (false, &number[1..]),
        _ => (false, number),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || whole.len() + fraction.len() == 0 {
        return None;
    }
    let mut found: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()).map(|byte| i128::from(byte - b'0')) {
        found = found.saturating_mul(10).saturating_add(digit).min(MOST);
    }
    found = found.saturating_mul(factor).min(MOST);
    let power = power - i32::try_from(fraction.len()).ok()?;
    let ten = |power: i32| 10_i128.checked_pow(power.unsigned_abs());
    found = match power {
        0.. => ten(power)
            .map_or(if found == 0 { 0 } else { MOST }, |ten| found.saturating_mul(ten).min(MOST)),
        // There is always something of what was not nothing.
        _ => ten(power)
            .map_or(i128::from(found > 0), |ten| found / ten + i128::from(found % ten != 0)),
    };
    Some(if negative { -found } else { found })
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.billionths == other.billionths
    }
}

impl Eq for Quantity {}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.billionths.cmp(&other.billionths)
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The canonical form: no fraction, and the largest unit that needs none. An amount in binary units
/// that is small, or no whole number, is written in decimal ones.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("0");
        }
        let whole = self.billionths / UNIT;
        if self.form == Form::Binary && self.is_whole() && whole.abs() >= 1024 {
            let steps = (whole.trailing_zeros() / 10).min(6);
            return write!(f, "{}{}", whole >> (10 * steps), BINARY[steps as usize]);
        }
        let (mut mantissa, mut power) = (self.billionths, 0);
        while mantissa % 1000 == 0 && power < 27 {
            mantissa /= 1000;
            power += 3;
        }
        match self.form {
            Form::Exponent if power != 9 => write!(f, "{mantissa}e{}", i64::from(power) - 9),
            _ => write!(f, "{mantissa}{}", DECIMAL[power as usize / 3].0),
        }
    }
}

/// Amounts by what they are of.
pub type Amounts = BTreeMap<String, Quantity>;

/// Reads amounts from an object; what is no quantity is left out.
pub fn amounts(object: &Value) -> Amounts {
    let fields = object.as_object().into_iter().flatten();
    let read = |(name, value): (&String, &Value)| {
        let quantity = match value {
            Value::String(text) => Quantity::parse(text),
            Value::Number(number) => Quantity::parse(&number.to_string()),
            _ => None,
        };
        Some((name.clone(), quantity?))
    };
    fields.filter_map(read).collect()
}

/// The amounts as they stand in an object.
pub fn to_json(amounts: &Amounts) -> Value {
    let fields = amounts.iter().map(|(name, amount)| (name.clone(), amount.to_string().into()));
    Value::Object(fields.collect())
}

/// Adds amounts to others.
pub fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let own = sum.entry(name.clone()).or_default();
        *own = own.plus(*amount);
    }
}

/// `cpu=1,memory=1Gi`.
pub fn listed(amounts: &Amounts) -> String {
    let all: Vec<_> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    all.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_kubernetes_writes_them() {
        for (text, want) in [
            ("1", "1"),
            ("0", "0"),
            ("0Mi", "0"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("0.1", "100m"),
            ("2000", "2k"),
            ("1500000", "1500k"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("0.5Ki", "512"),
            ("1024", "1024"),
            ("1000Ki", "1000Ki"),
            ("0.0001Ki", "102400u"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("1e0", "1"),
            ("0.1n", "1n"),
            ("-500m", "-500m"),
            ("+5", "5"),
            (" 5 ", "5"),
            ("10E", "10E"),
        ] {
            let found = Quantity::parse(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(found.to_string(), want, "{text}");
        }
        for bad in ["", "x", "1 Gi", "1.2.3", ".", "1Gb", "--1", "Ki", "1ei"] {
            assert_eq!(Quantity::parse(bad), None, "{bad}");
        }
        for huge in ["1e40", "9".repeat(60).as_str(), "9999999999Ei"] {
            let huge = Quantity::parse(huge).unwrap();
            assert!(huge.plus(huge) >= huge && huge > Quantity::count(1), "{huge}");
        }
        assert_eq!(Quantity::parse("1e-40").unwrap().to_string(), "1e-9");
    }

    #[test]
    fn sums() {
        // Sum and difference, in the units of the first that is something.
        for (one, other, sum, rest) in [
            ("1Gi", "512Mi", "1536Mi", "512Mi"),
            ("0", "512Mi", "512Mi", "-512Mi"),
            ("1", "250m", "1250m", "750m"),
            ("1Gi", "1G", "2073741824", "73741824"),
        ] {
            let [one, other] = [one, other].map(|text| Quantity::parse(text).unwrap());
            assert_eq!(one.plus(other).to_string(), sum);
            assert_eq!(one.minus(other).to_string(), rest);
        }
    }
}
